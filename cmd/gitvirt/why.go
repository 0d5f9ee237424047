package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/reconciler/why"
	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) whyCommand() *cobra.Command {
	var f planFlags
	var server serverFlags
	command := &cobra.Command{
		Use:   "why VM [SOURCE]",
		Short: "Say why a VM is not as the wanted revision asks, or that it is",
		Long: `Say in one screen why a VM is not at the wanted revision: a mistake in its manifest, what it waits for and until when, an
approval that is missing, what blocks it, the last error and when it is tried again, a restart that is pending, changes by
hand; and the command that helps. The running controller is asked; where none answers, or with a SOURCE, git and the host.

Exit codes: 0 the VM is as the wanted revision asks, 1 an error or no such VM, 2 it is not.`,
		Example: `  gitvirt why web-1
  gitvirt why shop/db-1 -o json
  gitvirt why web-1 --git https://git.example.com/team/fleet.git`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || f.source.dir != "" || f.source.config.URL != "" {
				if err := f.source.argument(args[1:]); err != nil {
					return err
				}
			}
			facts, err := c.facts(cmd.Context(), &f, &server, args[0])
			if err != nil {
				return err
			}
			return c.why(facts, f.output)
		},
	}
	server.add(command, c)
	f.source.add(command)
	f.agent.add(command)
	command.Flags().StringVar(&f.rev, "rev", "", "the revision that is wanted, with a SOURCE (default: the head of the branch)")
	addOutput(command, &f.output, "text", "json", "yaml")
	c.completesVMs(command, &f.source, &server, 1)
	return command
}

func (c *cli) why(facts why.Facts, output string) error {
	answer := why.Of(facts)
	if output != "text" {
		if err := c.print(answer, output); err != nil {
			return err
		}
	} else {
		c.printf("%s", answer.Text())
	}
	if !answer.Synced {
		return errChanges
	}
	return nil
}

// facts asks the controller, or git and the host.
func (c *cli) facts(ctx context.Context, f *planFlags, server *serverFlags, name string) (why.Facts, error) {
	var fleet httpapi.Fleet
	unreachable := server.fetch(ctx, "/api/v1/fleet", &fleet)
	if f.source.dir == "" && f.source.config.URL == "" {
		if unreachable != nil {
			return why.Facts{}, fmt.Errorf("%w; or name where the manifests are: gitvirt why %s SOURCE", unreachable, name)
		}
		return factsOfController(ctx, server, &fleet, name)
	}
	f.attended = unreachable != nil // without a controller somebody applies by hand, and waits for nobody's approval
	p, platform, err := c.planHost(ctx, f)
	if err != nil {
		return why.Facts{}, err
	}
	platform.close()
	known := machinesOf(p.desired)
	for _, domain := range p.observed.Domains {
		if domain.Fleet == p.Fleet {
			known = append(known, domain.Address)
		}
	}
	slices.SortFunc(known, schemas.Address.Compare)
	known = slices.Compact(known)
	address, err := oneVM(name, known)
	if err != nil {
		return why.Facts{}, err
	}
	facts, ok := why.Gather(address, p.desired, p.observed, p.Plan)
	if !ok {
		return facts, unknownVM(name, known)
	}
	facts.Refused = fleet.Refused
	if unreachable != nil {
		facts.NoController = "none answers at " + server.server
	}
	return facts, nil
}

func factsOfController(ctx context.Context, server *serverFlags, fleet *httpapi.Fleet, name string) (why.Facts, error) {
	var known []schemas.Address
	for i := range fleet.VMs {
		known = append(known, fleet.VMs[i].Address)
	}
	address, err := oneVM(name, known)
	if err != nil {
		return why.Facts{}, err
	}
	if !slices.Contains(known, address) {
		return why.Facts{}, unknownVM(name, known)
	}
	var vm httpapi.VM
	if err := server.fetch(ctx, "/api/v1/vms/"+url.PathEscape(address.Namespace)+"/"+url.PathEscape(address.Name), &vm); err != nil {
		return why.Facts{}, err
	}
	return why.Facts{VM: vm.VM, Step: vm.Step, PlanID: fleet.PlanID, Revision: fleet.Revision, PollError: fleet.PollError, Refused: fleet.Refused}, nil
}
