package domainxml_test

import (
	"strings"
	"testing"
)

// TestUserRange: user-mode networking has the address range of the pod network, and none of its own is named otherwise.
func TestUserRange(t *testing.T) {
	for _, test := range []struct{ reason, pod, want string }{
		{"QEMU's own", "{}", ""},
		{"IPv4", `{vmNetworkCIDR: 10.11.0.7/24}`, `<ip family="ipv4" address="10.11.0.0" prefix="24"`},
		{"IPv6, which libvirt takes with 64 bits only", `{vmIPv6NetworkCIDR: "fd10:0:2::/120"}`, `<ip family="ipv6" address="fd10:0:2::" prefix="64"`},
	} {
		document := render(t, decode(t, `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: web}
spec:
  domain:
    memory: {guest: 64Mi}
    devices: {interfaces: [{name: default, masquerade: {}}]}
  networks: [{name: default, pod: `+test.pod+`}]
`))
		if got := strings.Contains(document, "<ip "); got != (test.want != "") || !strings.Contains(document, test.want) {
			t.Errorf("%s: want %q in\n%s", test.reason, test.want, document)
		}
	}
}
