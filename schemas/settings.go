package schemas

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Settings are what the annotations of a machine tell gitvirt.
type Settings struct {
	// Protect keeps the machine from being destroyed or replaced, and its data from being destroyed.
	Protect bool
	// Adopt is the name of the libvirt domain that becomes this machine; empty for none.
	Adopt string
	// PreviousName is the namespace and name that the machine had; zero for none. Its Kind is that of the machine.
	PreviousName Address
	// DependsOn are the machines that have to be ready first, as they are written.
	DependsOn []Dependency
	// Ready is when the machine counts as ready; the zero value leaves it to its readiness probe.
	Ready Ready

	// positions are where settings that are checked between files stand, by the annotation's name.
	positions map[string]Position
}

// Dependency is a machine, or a set of machines, that has to be ready first.
type Dependency struct {
	Namespace, Name string
	// Ready is when it is; the zero value leaves it to what it says of itself.
	Ready Ready
}

// maxDependencies bounds the dependencies of one machine.
const maxDependencies = 64

// settings reads gitvirt's annotations of a machine, or of the machines of a set. What is wrong counts as not said. Those that
// the document does not have are of the set around it, and were read there.
func (c *checker) settings(w *draft, annotations map[string]string) {
	s := &w.settings
	for _, setting := range []struct {
		name string
		read func(s *Settings, w *draft, path []any, value string) (between bool)
	}{
		{AnnotationProtect, c.protect},
		{AnnotationAdopt, c.adopt},
		{AnnotationPreviousName, c.previousName},
		{AnnotationDependsOn, c.dependsOn},
		{AnnotationReady, c.ready},
	} {
		value, given := annotations[setting.name]
		if !given {
			continue
		}
		path := at("metadata", "annotations", key(setting.name))
		n, here := locateAll(c.root, path)
		if here && setting.read(s, w, path, value) {
			if s.positions == nil {
				s.positions = map[string]Position{}
			}
			s.positions[setting.name] = c.position(n)
		}
	}
	if s.Adopt != "" && !s.PreviousName.IsZero() {
		c.fail(at("metadata", "annotations", key(AnnotationAdopt)), "a machine that had another name is gitvirt's already", "keep one of "+AnnotationAdopt+" and "+AnnotationPreviousName)
	}
}

// protect and the functions below read one setting each and report whether it has to be checked between files.
func (c *checker) protect(s *Settings, _ *draft, path []any, value string) bool {
	on, err := strconv.ParseBool(value)
	if err != nil {
		c.fail(path, quoteValue(value)+" is neither true nor false", `write "true"`)
	}
	s.Protect = on
	return false
}

func (c *checker) adopt(s *Settings, w *draft, path []any, value string) bool {
	switch {
	case c.settingOfOne(w, path):
	case strings.TrimSpace(value) == "":
		c.fail(path, "no name of a domain", "write the name that virsh list --all shows")
	case strings.ContainsAny(value, "/\n") || len(value) > maxDomainName || printable(value) != value:
		c.fail(path, quoteValue(value)+" cannot be the name of a libvirt domain", "write the name that virsh list --all shows")
	default:
		s.Adopt = value
		return true
	}
	return false
}

func (c *checker) previousName(s *Settings, w *draft, path []any, value string) bool {
	if c.settingOfOne(w, path) {
		return false
	}
	namespace, name, problem := machineName(value, w.address.Namespace)
	switch {
	case problem != "":
		c.fail(path, problem, "write NAME or NAMESPACE/NAME")
	case namespace == w.address.Namespace && name == w.address.Name:
		c.fail(path, quoteValue(value)+" is the name that it has", "write the one that it had, or remove the annotation")
	default:
		s.PreviousName = Address{Kind: w.memberKind(), Namespace: namespace, Name: name}
		return true
	}
	return false
}

// settingOfOne refuses what only one machine can be: the machines of a set are several.
func (c *checker) settingOfOne(w *draft, path []any) bool {
	if w.set == nil {
		return false
	}
	c.fail(path, "it names one domain, and a set has several machines", "write the machine as a VirtualMachine")
	return true
}

func (c *checker) dependsOn(s *Settings, w *draft, path []any, value string) bool {
	broke := false
	fail := func(message, fix string) {
		c.fail(path, message, fix)
		broke = true
	}
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		text, readyText, hasReady := strings.Cut(item, "=")
		if item == "" {
			fail("an entry is empty", `write it as "db-1, infra/dns=tcp:53"`)
			break
		}
		one := Dependency{}
		var problem string
		if one.Namespace, one.Name, problem = machineName(strings.TrimSpace(text), w.address.Namespace); problem != "" {
			fail(problem, "write NAME, NAMESPACE/NAME or NAME=tcp:53")
			continue
		}
		if hasReady {
			var err error
			if one.Ready, err = ParseReady(strings.TrimSpace(readyText)); err != nil {
				fail(fmt.Sprintf("%s: %s", quoteValue(item), err), "write it as "+one.Name+"=tcp:53")
				continue
			}
		}
		same := func(other Dependency) bool { return other.Namespace == one.Namespace && other.Name == one.Name }
		switch {
		case one.Namespace == w.address.Namespace && one.Name == w.address.Name:
			fail(quoteValue(text)+" would wait for itself", "remove it")
		case slices.ContainsFunc(s.DependsOn, same):
			fail(quoteValue(text)+" is named twice", "remove one")
		case len(s.DependsOn) == maxDependencies:
			fail(fmt.Sprintf("more than %d machines", maxDependencies), "depend on those that depend on the others")
			return false
		default:
			s.DependsOn = append(s.DependsOn, one)
		}
	}
	return !broke
}

func (c *checker) ready(s *Settings, w *draft, path []any, value string) bool {
	ready, err := ParseReady(strings.TrimSpace(value))
	switch {
	case err != nil:
		words := make([]string, 0, len(readyKinds()))
		for _, kind := range readyKinds() {
			words = append(words, string(kind))
		}
		fix := "write one of them"
		if near := closest(value, words); near != "" && near != string(ReadyTCP) {
			fix = fmt.Sprintf("did you mean %s?", near)
		}
		c.fail(path, err.Error(), fix)
	case ready.Kind == ReadyProbe && w.object.Spec.Template != nil && w.object.Spec.Template.Spec.ReadinessProbe == nil:
		c.fail(path, "the machine has no readinessProbe", "write one, or another way to tell that it is ready")
	default:
		s.Ready = ready
	}
	return false
}

// DependenciesOf reads the dependencies of a machine that was applied once, whose annotations were checked then. What cannot
// be read is left out.
func DependenciesOf(annotations map[string]string, namespace string) []Dependency {
	var out []Dependency
	for item := range strings.SplitSeq(annotations[AnnotationDependsOn], ",") {
		text, readyText, _ := strings.Cut(strings.TrimSpace(item), "=")
		one := Dependency{}
		var problem string
		if one.Namespace, one.Name, problem = machineName(strings.TrimSpace(text), namespace); problem != "" {
			continue
		}
		one.Ready, _ = ParseReady(strings.TrimSpace(readyText)) // the zero value where nothing is said
		out = append(out, one)
	}
	return out
}

// machineName reads NAME or NAMESPACE/NAME.
func machineName(text, namespace string) (inNamespace, name, problem string) {
	name = text
	if before, after, ok := strings.Cut(text, "/"); ok {
		namespace, name = before, after
	}
	if problem := nameProblem(namespace, 63, false); problem != "" {
		return "", "", problem
	}
	if problem := nameProblem(name, 253, true); problem != "" {
		return "", "", problem
	}
	return namespace, name, ""
}
