package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/sources/git"
)

// pullRequests keeps pull requests right beside a loop.
type pullRequests struct {
	*previews.Previews
	source *git.Source
}

// pullRequests returns what keeps pull requests right; nil where there is no forge, or no repository that could have any.
func (f *runFlags) pullRequests(source reconciler.Source, forge forges.Forge, loop *reconciler.Reconciler, branches statusBranches) (*pullRequests, error) {
	repository, ok := source.(*git.Source)
	if forge == nil || !ok {
		return nil, nil //nolint:nilnil // none is a choice, and no error
	}
	beside, err := repository.Beside(filepath.Join(f.agent.stateDir, "git", "pulls"))
	if err != nil {
		return nil, err
	}
	shown, err := previews.New(forge, beside, loop, previews.Config{
		ExternalURL: f.forge.external, Interval: f.interval, Registry: loop.Registry(), Approvals: branches.approvals(loop),
	})
	if err != nil {
		_ = beside.Close() // it has no connection yet
		return nil, err
	}
	return &pullRequests{shown, beside}, nil
}

// Run looks after pull requests until ctx ends.
func (p *pullRequests) Run(ctx context.Context) error {
	defer func() { _ = p.source.Close() }() // its mirror is a cache
	return p.Previews.Run(ctx)
}

// served is a controller as people see it who look after pull requests too.
type served struct {
	*reconciler.Reconciler
	pulls *pullRequests
}

// Pulls implements httpapi.PullRequests.
func (s served) Pulls() map[int]previews.Status { return s.pulls.Pulls() }

// Full implements httpapi.PullRequests.
func (s served) Full(ctx context.Context, number int) (string, error) {
	return s.pulls.Full(ctx, number)
}

// Problem implements httpapi.PullRequests.
func (s served) Problem() string { return s.pulls.Problem() }

// serving returns what the API shows, and the names that it may be asked by.
func (f *runFlags) serving(loop *reconciler.Reconciler, pulls *pullRequests) (httpapi.Controller, []string, error) {
	if pulls == nil {
		return loop, nil, nil
	}
	if f.forge.external == "" {
		return served{loop, pulls}, nil, nil
	}
	address, err := url.Parse(f.forge.external)
	if err != nil || address.Host == "" || address.Scheme != "https" && address.Scheme != "http" || address.User != nil || address.RawQuery != "" || address.Fragment != "" {
		return nil, nil, fmt.Errorf("--external-url %q is not the address of a server, such as https://gitvirt.example.com", f.forge.external)
	}
	return served{loop, pulls}, []string{address.Host}, nil
}
