package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/kubernetes"
	"github.com/gitvirt/gitvirt/apply/ledger"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// planFlags are what a plan is made of.
type planFlags struct {
	source sourceFlags
	agent  agentFlags
	kube   kubeFlags
	rev    string
	from   string
	to     string
	// live is where what lives is read from instead of the host.
	live   string
	output string
	// out is the file that the plan is saved to.
	out       string
	selection plan.Selection
	// attended says that a person carries the plan out, which approves of what waits for a window or an approval.
	attended bool
}

// revision is the one that is planned against the host: --to says the same as --rev when there is no --from.
func (f *planFlags) revision() string {
	if f.rev == "" {
		return f.to
	}
	return f.rev
}

// addSelection adds the flags that make a plan partial.
func (f *planFlags) addSelection(command *cobra.Command) {
	flags := command.Flags()
	flags.StringArrayVar(&f.selection.Targets, "target", nil, "only this VM: NAME, NAMESPACE/NAME or the address, with * and ? (may be repeated)")
	flags.StringArrayVar(&f.selection.Excludes, "exclude", nil, "all VMs but this one, named as for --target (may be repeated)")
}

// check refuses flags that contradict each other.
func (f *planFlags) check() error {
	switch {
	case f.rev != "" && f.from != "":
		return errors.New("--rev is planned against the host and --from against another revision; name the second one with --to")
	case f.rev != "" && f.to != "":
		return errors.New("--rev and --to name the same thing, the revision that is planned; leave one out")
	case f.out != "" && f.from != "":
		return errors.New("--out saves a plan for a host, and --from compares revisions; leave one out")
	case f.live != "" && (f.from != "" || f.out != ""):
		return errLive
	}
	return nil
}

func (c *cli) planCommand() *cobra.Command {
	var f planFlags
	var detailed bool
	command := &cobra.Command{
		Use:   "plan [SOURCE]",
		Short: "Show what would change, and what the guests notice",
		Long: `Compare the manifests of a directory or a git revision with what lives on this host, or in the cluster that KUBECONFIG
names where the Fleet's spec.platform is kubernetes, and show every step with its
consequence. With --from and --to two revisions are compared and no host is needed. With --live what "gitvirt snapshot" printed takes
the host's place, or what a controller knows. Nothing is changed.

--to REV (or --rev REV) without --from shows what going to that revision means for this host now: what it would take to
go back, or to go ahead to a branch. --out FILE saves the plan, and "gitvirt apply FILE" carries out exactly that.

Exit codes: 0 done, 1 an error, a mistake in the manifests or an unreadable host; with --detailed-exitcode also
2 when there is something to do.`,
		Example: `  gitvirt plan ./fleet
  gitvirt plan --git https://git.example.com/team/fleet.git --rev main
  gitvirt plan --git ./fleet.git --to HEAD~3
  gitvirt plan --git ./fleet.git --from main --to feature
  gitvirt plan ./fleet --target 'web-*' --exclude web-3 --out web.plan
  gitvirt plan ./fleet -o json --detailed-exitcode
  gitvirt plan ./fleet --live live.json
  gitvirt plan --git ./fleet.git --from main --to feature -o markdown > comment.md`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(f.check(), f.source.argument(args)); err != nil {
				return err
			}
			p, err := c.plan(cmd.Context(), &f)
			if err != nil {
				return err
			}
			return c.showPlan(p, &f, detailed)
		},
	}
	f.source.add(command)
	f.source.trust.add(command)
	f.agent.add(command)
	f.kube.add(command)
	flags := command.Flags()
	flags.StringVar(&f.rev, "rev", "", "revision to plan (default: the head of the branch)")
	flags.StringVar(&f.from, "from", "", "compare with this revision instead of the host")
	flags.StringVar(&f.to, "to", "", "revision to go to: from the host as it is, as --rev, or from --from (default: the head of the branch)")
	flags.StringVar(&f.live, "live", "", "plan against what gitvirt snapshot printed into this file (- for the standard input), or a controller's URL")
	flags.StringVar(&f.out, "out", "", "save the plan to this file for \"gitvirt apply FILE\"")
	f.addSelection(command)
	f.source.others.addNone(command)
	c.completesVMs(command, &f.source, nil, 0, "target", "exclude")
	flags.BoolVar(&detailed, "detailed-exitcode", false, "exit with 2 when there is something to do")
	addOutput(command, &f.output, "text", "json", "yaml", "markdown")
	return command
}

