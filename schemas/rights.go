package schemas

import (
	"path"
	"slices"
	"strings"
)

// Source returns a source by its name; nil when the Fleet names none so.
func (f *Fleet) Source(name string) *FleetSource {
	for i := range f.Spec.Sources {
		if f.Spec.Sources[i].Name == name {
			return &f.Spec.Sources[i]
		}
	}
	return nil
}

// AllowsNamespace reports whether what a source says of a namespace counts. The repository of the Fleet, whose name is empty,
// may speak of all.
func (f *Fleet) AllowsNamespace(source, namespace string) bool {
	if source == "" {
		return true
	}
	rights := f.Source(source)
	return rights != nil && rights.allowsNamespace(namespace)
}

func (s *FleetSource) allowsNamespace(namespace string) bool {
	return !s.Doubt && slices.Contains(s.Namespaces, namespace)
}

// allowsPath reports whether a file or folder of a host is one that the source was given, or is below one. Names are compared
// part by part, so that /srv/a does not give /srv/ab away; where links of the host lead is for the host to say.
func (s *FleetSource) allowsPath(file string) bool {
	if !strings.HasPrefix(file, "/") || hasDotDot(file) {
		return false
	}
	file = path.Clean(file)
	return slices.ContainsFunc(s.HostPaths, func(given string) bool { return file == given || strings.HasPrefix(file, given+"/") })
}

// allowsNetwork reports whether a machine of a namespace may join a network.
func (s *FleetSource) allowsNetwork(network Address, namespace string) bool {
	return slices.ContainsFunc(s.Networks, func(given string) bool {
		in, name, two := strings.Cut(given, "/")
		if !two {
			in, name = namespace, given
		}
		return network.Namespace == in && network.Name == name
	})
}

func (s *FleetSource) allows(right SourceRight) bool { return slices.Contains(s.Allow, right) }
