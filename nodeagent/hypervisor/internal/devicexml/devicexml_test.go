package devicexml_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/devicexml"
)

const domain = `<?xml version='1.0'?>
<!-- made by hand -->
<domain type='qemu'>
  <metadata><devices><disk><target dev='vdz'/></disk></devices></metadata>
  <devices>
    <emulator>/usr/bin/qemu</emulator>
    <disk type='file' device='disk'><source file='/a'/><target dev='vda' bus='virtio'/><alias name='virtio-disk0'/></disk>
    <interface type='user'><mac address='52:54:00:AA:00:01'/><target dev='vnet0'/><alias name='net0'/></interface>
    <memory model='virtio-mem'><target><size unit='KiB'>1</size></target><alias name='ua-more'/></memory>
    <channel type='unix'/>
  </devices>
  <seclabel type='none'/>
</domain>
`

func list(t *testing.T) []devicexml.Device {
	t.Helper()
	found, err := devicexml.List(domain)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestList(t *testing.T) {
	want := []devicexml.Device{
		{Kind: "emulator"},
		{Kind: "disk", Target: "vda", Alias: "virtio-disk0"},
		{Kind: "interface", MAC: "52:54:00:aa:00:01", Alias: "net0"},
		{Kind: "memory", Alias: "ua-more"},
		{Kind: "channel"},
	}
	found := list(t)
	if diff := cmp.Diff(want, found, cmpopts.IgnoreFields(devicexml.Device{}, "Start", "End")); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if text := domain[found[4].Start:found[4].End]; text != "<channel type='unix'/>" {
		t.Errorf("the last device is %q", text)
	}
	if _, err := devicexml.List(domain[:len(domain)/2]); err == nil {
		t.Error("half a domain was read")
	}
}

func TestFind(t *testing.T) {
	for _, test := range []struct{ reason, device, alias string }{
		{"a disk by its target", "<disk><target dev='vda'/></disk>", "virtio-disk0"},
		{"a disk by its alias", "<disk><alias name='virtio-disk0'/></disk>", "virtio-disk0"},
		{"another disk", "<disk><target dev='vdb'/><alias name='virtio-disk0'/></disk>", ""},
		{"a card by its address", "<interface><mac address='52:54:00:aA:00:01'/></interface>", "net0"},
		{"no card has the name of its tap", "<interface><target dev='vnet0'/></interface>", ""},
		{"memory", "<memory model='dimm'><alias name='ua-more'/></memory>", "ua-more"},
		{"another kind", "<channel><alias name='ua-more'/></channel>", ""},
		{"nothing that names it", "<channel type='unix'/>", ""},
	} {
		named, err := devicexml.Parse(test.device)
		if err != nil {
			t.Fatalf("%s: %v", test.reason, err)
		}
		if found, ok := devicexml.Find(list(t), &named); found.Alias != test.alias || ok != (test.alias != "") {
			t.Errorf("%s: found %+v, %t, want alias %q", test.reason, found, ok, test.alias)
		}
	}
}

func TestParseQuotesNothing(t *testing.T) {
	for _, text := range []string{"", "secret", "<graphics passwd='secret'", "<a>secret</b>", "<a/>secret", "<a/><secret/>", "<a>&secret;</a>"} {
		if _, err := devicexml.Parse(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want an error that does not quote it", text, err)
		}
	}
}

func TestKeepAssigned(t *testing.T) {
	const old = "<memory><target/><alias name='ua-more'/><address type='pci' bus='0x04'/></memory>"
	for _, test := range []struct{ device, want string }{
		{"<memory/>", "<memory><alias name='ua-more'/><address type='pci' bus='0x04'/></memory>"},
		{"<memory model='x'/>", "<memory model='x'><alias name='ua-more'/><address type='pci' bus='0x04'/></memory>"},
		{" <memory><target/></memory>\n", "<memory><target/><alias name='ua-more'/><address type='pci' bus='0x04'/></memory>"},
		{"<memory><alias name='b'/><address type='pci' bus='0x05'/></memory>", "<memory><alias name='b'/><address type='pci' bus='0x05'/></memory>"},
	} {
		if got := devicexml.KeepAssigned(old, test.device); got != test.want {
			t.Errorf("%s becomes %s, want %s", test.device, got, test.want)
		}
	}
}
