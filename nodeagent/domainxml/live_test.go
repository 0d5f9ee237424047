package domainxml_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// liveSpec is the machine that the tests of live changes begin with.
const liveSpec = `
domain:
  memory: {guest: 256Mi, maxGuest: 1Gi}
  cpu: {sockets: 2, maxSockets: 4, model: qemu64}
  devices:
    rng: {}
    disks:
    - {name: root, disk: {bus: virtio}}
    - {name: data, disk: {bus: virtio}}
    - {name: cd, cdrom: {bus: scsi}}
    interfaces:
    - {name: default, masquerade: {}}
    - {name: lan, bridge: {}}
networks:
- {name: default, pod: {}}
- {name: lan, multus: {networkName: lan}}
volumes:
- {name: root, emptyDisk: {capacity: 64Mi}}
- {name: data, emptyDisk: {capacity: 64Mi}}
`

// liveMachine puts a spec on a host.
func liveMachine(t testing.TB, spec string) domainxml.Machine {
	t.Helper()
	in := &kubevirtv1.VirtualMachineInstanceSpec{}
	if err := yaml.UnmarshalStrict([]byte(spec), in); err != nil {
		t.Fatal(err)
	}
	m := domainxml.Machine{
		Address: schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "a"}, Spec: in, Host: domainxml.Host{DomainType: "qemu", Dir: "/vms/a"},
	}
	for _, volume := range in.Volumes {
		out := domainxml.Volume{Name: volume.Name, Path: "/disks/" + volume.Name, Format: "qcow2"}
		out.Kind, _ = domainxml.VolumeKind(volume)
		if volume.EmptyDisk != nil {
			out.Capacity = volume.EmptyDisk.Capacity.Value()
		}
		if volume.CloudInitNoCloud != nil || volume.ConfigMap != nil || volume.DownwardAPI != nil {
			out.Format = "raw"
		}
		if volume.ConfigMap != nil {
			out.Content = volume.ConfigMap.Name
		}
		m.Volumes = append(m.Volumes, out)
	}
	return m
}

