package previews

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// world is what pull requests are compared with: what a round of the loop saw, and what the base asks for by itself.
type world struct {
	view *reconciler.View
	// rules judge; unapproved are they without any approval, for where the rules will be others.
	rules, unapproved *policy.Policy
	// sides are what is compared for pull requests from here and from forks.
	sides [2]side
}

// side is what lives, as far as a pull request is told of it, with the files of other repositories and the plan of the base for it.
type side struct {
	observed plan.Observed
	others   []*schemas.File
	base     func() (*plan.Plan, error)
}

// newWorld takes what a round saw, and approvals that came after it. The time is that of windows and schedules.
func newWorld(view *reconciler.View, now time.Time, later ...status.Approval) *world {
	w := &world{view: view}
	if view.Desired == nil || view.Plan == nil {
		return w
	}
	approvals := slices.Concat(view.Approvals, status.ApprovalsFor(later, view.Desired.Fleet.Name))
	w.rules, w.unapproved = policy.New(view.Desired.Fleet, policy.Options{Now: now, Approvals: approvals}), policy.New(view.Desired.Fleet, policy.Options{Now: now})
	here := view.Observed.For(view.Desired.Fleet, view.Pods)
	own, others := split(view.Snapshot)
	w.sides[0] = side{observed: here, others: others, base: sync.OnceValues(func() (*plan.Plan, error) {
		return w.build(view.Desired, here, view.Snapshot.Revision, w.rules)
	})}
	alone := ofFleet(here, view.Desired)
	w.sides[1] = side{observed: alone, base: sync.OnceValues(func() (*plan.Plan, error) {
		desired := view.Desired
		if len(others) > 0 {
			desired = schemas.Assemble(own)
		}
		return w.build(desired, alone, view.Snapshot.Revision, w.rules)
	})}
	return w
}

// split tells the files of the repository from those of others, which a pull request cannot change.
func split(snapshot *sources.Snapshot) (own, others []*schemas.File) {
	if len(snapshot.Parts) == 0 {
		return snapshot.Files, nil
	}
	for _, file := range snapshot.Files {
		if file.Source == "" {
			own = append(own, file)
		} else {
			others = append(others, file)
		}
	}
	return own, others
}

// stillNamed are the files of other repositories without those that the proposed Fleet names no more.
func stillNamed(proposed, others []*schemas.File) []*schemas.File {
	at := slices.IndexFunc(proposed, func(file *schemas.File) bool { return file.Fleet != nil })
	if len(others) == 0 || at < 0 || proposed[at].Fleet.Spec.SourcesDoubt {
		return others
	}
	named := map[string]bool{}
	for i := range proposed[at].Fleet.Spec.Sources {
		named[proposed[at].Fleet.Spec.Sources[i].Name] = true
	}
	return slices.DeleteFunc(slices.Clone(others), func(file *schemas.File) bool { return !named[file.Source] })
}

// ofFleet leaves out what belongs to others, be it another Fleet or another repository of this one: who opens a pull request from
// a fork is told nothing of it.
func ofFleet(observed plan.Observed, desired *schemas.Desired) plan.Observed {
	var own []*plan.Domain
	for _, domain := range observed.Domains {
		if domain.Fleet == desired.Fleet.Name && domain.Holder() == "" {
			own = append(own, domain)
		}
	}
	observed.Domains, observed.Foreign = own, nil
	elsewhere := map[schemas.Address]bool{}
	for _, object := range desired.Objects {
		elsewhere[object.Address] = object.Position.Source != ""
	}
	observed.Objects = slices.DeleteFunc(slices.Clone(observed.Objects), func(object *plan.Object) bool { return elsewhere[object.Address] })
	return observed
}

// known reports whether there is anything to compare with.
func (w *world) known() bool {
	return w.rules != nil && w.view.Observed.Unknown == "" && w.view.Plan.Unknown == ""
}

// fleet is the Fleet of the base, whose rules judge; nil while it is not known.
func (w *world) fleet() *schemas.Fleet {
	if w.view.Desired == nil {
		return nil
	}
	return w.view.Desired.Fleet
}

func (w *world) build(want *schemas.Desired, have plan.Observed, revision string, rules *policy.Policy) (*plan.Plan, error) {
	return plan.Build(want, have, plan.Options{Revision: revision, Policy: rules, Pods: w.view.Pods})
}

// merger merges revisions; *git.Source is one.
type merger interface {
	Merge(ctx context.Context, base, head string) (*sources.Snapshot, []sources.Conflict, error)
}

// plan makes the report of a pull request. An error is one that trying again may mend; what is wrong with the pull request itself is in the
// report.
func (w *world) plan(ctx context.Context, source merger, head string, fork bool) (*report, error) {
	r := &report{
		fleet: w.fleet().Name, base: w.view.Commit(), head: head, node: w.view.Observed.Node, at: w.view.Time,
	}
	snapshot, conflicts, err := source.Merge(ctx, r.base, head)
	switch {
	case errors.Is(err, sources.ErrLimit), errors.Is(err, sources.ErrEmpty):
		var told *sources.Error
		if r.problem = err.Error(); errors.As(err, &told) {
			known := *told
			known.Source = "" // where the repository is, is nothing to those who read it
			r.problem = known.Error()
		}
		return r, nil
	case err != nil:
		return nil, err
	case len(conflicts) > 0:
		r.conflicts = conflicts
		return r, nil
	}
	files, side := snapshot.Files, &w.sides[0]
	if fork {
		files, side = guarded(files, w.view.Snapshot.Files), &w.sides[1]
	}
	if others := stillNamed(files, side.others); len(others) > 0 {
		files = slices.Concat(files, others)
	}
	desired := schemas.Assemble(files, schemas.JudgedBy(w.fleet()), schemas.Holding(&side.observed))
	base, err := side.base()
	if err != nil {
		return nil, err
	}
	rules := w.rules
	if r.judged = desired.Proposed.Name != w.fleet().Name || !reflect.DeepEqual(desired.Proposed.Spec, w.fleet().Spec); r.judged {
		rules = w.unapproved
	}
	whole, err := w.build(desired, side.observed, head, rules)
	if err != nil {
		return nil, err
	}
	if r.plan, r.anyway, err = whole.Beyond(base); err != nil {
		return nil, err
	}
	return r, nil
}
