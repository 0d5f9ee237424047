package schemas_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestLimits: lists and texts that are too long are told where they are, once.
func TestLimits(t *testing.T) {
	list := func(n int, entry string) string {
		entries := make([]string, n)
		for i := range entries {
			entries[i] = strings.ReplaceAll(entry, "#", fmt.Sprint(i))
		}
		return "[" + strings.Join(entries, ", ") + "]"
	}
	long := func(n int) string { return strings.Repeat("a", n) }
	one := func(rest string) string {
		return "  domain: {memory: {guest: 1Gi}, devices: {interfaces: [{name: default, masquerade: {}, " + rest + "}]}}\n  networks: [{name: default, pod: {}}]\n"
	}
	const tail = "  domain: {memory: {guest: 1Gi}}\n"
	for _, test := range []struct{ reason, spec, want string }{
		{"search domains", tail + "  dnsConfig: {searches: " + list(33, "a-#.example") + "}\n", "vm.yaml:7:25: spec.dnsConfig.searches: 33 search domains"},
		{"letters of search domains", tail + "  dnsConfig: {searches: " + list(10, long(240)+"#") + "}\n", "vm.yaml:7:25: spec.dnsConfig.searches: 2419 characters"},
		{"ports", one("ports: " + list(257, "{port: 80}")), "vm.yaml:6:96: spec.domain.devices.interfaces[0].ports: 257 entries"},
		{"ranges of ports", one("portRanges: " + list(257, "{protocol: TCP, start: 1, end: 2}")), "vm.yaml:6:101: spec.domain.devices.interfaces[0].portRanges: 257 entries"},
		{"a boot file", one("dhcpOptions: {bootFileName: " + long(256) + "}"), "vm.yaml:6:117: spec.domain.devices.interfaces[0].dhcpOptions.bootFileName: 256 characters"},
		{"a private option", one("dhcpOptions: {privateOptions: [{option: 224, value: " + long(256) + "}]}"), "vm.yaml:6:141: spec.domain.devices.interfaces[0].dhcpOptions.privateOptions[0].value: 256 characters"},
		{"private options", one("dhcpOptions: {privateOptions: " + list(257, "{option: 224, value: x}") + "}"), "vm.yaml:6:119: spec.domain.devices.interfaces[0].dhcpOptions.privateOptions: 257 entries"},
		{"a serial number", "  domain: {memory: {guest: 1Gi}, devices: {disks: [{name: a, serial: " + long(257) + "}]}}\n  volumes: [{name: a, emptyDisk: {capacity: 1Gi}}]\n", "vm.yaml:6:70: spec.domain.devices.disks[0].serial: 257 characters"},
		{"user data", tail + "  volumes: [{name: a, cloudInitNoCloud: {userData: " + long(1<<20+1) + "}}]\n", "vm.yaml:7:52: spec.volumes[0].cloudInitNoCloud.userData: 1048577 bytes"},
		{"GPUs", "  domain: {memory: {guest: 1Gi}, devices: {gpus: " + list(257, "{name: g#, deviceName: a/b}") + "}}\n", "vm.yaml:6:50: spec.domain.devices.gpus: 257 entries"},
	} {
		var errors []schemas.Diagnostic
		for _, d := range schemas.Parse("vm.yaml", []byte(vmi("web", test.spec))).Diagnostics {
			if d.Severity == schemas.SeverityError {
				errors = append(errors, d)
			}
		}
		if len(errors) != 1 || !strings.HasPrefix(errors[0].Error(), test.want) {
			t.Errorf("%s: %.300v, want %s", test.reason, errors, test.want)
		}
	}
	templates := "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: web}\nspec:\n  runStrategy: Halted\n  dataVolumeTemplates: " +
		list(257, "{metadata: {name: d#}, spec: {}}") + "\n  template: {spec: {domain: {memory: {guest: 1Gi}}}}\n"
	file := schemas.Parse("vm.yaml", []byte(templates))
	if len(file.Diagnostics) == 0 || !strings.HasPrefix(file.Diagnostics[0].Error(), "vm.yaml:6:24: spec.dataVolumeTemplates: 257 entries") {
		t.Errorf("%.300v", file.Diagnostics)
	}
}
