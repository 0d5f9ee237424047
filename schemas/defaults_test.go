package schemas_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestDefaultsByArchitecture: what is filled in depends on the architecture, and is never written into the record.
func TestDefaultsByArchitecture(t *testing.T) {
	const devices = `
    memory: {hugepages: {pageSize: %PAGES%}}
    devices:
      disks: [{name: a}, {name: b, cdrom: {}}, {name: c, lun: {}}, {name: d}]
      inputs: [{name: tablet, type: tablet}]
  volumes:
  - {name: a, emptyDisk: {capacity: 1Gi}}
  - {name: b, containerDisk: {image: b}}
  - {name: c, hostDisk: {path: /dev/c, type: Disk}}
  - {name: d, downwardMetrics: {}}
`
	type defaults struct {
		Machine, Memory, Model    string
		Disk, CDRom, LUN, Metrics kubevirtv1.DiskBus
		Input                     kubevirtv1.InputBus
		EFI, ACPI                 bool
	}
	for _, test := range []struct {
		architecture, pages string
		want                defaults
	}{
		{"", "2Mi", defaults{Machine: "q35", Memory: "2Mi", Disk: "sata", CDRom: "sata", LUN: "scsi", Metrics: "virtio", Input: "usb", ACPI: true}},
		{"arm64", "32Mi", defaults{Machine: "virt", Memory: "32Mi", Disk: "virtio", CDRom: "scsi", LUN: "scsi", Metrics: "virtio", Input: "usb", Model: "host-passthrough", EFI: true, ACPI: true}},
		{"s390x", "1Mi", defaults{Machine: "s390-ccw-virtio", Memory: "1Mi", Disk: "virtio", CDRom: "scsi", LUN: "scsi", Metrics: "virtio", Input: "virtio"}},
	} {
		head := "  domain:"
		if test.architecture != "" {
			head = "  architecture: " + test.architecture + "\n  domain:"
		}
		vm := one(t, vmi("web", head+strings.ReplaceAll(devices, "%PAGES%", test.pages)))
		spec := vm.Spec()
		got := defaults{
			Machine: spec.Domain.Machine.Type, Memory: spec.Domain.Memory.Guest.String(), Model: spec.Domain.CPU.Model,
			Disk: spec.Domain.Devices.Disks[0].Disk.Bus, CDRom: spec.Domain.Devices.Disks[1].CDRom.Bus,
			LUN: spec.Domain.Devices.Disks[2].LUN.Bus, Metrics: spec.Domain.Devices.Disks[3].Disk.Bus,
			Input: spec.Domain.Devices.Inputs[0].Bus, EFI: spec.Domain.Firmware.Bootloader != nil, ACPI: *spec.Domain.Features.ACPI.Enabled,
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.architecture, diff)
		}
		bare, _, err := schemas.ParseRecord(vm.Record, false)
		if err != nil || bare.Spec.Template.Spec.Domain.Machine != nil || bare.Spec.Template.Spec.Architecture != test.architecture {
			t.Errorf("%q: the record has defaults: %s, %v", test.architecture, vm.Record, err)
		}
		again, _, err := schemas.ParseRecord(vm.Record, true)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(vm.Object.Spec, again.Spec); diff != "" {
			t.Errorf("%q: the record read back differs (-machine +record):\n%s", test.architecture, diff)
		}
	}
}
