package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// planFlags are what a plan is made of.
type planFlags struct {
	source sourceFlags
	agent  agentFlags
	rev    string
	from   string
	to     string
	output string
}

func (c *cli) planCommand() *cobra.Command {
	var f planFlags
	var detailed bool
	command := &cobra.Command{
		Use:   "plan [SOURCE]",
		Short: "Show what would change, and what the guests notice",
		Long: `Compare the manifests of a directory or a git revision with what lives on this host, and show every step with its
consequence. With --from and --to two revisions are compared and no host is needed. Nothing is changed.

Exit codes: 0 done, 1 an error, a mistake in the manifests or an unreadable host; with --detailed-exitcode also
2 when there is something to do.`,
		Example: `  gitvirt plan ./fleet
  gitvirt plan --git https://git.example.com/team/fleet.git --rev main
  gitvirt plan --git ./fleet.git --from main --to feature
  gitvirt plan ./fleet -o json --detailed-exitcode`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.source.argument(args); err != nil {
				return err
			}
			p, node, err := c.plan(cmd.Context(), &f)
			if err != nil {
				return err
			}
			return c.showPlan(p, node, f.output, detailed)
		},
	}
	f.source.add(command)
	f.agent.add(command)
	flags := command.Flags()
	flags.StringVar(&f.rev, "rev", "", "revision to plan (default: the head of the branch)")
	flags.StringVar(&f.from, "from", "", "compare with this revision instead of the host")
	flags.StringVar(&f.to, "to", "", "the revision that --from is compared with (default: the head of the branch)")
	flags.BoolVar(&detailed, "detailed-exitcode", false, "exit with 2 when there is something to do")
	addOutput(command, &f.output, "text", "json", "yaml")
	return command
}

func (c *cli) showPlan(p *plan.Plan, node, output string, detailed bool) error {
	var err error
	if output == "text" {
		err = p.Text(c.stdout, plan.TextOptions{Color: c.color(), Node: node})
	} else {
		err = c.print(p, output)
	}
	switch {
	case err != nil:
		return fmt.Errorf("writing the plan: %w", err)
	case p.Diagnostics.Errors() > 0 || p.Unknown != "":
		return errSilent
	case detailed && len(p.Steps) > 0:
		return errChanges
	}
	return nil
}

// plan makes the plan that the flags ask for and names what it is compared with.
func (c *cli) plan(ctx context.Context, f *planFlags) (p *plan.Plan, node string, err error) {
	if f.to != "" && f.from == "" {
		return nil, "", errors.New("--to needs --from; use --rev to plan a revision against the host")
	}
	rev := f.rev
	if f.from != "" {
		rev = f.to
	}
	snapshot, desired, err := c.read(ctx, &f.source, rev)
	if err != nil {
		return nil, "", err
	}
	if f.from != "" {
		return c.planBetween(ctx, f, snapshot, desired)
	}
	platform, err := c.connect(ctx, &f.agent)
	if err != nil {
		return nil, "", err
	}
	defer platform.close()
	observed, err := platform.read(ctx)
	if err != nil {
		return nil, "", err
	}
	p, err = plan.Build(desired, observed, plan.Options{Revision: snapshot.Revision})
	return p, observed.Node, err
}

// planBetween compares two revisions.
func (c *cli) planBetween(ctx context.Context, f *planFlags, to *sources.Snapshot, desired *schemas.Desired) (*plan.Plan, string, error) {
	from, before, err := c.read(ctx, &f.source, f.from)
	if err != nil {
		return nil, "", err
	}
	observed := plan.FromDesired(before, from.Revision)
	p, err := plan.Build(desired, observed, plan.Options{Revision: to.Revision, Base: from.Revision})
	return p, "revision " + f.from, err
}
