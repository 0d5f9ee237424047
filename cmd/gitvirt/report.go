package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/notify"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/commitstatus"
)

// reporters are what tells others of a controller; each runs until its context ends.
func (c *cli) reporters(f *runFlags, loop *reconciler.Reconciler, endpoints notify.Endpoints, forge forges.Forge) ([]func(context.Context) error, error) {
	notifier, err := notify.New(loop, endpoints, notify.Config{Registerer: loop.Registry()})
	if err != nil {
		return nil, err
	}
	out := []func(context.Context) error{notifier.Run}
	counts := commitstatus.NewCounts()
	if err := loop.Registry().Register(counts); err != nil {
		return nil, err
	}
	if forge != nil {
		reporter, err := commitstatus.New(loop, commitstatus.OnForge(forge), commitstatus.Config{
			Counts: counts.MustCurryWith(prometheus.Labels{"board": "forge"}),
		})
		if err != nil {
			return nil, err
		}
		out = append(out, reporter.Run)
	}
	if f.refs.notes {
		report, err := c.notesReporter(f, loop, counts)
		if err != nil {
			return nil, err
		}
		out = append(out, report)
	}
	return out, nil
}
