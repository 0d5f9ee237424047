package schemas_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestReserved: a source writes no MAC address and no UUID that gitvirt may derive for somebody else, be it for a machine that nobody
// has a manifest of yet, unless its machine has it.
func TestReserved(t *testing.T) {
	machine := func(namespace, name, uuid, mac string) string {
		firmware, address := "", ""
		if uuid != "" {
			firmware = "firmware: {uuid: " + uuid + "}, "
		}
		if mac != "" {
			address = fmt.Sprintf(", macAddress: %q", mac)
		}
		return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: %s, namespace: %s}\nspec: {runStrategy: Always, template: {spec: {"+
			"domain: {memory: {guest: 1Gi}, %sdevices: {interfaces: [{name: n, masquerade: {}%s}]}}, networks: [{name: n, pod: {}}]}}}\n", name, namespace, firmware, address)
	}
	set := func(mac string) string {
		return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceReplicaSet\nmetadata: {name: s, namespace: shared}\n"+
			"spec: {replicas: 1, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {"+
			"domain: {memory: {guest: 1Gi}, devices: {interfaces: [{name: n, masquerade: {}, macAddress: %q}]}}, networks: [{name: n, pod: {}}]}}}\n", mac)
	}
	ofName := func(namespace, name string) schemas.Address {
		return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: namespace, Name: name}
	}
	uuid, mac := schemas.FirmwareUUID(ofName("b", "next")), schemas.MACAddress(ofName("b", "next"), "n")
	const none = ""
	for _, test := range []struct {
		reason string
		// source has the manifest, and holder the machine that lives.
		source, manifest, holder, lived string
		refused                         string
	}{
		{"the UUID of a machine to come", "team-a", machine("shared", "x", uuid, none), "", none, "shared/x: spec.template.spec.domain.firmware.uuid"},
		{"in capitals", "team-a", machine("shared", "x", strings.ToUpper(uuid), none), "", none, "shared/x: spec.template.spec.domain.firmware.uuid"},
		{"the MAC address of a machine to come", "team-a", machine("shared", "x", none, mac), "", none, "shared/x: spec.template.spec.domain.devices.interfaces[0].macAddress"},
		{"in a set", "team-a", set(mac), "", none, "shared/s: spec.template.spec.domain.devices.interfaces[0].macAddress"},
		{"its own", "team-a", machine("shared", "x", schemas.FirmwareUUID(ofName("shared", "x")), schemas.MACAddress(ofName("shared", "x"), "n")), "", none, none},
		{"that of another interface", "team-a", machine("shared", "x", none, schemas.MACAddress(ofName("shared", "x"), "m")), "", none, "shared/x: spec.template.spec.domain.devices.interfaces[0].macAddress"},
		{"what people write", "team-a", machine("shared", "x", "11111111-2222-4333-8444-555555555555", "02:00:00:00:ab:01"), "", none, none},
		{"what QEMU writes", "team-a", machine("shared", "x", none, "52:54:00:12:34:56"), "", none, none},
		{"the repository of the Fleet", "", machine("shared", "x", uuid, mac), "", none, none},
		{"one that lives has it", "team-a", machine("shared", "x", uuid, mac), "team-a", machine("shared", "x", uuid, mac), none},
		{"one that lives has another", "team-a", machine("shared", "x", uuid, none), "team-a", machine("shared", "x", none, none), "shared/x: spec.template.spec.domain.firmware.uuid"},
		{"it comes from another repository", "team-a", machine("shared", "x", uuid, mac), "", machine("shared", "x", uuid, mac), none},
		{
			"it had another name", "team-a", strings.Replace(machine("shared", "x", schemas.FirmwareUUID(ofName("shared", "y")), none), "namespace: shared", "namespace: shared, annotations: {gitvirt.io/previous-name: y}", 1),
			"team-a", machine("shared", "y", none, none), none,
		},
	} {
		held := living{}
		for _, vm := range schemas.Parse("lived.yaml", []byte(test.lived)).VMs {
			held[vm.Address] = schemas.Held{Source: test.holder, Record: vm.Record}
		}
		files := []*schemas.File{schemas.Parse("gitvirt.yaml", []byte(tenants)), schemas.ParseFrom(test.source, "x.yaml", []byte(test.manifest))}
		var refused []string
		for _, d := range schemas.Assemble(files, schemas.Holding(held)).Diagnostics {
			refused = append(refused, d.Address.Namespace+"/"+d.Address.Name+": "+d.Path)
		}
		if got := strings.Join(refused, ", "); got != test.refused {
			t.Errorf("%s: %q, want %q", test.reason, got, test.refused)
		}
	}

	// The machine that it was for comes later, and gets what is derived for it.
	files := []*schemas.File{schemas.Parse("gitvirt.yaml", []byte(tenants)), schemas.ParseFrom("team-a", "x.yaml", []byte(machine("shared", "x", uuid, mac)))}
	held := living{}
	for _, vm := range schemas.Assemble(files, schemas.Holding(held)).VMs {
		held[vm.Address] = schemas.Held{Source: vm.Position.Source, Record: vm.Record}
	}
	files = append(files, schemas.ParseFrom("team-b", "next.yaml", []byte(machine("b", "next", none, none))))
	desired := schemas.Assemble(files, schemas.Holding(held))
	if len(desired.VMs) != 1 || desired.VMs[0].Address != ofName("b", "next") {
		t.Errorf("machines %v:\n%s", desired.VMs, told(desired.Diagnostics))
	}

	// Both live with it, from the time before: whoever writes it gives way.
	for _, vm := range schemas.Parse("x.yaml", []byte(machine("shared", "x", none, mac)+"---\n"+machine("b", "next", none, none))).VMs {
		held[vm.Address] = schemas.Held{Source: map[string]string{"shared": "team-a", "b": "team-b"}[vm.Address.Namespace], Record: vm.Record}
	}
	files[1] = schemas.ParseFrom("team-a", "x.yaml", []byte(machine("shared", "x", none, mac)))
	desired = schemas.Assemble(files, schemas.Holding(held))
	if len(desired.VMs) != 1 || desired.VMs[0].Address != ofName("b", "next") || !strings.Contains(told(desired.Diagnostics), "gitvirt derives the MAC address "+mac+" for something in another repository") {
		t.Errorf("machines %v:\n%s", desired.VMs, told(desired.Diagnostics))
	}
}
