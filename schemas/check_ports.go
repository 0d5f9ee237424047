package schemas

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

func (c *checker) checkPorts(iface *kubevirtv1.Interface, in func(...any) []any) {
	if n := len(iface.Ports); n > maxItems {
		c.fail(in("ports"), fmt.Sprintf("%d entries, at most %d are allowed", n, maxItems), "remove some")
		return
	}
	for p, port := range iface.Ports {
		if port.Port < 1 || port.Port > 65535 {
			c.fail(in("ports", p, "port"), fmt.Sprintf("%d is not a port", port.Port), "use a number from 1 to 65535")
		}
		oneOf(c, func() []any { return in("ports", p, "protocol") }, port.Protocol, "TCP", "UDP")
		if port.Name == "" {
			continue
		}
		if problem := portNameProblem(port.Name); problem != "" {
			c.fail(in("ports", p, "name"), problem, "use up to 15 lower case letters, digits and dashes")
		}
		for other := range p {
			if iface.Ports[other].Name == port.Name {
				c.fail(in("ports", p, "name"), "two ports are named "+quoteValue(port.Name), "rename one")
				break
			}
		}
	}
}

// portNameProblem says why s is not the name of a service (RFC 6335, 5.1); "" when it is.
func portNameProblem(s string) string {
	switch {
	case nameProblem(s, 15, false) != "":
		return nameProblem(s, 15, false)
	case strings.Contains(s, "--"):
		return quoteValue(s) + " holds two dashes in a row"
	case !strings.ContainsFunc(s, func(r rune) bool { return r >= 'a' && r <= 'z' }):
		return quoteValue(s) + " holds no letter"
	}
	return ""
}

func (c *checker) checkPortRanges(iface *kubevirtv1.Interface, in func(...any) []any) {
	if len(iface.PortRanges) == 0 {
		return
	}
	switch {
	case len(iface.Ports) > 0:
		c.fail(in("portRanges"), "ports and portRanges exclude each other", "write the single ports as ranges")
	case iface.Masquerade == nil:
		c.fail(in("portRanges"), "only a masquerade interface has ports forwarded by range", "use masquerade, or remove it")
	case len(iface.PortRanges) > maxItems:
		c.fail(in("portRanges"), fmt.Sprintf("%d entries, at most %d are allowed", len(iface.PortRanges), maxItems), "remove some")
		return
	}
	for p, ports := range iface.PortRanges {
		path := func(field string) []any { return in("portRanges", p, field) }
		if ports.Protocol == "" {
			c.fail(path("protocol"), "no protocol", "write TCP or UDP")
		}
		oneOf(c, func() []any { return path("protocol") }, ports.Protocol, "TCP", "UDP")
		for _, end := range []struct {
			field string
			port  int32
		}{{"start", ports.Start}, {"end", ports.End}} {
			if end.port < 1 || end.port > 65535 {
				c.fail(path(end.field), fmt.Sprintf("%d is not a port", end.port), "use a number from 1 to 65535")
			}
		}
		if ports.End < ports.Start {
			c.fail(path("end"), fmt.Sprintf("the range ends at %d, before it starts", ports.End), "use start or more")
		}
		for other := range p {
			before := &iface.PortRanges[other]
			if before.Protocol == ports.Protocol && before.Start <= ports.End && ports.Start <= before.End {
				c.fail(path("start"), fmt.Sprintf("the range overlaps that from %d to %d", before.Start, before.End), "make one range of them")
				break
			}
		}
	}
}

// checkForwards bounds what a host forwards: on other interfaces ports name what is reached anyway.
func (c *checker) checkForwards(iface *kubevirtv1.Interface, network *kubevirtv1.Network, in func(...any) []any) {
	if network == nil || network.Pod == nil || iface.Bridge != nil || iface.SRIOV != nil {
		return
	}
	if _, tooMany := ForwardedPorts(iface); tooMany {
		field := "ports"
		if len(iface.PortRanges) > 0 {
			field = "portRanges"
		}
		c.fail(in(field), fmt.Sprintf("more than %d ports of one machine, and a host opens a socket for each", MaxForwardedPorts), "forward fewer ports, or use bridge, where the guest has an address of its own")
	}
}

