package domainxml_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// attributed has a device of each kind that has a name in the manifest.
const attributed = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: truths}
spec:
  runStrategy: Halted
  template:
    spec:
      domain:
        memory: {guest: 128Mi, maxGuest: 512Mi}
        cpu: {sockets: 1, cores: 2, maxSockets: 4}
        devices:
          disks:
          - {name: root, disk: {bus: virtio}}
          - {name: media, cdrom: {bus: scsi}}
          - {name: more, disk: {bus: virtio}, bootOrder: 1}
          gpus: [{name: gpu, deviceName: example.com/t4}]
          inputs: [{name: pen, type: tablet, bus: virtio}]
          interfaces: [{name: default, masquerade: {}, macAddress: "02:00:00:00:00:01"}]
      networks: [{name: default, pod: {}}]
      volumes:
      - {name: root, emptyDisk: {capacity: 64Mi}}
      - {name: media, emptyDisk: {capacity: 64Mi}}
      - {name: more, emptyDisk: {capacity: 64Mi}}
`

func attributedMachine(t *testing.T) domainxml.Machine {
	t.Helper()
	file := schemas.Parse("truths.yaml", []byte(attributed))
	if len(file.VMs) != 1 {
		t.Fatal(file.Diagnostics)
	}
	machine := machineOf(file.VMs[0])
	machine.Host.Assignment.Devices = []domainxml.HostDevice{{Name: "gpu", Type: "pci", Address: "0000:81:01.0"}}
	return machine
}

// TestAttribute: what differs is told by the field of the manifest that it belongs to, in that field's terms.
func TestAttribute(t *testing.T) {
	const spec = "spec.template.spec."
	machine := attributedMachine(t)
	for _, test := range []struct {
		reason      string
		differences [][3]string
		want        [][3]string // values as JSON
	}{
		{"nothing", nil, nil},
		{"vCPUs are sockets", [][3]string{{"vcpu@current", "2", "6"}, {"vcpus/vcpu[2]@enabled", "no", "yes"}}, [][3]string{{"domain.cpu.sockets", "1", "3"}}},
		{"or no whole ones", [][3]string{{"vcpu@current", "2", "3"}}, [][3]string{{"domain.cpu.sockets", "1", `"3 vCPUs"`}}},
		{"memory in the manifest's units", [][3]string{{"currentMemory", "131072 KiB", "65536 KiB"}, {"memory", "131072 KiB", "1048576 KiB"}}, [][3]string{{"domain.memory.guest", `"128Mi"`, `"64Mi"`}}},
		{"what it was started with alone", [][3]string{{"memory", "131072 KiB", "1048576 KiB"}}, [][3]string{{"domain.memory.guest", `"128Mi"`, `"1Gi"`}}},
		{"two halves of a CPU", [][3]string{{"cpu/model", "", "qemu64"}, {"cpu@mode", "host-model", "custom"}}, [][3]string{{"domain.cpu.model", `"host-model"`, `"qemu64"`}}},
		{"a feature by its name", [][3]string{{"cpu/feature[vmx]@policy", "", "disable"}}, [][3]string{{"domain.cpu.features[vmx].policy", "null", `"disable"`}}},
		{"a disk by its name", [][3]string{{"devices/disk[vdb]/driver@cache", "none", "unsafe"}}, [][3]string{{"domain.devices.disks[more].cache", `"none"`, `"unsafe"`}}},
		{"one of others by its target", [][3]string{{"devices/disk[vdz]", "", "present"}}, [][3]string{{"domain.devices.disks[vdz]", "null", `"present"`}}},
		{"a medium", [][3]string{{"devices/disk[sda]/source@file", "", "/isos/a.iso"}}, [][3]string{{"volumes[media]", "null", `"/isos/a.iso"`}}},
		{"another kind of source", [][3]string{{"devices/disk[vda]/source@dev", "/dev/x", ""}, {"devices/disk[vda]/source@file", "", "/x"}, {"devices/disk[vda]@type", "block", "file"}}, [][3]string{{"volumes[root]", `"/dev/x"`, `"/x"`}}},
		{"read-only", [][3]string{{"devices/disk[sda]/readonly", "present", ""}}, [][3]string{{"domain.devices.disks[media].cdrom.readonly", "true", "false"}}},
		{"the order of boot", [][3]string{{"devices/disk[vdb]/boot@order", "1", "2"}}, [][3]string{{"domain.devices.disks[more].bootOrder", "1", "2"}}},
		{"a link", [][3]string{{"devices/interface[02:00:00:00:00:01]/link@state", "", "down"}}, [][3]string{{"domain.devices.interfaces[default].state", `"up"`, `"down"`}}},
		{"an interface of others", [][3]string{{"devices/interface[02:00:00:00:00:02]", "", "present"}}, [][3]string{{"domain.devices.interfaces[02:00:00:00:00:02]", "null", `"present"`}}},
		{"a network", [][3]string{{"devices/interface[02:00:00:00:00:01]/source@network", "a", "b"}}, [][3]string{{"networks[default]", `"a"`, `"b"`}}},
		{"a device of the host", [][3]string{{"devices/hostdev[0000:81:01.0]", "present", ""}}, [][3]string{{"domain.devices.gpus[gpu]", `"present"`, "null"}}},
		{"an input", [][3]string{{"devices/input[tablet-virtio]", "present", ""}}, [][3]string{{"domain.devices.inputs[pen]", `"present"`, "null"}}},
		{"the serial number and no other entry", [][3]string{
			{"sysinfo[smbios]/system/entry[serial]", "", "S"}, {"sysinfo[smbios]/system/entry[manufacturer]", "gitvirt", "Dell"}, {"sysinfo[smbios]/chassis/entry[asset]", "", "A"},
		}, [][3]string{{"domain.chassis.asset", "null", `"A"`}, {"domain.firmware.serial", "null", `"S"`}, {"/sysinfo[smbios]/system/entry[manufacturer]", `"gitvirt"`, `"Dell"`}}},
		{"a timer", [][3]string{{"clock/timer[hpet]@present", "no", "yes"}}, [][3]string{{"domain.clock.timer.hpet", `"no"`, `"yes"`}}},
		{"a feature", [][3]string{{"features/hyperv/stimer/direct@state", "on", "off"}}, [][3]string{{"domain.features.hyperv.synictimer.direct.enabled", "true", "false"}}},
		{"what no field stands for", [][3]string{{"devices/disk[vda]/iotune/read_bytes_sec", "", "1"}}, [][3]string{{"/devices/disk[vda]/iotune/read_bytes_sec", "null", `"1"`}}},
		{"what may be secret", [][3]string{
			{"commandline/arg[1]@value", "", "name=opt/token,string=hush"}, {"devices/graphics[0]@passwd", "", "hush"}, {"launchSecurity/session", "hush", ""}, {"sysinfo[smbios]/oemStrings/entry[0]", "", "hush"},
		}, [][3]string{
			{"domain.launchSecurity", `"(sensitive)"`, "null"},
			{"/commandline/arg[1]@value", "null", `"(sensitive)"`},
			{"/devices/graphics[0]@passwd", "null", `"(sensitive)"`},
			{"/sysinfo[smbios]/oemStrings/entry[0]", "null", `"(sensitive)"`},
		}},
		{"a key that looks like a path", [][3]string{{"devices/filesystem[a/b@c]", "", "present"}, {"devices/disk[vda]#2/serial", "", "x"}}, [][3]string{{"domain.devices.disks[root].serial", "null", `"x"`}, {"domain.devices.filesystems[a/b@c]", "null", `"present"`}}},
	} {
		var differences []domainxml.Difference
		for _, d := range test.differences {
			differences = append(differences, domainxml.Difference{Path: d[0], Want: d[1], Have: d[2]})
		}
		got, want := map[string][2]string{}, map[string][2]string{}
		for _, drift := range machine.Attribute(differences) {
			got[drift.Path] = [2]string{asJSON(t, drift.Want), asJSON(t, drift.Have)}
		}
		for _, w := range test.want {
			path := spec + w[0]
			if w[0][0] == '/' {
				path = w[0][1:]
			}
			want[path] = [2]string{w[1], w[2]}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", test.reason, diff)
		}
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// TestAttributeAdopted: the disks of an adopted domain have the names there that they had, whatever their places in the manifest, and
// the same ones in what is told.
func TestAttributeAdopted(t *testing.T) {
	const definition = `<domain type='qemu'><name>old</name><uuid>6bd2ad53-4f1e-4a1b-9d0c-0c4a5a7f1c11</uuid><memory>131072</memory><vcpu>1</vcpu>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
		<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/a.img'/><target dev='hda' bus='ide'/></disk>
		<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/b.img'/><target dev='vdc' bus='virtio'/></disk>
		<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/c.img'/><target dev='vda' bus='virtio'/></disk>
		</devices></domain>`
	manifest, err := domainxml.Describe(schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "old"}, definition)
	if err != nil {
		t.Fatal(err)
	}
	vm, _, err := manifest.VM()
	if err != nil {
		t.Fatal(err)
	}
	machine := domainxml.Machine{
		Address: vm.Address, Name: "old", UUID: "6bd2ad53-4f1e-4a1b-9d0c-0c4a5a7f1c11", Spec: vm.Spec(), Host: domainxml.Host{DomainType: "qemu"},
		Volumes: manifest.Volumes, Kept: manifest.Kept(vm.Record, manifest.Volumes),
	}
	differences, err := domainxml.Compare(rendered(t, machine), strings.NewReplacer("<driver name='qemu' type='raw'/><source file='/c.img'/>", "<driver name='qemu' type='raw' cache='none'/><source file='/c.img'/>").Replace(definition))
	if err != nil {
		t.Fatal(err)
	}
	got := machine.Attribute(differences)
	if diff := cmp.Diff([]domainxml.Drift{{Path: "spec.template.spec.domain.devices.disks[vda].cache", Have: "none"}}, got); diff != "" {
		t.Error(diff)
	}
}
