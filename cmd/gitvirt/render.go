package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) renderCommand() *cobra.Command {
	var source sourceFlags
	var rev string
	var o renderOptions
	command := &cobra.Command{
		Use:   "render [SOURCE | FILE...]",
		Short: "Print the libvirt domain XML of the VMs, or their Pods",
		Long: `Print the domain XML that the agent would define for each VM, without touching any host. Disks have the paths
that they get below the agent's state directory; the image below a container disk is named when it is pulled. Devices
and CPUs that an agent would choose on its host are made up. Secrets, claims and host devices that are missing are told and
do no harm, because no hardware depends on them; instance types and preferences must be there.

With --pod print the Pods that Kubernetes would get instead. What is sensitive goes with each in a Secret, which is not printed.

Exit codes: 0 done, 1 an error or a mistake in the manifests.`,
		Example: `  gitvirt render ./fleet
  gitvirt render ./fleet --vm web-1
  gitvirt render vm.yaml instancetype.yaml
  gitvirt render vm.yaml | virsh define --validate /dev/stdin
  gitvirt render vm.yaml --pod | kubectl apply --dry-run=server -f -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.domainType != "kvm" && o.domainType != "qemu" {
				return fmt.Errorf("--domain-type is %q; want kvm or qemu", o.domainType)
			}
			if err := source.argument(args); err != nil {
				return err
			}
			at, desired, err := c.read(cmd.Context(), &source, rev, schemas.AllowMissing())
			if err != nil {
				return err
			}
			broken := c.tell(desired.Diagnostics)
			o.revision = at.Provenance
			if err := c.render(desired, &o); err != nil {
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
	flags.StringSliceVar(&o.names, "vm", nil, "only these VMs: NAME or NAMESPACE/NAME")
	flags.StringVar(&o.stateDir, "state-dir", defaultStateDir+"/agent", "the agent's state directory")
	flags.StringVar(&o.domainType, "domain-type", "kvm", "kvm, or qemu for software emulation")
	flags.BoolVar(&o.pod, "pod", false, "print the Pods instead")
	flags.StringVar(&o.image, "launcher-image", "gitvirt-launcher:"+version, "with --pod: the image of gitvirt-launcher")
	return command
}

// renderOptions say what is printed of the VMs.
type renderOptions struct {
	names                       []string
	stateDir, domainType, image string
	revision                    func(source string) string
	pod                         bool
}

func (c *cli) render(desired *schemas.Desired, o *renderOptions) error {
	found, write := 0, domainOf
	if o.pod {
		write = podOf
	}
	for _, vm := range desired.VMs {
		if !selected(vm.Address, o.names) {
			continue
		}
		found++
		document, err := write(vm, desired.Fleet.Name, o)
		if err != nil {
			return err
		}
		c.printf("%s\n", document)
	}
	if found == 0 && len(o.names) > 0 {
		return fmt.Errorf("no VM is named %s", strings.Join(o.names, ", "))
	}
	return nil
}

// domainOf is the domain XML of a VM.
func domainOf(vm *schemas.VM, fleet string, o *renderOptions) (string, error) {
	files := layout.Layout{Dir: o.stateDir}
	volumes := files.Volumes(vm)
	host := files.Host(vm.Address, vm.Spec(), o.domainType)
	host.Assignment = domainxml.PlannedAssignment(vm.Spec(), vm.HostDevices)
	return domainxml.Render(domainxml.Machine{
		Address: vm.Address, Spec: vm.Spec(), Host: host, Volumes: volumes,
		Record: &domainxml.Record{
			Address: vm.Address, Fleet: fleet, Source: vm.Position.Short(), Hash: vm.Hash, Spec: vm.Record, Volumes: volumes,
			Assignment: host.Assignment,
		},
	})
}

// podOf is the Pod of a VM, one document of a stream.
func podOf(vm *schemas.VM, fleet string, o *renderOptions) (string, error) {
	pod, err := pods.Pod(vm, pods.Options{Fleet: fleet, Revision: o.revision(vm.Position.Source), Image: o.image, Emulation: o.domainType == "qemu"})
	if err != nil {
		return "", err
	}
	document, err := yaml.Marshal(pod)
	if err != nil {
		return "", fmt.Errorf("writing the Pod of %s: %w", vm.Address, err)
	}
	return "---\n" + strings.TrimSuffix(string(document), "\n"), nil
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
