package domainxml_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"
	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

var update = flag.Bool("update", false, "write the golden files anew")

// volumesOf returns places for a VM's volumes.
func volumesOf(vm *schemas.VM) []domainxml.Volume {
	var out []domainxml.Volume
	for _, volume := range vm.Spec().Volumes {
		kind, _ := domainxml.VolumeKind(volume)
		place := domainxml.Volume{Name: volume.Name, Kind: kind, Path: "/disks/" + volume.Name, Format: "raw"}
		switch kind {
		case "containerDisk":
			place.Format, place.Backing, place.BackingFormat = "qcow2", "/images/sha256-1.qcow2", "qcow2"
		case "ephemeral":
			place.Format, place.Backing, place.BackingFormat = "qcow2", "/claims/ephemeral.img", "raw"
		case "emptyDisk":
			place.Format = "qcow2"
		}
		out = append(out, place)
	}
	firmware := vm.Spec().Domain.Firmware
	if firmware == nil || firmware.KernelBoot == nil || firmware.KernelBoot.Container == nil {
		return out
	}
	boot := domainxml.Volume{Name: domainxml.KernelBootVolume, Kind: "kernelBoot", Path: "/images/kernel"}
	if firmware.KernelBoot.Container.InitrdPath != "" {
		boot.Initrd = "/images/initrd"
	}
	return append(out, boot)
}

var host = domainxml.Host{DomainType: "qemu", ConsoleLog: "/vms/console.log", NVRAM: "/vms/nvram.fd", Dir: "/vms/dir"}

func render(t testing.TB, vm *schemas.VM) string {
	t.Helper()
	document, err := domainxml.Render(machineOf(vm))
	if err != nil {
		t.Fatal(err)
	}
	return document
}

func recordOf(vm *schemas.VM) *domainxml.Record {
	return &domainxml.Record{
		Address: vm.Address, Fleet: "fleet", Revision: "0123456789", Source: vm.Position.Short(), Hash: vm.Hash, Spec: vm.Record, Volumes: volumesOf(vm),
	}
}

func vms(t testing.TB) []*schemas.VM {
	t.Helper()
	paths, err := filepath.Glob("../../schemas/testdata/conformance/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	var out []*schemas.VM
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, schemas.Parse(filepath.Base(path), content).VMs...)
	}
	return out
}

