package conformance

import (
	"fmt"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

const usernet = "info usernet"

func testMonitor(s *suite) {
	s.need(s.User != nil, "run a guest with a user-mode network")
	s.is(second(s.Hypervisor.Monitor(s.ctx, "absent", usernet)), hypervisor.ErrNotFound)
	s.define(s.User, "a")
	if output, err := s.Hypervisor.Monitor(s.ctx, "a", usernet); err == nil {
		s.Errorf("a domain that is off has a monitor, which says %q", output)
	}
	ask := func(format string, arguments ...any) string {
		s.Helper()
		output, err := s.Hypervisor.Monitor(s.ctx, "a", fmt.Sprintf(format, arguments...))
		s.ok(err)
		return strings.TrimSpace(output)
	}
	says := func(want, command string, arguments ...any) {
		s.Helper()
		if output := ask(command, arguments...); !strings.Contains(output, want) || (want == "") != (output == "") {
			s.Errorf("the monitor says %q to %q, want %q", output, fmt.Sprintf(command, arguments...), want)
		}
	}
	const from = "127.213.1.7:61440" // by nobody else, it is hoped
	s.power("a", hypervisor.PowerOn)
	says("Hub -1 (hostua-default):", usernet)
	says("", "hostfwd_add hostua-default tcp:%s-:22", from)
	says("", "hostfwd_add hostua-default udp:%s-:22", from)
	says("Could not set up host forwarding rule", "hostfwd_add hostua-default tcp:%s-:23", from)
	says("unrecognized netdev id", "hostfwd_add hostua-other tcp:%s-:24", from)
	var rows []string
	for line := range strings.Lines(ask(usernet)) {
		if strings.Contains(line, "[HOST_FORWARD]") {
			words := strings.Fields(line)
			rows = append(rows, strings.Join([]string{words[0], words[2], words[3], words[5]}, " "))
		}
	}
	if got := strings.Join(rows, "\n"); got != "TCP[HOST_FORWARD] 127.213.1.7 61440 22\nUDP[HOST_FORWARD] 127.213.1.7 61440 22" {
		s.Errorf("forwards:\n%s", got)
	}
	says("removed", "hostfwd_remove hostua-default udp:%s", from)
	says("not found", "hostfwd_remove hostua-default udp:%s", from)
	s.power("a", hypervisor.PowerOff)
	s.power("a", hypervisor.PowerOn) // another QEMU knows nothing of it
	if output := ask(usernet); strings.Contains(output, "HOST_FORWARD") {
		s.Errorf("forwards after a power cycle:\n%s", output)
	}
}
