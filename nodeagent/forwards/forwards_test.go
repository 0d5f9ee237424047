package forwards_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/forwards"
	"github.com/gitvirt/gitvirt/schemas"
)

// usernet is what QEMU 7.2 printed.
const usernet = "Hub -1 (hostua-other):\r\n" +
	"  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n" +
	"  TCP[HOST_FORWARD]  11     127.83.12.9 61445       10.0.2.15    70     0     0\r\n" +
	"Hub -1 (hostua-default):\r\n" +
	"  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n" +
	"  TCP[ESTABLISHED]   18     127.83.12.9 61440       10.0.2.15    25     0     0\r\n" +
	"  TCP[SYN_SENT]      19     127.83.12.9 61442       10.0.2.15    26     0     0\r\n" +
	"  TCP[SYN_SENT]      20       10.0.2.15 40000   93.184.216.34    80     0     0\r\n" +
	"  TCP[HOST_FORWARD]  16     127.83.12.9 61441       10.0.2.15    81     0     0\r\n" +
	"  TCP[HOST_FORWARD]  15     127.83.12.9 61440       10.0.2.15    25     0     0\r\n" +
	"  TCP[HOST_FORWARD]  14       127.0.0.1  2222       10.0.2.15    22     0     0\r\n" +
	"  UDP[HOST_FORWARD]  17     127.83.12.9 61440       10.0.2.15    53     0     0\r\n" +
	"  UDP[236 sec]       21       10.0.2.15 53535        10.0.2.3    53     0     0\r\n" +
	"  ICMP[10 sec]       22       10.0.2.15     -         1.1.1.1     -     0     0\r\n"

// monitor answers with what QEMU printed, and keeps the commands.
func monitor(commands *[]string, refuse func(command string) (string, error)) forwards.Guest {
	return forwards.Guest{
		Netdev: "hostua-default", Address: netip.MustParseAddr("127.83.12.9"),
		Monitor: func(_ context.Context, command string) (string, error) {
			*commands = append(*commands, command)
			if command == "info usernet" {
				return usernet, nil
			}
			if refuse != nil {
				return refuse(command)
			}
			return "\r\n", nil
		},
	}
}

func TestOpen(t *testing.T) {
	tcp := func(port uint16) schemas.ForwardedPort { return schemas.ForwardedPort{Protocol: "TCP", Port: port} }
	udp := schemas.ForwardedPort{Protocol: "UDP", Port: 53}
	busy := errors.New("the monitor hangs")
	for _, test := range []struct {
		reason   string
		wanted   []schemas.ForwardedPort
		refuse   func(string) (string, error)
		commands string
		open     map[schemas.ForwardedPort]uint16
		problem  string
	}{
		{"all is as it should be", []schemas.ForwardedPort{tcp(25), tcp(81), udp}, nil, "", map[schemas.ForwardedPort]uint16{tcp(25): 61440, tcp(81): 61441, udp: 61440}, ""},
		{
			"one goes, two come",
			[]schemas.ForwardedPort{tcp(22), tcp(25), udp, {Protocol: "UDP", Port: 22}},
			nil,
			"hostfwd_remove hostua-default tcp:127.83.12.9:61441|hostfwd_add hostua-default tcp:127.83.12.9:61441-:22|hostfwd_add hostua-default udp:127.83.12.9:61441-:22",
			map[schemas.ForwardedPort]uint16{tcp(22): 61441, tcp(25): 61440, udp: 61440, {Protocol: "UDP", Port: 22}: 61441},
			"",
		},
		{
			"none", nil, nil,
			"hostfwd_remove hostua-default tcp:127.83.12.9:61441|hostfwd_remove hostua-default tcp:127.83.12.9:61440|hostfwd_remove hostua-default udp:127.83.12.9:61440",
			map[schemas.ForwardedPort]uint16{},
			"",
		},
		{
			"a port of the host that is taken",
			[]schemas.ForwardedPort{tcp(22), tcp(25), tcp(81), udp},
			func(command string) (string, error) {
				if strings.Contains(command, ":61442-") {
					return "Could not set up host forwarding rule 'x'\r\n", nil
				}
				return "", nil
			},
			"hostfwd_add hostua-default tcp:127.83.12.9:61442-:22|hostfwd_add hostua-default tcp:127.83.12.9:61443-:22",
			map[schemas.ForwardedPort]uint16{tcp(22): 61443, tcp(25): 61440, tcp(81): 61441, udp: 61440},
			"",
		},
		{
			"a monitor that fails",
			[]schemas.ForwardedPort{tcp(22), tcp(25), tcp(81), udp},
			func(string) (string, error) { return "", busy },
			"hostfwd_add hostua-default tcp:127.83.12.9:61442-:22",
			map[schemas.ForwardedPort]uint16{tcp(25): 61440, tcp(81): 61441, udp: 61440},
			"port 22 (TCP): the monitor hangs",
		},
	} {
		t.Run(test.reason, func(t *testing.T) {
			var commands []string
			open, err := forwards.Open(t.Context(), monitor(&commands, test.refuse), test.wanted)
			if got := strings.Join(commands[1:], "|"); got != test.commands {
				t.Errorf("commands\n%s\nwant\n%s", got, test.commands)
			}
			if !maps.Equal(open, test.open) {
				t.Errorf("open %v, want %v", open, test.open)
			}
			if (err == nil) != (test.problem == "") || (err != nil && err.Error() != test.problem) {
				t.Errorf("error %v, want %q", err, test.problem)
			}
		})
	}
}