// TestRenderGolden shows the domain of each of KubeVirt's examples.
func TestRenderGolden(t *testing.T) {
	for _, example := range examples(t) {
		t.Run(example.name, func(t *testing.T) {
			got, err := domainxml.Render(machineOf(example.vm))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", example.name+".xml")
			if *update {
				if err := os.WriteFile(path, []byte(got+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got+"\n"); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			again, err := domainxml.Render(machineOf(example.vm))
			if err != nil || again != got {
				t.Errorf("rendered again, the document is another: %v\n%s", err, cmp.Diff(got, again))
			}
		})
	}
}

func TestRecordRoundTrip(t *testing.T) {
	for _, vm := range vms(t) {
		machine := machineOf(vm)
		want := machine.Record
		want.Ran, want.Stop = true, "crashed"
		document, err := domainxml.Render(machine)
		if err != nil {
			t.Fatal(err)
		}
		got, err := domainxml.ParseRecord(document)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", vm.Address, diff)
		}
	}
}

func TestParseRecordOfOthers(t *testing.T) {
	for reason, document := range map[string]string{
		"no metadata":               "<domain><name>x</name></domain>",
		"another tool's metadata":   `<domain><metadata><a:b xmlns:a="https://other"/></metadata></domain>`,
		"our name outside metadata": `<domain><description><g:vm xmlns:g="https://gitvirt.io/xml/domain/v1" address="a"/></description></domain>`,
	} {
		_, err := domainxml.ParseRecord(document)
		if reason != "our name outside metadata" && !errors.Is(err, domainxml.ErrForeign) {
			t.Errorf("%s: got %v", reason, err)
		}
		if err == nil {
			t.Errorf("%s: no error", reason)
		}
	}
}

func TestRenderedVMHasNoDrift(t *testing.T) {
	for _, vm := range vms(t) {
		document := render(t, vm)
		differences, err := domainxml.Compare(document, document)
		if err != nil || len(differences) != 0 {
			t.Errorf("%s: %v %v", vm.Address, differences, err)
		}
	}
}

func TestCompareFindsWhatPeopleDo(t *testing.T) {
	document := ""
	for _, vm := range vms(t) {
		if vm.Address.Name == "vmi-nocloud" {
			document = render(t, vm)
		}
	}
	for _, test := range []struct {
		reason, old, new, path string
	}{
		{"virsh setvcpus --config", `<vcpu placement="static">1</vcpu>`, `<vcpu placement="static">2</vcpu>`, "vcpu"},
		{"virsh setvcpus --config below the maximum", `<vcpu placement="static">1</vcpu>`, `<vcpu placement="static" current="0">1</vcpu>`, "vcpu@current"},
		{"virsh setmaxmem --config", `<memory unit="b">134217728</memory>`, `<memory unit="KiB">262144</memory>`, "memory"},
		{"virsh setmem --config", `<memory unit="b">134217728</memory>`, `<memory unit="b">134217728</memory><currentMemory unit="KiB">65536</currentMemory>`, "currentMemory"},
		{"another disk", `<devices>`, `<devices><disk type="file" device="disk"><source file="/x"></source><target dev="vdz" bus="virtio"></target></disk>`, "devices/disk[vdz]"},
		{"another interface", `<devices>`, `<devices><interface type="user"><mac address="02:00:00:00:00:01"></mac></interface>`, "devices/interface[02:00:00:00:00:01]"},
		{"a disk's cache mode", `cache="none"`, `cache="unsafe"`, "devices/disk[vda]/driver@cache"},
		{"CPU pinning", `<devices>`, `<cputune><shares>10</shares></cputune><devices>`, "cputune/shares"},
		{"a disk's source", `file="/disks/emptydisk"`, `file="/etc/shadow"`, "devices/disk[vdc]/source@file"},
		{"I/O limits", `<target dev="vda" bus="virtio"></target>`, `<target dev="vda" bus="virtio"></target><iotune><read_bytes_sec>1</read_bytes_sec></iotune>`, "devices/disk[vda]/iotune/read_bytes_sec"},
	} {
		edited := strings.Replace(document, test.old, test.new, 1)
		if edited == document {
			t.Fatalf("%s: %q is not in the document", test.reason, test.old)
		}
		differences, err := domainxml.Compare(document, edited)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, difference := range differences {
			found = found || difference.Path == test.path
		}
		if !found {
			t.Errorf("%s: %s is not among %v", test.reason, test.path, differences)
		}
	}
}

func TestCompareIgnoresWhatLibvirtAdds(t *testing.T) {
	document := render(t, vms(t)[0])
	for _, test := range []struct{ reason, old, new string }{
		{"pinned machine type", `machine="q35"`, `machine="pc-q35-7.2"`},
		{"memory in KiB", `<memory unit="b">134217728</memory>`, `<memory unit="KiB">131072</memory><currentMemory unit="KiB">131072</currentMemory>`},
		{"PCI controllers", `<devices>`, `<devices><controller type="pci" index="1" model="pcie-root-port"></controller>`},
		{"an emulator and PS/2 input", `<devices>`, `<devices><emulator>/usr/bin/qemu-system-x86_64</emulator><input type="mouse" bus="ps2"></input>`},
		{"boot from disk", `</os>`, `<boot dev="hd"></boot></os>`},
		{"addresses", `<target dev="vda" bus="virtio"></target>`, `<target dev="vda" bus="virtio"></target><address type="pci" slot="0x04"></address>`},
	} {
		differences, err := domainxml.Compare(document, strings.Replace(document, test.old, test.new, 1))
		if err != nil || len(differences) != 0 {
			t.Errorf("%s: %v %v", test.reason, differences, err)
		}
	}
}

// hostile are strings that mean something in XML.
var hostile = []string{`"><evil/>`, `'&quot;`, `]]>`, `<!--`, `a&b`, "<![CDATA[x]]>", "tab\tand\nnewline", "ünïcödé 🚀", `\u0000`}

func TestHostileStringsStayValues(t *testing.T) {
	for _, value := range hostile {
		manifest := fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: a
  annotations: {note: %[1]q}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        chassis: {asset: %[1]q}
        firmware: {kernelBoot: {kernelArgs: %[1]q}}
        memory: {guest: 64Mi}
        devices: {}
`, value)
		file := schemas.Parse("a.yaml", []byte(manifest))
		if len(file.VMs) != 1 {
			t.Logf("%q is refused: %v", value, file.Diagnostics)
			continue
		}
		vm := file.VMs[0]
		document := render(t, vm)
		var domain libvirtxml.Domain
		if err := domain.Unmarshal(document); err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		if domain.OS.Cmdline != value && !strings.ContainsAny(value, "\t\n") {
			t.Errorf("kernel arguments %q came back as %q", value, domain.OS.Cmdline)
		}
		record, err := domainxml.ParseRecord(document)
		if err != nil || string(record.Spec) != string(vm.Record) {
			t.Errorf("%q: the record came back as %q, %v", value, record.Spec, err)
		}
	}
}

func TestPropertyRecordHoldsAnyString(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value := rapid.StringMatching(`[ -~äöü€]*`).Draw(rt, "value")
		record := &domainxml.Record{
			Address: schemas.Address{Kind: "VirtualMachine", Namespace: "n", Name: "m"}, Fleet: value, Revision: value, Source: value,
			Hash: "h", Spec: []byte("{}"), Volumes: []domainxml.Volume{{Name: "v", Path: value, Backing: value}},
		}
		content, err := record.XML()
		if err != nil {
			rt.Fatal(err)
		}
		got, err := domainxml.ParseRecord("<domain><metadata>" + content + "</metadata></domain>")
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(record, got); diff != "" {
			rt.Error(diff)
		}
	})
}
