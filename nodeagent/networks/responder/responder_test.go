package responder

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

func config() *Config {
	gateway := netip.MustParseAddr("169.254.1.1")
	router := netip.MustParseAddr("fe80::1")
	return &Config{
		Guest: net.HardwareAddr{2, 0, 0, 0, 0, 5}, Own: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MTU: 1450, Hostname: "db",
		DNS:    []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")},
		Search: []string{"default.svc.cluster.local", "a..b", ""},
		IPv4: &IPv4{
			Address: netip.MustParsePrefix("10.1.2.3/32"), Server: netip.MustParseAddr("169.254.75.10"), Router: gateway,
			Routes: []Route{{Destination: netip.MustParsePrefix("169.254.1.1/32")}, {Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway}},
		},
		IPv6: &IPv6{
			Addresses: []netip.Addr{netip.MustParseAddr("fd00::3")}, Router: router, Default: true,
			Routes: []netip.Prefix{netip.MustParsePrefix("fd77::/64")}, OnLink: []netip.Prefix{netip.MustParsePrefix("fd00::/64")},
		},
		Neighbours: map[netip.Addr]net.HardwareAddr{gateway: {0xee, 0xee, 0xee, 0xee, 0xee, 0xee}, router: {0xee, 0xee, 0xee, 0xee, 0xee, 0xee}},
	}
}

// fromGuest4 is a DHCP packet as the guest sends it.
func (c *Config) fromGuest4(t testing.TB, modifiers ...dhcpv4.Modifier) []byte {
	t.Helper()
	request, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(c.Guest)}, modifiers...)...)
	if err != nil {
		t.Fatal(err)
	}
	guest := &Config{Own: c.Guest}
	packet := guest.udp4(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), request.ToBytes())
	udp := packet[etherLength+ip4Length:]
	udp[1], udp[3] = portDHCPClient, portDHCP
	return packet
}

// fromGuest6 is a DHCPv6 packet as the guest sends it.
func (c *Config) fromGuest6(t testing.TB, message *dhcpv6.Message) []byte {
	t.Helper()
	guest := &Config{Own: c.Guest}
	from, to := netip.MustParseAddr("fe80::5"), netip.MustParseAddr("ff02::1:2")
	return guest.ip6(multicastMAC(to), from, to, protocolUDP, udp(make([]byte, ip6Length), from, to, portDHCP6Client, portDHCP6, message.ToBytes()))
}

