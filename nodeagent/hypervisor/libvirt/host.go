package libvirt

import (
	"context"
	"fmt"
	"slices"

	lv "libvirt.org/go/libvirt"
)

// NodeInfo is the size of the host.
type NodeInfo struct {
	CPUs      uint   // online ones
	MemoryKiB uint64 // all of it
}

// Version returns the versions of the daemon's libvirt and of the QEMU it found, such as 9.0.0 and 7.2.22. It is an error
// when there is no QEMU.
func (h *Hypervisor) Version(ctx context.Context) (libvirtVersion, qemuVersion string, err error) {
	versions, err := call(ctx, h, quick, func(c *lv.Connect) ([2]uint32, error) {
		daemon, err := c.GetLibVersion()
		if err != nil {
			return [2]uint32{}, err
		}
		qemu, err := c.GetVersion()
		return [2]uint32{daemon, qemu}, err
	})
	if err != nil {
		return "", "", doing(err, "read versions", "")
	}
	return version(versions[0]), version(versions[1]), nil
}

// version formats 1000000*major + 1000*minor + release, libvirt's way to write a version as a number.
func version(v uint32) string {
	return fmt.Sprintf("%d.%d.%d", v/1000000, v/1000%1000, v%1000)
}

// Capabilities returns the XML of what the host and its hypervisor can do, see https://libvirt.org/formatcaps.html.
func (h *Hypervisor) Capabilities(ctx context.Context) (string, error) {
	xml, err := call(ctx, h, quick, (*lv.Connect).GetCapabilities)
	return xml, doing(err, "read capabilities", "")
}

// DomainCapabilities returns the XML of what a domain of this kind may have, see
// https://libvirt.org/formatdomaincaps.html. Empty arguments let libvirt choose.
func (h *Hypervisor) DomainCapabilities(ctx context.Context, emulator, arch, machine, virtType string) (string, error) {
	xml, err := call(ctx, h, quick, func(c *lv.Connect) (string, error) {
		return c.GetDomainCapabilities(emulator, arch, machine, virtType, 0)
	})
	return xml, doing(err, "read domain capabilities", "")
}

// NodeInfo returns the size of the host.
func (h *Hypervisor) NodeInfo(ctx context.Context) (NodeInfo, error) {
	info, err := call(ctx, h, quick, func(c *lv.Connect) (NodeInfo, error) {
		info, err := c.GetNodeInfo()
		if err != nil {
			return NodeInfo{}, err
		}
		return NodeInfo{CPUs: info.Cpus, MemoryKiB: info.Memory}, nil
	})
	return info, doing(err, "read node info", "")
}

// Networks returns the names of the virtual networks that are active, sorted.
func (h *Hypervisor) Networks(ctx context.Context) ([]string, error) {
	names, err := call(ctx, h, quick, func(c *lv.Connect) ([]string, error) {
		networks, err := c.ListAllNetworks(lv.CONNECT_LIST_NETWORKS_ACTIVE)
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range networks {
			if name, nameErr := networks[i].GetName(); nameErr == nil {
				names = append(names, name)
			} else {
				err = nameErr
			}
			_ = networks[i].Free() // fails only for a handle that is none
		}
		return names, err
	})
	slices.Sort(names)
	return names, doing(err, "list networks", "")
}