func (c *checker) checkDHCP(options *kubevirtv1.DHCPOptions, in func(...any) []any) {
	if options == nil {
		return
	}
	c.warn(in("dhcpOptions"), "nobody hands these options out on a libvirt host: the network's own DHCP server answers", "write them into the cloud-init user data, or into the dnsmasq options of the libvirt network")
	for i, server := range options.NTPServers {
		if address, err := netip.ParseAddr(server); err != nil || !address.Is4() {
			c.fail(in("dhcpOptions", "ntpServers", i), quoteValue(server)+" is not an IPv4 address", "write it as 192.0.2.123")
		}
	}
	for _, text := range []struct{ field, value string }{{"bootFileName", options.BootFileName}, {"tftpServerName", options.TFTPServerName}} {
		if len(text.value) > 255 {
			c.fail(in("dhcpOptions", text.field), fmt.Sprintf("%d characters long, a DHCP option holds 255", len(text.value)), "shorten it")
		}
	}
	if n := len(options.PrivateOptions); n > maxItems {
		c.fail(in("dhcpOptions", "privateOptions"), fmt.Sprintf("%d entries, at most 31 options are private", n), "remove some")
		return
	}
	for i, option := range options.PrivateOptions {
		path := func(field string) []any { return in("dhcpOptions", "privateOptions", i, field) }
		if option.Option < 224 || option.Option > 254 {
			c.fail(path("option"), fmt.Sprintf("%d is not a private option", option.Option), "use a number from 224 to 254")
		}
		switch {
		case option.Value == "":
			c.fail(path("value"), "no value", "write what the option holds")
		case len(option.Value) > 255:
			c.fail(path("value"), fmt.Sprintf("%d characters long, a DHCP option holds 255", len(option.Value)), "shorten it")
		}
		for j := range i {
			if options.PrivateOptions[j].Option == option.Option {
				c.fail(path("option"), fmt.Sprintf("the option %d is given twice", option.Option), "keep one")
				break
			}
		}
	}
}

// pciAddress reads domain:bus:slot.function in hexadecimal, such as 0000:81:01.0.
func pciAddress(address string) (parts [4]uint64, ok bool) {
	if len(address) != len("0000:81:01.0") || address[4] != ':' || address[7] != ':' || address[10] != '.' {
		return parts, false
	}
	for i, part := range []struct {
		text string
		bits int
	}{{address[:4], 16}, {address[5:7], 8}, {address[8:10], 5}, {address[11:], 3}} {
		number, err := strconv.ParseUint(part.text, 16, part.bits)
		if err != nil {
			return parts, false
		}
		parts[i] = number
	}
	return parts, true
}

// place is a number that belongs to one device.
type place struct {
	order   uint
	address [4]uint64
	name    string
}

// checkAddresses wants boot orders from 1 on and PCI addresses, each only once among disks and interfaces.
func (c *checker) checkAddresses(devices *kubevirtv1.Devices) {
	var taken []place
	check := func(list string, i int, name string, order *uint, address string, path ...any) {
		if order == nil && address == "" {
			return
		}
		this := place{name: name}
		if order != nil {
			this.order = *order
			if *order < 1 {
				c.fail(c.in("domain", "devices", list, i, "bootOrder"), "must be at least 1", "begin with 1")
			} else if *order > math.MaxInt32 {
				c.fail(c.in("domain", "devices", list, i, "bootOrder"), fmt.Sprintf("%d is more than libvirt counts", *order), "begin with 1")
			}
		}
		if address != "" {
			var ok bool
			if this.address, ok = pciAddress(address); !ok {
				c.fail(c.in(path...), quoteValue(address)+" is not a PCI address", "write it as 0000:81:01.0")
			}
		}
		orderTold, addressTold := false, false
		for _, other := range taken {
			if this.order > 0 && other.order == this.order && !orderTold {
				c.fail(c.in("domain", "devices", list, i, "bootOrder"), fmt.Sprintf("%s has the boot order %d already", quoteValue(other.name), this.order), "use another number")
				orderTold = true
			}
			if this.address != [4]uint64{} && other.address == this.address && !addressTold {
				c.fail(c.in(path...), fmt.Sprintf("%s has the PCI address %s already", quoteValue(other.name), address), "use another address")
				addressTold = true
			}
		}
		taken = append(taken, this)
	}
	for i := range devices.Disks {
		disk, address := &devices.Disks[i], ""
		if disk.Disk != nil {
			address = disk.Disk.PciAddress
		}
		check("disks", i, disk.Name, disk.BootOrder, address, "domain", "devices", "disks", i, "disk", "pciAddress")
	}
	for i := range devices.Interfaces {
		iface := &devices.Interfaces[i]
		check("interfaces", i, iface.Name, iface.BootOrder, iface.PciAddress, "domain", "devices", "interfaces", i, "pciAddress")
	}
}
