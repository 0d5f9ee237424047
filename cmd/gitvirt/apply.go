package main

import (
	"bufio"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
)

func (c *cli) applyCommand() *cobra.Command {
	var f planFlags
	var o applyOptions
	command := &cobra.Command{
		Use:   "apply [SOURCE|PLAN]",
		Short: "Show the plan, then carry it out",
		Long: `Plan as "gitvirt plan" does, ask, and carry out exactly the steps that were shown. A domain that changed in between
is left alone and reported. Run it again to go on after a failure.

With a file that "gitvirt plan --out" saved, carry out exactly that plan, without asking: it was shown when it was saved. The
manifests are read again at its revision, the host as it is now; when any object is not as it was, the plan is refused as
stale, with what moved, and nothing is carried out. Steps that were carried out already are passed over.

A step is done when its guest is ready (gitvirt.io/ready, else its readiness probe, else that it runs). Machines are started
after those that they depend on (gitvirt.io/depends-on), at the pace of the Fleet's policy.rollout. A terminal shows the last
lines that the serial console of a guest has that is not ready. After an interrupt no step begins any more and those under way
are waited for; a second one leaves them. Apply again to go on.

-o json writes a JSON object per line: plan, step_start, progress, step_complete, step_failed, step_not_begun, summary.

Exit codes: 0 every step was carried out (also before), 1 an error, a failed step, a stale plan or no approval,
130 interrupted before all was done.`,
		Example: `  gitvirt apply ./fleet
  gitvirt apply --git https://git.example.com/team/fleet.git --rev v1.2 --auto-approve
  gitvirt apply ./fleet --target web-1
  gitvirt apply web.plan`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.attended = true // whoever applies a plan has seen it
			if file, err := f.planFile(args); err != nil {
				return err
			} else if file != nil {
				return c.applyFile(cmd.Context(), &f, file, &o)
			}
			if err := f.source.argument(args); err != nil {
				return err
			}
			return c.apply(cmd.Context(), &f, &o)
		},
	}
	f.source.add(command)
	f.source.trust.add(command)
	f.agent.add(command)
	f.kube.add(command)
	flags := command.Flags()
	flags.StringVar(&f.rev, "rev", "", "revision to apply (default: the head of the branch)")
	f.addSelection(command)
	c.completesVMs(command, &f.source, nil, 0, "target", "exclude")
	flags.BoolVar(&o.approved, "auto-approve", false, "carry the plan out without asking")
	flags.IntVar(&o.parallel, "parallel", 0, "steps carried out at a time (default: the Fleet's rollout.parallel, else 8)")
	addOutput(command, &o.output, "text", "json")
	return command
}

func (c *cli) apply(ctx context.Context, f *planFlags, o *applyOptions) error {
	if o.json() && !o.approved {
		return errors.New("with -o json nobody is asked; read the plan first and give --auto-approve, or apply a plan that was saved")
	}
	p, platform, err := c.planHost(ctx, f)
	if err != nil {
		return err
	}
	defer platform.close()
	if f.source.refused {
		return errors.New(f.source.untrusted)
	}
	if err := c.begin(p, o); err != nil {
		return err
	}
	if p.Unknown != "" {
		return errSilent
	}
	if !p.Empty() {
		if err := c.approve("Carry out these steps?", o.approved); err != nil {
			return err
		}
		if err := c.carryOut(ctx, p, platform, o); err != nil {
			return err
		}
	}
	if p.Diagnostics.Errors() > 0 {
		return errSilent
	}
	return nil
}

// approve asks whether to go on.
func (c *cli) approve(question string, approved bool) error {
	if approved {
		return nil
	}
	if !c.interactive() {
		return errors.New("nobody can be asked here; read what is shown above and run again with --auto-approve")
	}
	c.printf("\n%s Only \"yes\" is taken for yes: ", question)
	answer, err := bufio.NewReader(c.stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return errors.New("not approved; nothing was changed")
	}
	return nil
}