// commentBytes is how long a comment on a pull request may be; that of GitHub is the shortest of those of the forges.
const commentBytes = 65536

func (c *cli) showPlan(p *hostPlan, f *planFlags, detailed bool) error {
	var err error
	switch f.output {
	case "text":
		err = p.Text(c.stdout, plan.TextOptions{Color: c.color(), Node: p.node})
	case "markdown":
		_, err = io.WriteString(c.stdout, p.Markdown(plan.MarkdownOptions{Node: p.node, Budget: commentBytes}))
	default:
		err = c.print(p.Plan, f.output)
	}
	if err != nil {
		return fmt.Errorf("writing the plan: %w", err)
	}
	if f.out != "" {
		if err := c.savePlan(f.out, p); err != nil {
			return err
		}
	}
	switch {
	case p.Diagnostics.Errors() > 0 || p.Unknown != "":
		return errSilent
	case detailed && len(p.Steps) > 0:
		return errChanges
	}
	return nil
}

// hostPlan is a plan against a host, with what is needed to save it.
type hostPlan struct {
	*plan.Plan
	node   string
	origin plan.Origin
	// desired and observed are what the plan was made of.
	desired  *schemas.Desired
	observed plan.Observed
	rules    *policy.Policy
	// account is what was begun at the revision.
	account *ledger.Account
}

// planHost plans one revision against a host. The caller closes the platform, unless there is an error.
func (c *cli) planHost(ctx context.Context, f *planFlags) (*hostPlan, *platform, error) {
	snapshot, desired, err := c.read(ctx, &f.source, f.revision())
	if err != nil {
		return nil, nil, err
	}
	origin, err := c.origin(&f.source, snapshot)
	if err != nil {
		return nil, nil, err
	}
	platform, err := c.connectTo(ctx, f, desired.Fleet)
	if err != nil {
		return nil, nil, err
	}
	observed, err := platform.read(ctx)
	if err != nil {
		platform.close()
		return nil, nil, err
	}
	desired, observed = f.source.against(snapshot, desired, observed)
	approvals, notes := c.approvals(ctx, &f.source, desired.Fleet)
	account := f.agent.book().Account(desired.Fleet.Name, origin.Revision)
	rules := policy.New(desired.Fleet, policy.Options{Now: time.Now(), Attended: f.attended, Approvals: approvals, History: account.History()})
	options := plan.Options{Revision: snapshot.Revision, Provenance: snapshot.Provenance, Selection: f.selection, Policy: rules, Pods: platform.pods}
	p, err := apply.Plan(ctx, desired, observed, options, platform.driver)
	if err != nil {
		platform.close()
		return nil, nil, err
	}
	p.Notes = append(p.Notes, notes...)
	p.Notes = append(p.Notes, f.source.doubts()...)
	return &hostPlan{p, observed.Node, origin, desired, observed, rules, account}, platform, nil
}

// plan makes the plan that the flags ask for and names what it is compared with.
func (c *cli) plan(ctx context.Context, f *planFlags) (*hostPlan, error) {
	switch {
	case f.from != "":
		return c.planBetween(ctx, f)
	case f.live != "":
		return c.planLive(ctx, f)
	}
	p, platform, err := c.planHost(ctx, f)
	if err != nil {
		return nil, err
	}
	platform.close()
	return p, nil
}

// planBetween compares two revisions.
func (c *cli) planBetween(ctx context.Context, f *planFlags) (*hostPlan, error) {
	to, desired, err := c.read(ctx, &f.source, f.to)
	if err != nil {
		return nil, err
	}
	doubts := f.source.doubts() // of what is planned, not of what it is compared with
	from, before, err := c.read(ctx, &f.source, f.from)
	if err != nil {
		return nil, err
	}
	observed := plan.FromDesired(before, from.Revision)
	desired, observed = f.source.against(to, desired, observed)
	rules := policy.New(desired.Fleet, policy.Options{Now: time.Now(), Attended: f.attended})
	options := plan.Options{Revision: to.Revision, Base: from.Revision, Selection: f.selection, Policy: rules}
	if desired.Fleet.Spec.Platform == schemas.PlatformKubernetes {
		options.Pods = kubernetes.InPods{}
	}
	p, err := plan.Build(desired, observed, options)
	if err != nil {
		return nil, err
	}
	p.Notes = append(p.Notes, doubts...)
	return &hostPlan{Plan: p, node: "revision " + f.from}, nil
}
