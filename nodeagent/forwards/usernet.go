package forwards

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// row is a line of QEMU's table of what goes through its user-mode network.
type row struct {
	protocol string // TCP or UDP
	state    string // HOST_FORWARD, ESTABLISHED and so on
	listen   uint16 // on the host
	port     uint16 // of the guest
}

// forwardsOf returns what QEMU forwards at a guest's address.
func forwardsOf(ctx context.Context, guest Guest) ([]row, error) {
	rows, err := connections(ctx, guest)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(rows, func(r row) bool { return r.state != "HOST_FORWARD" }), nil
}

// connections asks QEMU for everything at a guest's address.
func connections(ctx context.Context, guest Guest) ([]row, error) {
	output, err := guest.Monitor(ctx, "info usernet")
	if err != nil {
		return nil, fmt.Errorf("asking QEMU for its forwards: %w", err)
	}
	return parse(output, guest.Netdev, guest.Address)
}

// parse reads the output of "info usernet": for each network a line that names it in parentheses, and rows such as
//
//	TCP[HOST_FORWARD]  13     127.83.12.9 61440       10.0.2.15    80     0     0
func parse(output, netdev string, address netip.Addr) ([]row, error) {
	var rows []row
	named, found := false, false
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if _, name, ok := strings.Cut(line, "("); ok && strings.HasSuffix(name, "):") {
			named = strings.TrimSuffix(name, "):") == netdev
			found = found || named
			continue
		}
		if !named {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 6 {
			continue
		}
		protocol, state, ok := strings.Cut(words[0], "[")
		if !ok || (protocol != "TCP" && protocol != "UDP") || words[2] != address.String() {
			continue // what the guest itself has opened, and what somebody forwards elsewhere
		}
		listen, err := strconv.ParseUint(words[3], 10, 16)
		port, err2 := strconv.ParseUint(words[5], 10, 16)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("reading QEMU's forwards: %w", err)
		}
		rows = append(rows, row{protocol: protocol, state: strings.TrimSuffix(state, "]"), listen: uint16(listen), port: uint16(port)})
	}
	if !found {
		return nil, fmt.Errorf("QEMU has no user-mode network %s", netdev)
	}
	return rows, nil
}

// Netdev returns QEMU's name of the user-mode network of a running domain, by the domain's XML: libvirt puts "host" before
// the alias of the network card.
func Netdev(live string) (string, error) {
	var domain struct {
		Interfaces []struct {
			Type  string `xml:"type,attr"`
			Alias struct {
				Name string `xml:"name,attr"`
			} `xml:"alias"`
		} `xml:"devices>interface"`
	}
	if err := xml.Unmarshal([]byte(live), &domain); err != nil {
		return "", fmt.Errorf("reading the domain's network cards: %w", err)
	}
	for _, in := range domain.Interfaces {
		// A command to the monitor is words between blanks.
		if in.Type == "user" && in.Alias.Name != "" && !strings.ContainsFunc(in.Alias.Name, notInName) {
			return "host" + in.Alias.Name, nil
		}
	}
	return "", errors.New("the domain that runs has no user-mode network")
}

func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}
