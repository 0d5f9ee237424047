package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) renderCommand() *cobra.Command {
	var source sourceFlags
	var rev, stateDir, domainType string
	var names []string
	command := &cobra.Command{
		Use:   "render [SOURCE]",
		Short: "Print the libvirt domain XML of the VMs",
		Long: `Print the domain XML that the agent would define for each VM, without touching any host. Disks have the paths
that they get below the agent's state directory; the image below a container disk is named when it is pulled.

Exit codes: 0 done, 1 an error or a mistake in the manifests.`,
		Example: `  gitvirt render ./fleet
  gitvirt render ./fleet --vm web-1
  gitvirt render vm.yaml | virsh define --validate /dev/stdin`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if domainType != "kvm" && domainType != "qemu" {
				return fmt.Errorf("--domain-type is %q; want kvm or qemu", domainType)
			}
			if err := source.argument(args); err != nil {
				return err
			}
			_, desired, err := c.read(cmd.Context(), &source, rev)
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
	found := 0
	for _, vm := range desired.VMs {
		if !selected(vm.Address, names) {
			continue
		}
		found++
		host := domainxml.Host{
			DomainType: domainType,
			ConsoleLog: filepath.Join(stateDir, "vms", vm.Address.Namespace, vm.Address.Name, "console.log"),
			NVRAM:      filepath.Join(stateDir, "vms", vm.Address.Namespace, vm.Address.Name, "nvram.fd"),
			Dir:        filepath.Join(stateDir, "vms", vm.Address.Namespace, vm.Address.Name),
			Assignment: domainxml.PlannedAssignment(vm.Spec(), vm.HostDevices),
		}
		volumes := plannedVolumes(stateDir, vm)
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

// plannedVolumes are the paths that the agent gives a VM's volumes.
func plannedVolumes(stateDir string, vm *schemas.VM) []domainxml.Volume {
	dir := filepath.Join(stateDir, "vms", vm.Address.Namespace, vm.Address.Name)
	data := filepath.Join(stateDir, "disks", vm.Address.Namespace, vm.Address.Name)
	var out []domainxml.Volume
	for _, volume := range vm.Spec().Volumes {
		kind, _ := domainxml.VolumeKind(volume)
		planned := domainxml.Volume{Name: volume.Name, Kind: kind}
		switch {
		case volume.ContainerDisk != nil:
			planned.Path, planned.Format = filepath.Join(dir, volume.Name+".overlay.qcow2"), "qcow2"
			planned.Backing, planned.BackingFormat = filepath.Join(stateDir, "images", "of-"+volume.Name), "qcow2"
		case volume.EmptyDisk != nil:
			planned.Path, planned.Format = filepath.Join(data, volume.Name+".qcow2"), "qcow2"
			planned.Capacity = volume.EmptyDisk.Capacity.Value()
		case volume.HostDisk != nil:
			planned.Path, planned.Format = volume.HostDisk.Path, "raw"
		default:
			planned.Path, planned.Format = filepath.Join(dir, volume.Name+".iso"), "raw"
		}
		out = append(out, planned)
	}
	if firmware := vm.Spec().Domain.Firmware; firmware != nil && firmware.KernelBoot != nil && firmware.KernelBoot.Container != nil {
		out = append(out, domainxml.Volume{
			Name: domainxml.KernelBootVolume, Kind: "kernelBoot",
			Path: filepath.Join(stateDir, "images", "kernel"), Initrd: filepath.Join(stateDir, "images", "initrd"),
		})
	}
	return out
}
