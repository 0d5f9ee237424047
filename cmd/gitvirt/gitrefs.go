package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/previews/branches"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/commitstatus"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
)

// notesRef is where the notes are.
const notesRef = "refs/notes/gitvirt"

// gitRefFlags say what is told in the repository itself, besides the status branch.
type gitRefFlags struct {
	plans []string
	notes bool
}

func (f *gitRefFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.plans, "plan-refs", nil, "without a forge: branches whose plans are written to "+branches.Prefix+"BRANCH, such as 'feature/*', or '*' for all (may be repeated)")
	flags.BoolVar(&f.notes, "status-notes", false, "write how far each revision is into git's notes, "+notesRef)
}

// check says which flags do not fit together.
func (f *gitRefFlags) check(source *sourceFlags, forge forges.Forge) error {
	switch {
	case len(f.plans) > 0 && forge != nil:
		return errors.New("--plan-refs is for a git server without a forge; with --forge pull requests show their plans, so leave one of them out")
	case len(f.plans) > 0 && source.config.URL == "":
		return errors.New("--plan-refs wants a repository with branches; give --git")
	case f.notes && source.config.URL == "":
		return errors.New("--status-notes wants a repository whose commits have notes; give --git")
	}
	return nil
}

// notesInterval is the shortest time between two notes for a commit: each is a commit by itself.
const notesInterval = 10 * time.Second

// notesReporter writes notes until its context ends.
func (c *cli) notesReporter(f *runFlags, loop *reconciler.Reconciler, counts *prometheus.CounterVec) (func(context.Context) error, error) {
	publisher, err := git.NewPublisher(f.source.config, git.WithGetenv(c.getenv))
	if err != nil {
		return nil, err
	}
	reporter, err := commitstatus.New(loop, commitstatus.InNotes(publisher.Notes(notesRef, git.Author{})), commitstatus.Config{
		Interval: notesInterval, Counts: counts.MustCurryWith(prometheus.Labels{"board": "notes"}),
	})
	if err != nil {
		return nil, errors.Join(err, publisher.Close())
	}
	return func(ctx context.Context) error {
		defer func() { _ = publisher.Close() }() // its mirror is a cache
		return reporter.Run(ctx)
	}, nil
}

// planRefs is where the plans of branches are pushed to.
type planRefs struct{ *git.Publisher }

// Update implements branches.Plans.
func (p planRefs) Update(ctx context.Context, updates []sources.RefUpdate) (map[string]sources.RefResult, error) {
	return p.Publisher.Update(ctx, updates, git.Author{})
}

// branchesOf makes pull requests of the branches of a repository.
func (c *cli) branchesOf(f *runFlags, source *git.Source, loop *reconciler.Reconciler) (*branches.Branches, *git.Publisher, error) {
	publisher, err := git.NewPublisher(f.source.config, git.WithGetenv(c.getenv))
	if err != nil {
		return nil, nil, err
	}
	shown, err := branches.New(source, planRefs{publisher}, branches.Config{
		Patterns: f.refs.plans, Report: loop.Report, Skip: func(branch string) bool { return branch == statusBranchOf(loop.View()) },
	})
	if err != nil {
		return nil, nil, errors.Join(err, publisher.Close())
	}
	return shown, publisher, nil
}

// statusBranchOf is the branch that the status goes to.
func statusBranchOf(view *reconciler.View) string {
	if view.Desired == nil {
		return schemas.DefaultStatusBranch
	}
	return view.Desired.Fleet.Spec.Status.Branch
}