func solicit(t testing.TB, c *Config, modifiers ...dhcpv6.Modifier) *dhcpv6.Message {
	t.Helper()
	out, err := dhcpv6.NewSolicit(c.Guest, modifiers...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func ipv4(text string) net.IP { return net.ParseIP(text).To4() }

// TestDHCP: what each message is answered with, and where the answer goes.
func TestDHCP(t *testing.T) {
	type modifiers = []dhcpv4.Modifier
	kind := dhcpv4.WithMessageType
	asking := func(address string) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(ipv4(address)))
	}
	for _, row := range []struct {
		reason   string
		message  modifiers
		want     dhcpv4.MessageType
		receiver string
	}{
		{"a guest that has nothing", modifiers{kind(dhcpv4.MessageTypeDiscover)}, dhcpv4.MessageTypeOffer, "10.1.2.3"},
		{"and hears broadcasts only", modifiers{kind(dhcpv4.MessageTypeDiscover), dhcpv4.WithBroadcast(true)}, dhcpv4.MessageTypeOffer, "255.255.255.255"},
		{"takes the offer", modifiers{kind(dhcpv4.MessageTypeRequest), asking("10.1.2.3")}, dhcpv4.MessageTypeAck, "10.1.2.3"},
		{"renews", modifiers{kind(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(ipv4("10.1.2.3"))}, dhcpv4.MessageTypeAck, "10.1.2.3"},
		{"remembers another Pod's address", modifiers{kind(dhcpv4.MessageTypeRequest), asking("10.1.2.9")}, dhcpv4.MessageTypeNak, "255.255.255.255"},
		{"takes another server's offer", modifiers{kind(dhcpv4.MessageTypeRequest), asking("10.1.2.3"), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(ipv4("10.1.2.1")))}, dhcpv4.MessageTypeNone, ""},
		{"has an address and asks for the rest", modifiers{kind(dhcpv4.MessageTypeInform), dhcpv4.WithClientIP(ipv4("10.1.2.3"))}, dhcpv4.MessageTypeAck, "10.1.2.3"},
		{"gives it back", modifiers{kind(dhcpv4.MessageTypeRelease)}, dhcpv4.MessageTypeNone, ""},
		{"is a server", modifiers{kind(dhcpv4.MessageTypeOffer)}, dhcpv4.MessageTypeNone, ""},
		{"speaks for a card that is not its own", modifiers{kind(dhcpv4.MessageTypeDiscover), dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 9})}, dhcpv4.MessageTypeNone, ""},
		{"relays", modifiers{kind(dhcpv4.MessageTypeDiscover), dhcpv4.WithGatewayIP(ipv4("10.1.2.8"))}, dhcpv4.MessageTypeNone, ""},
	} {
		c := config()
		answers := c.Answer(c.fromGuest4(t, row.message...))
		if row.want == dhcpv4.MessageTypeNone {
			if len(answers) != 0 {
				t.Errorf("a guest that %s is answered", row.reason)
			}
			continue
		}
		if len(answers) != 1 {
			t.Errorf("a guest that %s gets %d answers", row.reason, len(answers))
			continue
		}
		in, ok := parse(answers[0])
		reply, err := dhcpv4.FromBytes(in.payload)
		if !ok || err != nil {
			t.Errorf("%s: %v", row.reason, err)
			continue
		}
		if reply.MessageType() != row.want || in.receiver.String() != row.receiver {
			t.Errorf("%s: %s to %s, want %s to %s", row.reason, reply.MessageType(), in.receiver, row.want, row.receiver)
		}
		hasAddress := row.want != dhcpv4.MessageTypeNak
		if got := reply.Options.Has(dhcpv4.OptionClasslessStaticRoute); got != hasAddress {
			t.Errorf("%s: routes %v", row.reason, got)
		}
		if checksum(0, answers[0][etherLength:etherLength+ip4Length]) != 0 {
			t.Errorf("%s: IP's checksum is wrong", row.reason)
		}
	}
}

// TestLongSearch: an answer fits into a packet, whatever is in a Pod's resolv.conf.
func TestLongSearch(t *testing.T) {
	c := config()
	for range 32 {
		c.Search = append(c.Search, "a-rather-long-name-of-a-namespace-in-a-cluster.with-another-long-name.example.com")
	}
	for i := range c.Search {
		c.Search[i] = string(rune('a'+i%26)) + c.Search[i] // compression must not help
	}
	answers := c.Answer(c.fromGuest4(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover)))
	if len(answers) != 1 || len(answers[0]) > c.MTU+etherLength {
		t.Fatalf("%d answers", len(answers))
	}
	answers = c.Answer(c.fromGuest6(t, solicit(t, c)))
	if len(answers) != 1 || len(answers[0]) > c.MTU+etherLength {
		t.Fatalf("%d answers of DHCPv6", len(answers))
	}
}