func rendered(t testing.TB, m domainxml.Machine) string {
	t.Helper()
	document, err := domainxml.Render(m)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// edited replaces texts, given in pairs; each must be there.
func edited(t testing.TB, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("there is no %q in\n%s", pairs[i], text)
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

// told is an operation in one line.
func told(operation domainxml.Operation) string {
	out := string(operation.Kind)
	switch operation.Kind {
	case domainxml.OperationVCPUs:
		out += fmt.Sprint(" ", operation.VCPUs)
	case domainxml.OperationMemory:
		out += fmt.Sprint(" ", operation.KiB)
	case domainxml.OperationReinsert:
		out += fmt.Sprint(" ", strings.Contains(operation.Empty, "<source"))
	case domainxml.OperationResize:
		out += fmt.Sprint(" ", operation.Target, " ", operation.Bytes)
	}
	return out + ": " + operation.Text
}

const (
	dataDisk   = "\n    - {name: data, disk: {bus: virtio}}"
	dataVolume = "\n- {name: data, emptyDisk: {capacity: 64Mi}}"
	extraDisk  = dataDisk + "\n    - {name: extra, disk: {bus: virtio}}"
	extra      = dataVolume + "\n- {name: extra, emptyDisk: {capacity: 1Gi}}"
)

func TestLive(t *testing.T) {
	for _, test := range []struct {
		name string
		// was makes the spec that the guest has of liveSpec, edits the wanted one; guest edits the running guest's XML.
		was, edits, guest []string
		want              []string
		// device is part of the last operation's device.
		device string
		// not is why it cannot be done live.
		not []string
	}{
		{name: "nothing"},
		{name: "sockets", edits: []string{"sockets: 2, m", "sockets: 3, m"}, want: []string{"vcpus 3: plugging in vCPUs (3 of 4)"}},
		{
			name: "sockets again", edits: []string{"sockets: 2, m", "sockets: 3, m"},
			guest: []string{`<vcpu placement="static">4<`, `<vcpu placement="static" current="3">4<`},
		},
		{name: "fewer sockets", edits: []string{"sockets: 2, m", "sockets: 1, m"}, not: []string{"the guest has 2 vCPUs; vCPUs are taken away only at a restart"}},
		{name: "more sockets than there is room for", edits: []string{"sockets: 2, maxSockets: 4", "sockets: 8, maxSockets: 8"}, not: []string{
			"the guest was started for at most 4 vCPUs; cpu.maxSockets makes room for more at a restart",
			"the largest number of vCPUs can only change at a restart",
		}},
		{
			name: "more memory", edits: []string{"guest: 256Mi", "guest: 384Mi"}, want: []string{"attach: setting the plugged-in memory to 128 MiB, beside the 256 MiB that the guest was started with"},
			device: `<size unit="KiB">786432</size><node>0</node><block unit="KiB">2048</block><requested unit="KiB">131072</requested>`,
		},
		{
			name: "more memory than was plugged in", edits: []string{"guest: 256Mi", "guest: 512Mi"}, guest: plugged(128, 1024, 384),
			want: []string{"update: setting the plugged-in memory to 256 MiB, beside the 256 MiB that the guest was started with"}, device: `<requested unit="KiB">262144</requested>`,
		},
		{name: "as much memory as was plugged in", edits: []string{"guest: 256Mi", "guest: 384Mi"}, guest: plugged(128, 1024, 384)},
		{
			name: "the memory that was plugged in is not wanted any more", guest: plugged(128, 1024, 384),
			want: []string{"memory 131072: setting the balloon to 128 MiB"},
		},
		{
			name: "much less memory than was plugged in", edits: []string{"guest: 256Mi", "guest: 128Mi"}, guest: plugged(128, 1024, 384),
			want: []string{"update: setting the plugged-in memory to 0 MiB, beside the 256 MiB that the guest was started with", "memory 131072: setting the balloon to 128 MiB"},
		},
		{
			name: "the memory that was plugged in goes, without a balloon", guest: append(plugged(128, 1024, 384), `<memballoon model="virtio-non-transitional"`, `<memballoon model="none"`),
			want: []string{"update: setting the plugged-in memory to 0 MiB, beside the 256 MiB that the guest was started with"}, device: `<requested unit="KiB">0</requested>`,
		},
		{name: "memory that the balloon has already", guest: plugged(128, 1024, 256)},
		{name: "memory that libvirt has not counted yet", edits: []string{"guest: 256Mi", "guest: 384Mi"}, guest: plugged(128, 1024, 256)},
		{name: "less memory", edits: []string{"guest: 256Mi", "guest: 192Mi"}, want: []string{"memory 196608: setting the balloon to 192 MiB"}},
		{
			name: "less memory than before plugging in", edits: []string{"guest: 256Mi", "guest: 192Mi"}, guest: plugged(128, 1024, 384),
			want: []string{"memory 65536: setting the balloon to 64 MiB"},
		},
		{
			name: "memory comes back from the balloon before more is plugged in", edits: []string{"guest: 256Mi", "guest: 384Mi"},
			guest: []string{"</memory>", "</memory><currentMemory unit='MiB'>200</currentMemory>"},
			want:  []string{"memory 262144: setting the balloon to 256 MiB", "attach: setting the plugged-in memory to 128 MiB, beside the 256 MiB that the guest was started with"},
		},
		{name: "too much memory", edits: []string{"guest: 256Mi, maxGuest: 1Gi", "guest: 2Gi, maxGuest: 3Gi"}, not: []string{
			"the guest was started to have at most 1024 MiB of memory (memory.maxGuest)",
			"memory.maxGuest can only change at a restart",
		}},
		{name: "memory in odd pieces", edits: []string{"guest: 256Mi", "guest: 257Mi"}, not: []string{
			"memory is plugged in pieces of 2 MiB; the guest was started with 256 MiB",
		}},
		{
			name: "a disk", edits: []string{dataDisk, extraDisk, dataVolume, extra}, want: []string{"attach: plugging in disk extra"},
			device: `<target dev="vdc" bus="virtio">`,
		},
		{
			name: "a disk before the others", edits: []string{dataDisk, "\n    - {name: extra, disk: {bus: virtio}}" + dataDisk, dataVolume, extra},
			want: []string{"attach: plugging in disk extra"}, device: `<target dev="vdc" bus="virtio">`,
		},
		{
			name: "a disk on SCSI", edits: []string{"cd, cdrom: {bus: scsi}}", "cd, cdrom: {bus: scsi}}\n    - {name: extra, disk: {bus: scsi}}", dataVolume, extra},
			want: []string{"attach: plugging in disk extra"}, device: `unit="1"`,
		},
		{name: "a disk on SATA", edits: []string{dataDisk, dataDisk + "\n    - {name: extra, disk: {bus: sata}}", dataVolume, extra}, not: []string{
			"disk extra is on the bus sata, into which nothing can be plugged while the guest runs; virtio, scsi and usb take disks then",
		}},
		{name: "a disk on USB without a controller", edits: []string{dataDisk, dataDisk + "\n    - {name: extra, disk: {bus: usb}}", dataVolume, extra}, not: []string{
			"disk extra is on the bus usb, and the guest was started without a USB controller",
			"controller[usb0] changes in model, which the guest gets only at a restart",
		}},
		{name: "a disk goes", edits: []string{dataDisk, "", dataVolume, ""}, want: []string{"detach: taking away disk data"}, device: `<target dev="vdb" bus="virtio">`},
		{
			name: "a disk takes the place of another", edits: []string{dataDisk, "\n    - {name: extra, disk: {bus: virtio}}", dataVolume, "\n- {name: extra, emptyDisk: {capacity: 1Gi}}"},
			want: []string{"detach: taking away disk data", "attach: plugging in disk extra"}, device: `<target dev="vdb" bus="virtio">`,
		},
		{name: "a disk grows", edits: []string{"{name: data, emptyDisk: {capacity: 64Mi", "{name: data, emptyDisk: {capacity: 128Mi"}, want: []string{"resize vdb 134217728: growing disk data"}},
		{name: "a disk shrinks", edits: []string{"{name: data, emptyDisk: {capacity: 64Mi", "{name: data, emptyDisk: {capacity: 32Mi"}, not: []string{
			"disk data has 67108864 bytes and cannot shrink to 33554432",
		}},
		{name: "a disk's cache", edits: []string{"data, disk: {bus: virtio}", "data, cache: writeback, disk: {bus: virtio}"}, not: []string{
			"disk data changes in driver@cache, which the guest gets only at a restart",
		}},
		{
			name: "a medium", edits: []string{dataVolume, dataVolume + "\n- {name: cd, cloudInitNoCloud: {userData: x}}"},
			want: []string{"update: inserting the medium of cd"}, device: `<source file="/disks/cd">`,
		},
		{
			name: "a medium goes", guest: []string{`<target dev="sda"`, `<source file="/disks/old"/><target dev="sda"`},
			want: []string{"update: ejecting the medium of cd"},
		},
		{
			name: "a medium is made of other files", was: []string{dataVolume, dataVolume + "\n- {name: cd, configMap: {name: one}}"},
			edits: []string{dataVolume, dataVolume + "\n- {name: cd, configMap: {name: two}}"},
			want:  []string{"reinsert false: exchanging the medium of cd"}, device: `<source file="/disks/cd">`,
		},
		{
			name: "a medium is made of the same files", was: []string{dataVolume, dataVolume + "\n- {name: cd, configMap: {name: one}}"},
			edits: []string{dataVolume, dataVolume + "\n- {name: cd, configMap: {name: one}}"},
		},
		{
			name: "a medium takes the place of one whose files nobody noted", was: []string{dataVolume, dataVolume + "\n- {name: cd, downwardAPI: {}}"},
			edits: []string{dataVolume, dataVolume + "\n- {name: cd, configMap: {name: one}}"},
			want:  []string{"reinsert false: exchanging the medium of cd"}, device: `<source file="/disks/cd">`,
		},
		{
			name: "a CD-ROM drive", edits: []string{"{name: cd, cdrom: {bus: scsi}}", "{name: cd, cdrom: {bus: scsi}}\n    - {name: dvd, cdrom: {bus: scsi}}"},
			want: []string{"attach: plugging in disk dvd"},
		},
		{name: "a card goes", edits: []string{"\n    - {name: lan, bridge: {}}", "", "\n- {name: lan, multus: {networkName: lan}}", ""}, want: []string{"detach: taking away interface lan"}},
		{
			name: "a card", edits: []string{"{name: lan, bridge: {}}", "{name: lan, bridge: {}}\n    - {name: wan, bridge: {}}", "networkName: lan}}", "networkName: lan}}\n- {name: wan, multus: {networkName: wan}}"},
			want: []string{"attach: plugging in interface wan"}, device: `<alias name="ua-wan">`,
		},
		{name: "an old card", edits: []string{"{name: lan, bridge: {}}", "{name: lan, bridge: {}}\n    - {name: wan, model: e1000, bridge: {}}", "networkName: lan}}", "networkName: lan}}\n- {name: wan, multus: {networkName: wan}}"}, not: []string{
			"interface wan has the model e1000, which can only be plugged in at a restart; virtio and e1000e can be while the guest runs",
		}},
		{name: "a link goes down", edits: []string{"{name: lan, bridge: {}}", "{name: lan, bridge: {}, state: down}"}, want: []string{"update: setting the link of interface lan down"}, device: `<link state="down">`},
		{
			name: "a link goes up", guest: []string{`<rom enabled="no">`, `<link state="down"/><rom enabled="no">`},
			want: []string{"update: setting the link of interface default up"}, device: `<link state="up">`,
		},
		{name: "another network", edits: []string{"networkName: lan", "networkName: wan"}, not: []string{
			"interface lan changes in source@network, which the guest gets only at a restart",
		}},
		{name: "another MAC address", edits: []string{"{name: lan, bridge: {}}", `{name: lan, bridge: {}, macAddress: "02:00:00:00:00:01"}`}, not: []string{
			"interface lan has another MAC address; a network card gets that only at a restart",
		}},
		{name: "firmware", edits: []string{"  devices:", "  firmware: {bootloader: {efi: {secureBoot: false}}}\n  devices:"}, not: []string{
			"video[0] changes in model@type, which the guest gets only at a restart",
			"firmware and boot can only change at a restart",
		}},
		{
			name: "what was different before is no reason", guest: []string{`cache="none"`, `cache="unsafe"`}, edits: []string{"sockets: 2, m", "sockets: 3, m"},
			want: []string{"vcpus 3: plugging in vCPUs (3 of 4)"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			was, want := liveMachine(t, edited(t, liveSpec, test.was...)), liveMachine(t, edited(t, liveSpec, test.edits...))
			guest := edited(t, rendered(t, was), test.guest...)
			operations, err := domainxml.Live(was, want, guest)
			var not *domainxml.NotLiveError
			var reasons, got []string
			if errors.As(err, &not) {
				reasons = not.Reasons
			} else if err != nil {
				t.Fatal(err)
			}
			for _, operation := range operations {
				got = append(got, told(operation))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("operations (-want +got):\n%s%v", diff, reasons)
			}
			if diff := cmp.Diff(test.not, reasons); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
			if len(operations) > 0 && !strings.Contains(operations[len(operations)-1].Device, test.device) {
				t.Errorf("no %s in %s", test.device, operations[len(operations)-1].Device)
			}
		})
	}
}

// plugged edits the XML of a guest of 256 MiB as libvirt does when it has got a virtio-mem device.
func plugged(requested, total, current int) []string {
	return []string{
		`<memory unit="b">268435456</memory>`, fmt.Sprintf(`<memory unit="MiB">%d</memory><currentMemory unit="MiB">%d</currentMemory>`, total, current),
		"</devices>", fmt.Sprintf(`<memory model="virtio-mem"><target><size unit="KiB">786432</size><node>0</node><block unit="KiB">2048</block>`+
			`<requested unit="KiB">%[1]d</requested><current unit="KiB">%[1]d</current></target><alias name="ua-virtio-mem"/></memory></devices>`, requested<<10),
	}
}
