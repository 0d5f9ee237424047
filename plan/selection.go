package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// Selection says which objects a plan is about: those that match a target, or all when there is none, without those that
// match an exclude. A pattern is a NAME, a NAMESPACE/NAME or an address, and may hold * and ? (path.Match).
type Selection struct {
	Targets  []string
	Excludes []string
	// MayMiss takes patterns that nothing matches (any more), as those of a plan that was carried out.
	MayMiss bool
}

// Partial says that a plan is about some of the objects only. What it leaves out may still have to be done.
type Partial struct {
	Targets  []string `json:"targets,omitempty"`
	Excludes []string `json:"excludes,omitempty"`
	// LeftOut is the number of objects that something would be done about, or that are held, and that were not selected.
	LeftOut int `json:"left_out"`
	// Dependencies says which steps count on one that was left out.
	Dependencies []string `json:"dependencies,omitempty"`
}

// UnmatchedError is a pattern that nothing matches: a misspelt one would plan too little, or leave nothing out.
type UnmatchedError struct {
	// Flag is "--target" or "--exclude".
	Flag    string
	Pattern string
	// Near are the names of objects that look like it.
	Near []string
}

// Error names the near misses.
func (e *UnmatchedError) Error() string {
	text := fmt.Sprintf("%s %s: no VM of this revision or of the host is named so", e.Flag, e.Pattern)
	if len(e.Near) > 0 {
		text += "; did you mean " + strings.Join(e.Near, " or ") + "?"
	}
	return text
}

// IsZero reports whether a selection selects everything.
func (s Selection) IsZero() bool { return len(s.Targets) == 0 && len(s.Excludes) == 0 }

// Selects reports whether an object is selected.
func (s Selection) Selects(address schemas.Address) bool {
	matches := func(pattern string) bool { return Matches(pattern, address) }
	return (len(s.Targets) == 0 || slices.ContainsFunc(s.Targets, matches)) && !slices.ContainsFunc(s.Excludes, matches)
}

// Matches reports whether an object has a name: NAME, NAMESPACE/NAME or KIND/NAMESPACE/NAME, each with * and ?.
func Matches(pattern string, address schemas.Address) bool {
	name := address.Name
	switch strings.Count(pattern, "/") {
	case 1:
		name = address.Namespace + "/" + address.Name
	case 2:
		name = address.String()
	}
	matched, err := path.Match(pattern, name)
	return err == nil && matched
}

// normalized orders the patterns, because their order means nothing and the plan's ID depends on them.
func (s Selection) normalized() Selection {
	unique := func(patterns []string) []string {
		sorted := slices.Clone(patterns)
		slices.Sort(sorted)
		return slices.Compact(sorted)
	}
	return Selection{Targets: unique(s.Targets), Excludes: unique(s.Excludes), MayMiss: s.MayMiss}
}

// check refuses patterns that nothing matches. known are all objects of git and of the host; incomplete says that
// nobody can tell whether that is all.
func (s Selection) check(known []schemas.Address, incomplete bool) error {
	for _, side := range []struct {
		flag     string
		patterns []string
	}{{"--target", s.Targets}, {"--exclude", s.Excludes}} {
		for _, pattern := range side.patterns {
			if _, err := path.Match(pattern, ""); err != nil || strings.Count(pattern, "/") > 2 || pattern == "" {
				return fmt.Errorf("%s %q: want NAME, NAMESPACE/NAME or KIND/NAMESPACE/NAME, with * and ? where they are needed", side.flag, pattern)
			}
			if !incomplete && !slices.ContainsFunc(known, func(a schemas.Address) bool { return Matches(pattern, a) }) {
				return &UnmatchedError{Flag: side.flag, Pattern: pattern, Near: NearMisses(pattern, known)}
			}
		}
	}
	return nil
}

// NearMisses returns up to three names of objects that look like a pattern that matches none.
func NearMisses(pattern string, known []schemas.Address) []string {
	const most = 3
	wanted := pattern[strings.LastIndex(pattern, "/")+1:]
	var near []string
	add := func(address schemas.Address) {
		name := address.Namespace + "/" + address.Name
		if len(near) < most && !slices.Contains(near, name) {
			near = append(near, name)
		}
	}
	names := make([]string, 0, len(known))
	for _, address := range known {
		if address.Name == wanted { // the right name in another namespace, or of another kind
			add(address)
		}
		names = append(names, address.Name)
	}
	closest := schemas.Closest(wanted, names)
	for _, address := range known {
		if closest != "" && address.Name == closest {
			add(address)
		}
	}
	return near
}

// addresses are all objects that a plan may be about, in order.
func (b *builder) addresses(have Observed) []schemas.Address {
	known := make([]schemas.Address, 0, len(b.want.VMs)+len(have.Domains))
	for _, vm := range b.want.VMs {
		known = append(known, vm.Address)
	}
	for _, list := range [][]schemas.Broken{b.want.Broken, b.want.Paused} {
		for _, object := range list {
			known = append(known, object.Address)
		}
	}
	for _, domain := range have.Domains {
		if domain.Fleet == b.plan.Fleet {
			known = append(known, domain.Address)
		}
	}
	slices.SortFunc(known, schemas.Address.Compare)
	return slices.Compact(known)
}

// narrow leaves the steps of the objects that are selected.
func (b *builder) narrow(selection Selection, have Observed) error {
	if selection.IsZero() {
		return nil
	}
	selection = selection.normalized()
	if err := selection.check(b.addresses(have), have.Unknown != "" || selection.MayMiss); err != nil {
		return err
	}
	p := b.plan
	partial := &Partial{Targets: selection.Targets, Excludes: selection.Excludes}
	left := map[schemas.Address]*Step{}
	steps := []Step{}
	for i := range p.Steps {
		if step := &p.Steps[i]; selection.Selects(step.Address) {
			steps = append(steps, *step)
		} else {
			left[step.Address] = step
			partial.LeftOut++
		}
	}
	for i := range steps {
		for _, dependency := range steps[i].DependsOn {
			if other, ok := left[dependency.Address]; ok {
				partial.Dependencies = append(partial.Dependencies, fmt.Sprintf("%s/%s depends on %s/%s, which is left out and %s",
					steps[i].Address.Namespace, steps[i].Address.Name, other.Address.Namespace, other.Address.Name, other.Summary))
			}
		}
	}
	held := p.Held
	p.Held = nil
	for _, object := range held {
		if selection.Selects(object.Address) {
			p.Held = append(p.Held, object)
		} else {
			partial.LeftOut++
		}
	}
	p.Steps, p.Partial = steps, partial
	return nil
}
