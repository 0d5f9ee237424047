package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/signers"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/several"
)

// othersFlags say how the repositories are read that a Fleet names.
type othersFlags struct {
	credentials string
	local       bool
	// none leaves them out.
	none bool
}

func (f *othersFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.credentials, "source-credentials", "", "folder with the credentials of the repositories that the Fleet names (spec.sources): a folder for each by its name, with token, username, password, ssh-key, known_hosts, ca.pem, age-keys.txt")
	flags.BoolVar(&f.local, "source-local", false, "let the Fleet name repositories on the disk of this machine, too")
}

func (f *othersFlags) addNone(command *cobra.Command) {
	command.Flags().BoolVar(&f.none, "no-sources", false, "leave out the repositories that the Fleet names (spec.sources), and what was made from them")
}

// opener opens the repositories that a Fleet names, with their mirrors below dir.
func (f *sourceFlags) opener(dir string) (*several.Git, error) {
	judge, err := f.trust.judge()
	if err != nil {
		return nil, err
	}
	return &several.Git{
		Dir: filepath.Join(dir, "sources"), Credentials: f.others.credentials, Local: f.others.local,
		Signers: signers.Join(judge.Anchor().Signers), Limits: f.config.Limits, Timeout: f.config.Timeout,
	}, nil
}

// withOthers adds what the repositories hold that the Fleet of a snapshot names, as they are now.
func (c *cli) withOthers(ctx context.Context, f *sourceFlags, snapshot *sources.Snapshot) (*sources.Snapshot, error) {
	f.stale = nil
	if f.isFile() || f.others.none {
		return snapshot, nil
	}
	opener, err := f.opener(c.cacheDir())
	if err != nil {
		return nil, err
	}
	whole, err := several.Read(ctx, snapshot, opener, several.Config{Timeout: f.config.Timeout})
	if err != nil {
		return nil, err
	}
	for _, part := range whole.Parts {
		if part.Problem != "" && part.Revision != "" { // of what was never read the diagnostics say it
			f.stale = append(f.stale, "the source "+part.Name+" is taken as it was at "+status.ShortRevision(part.Revision)+": "+status.OneLine(part.Problem))
		}
	}
	return whole, nil
}

// doubts says why what was read may not be what a controller goes by.
func (f *sourceFlags) doubts() []string {
	if f.untrusted == "" {
		return f.stale
	}
	return append([]string{f.untrusted}, f.stale...)
}

// assemble puts the files of a snapshot together.
func (f *sourceFlags) assemble(snapshot *sources.Snapshot, options ...schemas.Option) *schemas.Desired {
	desired := schemas.Assemble(snapshot.Files, options...)
	desired.Partial = f.isFile()
	return desired
}

// against is a wanted state and what lives, as they are compared: where several sources ask for one thing, who has it keeps it, and what
// was made from sources that are left out is left out as well.
func (f *sourceFlags) against(snapshot *sources.Snapshot, desired *schemas.Desired, observed plan.Observed) (*schemas.Desired, plan.Observed) {
	switch {
	case f.others.none:
		observed = observed.Own(desired)
	case len(snapshot.Parts) > 0:
		desired = f.assemble(snapshot, schemas.Holding(&observed))
	}
	return desired, observed
}
