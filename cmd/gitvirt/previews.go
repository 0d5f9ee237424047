package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/previews/branches"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/several"
)

// pullRequests keeps pull requests right beside a loop.
type pullRequests struct {
	*previews.Previews
	source *git.Source
	// branches take the place of pull requests where there is no forge, and publisher pushes their plans; else they are nil.
	branches  *branches.Branches
	publisher *git.Publisher
}

// pullRequests returns what keeps pull requests right; nil where there are none, or no repository that could have any.
func (c *cli) pullRequests(f *runFlags, source several.Main, forge forges.Forge, loop *reconciler.Reconciler, kept statusBranches) (*pullRequests, error) {
	repository, ok := source.(*git.Source)
	if forge == nil && len(f.refs.plans) == 0 || !ok {
		return nil, nil //nolint:nilnil // none is a choice, and no error
	}
	beside, err := repository.Beside(filepath.Join(f.agent.stateDir, "git", "pulls"))
	if err != nil {
		return nil, err
	}
	pulls := &pullRequests{source: beside}
	var heads previews.Source = beside
	if forge == nil {
		if pulls.branches, pulls.publisher, err = c.branchesOf(f, beside, loop); err != nil {
			pulls.close()
			return nil, err
		}
		forge, heads = pulls.branches, pulls.branches
	}
	pulls.Previews, err = previews.New(forge, heads, loop, previews.Config{
		ExternalURL: f.forge.external, Interval: f.interval, Registry: loop.Registry(), Approvals: kept.approvals(loop),
	})
	if err != nil {
		pulls.close()
		return nil, err
	}
	return pulls, nil
}

// close releases connections; the mirrors are caches.
func (p *pullRequests) close() {
	_ = p.source.Close()
	if p.publisher != nil {
		_ = p.publisher.Close()
	}
}

// Run looks after pull requests until ctx ends.
func (p *pullRequests) Run(ctx context.Context) error {
	defer p.close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.Previews.Run(ctx) })
	if p.branches != nil {
		group.Go(func() error { return p.branches.Run(ctx) })
	}
	return group.Wait()
}

// Problem says what cannot be read or written.
func (p *pullRequests) Problem() string {
	if p.branches == nil {
		return p.Previews.Problem()
	}
	return cmp.Or(p.Previews.Problem(), p.branches.Problem())
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
