package libvirt

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// probeMachine is a guest of which libvirt is asked whether it could run here: what it refuses to define it cannot plug in
// either. Its verbs are the kind of domain, the machine, the elements before <os>, and the devices.
const probeMachine = `<domain type='%s'><name>gitvirt-probe</name><memory unit='MiB'>64</memory>%s` +
	`<os><type machine='%s'>hvm</type></os><cpu><numa><cell id='0' cpus='0-1' memory='64' unit='MiB'/></numa></cpu>` +
	`<devices><controller type='pci' index='0' model='pcie-root'/><controller type='pci' model='pcie-root-port'/>%s</devices></domain>`

// probes are the changes that this libvirt may lack with this QEMU, and what each needs. QEMU's driver has had the others, which
// need no device, for longer than anything that gitvirt runs on (virDomainBlockResize with bytes since 0.9.11).
var probes = map[hypervisor.LiveChange]struct{ elements, devices string }{
	hypervisor.LiveMemory: {
		"<maxMemory slots='1' unit='MiB'>256</maxMemory><vcpu>2</vcpu>",
		"<memory model='virtio-mem'><target><size unit='MiB'>128</size><node>0</node><block unit='MiB'>2</block><requested unit='MiB'>0</requested></target></memory>",
	},
	hypervisor.LiveBalloon:   {"<vcpu>2</vcpu>", "<memballoon model='virtio'/>"},
	hypervisor.LiveDisk:      {"<vcpu>2</vcpu>", "<disk type='file' device='disk'><source file='/probe'/><target dev='vda' bus='virtio'/></disk>"},
	hypervisor.LiveInterface: {"<vcpu>2</vcpu>", "<interface type='user'><model type='virtio'/></interface>"},
}

// machines are the machines of hosts on whose PCI bus guests can have devices plugged in.
var machines = map[string]string{"amd64": "q35", "arm64": "virt"}

// plugsCPUs are the hosts for whose guests QEMU has vCPUs that can be plugged in.
var plugsCPUs = map[string]bool{"amd64": true, "s390x": true}

// LiveChanges implements hypervisor.Hypervisor. libvirt does not tell it anywhere in whole: its domain capabilities lack most,
// so it is asked to judge definitions that need them.
func (h *Hypervisor) LiveChanges(ctx context.Context, domainType string) ([]hypervisor.LiveChange, error) {
	driver, err := call(ctx, h, quick, (*lv.Connect).GetType)
	if err != nil {
		return nil, doing(err, "ask for the driver", "")
	}
	if driver != "QEMU" {
		return nil, nil // nothing is promised for a driver that nobody has tried
	}
	var able []hypervisor.LiveChange
	for _, change := range hypervisor.LiveChanges() {
		probe, probed := probes[change]
		machine, plugs := machines[runtime.GOARCH]
		switch {
		case change == hypervisor.LiveCPU && !plugsCPUs[runtime.GOARCH]:
			continue
		case probed && !plugs:
			continue
		case probed:
			err := h.Validate(ctx, fmt.Sprintf(probeMachine, domainType, probe.elements, machine, probe.devices))
			if errors.Is(err, hypervisor.ErrInvalid) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("find out whether running guests can have %s: %w", change, err)
			}
		}
		able = append(able, change)
	}
	return able, nil
}