// TestRefused: a QEMU that may not listen at all is not asked for ever.
func TestRefused(t *testing.T) {
	var commands []string
	var wanted []schemas.ForwardedPort
	for port := range uint16(256) {
		wanted = append(wanted, schemas.ForwardedPort{Protocol: "TCP", Port: 1000 + port})
	}
	_, err := forwards.Open(t.Context(), monitor(&commands, func(string) (string, error) { return "no", nil }), wanted)
	if err == nil || len(commands) > 100 {
		t.Errorf("%d commands, error %v", len(commands), err)
	}
}

func TestAnswers(t *testing.T) {
	var commands []string
	for listen, want := range map[uint16]bool{61440: true, 61441: false, 61442: false, 80: false} {
		if got, err := forwards.Answers(t.Context(), monitor(&commands, nil), listen); got != want || err != nil {
			t.Errorf("port %d: %t, %v", listen, got, err)
		}
	}
	guest := monitor(&commands, nil)
	guest.Netdev = "hostua-none"
	if _, err := forwards.Answers(t.Context(), guest, 61440); err == nil || !strings.Contains(err.Error(), "no user-mode network hostua-none") {
		t.Errorf("a network that QEMU does not have: %v", err)
	}
}

func TestNetdev(t *testing.T) {
	const bridge = "<interface type='network'><alias name='net0'/></interface>"
	for xml, want := range map[string]string{
		"<domain><devices>" + bridge + "<interface type='user'><alias name='ua-my_net'/></interface></devices></domain>": "hostua-my_net",
		"<domain><devices><interface type='user'><alias name='net1'/></interface></devices></domain>":                    "hostnet1",
		"<domain><devices><interface type='user'><alias name='a b'/></interface></devices></domain>":                     "",
		"<domain><devices>" + bridge + "</devices></domain>":                                                             "",
		"": "",
	} {
		if got, err := forwards.Netdev(xml); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", xml, got, err)
		}
	}
}

// FuzzUsernet: whatever a QEMU prints, nothing is closed that is not at the guest's address.
func FuzzUsernet(f *testing.F) {
	f.Add(usernet)
	f.Fuzz(func(t *testing.T, output string) {
		var commands []string
		guest := monitor(&commands, nil)
		guest.Monitor = func(_ context.Context, command string) (string, error) {
			commands = append(commands, command)
			return output, nil
		}
		_, _ = forwards.Open(t.Context(), guest, nil)
		if slices.ContainsFunc(commands[1:], func(c string) bool {
			return !strings.HasPrefix(c, "hostfwd_remove hostua-default ") || !strings.Contains(c, "p:127.83.12.9:")
		}) {
			t.Errorf("commands %q", commands)
		}
	})
}