// TestDHCPv6: what each message is answered with.
func TestDHCPv6(t *testing.T) {
	c := config()
	message := func(kind dhcpv6.MessageType, modifiers ...dhcpv6.Modifier) *dhcpv6.Message {
		out := solicit(t, c, modifiers...)
		out.MessageType = kind
		return out
	}
	owning := func(address string) dhcpv6.Modifier {
		return dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(address)})
	}
	foreign := dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: c.Guest})
	for _, row := range []struct {
		reason  string
		message *dhcpv6.Message
		want    dhcpv6.MessageType // none for 0
		address bool
		status  string
	}{
		{"solicit", message(dhcpv6.MessageTypeSolicit), dhcpv6.MessageTypeAdvertise, true, ""},
		{"solicit in a hurry", message(dhcpv6.MessageTypeSolicit, dhcpv6.WithRapidCommit), dhcpv6.MessageTypeReply, true, ""},
		{"request", message(dhcpv6.MessageTypeRequest), dhcpv6.MessageTypeReply, true, ""},
		{"request of another server", message(dhcpv6.MessageTypeRequest, foreign), 0, false, ""},
		{"rebind", message(dhcpv6.MessageTypeRebind), dhcpv6.MessageTypeReply, true, ""},
		{"confirm", message(dhcpv6.MessageTypeConfirm, owning("fd00::3")), dhcpv6.MessageTypeReply, false, "Success"},
		{"confirm another Pod's", message(dhcpv6.MessageTypeConfirm, owning("fd00::9")), dhcpv6.MessageTypeReply, false, "NotOnLink"},
		{"release", message(dhcpv6.MessageTypeRelease), dhcpv6.MessageTypeReply, false, ""},
		{"advertise", message(dhcpv6.MessageTypeAdvertise), 0, false, ""},
	} {
		answers := c.Answer(c.fromGuest6(t, row.message))
		if row.want == 0 {
			if len(answers) != 0 {
				t.Errorf("%s is answered", row.reason)
			}
			continue
		}
		if len(answers) != 1 {
			t.Errorf("%s gets %d answers", row.reason, len(answers))
			continue
		}
		in, _ := parse(answers[0])
		reply, err := dhcpv6.MessageFromBytes(in.payload)
		if err != nil || reply.MessageType != row.want {
			t.Errorf("%s: %v, %v", row.reason, reply, err)
			continue
		}
		given := reply.Options.OneIANA()
		if has := given != nil && given.Options.OneAddress() != nil && given.Options.OneAddress().IPv6Addr.String() == "fd00::3"; has != row.address {
			t.Errorf("%s: %v", row.reason, reply.Summary())
		}
		if status := reply.Options.Status(); row.status != "" && (status == nil || status.StatusCode.String() != row.status) {
			t.Errorf("%s: status %v", row.reason, status)
		}
	}
}

// TestNeighbours: who is answered for, and who is not.
func TestNeighbours(t *testing.T) {
	c := config()
	for _, row := range []struct {
		reason string
		frame  []byte
		want   int
	}{
		{"the gateway", AskIPv4(c.Guest, netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("169.254.1.1")), 1},
		{"somebody else", AskIPv4(c.Guest, netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("169.254.1.2")), 0},
		{"the gateway, for another card", AskIPv4(c.Own, netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("169.254.1.1")), 0},
		{"the router", AskIPv6(c.Guest, netip.MustParseAddr("fe80::1")), 1},
		{"another host", AskIPv6(c.Guest, netip.MustParseAddr("fe80::2")), 0},
	} {
		answers := c.Answer(row.frame)
		if len(answers) != row.want {
			t.Errorf("%s: %d answers", row.reason, len(answers))
			continue
		}
		for _, answer := range answers {
			if _, mac, ok := Tells(answer); !ok || mac.String() != "ee:ee:ee:ee:ee:ee" {
				t.Errorf("%s: is at %s", row.reason, mac)
			}
		}
	}
}

// FuzzAnswer: a guest may send anything, and gets no more than a few frames for it, none of them longer than its network takes.
func FuzzAnswer(f *testing.F) {
	c := config()
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform} {
		f.Add(c.fromGuest4(f, dhcpv4.WithMessageType(kind), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(ipv4("10.1.2.3")))))
	}
	for _, kind := range []dhcpv6.MessageType{dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeConfirm} {
		message := solicit(f, c)
		message.MessageType = kind
		f.Add(c.fromGuest6(f, message))
	}
	f.Add(AskIPv4(c.Guest, netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("169.254.1.1")))
	f.Add(AskIPv6(c.Guest, netip.MustParseAddr("fe80::1")))
	f.Add((&Config{Own: c.Guest}).icmp6Message(multicastMAC(allNodes6()), netip.MustParseAddr("fe80::5"), netip.MustParseAddr("ff02::2"), []byte{routerSolicitation, 0, 0, 0, 0, 0, 0, 0}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) >= 12 {
			copy(frame[6:12], c.Guest) // or all that is tried is who it comes from
		}
		answers := c.Answer(frame)
		if len(answers) > 1 {
			t.Errorf("%d answers", len(answers))
		}
		for _, answer := range answers {
			if len(answer) > c.MTU+etherLength {
				t.Errorf("an answer of %d bytes", len(answer))
			}
			if _, ok := parse(answer); !ok {
				t.Errorf("an answer that nobody can read: %x", answer)
			}
		}
		Solicits(frame)
		Tells(frame)
	})
}
