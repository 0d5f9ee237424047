package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) renderCommand() *cobra.Command {
	var source sourceFlags
	var rev, stateDir, domainType string
	var names []string
	command := &cobra.Command{
		Use:   "render [SOURCE | FILE...]",
		Short: "Print the libvirt domain XML of the VMs",
		Long: `Print the domain XML that the agent would define for each VM, without touching any host. Disks have the paths
that they get below the agent's state directory; the image below a container disk is named when it is pulled. Devices
and CPUs that an agent would choose on its host are made up. Secrets, claims and host devices that are missing are told and
do no harm, because no hardware depends on them; instance types and preferences must be there.

Exit codes: 0 done, 1 an error or a mistake in the manifests.`,
		Example: `  gitvirt render ./fleet
  gitvirt render ./fleet --vm web-1
  gitvirt render vm.yaml instancetype.yaml
  gitvirt render vm.yaml | virsh define --validate /dev/stdin`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if domainType != "kvm" && domainType != "qemu" {
				return fmt.Errorf("--domain-type is %q; want kvm or qemu", domainType)
			}
			if err := source.argument(args); err != nil {
				return err
			}
			_, desired, err := c.read(cmd.Context(), &source, rev, schemas.AllowMissing())
			if err != nil {
				return err
			}
			broken := c.tell(desired.Diagnostics)
			if err := c.render(desired, names, stateDir, domainType); err != nil {
				return err
			}
			if broken {
				return errSilent
			}
			return nil
		},
	}
	source.add(command)
	flags := command.Flags()
	flags.StringVar(&rev, "rev", "", "revision of the repository (default: the head of the branch)")
	flags.StringSliceVar(&names, "vm", nil, "only these VMs: NAME or NAMESPACE/NAME")
	flags.StringVar(&stateDir, "state-dir", defaultStateDir+"/agent", "the agent's state directory")
	flags.StringVar(&domainType, "domain-type", "kvm", "kvm, or qemu for software emulation")
	return command
}

func (c *cli) render(desired *schemas.Desired, names []string, stateDir, domainType string) error {
	found, files := 0, layout.Layout{Dir: stateDir}
	for _, vm := range desired.VMs {
		if !selected(vm.Address, names) {
			continue
		}
		found++
		volumes := files.Volumes(vm)
		host := files.Host(vm.Address, vm.Spec(), domainType)
		host.Assignment = domainxml.PlannedAssignment(vm.Spec(), vm.HostDevices)
		document, err := domainxml.Render(domainxml.Machine{
			Address: vm.Address, Spec: vm.Spec(), Host: host, Volumes: volumes,
			Record: &domainxml.Record{
				Address: vm.Address, Fleet: desired.Fleet.Name, Source: vm.Position.Short(), Hash: vm.Hash, Spec: vm.Record, Volumes: volumes,
				Assignment: host.Assignment,
			},
		})
		if err != nil {
			return err
		}
		c.printf("%s\n", document)
	}
	if found == 0 && len(names) > 0 {
		return fmt.Errorf("no VM is named %s", strings.Join(names, ", "))
	}
	return nil
}

// selected reports whether a VM is among names; no names mean all.
func selected(address schemas.Address, names []string) bool {
	for _, name := range names {
		if name == address.Name || name == address.Namespace+"/"+address.Name || name == address.String() {
			return true
		}
	}
	return len(names) == 0
}
