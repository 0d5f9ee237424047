package schemas

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The bounds of sources: what is looked through for each machine.
const (
	maxSources      = 1000
	maxSourceRights = 1000
)

// sources checks a Fleet's spec.sources. A source with mistakes stays in the list, in doubt.
func (c *checker) sources(sources []FleetSource) {
	list := at("spec", "sources")
	if len(sources) > maxSources {
		c.fail(list, fmt.Sprintf("%d sources, at most %d are allowed", len(sources), maxSources), "use several Fleets")
		return
	}
	seen := make(map[string]bool, len(sources))
	for i := range sources {
		path := slices.Concat(list, at(i, "name"))
		switch name := sources[i].Name; {
		case name == "":
			c.fail(path, "no name", "write one, such as name: team-a")
		case labelProblem(name) != "":
			c.fail(path, labelProblem(name), "use lower case letters, digits and dashes, such as team-a")
		case seen[name]:
			c.fail(path, quoteValue(name)+" is the name of another source already", "rename one")
		default:
			seen[name] = true
		}
		c.checkSource(slices.Concat(list, at(i)), &sources[i])
	}
	for i := range sources {
		sources[i].Doubt = c.reported(slices.Concat(list, at(i))) || c.misread(slices.Concat(list, at(i)))
	}
}

func (c *checker) checkSource(entry []any, s *FleetSource) {
	in := func(parts ...any) []any { return slices.Concat(entry, parts) }
	c.sourceURL(in("git", "url"), s.Git.URL)
	if problem := branchProblem(s.Git.Branch); problem != "" {
		c.fail(in("git", "branch"), problem, "use a name such as main")
	}
	if folder := s.Git.Path; folder != "" && (path.Clean("/"+folder) != "/"+strings.TrimPrefix(folder, "/") || hasDotDot(folder)) {
		c.fail(in("git", "path"), quoteValue(folder)+" is not a folder of a repository", "write it as machines/prod")
	}
	if len(s.Namespaces) == 0 {
		c.fail(in("namespaces"), "no namespace, so nothing of the source could count", "list those that its machines may be in")
	}
	for _, list := range []struct {
		name    string
		values  []string
		problem func(string) string
		fix     string
	}{
		{"namespaces", s.Namespaces, labelProblem, "use lower case letters, digits and dashes"},
		{"hostPaths", s.HostPaths, prefixProblem, "write an absolute path such as /srv/images/team-a"},
		{"networks", s.Networks, networkNameProblem, "write it as NAMESPACE/NAME, or NAME for one of the machine's own namespace"},
	} {
		if n := len(list.values); n > maxSourceRights {
			c.fail(in(list.name), fmt.Sprintf("%d entries, at most %d are allowed", n, maxSourceRights), "remove some")
			continue
		}
		for i, value := range list.values {
			if problem := list.problem(value); problem != "" {
				c.fail(in(list.name, i), problem, list.fix)
			}
		}
	}
	for i, right := range s.Allow {
		if right == "" {
			c.fail(in("allow", i), "an empty right", "remove it")
		}
		oneOf(c, func() []any { return in("allow", i) }, right, sourceRights()...)
	}
	c.quota(in("quota"), s.Quota)
	c.trust(in("trust"), s.Trust)
}

// sourceURL checks the address of a repository. What is wrong with one that may hold a password is told without it.
func (c *checker) sourceURL(path []any, address string) {
	const readable = "the URL holds a user name or a password, which everybody who reads the repository sees"
	if address == "" {
		c.fail(path, "no URL", "write the address of the repository, such as https://git.example.com/team-a/machines.git")
		return
	}
	if !strings.Contains(address, "://") { // user@host:path, or a path of the controller's host
		if strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			c.fail(path, quoteValue(address)+" is not the address of a repository", "write it as https://HOST/PATH or USER@HOST:PATH")
		}
		return
	}
	parsed, err := url.Parse(address)
	switch {
	case err != nil:
		c.fail(path, "it is not a URL", "write it as https://HOST/PATH")
	case !slices.Contains([]string{"https", "http", "ssh", "git", "file"}, parsed.Scheme):
		c.fail(path, quoteValue(parsed.Scheme)+" is no scheme of git", "use https, http, ssh, git or file")
	case parsed.Scheme != "file" && parsed.Host == "":
		c.fail(path, "the URL names no host", "write it as https://HOST/PATH")
	case parsed.User == nil:
	case parsed.Scheme != "ssh":
		c.fail(path, readable, "give the controller the credentials as files")
	default:
		if _, password := parsed.User.Password(); password {
			c.fail(path, readable, "give the controller a key as a file")
		}
	}
}

// prefixProblem says why p is not a file or a folder of a host that could be given away; "" when it is.
func prefixProblem(p string) string {
	switch {
	case p == "/":
		return "it is the whole host"
	case strings.HasSuffix(p, "/"):
		return quoteValue(p) + " ends in /"
	}
	return pathProblem(p)
}

// networkNameProblem says why s is not the name of a network, with or without its namespace; "" when it is.
func networkNameProblem(s string) string {
	namespace, name, two := strings.Cut(s, "/")
	if !two {
		namespace, name = DefaultNamespace, s
	}
	if labelProblem(namespace) != "" || !isToken(name) {
		return quoteValue(s) + " is not the name of a network"
	}
	return ""
}

// quota checks the bounds of a source. 0 would be no bound.
func (c *checker) quota(path []any, q *FleetQuota) {
	if q == nil {
		return
	}
	in := func(field string) []any { return slices.Concat(path, at(field)) }
	for _, count := range []struct {
		name  string
		value int
	}{{"vms", q.VMs}, {"cpus", q.CPUs}} {
		if count.value < 0 || count.value == 0 && c.wasGiven(in(count.name)) {
			c.fail(in(count.name), fmt.Sprintf("%d is no bound", count.value), "write 1 or more, or leave it out for as many as there are")
		}
	}
	for _, size := range []struct {
		name  string
		value *resource.Quantity
	}{{"memory", &q.Memory}, {"storage", &q.Storage}} {
		if c.wasGiven(in(size.name)) && (size.value.Sign() <= 0 || !wholeBytes(size.value)) {
			c.fail(in(size.name), printable(size.value.String())+" is no bound", "write a size such as 64Gi, or leave it out for as much as there is")
		}
	}
}

// sourcesInDoubt reports whether a mistake was told that may be one of the list of sources.
func (c *checker) sourcesInDoubt() bool {
	return c.reported(at("spec", "sources")) || c.inDoubt("spec.trust", "spec.policy", "spec.kubernetes", "spec.pullRequests")
}
