package libvirt

import (
	"context"
	"encoding/xml"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	lv "libvirt.org/go/libvirt"
)

const (
	// agentChannel is the name of the virtio port that qemu-guest-agent listens on.
	agentChannel = "org.qemu.guest_agent.0"

	// agentPatience is how long Addresses waits for a guest agent. One whose channel is open may still not answer;
	// libvirt gives up on it after about 5 s.
	agentPatience = time.Second
)

// agentQueries remembers which domains' guest agents are being asked, so that a silent one costs one call, not one for
// every look.
type agentQueries struct {
	mu      sync.Mutex
	pending map[string]bool
}

func (q *agentQueries) begin(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending[name] {
		return false
	}
	if q.pending == nil {
		q.pending = map[string]bool{}
	}
	q.pending[name] = true
	return true
}

func (q *agentQueries) end(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pending, name)
}

// Addresses implements hypervisor.Hypervisor. It asks libvirt's DHCP servers and, if its channel is open, the guest agent;
// the host's ARP table only when both know nothing. A domain that is off has none.
func (h *Hypervisor) Addresses(ctx context.Context, name string) ([]string, error) {
	type known struct {
		addresses []netip.Addr
		agent     bool
		bridged   bool
	}
	first, err := call(ctx, h, quick, func(c *lv.Connect) (known, error) {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return known{}, err
		}
		defer free(dom)
		live, err := dom.GetXMLDesc(0)
		if err != nil {
			return known{}, err
		}
		out := known{agent: agentConnected(live), bridged: bridged(live)}
		if strings.Contains(live, networkInterface) { // where libvirt has no networks it complains in its log of being asked
			out.addresses = addresses(dom, lv.DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE)
		}
		return out, nil
	})
	if err != nil {
		return nil, doing(err, "read addresses of", name)
	}
	found := first.addresses
	if first.agent {
		found = append(found, h.askAgent(ctx, name)...)
	}
	if len(found) == 0 && first.bridged {
		found, err = h.ask(ctx, name, lv.DOMAIN_INTERFACE_ADDRESSES_SRC_ARP)
		if err != nil {
			return nil, doing(err, "read addresses of", name)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	var texts []string
	for _, address := range slices.Compact(found) {
		texts = append(texts, address.String())
	}
	return texts, nil
}

// askAgent asks the guest agent and knows nothing when that does not answer in time.
func (h *Hypervisor) askAgent(ctx context.Context, name string) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	found, err := call(ctx, h, slow, func(c *lv.Connect) ([]netip.Addr, error) {
		if !h.agents.begin(name) {
			return nil, nil
		}
		defer h.agents.end(name) // when the agent has answered, which may be after the caller has gone
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return nil, err
		}
		defer free(dom)
		return addresses(dom, lv.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT), nil
	})
	if err != nil {
		return nil
	}
	return found
}

// ask asks one source that answers without waiting.
func (h *Hypervisor) ask(ctx context.Context, name string, source lv.DomainInterfaceAddressesSource) ([]netip.Addr, error) {
	return call(ctx, h, quick, func(c *lv.Connect) ([]netip.Addr, error) {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return nil, err
		}
		defer free(dom)
		return addresses(dom, source), nil
	})
}

// addresses returns what one source knows. A source that fails (the domain is off, its network is not libvirt's, the agent
// is gone, the driver has no such source) knows nothing.
func addresses(dom *lv.Domain, source lv.DomainInterfaceAddressesSource) []netip.Addr {
	interfaces, err := dom.ListAllInterfaceAddresses(source)
	if err != nil {
		return nil
	}
	var found []netip.Addr
	for _, i := range interfaces {
		for _, a := range i.Addrs {
			address, err := netip.ParseAddr(a.Addr)
			if err != nil || address.IsLoopback() || address.IsLinkLocalUnicast() {
				continue
			}
			found = append(found, address)
		}
	}
	return found
}

// networkInterface begins an interface on a network of libvirt's, which has a DHCP server.
const networkInterface = "<interface type='network'"

// bridged reports whether a guest is on a network that the host's ARP table can know.
func bridged(live string) bool {
	return strings.Contains(live, networkInterface) || strings.Contains(live, "<interface type='bridge'")
}

// agentConnected reports whether the guest has opened the agent's channel, by the XML of a running domain.
func agentConnected(live string) bool {
	var domain struct {
		Channels []struct {
			Target struct {
				Name  string `xml:"name,attr"`
				State string `xml:"state,attr"`
			} `xml:"target"`
		} `xml:"devices>channel"`
	}
	if err := xml.Unmarshal([]byte(live), &domain); err != nil {
		return false
	}
	for _, channel := range domain.Channels {
		if channel.Target.Name == agentChannel && channel.Target.State == "connected" {
			return true
		}
	}
	return false
}
