package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
)

func (c *cli) applyCommand() *cobra.Command {
	var f planFlags
	var approved bool
	var parallel int
	command := &cobra.Command{
		Use:   "apply [SOURCE|PLAN]",
		Short: "Show the plan, then carry it out",
		Long: `Plan as "gitvirt plan" does, ask, and carry out exactly the steps that were shown. A domain that changed in between
is left alone and reported. Run it again to go on after a failure.

With a file that "gitvirt plan --out" saved, carry out exactly that plan, without asking: it was shown when it was saved. The
manifests are read again at its revision, the host as it is now; when any object is not as it was, the plan is refused as
stale, with what moved, and nothing is carried out. Steps that were carried out already are passed over.

Exit codes: 0 every step was carried out (also before), 1 an error, a failed step, a stale plan or no approval.`,
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
				return c.applyFile(cmd.Context(), &f, file, parallel)
			}
			if err := f.source.argument(args); err != nil {
				return err
			}
			return c.apply(cmd.Context(), &f, approved, parallel)
		},
	}
	f.source.add(command)
	f.agent.add(command)
	flags := command.Flags()
	flags.StringVar(&f.rev, "rev", "", "revision to apply (default: the head of the branch)")
	f.addSelection(command)
	c.completesVMs(command, &f.source, nil, 0, "target", "exclude")
	flags.BoolVar(&approved, "auto-approve", false, "carry the plan out without asking")
	flags.IntVar(&parallel, "parallel", 8, "steps carried out at a time")
	return command
}

func (c *cli) apply(ctx context.Context, f *planFlags, approved bool, parallel int) error {
	p, platform, err := c.planHost(ctx, f)
	if err != nil {
		return err
	}
	defer platform.close()
	if err := p.Text(c.stdout, plan.TextOptions{Color: c.color(), Node: p.node}); err != nil {
		return fmt.Errorf("writing the plan: %w", err)
	}
	if p.Unknown != "" {
		return errSilent
	}
	if !p.Empty() {
		if err := c.approve("Carry out these steps?", approved); err != nil {
			return err
		}
		target := apply.Target{Fleet: p.Fleet, Revision: p.Revision}
		if err := c.carryOut(ctx, target, p.Plan, platform, parallel); err != nil {
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

func (c *cli) carryOut(ctx context.Context, target apply.Target, p *plan.Plan, platform *platform, parallel int) error {
	c.printf("\n")
	began := map[string]time.Time{}
	results := apply.Run(ctx, target, p.Executable(), platform.host, apply.Options{
		Pace: apply.Pace{Parallel: parallel},
		Report: func(event apply.Event) {
			name := event.Address.Namespace + "/" + event.Address.Name
			switch {
			case event.Done && event.Err == nil:
				c.printf("%s: %s done after %s\n", name, event.Step.Action, time.Since(began[name]).Round(10*time.Millisecond))
			case event.Done:
				c.printf("%s: %s FAILED\n", name, event.Step.Action)
			case event.Progress != "":
				c.printf("%s: %s\n", name, event.Progress)
			default:
				began[name] = time.Now()
			}
		},
	})
	failed := 0
	for _, result := range results {
		if result.Err != nil {
			failed++
			fmt.Fprintln(c.stderr, "Error:", result.Err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d steps failed; what was carried out stays, run again to go on", failed, len(results))
	}
	c.printf("Applied: %d step%s.\n", len(results), plural(len(results)))
	return nil
}
