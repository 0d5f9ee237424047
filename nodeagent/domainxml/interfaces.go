package domainxml

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// DefaultNetwork is the libvirt network that an interface with bridge binding on the pod network joins.
const DefaultNetwork = "default"

// maxQueues is how many queues a tap device can have.
const maxQueues = 256

// Queues returns how many pairs of queues a VM's virtio cards have on tap devices: 1 without networkInterfaceMultiqueue, else as many as
// vCPUs, at most 256 (KubeVirt's rule).
func Queues(spec *kubevirtv1.VirtualMachineInstanceSpec) int {
	if !isTrue(spec.Domain.Devices.NetworkInterfaceMultiQueue) {
		return 1
	}
	return int(min(topologyOf(spec).vcpus(), maxQueues))
}

func (r *renderer) network(name string) *kubevirtv1.NetworkSource {
	for i := range r.spec.Networks {
		if r.spec.Networks[i].Name == name {
			return &r.spec.Networks[i].NetworkSource
		}
	}
	return nil
}

// interfaces writes the network cards but those that are devices of the host, see hostDevices.
func (r *renderer) interfaces() error {
	for i := range r.spec.Domain.Devices.Interfaces {
		in := &r.spec.Domain.Devices.Interfaces[i]
		if in.SRIOV != nil || in.State == kubevirtv1.InterfaceStateAbsent {
			continue
		}
		network := r.network(in.Name)
		if network == nil {
			return fmt.Errorf("interface %s has no network", in.Name)
		}
		if err := r.networkInterface(in, network); err != nil {
			return fmt.Errorf("interface %s: %w", in.Name, err)
		}
	}
	return nil
}

func (r *renderer) networkInterface(in *kubevirtv1.Interface, network *kubevirtv1.NetworkSource) error {
	joined, tap := networkName(in, network), r.host.Assignment.tap(in.Name)
	kind, model := "network", in.Model
	switch {
	case tap != nil:
		kind = "ethernet"
	case len(r.host.Assignment.Taps) > 0:
		return errors.New("no tap device was made for it in the Pod")
	case joined == "":
		kind = "user"
	}
	virtio := model == "" || model == kubevirtv1.VirtIO
	if virtio {
		model = r.virtio
	}
	r.start("interface", "type", kind)
	r.leaf("mac", "address", r.host.cardOf(r.address, in))
	if tap != nil {
		r.leaf("target", "dev", tap.Device, "managed", "no")
	} else if joined != "" {
		r.leaf("source", "network", joined)
	} else if pod := network.Pod; pod != nil {
		if err := errors.Join(r.addresses("ipv4", pod.VMNetworkCIDR), r.addresses("ipv6", pod.VMIPv6NetworkCIDR)); err != nil {
			return err
		}
	}
	r.leaf("model", "type", model)
	r.interfaceDriver(virtio, kind, tap)
	if tap != nil && tap.MTU > 0 {
		r.leaf("mtu", "size", strconv.Itoa(tap.MTU))
	}
	if in.State == kubevirtv1.InterfaceStateLinkDown {
		r.leaf("link", "state", "down")
	}
	if in.BootOrder != nil {
		r.leaf("boot", "order", decimal(*in.BootOrder))
	}
	if r.arch.pci && (in.BootOrder == nil || r.iommu() != "") {
		r.leaf("rom", "enabled", "no") // iPXE knows nothing of encrypted memory
	}
	if in.ACPIIndex > 0 {
		r.leaf("acpi", "index", strconv.Itoa(in.ACPIIndex))
	}
	r.leaf("alias", "name", r.alias(in.Name))
	if in.PciAddress != "" {
		if err := r.pciAddress(in.PciAddress, "pci"); err != nil {
			return err
		}
	}
	r.end("interface")
	return nil
}

// addresses writes the range that QEMU's user-mode network takes its addresses from, where it is not QEMU's own.
func (r *renderer) addresses(family, cidr string) error {
	if cidr == "" {
		return nil
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return fmt.Errorf("network %q: want an address and a prefix, such as 10.0.2.0/24", cidr)
	}
	if prefix.Addr().Is6() {
		prefix = netip.PrefixFrom(prefix.Addr(), 64) // guests give themselves addresses in a range of this size; libvirt takes no other
	}
	r.leaf("ip", "address", prefix.Masked().Addr().String(), "family", family, "prefix", decimal(prefix.Bits()))
	return nil
}

func (r *renderer) interfaceDriver(virtio bool, kind string, tap *Tap) {
	if !virtio {
		return
	}
	queues, driver := "", "vhost"
	if isTrue(r.spec.Domain.Devices.NetworkInterfaceMultiQueue) {
		count := Queues(r.spec)
		switch {
		case tap != nil:
			count = max(tap.Queues, 1) // QEMU opens no more than the device was made for
		case kind == "user":
			count = 1 // QEMU's own network has one queue and refuses more
		}
		queues = strconv.Itoa(count)
	}
	if tap != nil && !tap.VHost {
		driver = "qemu" // asking for vhost where there is none fails the start
	}
	if iommu := r.iommu(); queues != "" || iommu != "" {
		r.leaf("driver", "name", driver, "queues", queues, "iommu", iommu)
	}
}

// networkName says which libvirt network an interface joins on a host without Kubernetes: a Multus network names it, bridge on
// the pod network is libvirt's default network. "" is QEMU's user-mode NAT, for masquerade and its kind.
func networkName(in *kubevirtv1.Interface, network *kubevirtv1.NetworkSource) string {
	switch {
	case network.Multus != nil:
		name := network.Multus.NetworkName
		if _, last, ok := strings.Cut(name, "/"); ok {
			name = last
		}
		return name
	case in.Bridge != nil:
		return DefaultNetwork
	}
	return ""
}

// pciAddress writes "0000:81:01.0": domain, bus, slot, function, in hexadecimal. kind is the type of the address, "" where
// the element has none.
func (r *renderer) pciAddress(text, kind string) error {
	fields := strings.FieldsFunc(text, func(c rune) bool { return c == ':' || c == '.' })
	if len(fields) != 4 {
		return fmt.Errorf("PCI address %q: want DOMAIN:BUS:SLOT.FUNCTION, such as 0000:81:01.0", text)
	}
	var parts [4]string
	for i, width := range [4]int{4, 2, 2, 1} {
		value, err := strconv.ParseUint(fields[i], 16, 16)
		if err != nil {
			return fmt.Errorf("PCI address %q: %q is not a hexadecimal number", text, fields[i])
		}
		parts[i] = fmt.Sprintf("0x%0*x", width, value)
	}
	r.leaf("address", "type", kind, "domain", parts[0], "bus", parts[1], "slot", parts[2], "function", parts[3])
	return nil
}
