package fake

import (
	"context"
	"encoding/xml"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Monitor implements hypervisor.Hypervisor. The fake knows the commands about QEMU's user-mode network that tell and change
// which ports of the host lead to the guest; nobody listens there.
func (h *Hypervisor) Monitor(ctx context.Context, name, command string) (string, error) {
	if err := h.enter(ctx, Monitor, name); err != nil {
		return "", err
	}
	defer h.mu.Unlock()
	d, err := h.find(name)
	if err != nil {
		return "", err
	}
	if !d.State.Active() {
		return "", fmt.Errorf("ask the monitor of domain %q: it is not running", name)
	}
	return d.monitor.answer(command), nil
}

// SetBusyPorts makes ports of the host, such as "tcp:127.1.2.3:80", belong to somebody else: no guest gets them.
func (h *Hypervisor) SetBusyPorts(name string, ports ...string) bool {
	return h.with(name, func(d *domain) { d.monitor.busy = ports })
}

// Forwards returns the forwards of a guest's QEMU, such as "tcp:127.1.2.3:61440-:80", sorted.
func (h *Hypervisor) Forwards(name string) []string {
	var all []string
	h.with(name, func(d *domain) {
		for _, f := range d.monitor.forwards {
			all = append(all, f.from+"-:"+f.to)
		}
	})
	slices.Sort(all)
	return all
}

// monitor is the user-mode network of one run of a guest.
type monitor struct {
	netdevs  []string
	busy     []string
	forwards []forward
}

// forward leads from a port of the host, "tcp:127.1.2.3:80", to a port of the guest.
type forward struct{ netdev, from, to string }

// start begins a run: QEMU names a network after the alias of the device.
func (m *monitor) start(live string) {
	var domain struct {
		Interfaces []struct {
			Type  string `xml:"type,attr"`
			Alias struct {
				Name string `xml:"name,attr"`
			} `xml:"alias"`
		} `xml:"devices>interface"`
	}
	m.netdevs, m.forwards = nil, nil
	if xml.Unmarshal([]byte(live), &domain) != nil {
		return
	}
	for _, in := range domain.Interfaces {
		if in.Type == "user" {
			m.netdevs = append(m.netdevs, "host"+in.Alias.Name)
		}
	}
}

var monitorCommand = regexp.MustCompile(`^hostfwd_(add|remove) (\S+) ((?:tcp|udp):[0-9.]+:[0-9]+)(?:-:([0-9]+))?$`)

func (m *monitor) answer(command string) string {
	if command == "info usernet" {
		return m.usernet()
	}
	words := monitorCommand.FindStringSubmatch(command)
	if words == nil {
		return "unknown command: '" + command + "'"
	}
	netdev, from, to := words[2], words[3], words[4]
	at := slices.IndexFunc(m.forwards, func(f forward) bool { return f.from == from })
	switch {
	case !slices.Contains(m.netdevs, netdev):
		return "unrecognized netdev id '" + netdev + "'"
	case words[1] == "remove" && at < 0:
		return "host forwarding rule for " + from + " not found"
	case words[1] == "remove":
		m.forwards = slices.Delete(m.forwards, at, at+1)
		return "host forwarding rule for " + from + " removed"
	case at >= 0 || slices.Contains(m.busy, from):
		return "Could not set up host forwarding rule '" + from + "-:" + to + "'"
	}
	m.forwards = append(m.forwards, forward{netdev, from, to})
	return ""
}

// usernet is QEMU's table, in the form of its version 7.2.
func (m *monitor) usernet() string {
	var out strings.Builder
	for _, netdev := range m.netdevs {
		fmt.Fprintf(&out, "Hub -1 (%s):\r\n", netdev)
		fmt.Fprintf(&out, "  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n")
		for i, f := range m.forwards {
			parts := strings.Split(f.from, ":")
			if f.netdev == netdev {
				fmt.Fprintf(&out, "  %-19s %2d %15s %5s %15s %5s %5d %5d\r\n", strings.ToUpper(parts[0])+"[HOST_FORWARD]", 13+i, parts[1], parts[2], "10.0.2.15", f.to, 0, 0)
			}
		}
	}
	return out.String()
}
