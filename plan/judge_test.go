package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// capable is a host that can do everything for running guests.
func capable(domains []*plan.Domain) plan.Observed {
	return plan.Observed{Node: "host-1", Domains: domains, Live: plan.FromDesired(&schemas.Desired{Fleet: schemas.DefaultFleet()}, "").Live}
}

// machineOf is a VM with what stands between the lines of a small one.
func machineOf(cpu, memory, devices, disks, interfaces, networks, volumes string) string {
	return `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: a}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        cpu: {` + cpu + `}
        memory: {` + memory + `}
        devices:
          ` + devices + `
          disks:
          - {name: root, disk: {bus: virtio}}
` + disks + `
          interfaces:
          - {name: default, masquerade: {}}
` + interfaces + `
      networks:
      - {name: default, pod: {}}
` + networks + `
      volumes:
      - {name: root, emptyDisk: {capacity: 1Gi}}
` + volumes
}

// liveCase is a change of a running guest.
type liveCase struct {
	reason        string
	before, after string
	// host changes what the host can do and what the guest was started with.
	host        func(*plan.Observed, *plan.Domain)
	consequence plan.Consequence
	// note is part of the note of a change.
	note string
}

// liveCases are changes and what they mean for a running guest on a host that can do everything.
func liveCases() []liveCase {
	const (
		disk   = "          - {name: data, disk: {bus: virtio}}"
		volume = "      - {name: data, emptyDisk: {capacity: 1Gi}}"
	)
	vm := func(edit func(parts []string)) string {
		parts := []string{"sockets: 1", "guest: 256Mi", "rng: {}", "", "", "", ""}
		if edit != nil {
			edit(parts)
		}
		return machineOf(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6])
	}
	set := func(values ...any) string {
		return vm(func(parts []string) {
			for i := 0; i < len(values); i += 2 {
				parts[values[i].(int)] = values[i+1].(string)
			}
		})
	}
	const cpu, memory, devices, disks, cards, networks, volumes = 0, 1, 2, 3, 4, 5, 6
	plain := vm(nil)
	data := set(disks, disk, volumes, volume)
	tray := func(volume string) string {
		return set(disks, "          - {name: tray, cdrom: {bus: sata}}", volumes, volume)
	}
	image := func(name string) string {
		return "      - {name: tray, containerDisk: {image: \"registry.example/" + name + "\"}}"
	}
	holds := func(volume, kind, data string) string {
		return tray("      - {name: tray, "+volume+"}") + "\n---\napiVersion: v1\nkind: " + kind + "\nmetadata: {name: files}\n" + data
	}
	const one, other = "data: {file: one}", "data: {file: other}"
	volumeOf := func(size string) string {
		return set(disks, disk, volumes, "      - {name: data, persistentVolumeClaim: {claimName: files}}") + `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: files}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: ` + size + `}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: files}
spec: {capacity: {storage: ` + size + `}, claimRef: {namespace: default, name: files}, local: {path: /srv/files.img}}`
	}
	ofHost := func(size string) string {
		return set(disks, disk, volumes, "      - {name: data, hostDisk: {path: /srv/files.img, type: DiskOrCreate, capacity: "+size+"}}")
	}
	claim := func(name, size string) string {
		return set(disks, disk, volumes, "      - {name: data, persistentVolumeClaim: {claimName: "+name+"}}") + `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: files-a}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: ` + size + `}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: files-b}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}`
	}
	second := func(fields string) string {
		return set(cards, "          - {name: second, "+fields+"}", networks, "      - {name: second, multus: {networkName: lan}}")
	}
	return []liveCase{
		{"a label", plain, strings.Replace(plain, "metadata: {name: a}", "metadata: {name: a, labels: {a: b}}", 1), nil, plan.ConsequenceNone, ""},
		{"CPU sockets up", set(cpu, "sockets: 1, maxSockets: 4"), set(cpu, "sockets: 3, maxSockets: 4"), nil, plan.ConsequenceLive, ""},
		{"CPU sockets down", set(cpu, "sockets: 3, maxSockets: 4"), set(cpu, "sockets: 1, maxSockets: 4"), nil, plan.ConsequenceRestart, "taken out"},
		{"no sockets to grow to", set(cpu, "sockets: 1"), set(cpu, "sockets: 3"), nil, plan.ConsequenceRestart, "without cpu.maxSockets"},
		{
			"more CPUs than the guest was started for", set(cpu, "sockets: 1, maxSockets: 4"), set(cpu, "sockets: 3, maxSockets: 4"),
			func(_ *plan.Observed, d *plan.Domain) { d.Headroom.MaxVCPUs = 2 }, plan.ConsequenceRestart, "2 CPUs at most",
		},
		{
			"a host that cannot plug CPUs", set(cpu, "sockets: 1, maxSockets: 4"), set(cpu, "sockets: 3, maxSockets: 4"),
			func(o *plan.Observed, _ *plan.Domain) { o.Live = plan.LiveSet{plan.LiveDisk} }, plan.ConsequenceRestart, "this host cannot plug CPUs",
		},
		{"queues for every CPU", set(cpu, "sockets: 1, maxSockets: 4", devices, "blockMultiQueue: true"), set(cpu, "sockets: 3, maxSockets: 4", devices, "blockMultiQueue: true"), nil, plan.ConsequenceRestart, "queue"},
		{"another CPU model", plain, set(cpu, "sockets: 1, model: host-passthrough"), nil, plan.ConsequenceRestart, ""},
		{"room for more CPUs at the next boot", plain, set(cpu, "sockets: 1, maxSockets: 4"), nil, plan.ConsequenceNextBoot, ""},
		{"memory down", plain, set(memory, "guest: 128Mi"), nil, plan.ConsequenceLive, ""},
		{"memory down without a balloon", set(devices, "autoattachMemBalloon: false"), set(devices, "autoattachMemBalloon: false", memory, "guest: 128Mi"), nil, plan.ConsequenceRestart, "no balloon"},
		{"memory up", set(memory, "guest: 256Mi, maxGuest: 1Gi"), set(memory, "guest: 512Mi, maxGuest: 1Gi"), nil, plan.ConsequenceLive, ""},
		{"memory up on huge pages", set(memory, "guest: 256Mi, maxGuest: 1Gi, hugepages: {pageSize: 2Mi}"), set(memory, "guest: 512Mi, maxGuest: 1Gi, hugepages: {pageSize: 2Mi}"), nil, plan.ConsequenceRestart, "huge pages"},
		{"memory up without room", plain, set(memory, "guest: 512Mi"), nil, plan.ConsequenceRestart, "without memory.maxGuest"},
		{
			"memory up within the balloon", plain, set(memory, "guest: 512Mi"),
			func(_ *plan.Observed, d *plan.Domain) { d.Headroom.BalloonBytes = 1 << 30 }, plan.ConsequenceLive, "",
		},
		{"memory and its room", plain, set(memory, "guest: 128Mi, maxGuest: 1Gi"), nil, plan.ConsequenceRestart, "together with what is changed live"},
		{"a disk on virtio comes", plain, data, nil, plan.ConsequenceLive, ""},
		{"a disk on virtio goes", data, plain, nil, plan.ConsequenceLive, ""},
		{"a disk on SCSI comes", plain, strings.Replace(data, "data, disk: {bus: virtio}", "data, disk: {bus: scsi}", 1), nil, plan.ConsequenceLive, ""},
		{"a disk on SATA comes", plain, strings.Replace(data, "data, disk: {bus: virtio}", "data, disk: {bus: sata}", 1), nil, plan.ConsequenceRestart, "sata cannot be plugged"},
		{"a disk on USB without USB", plain, strings.Replace(data, "data, disk: {bus: virtio}", "data, disk: {bus: usb}", 1), nil, plan.ConsequenceRestart, "without USB"},
		{
			"no free PCI slot", plain, data,
			func(_ *plan.Observed, d *plan.Domain) { d.Headroom.FreePCISlots = 0 }, plan.ConsequenceRestart, "no free PCI slot",
		},
		{
			"a host that refused", plain, data,
			func(_ *plan.Observed, d *plan.Domain) { d.LiveRefusedReason = "bus 0 is full" }, plan.ConsequenceRestart, "could not do it live: bus 0 is full",
		},
		{
			"a disk before another", plain, strings.Replace(strings.Replace(data, disk+"\n", "", 1), "          - {name: root, disk", disk+"\n          - {name: root, disk", 1),
			nil, plan.ConsequenceLive, "other device names",
		},
		{"a disk that the guest shall boot from", plain, strings.Replace(data, "name: data, disk", "name: data, bootOrder: 1, disk", 1), nil, plan.ConsequenceRestart, "boot order"},
		{"the boot order", plain, strings.Replace(plain, "name: root, disk", "name: root, bootOrder: 1, disk", 1), nil, plan.ConsequenceNextBoot, ""},
		{"a disk for cloud-init", plain, strings.Replace(data, "data, emptyDisk: {capacity: 1Gi}", "data, cloudInitNoCloud: {userData: x}", 1), nil, plan.ConsequenceRestart, ""},
		{"a disk with a cache", data, strings.Replace(data, "name: data, disk", "name: data, cache: writeback, disk", 1), nil, plan.ConsequenceRestart, ""},
		{"a disk grows", data, strings.Replace(data, "data, emptyDisk: {capacity: 1Gi}", "data, emptyDisk: {capacity: 2Gi}", 1), nil, plan.ConsequenceLive, ""},
		{"a disk of the host is asked to grow", ofHost("1Gi"), ofHost("2Gi"), nil, plan.ConsequenceNone, ""},
		{"a disk of a PersistentVolume is asked to grow", volumeOf("1Gi"), volumeOf("2Gi"), nil, plan.ConsequenceNone, "the host's"},
		{"another claim", claim("files-a", "1Gi"), claim("files-b", "1Gi"), nil, plan.ConsequenceRestart, "stays connected"},
		{"a disk with a claim comes", strings.Replace(plain, "metadata: {name: a}", "metadata: {name: a, labels: {a: b}}", 1), claim("files-a", "1Gi"), nil, plan.ConsequenceLive, ""},
		{"a claim grows", claim("files-a", "1Gi"), claim("files-a", "2Gi"), nil, plan.ConsequenceLive, ""},
		{"a disk with a claim goes", claim("files-a", "1Gi"), plain, nil, plan.ConsequenceLive, ""},
		{"a CD-ROM is exchanged", tray(image("one:1")), tray(image("two:1")), nil, plan.ConsequenceLive, ""},
		{"a CD-ROM is ejected", tray(image("one:1")), tray(""), nil, plan.ConsequenceLive, ""},
		{"a CD-ROM is inserted", tray(""), tray(image("one:1")), nil, plan.ConsequenceLive, ""},
		{"the files on a CD-ROM change", holds("configMap: {name: files}", "ConfigMap", one), holds("configMap: {name: files}", "ConfigMap", other), nil, plan.ConsequenceLive, ""},
		{"the secrets on a CD-ROM change", holds("secret: {secretName: files}", "Secret", "stringD"+one[1:]), holds("secret: {secretName: files}", "Secret", "stringD"+other[1:]), nil, plan.ConsequenceLive, ""},
		{"a CD-ROM with files is inserted", tray(""), holds("configMap: {name: files}", "ConfigMap", one), nil, plan.ConsequenceLive, ""},
		{"a CD-ROM with files is ejected", holds("configMap: {name: files}", "ConfigMap", one), tray(""), nil, plan.ConsequenceLive, ""},
		{"a CD-ROM with files takes the place of an image", tray(image("one:1")), holds("configMap: {name: files}", "ConfigMap", one), nil, plan.ConsequenceLive, ""},
		{"a CD-ROM has another label", holds("configMap: {name: files}", "ConfigMap", one), holds("configMap: {name: files, volumeLabel: more}", "ConfigMap", one), nil, plan.ConsequenceLive, ""},
		{"a CD-ROM with secrets has another label", holds("secret: {secretName: files}", "Secret", "stringD"+one[1:]), holds("secret: {secretName: files, volumeLabel: more}", "Secret", "stringD"+one[1:]), nil, plan.ConsequenceLive, ""},
		{"cloud-init's data takes the place of files", holds("configMap: {name: files}", "ConfigMap", one), tray("      - {name: tray, cloudInitNoCloud: {userData: x}}"), nil, plan.ConsequenceRestart, "read at its boot"},
		{
			"the files on a disk change", strings.Replace(holds("configMap: {name: files}", "ConfigMap", one), "cdrom: {bus: sata}", "disk: {bus: virtio}", 1),
			strings.Replace(holds("configMap: {name: files}", "ConfigMap", other), "cdrom: {bus: sata}", "disk: {bus: virtio}", 1), nil, plan.ConsequenceRestart, "when it boots",
		},
		{"a container disk is exchanged", strings.Replace(plain, "emptyDisk: {capacity: 1Gi}", "containerDisk: {image: \"a/b:1\"}", 1), strings.Replace(plain, "emptyDisk: {capacity: 1Gi}", "containerDisk: {image: \"a/b:2\"}", 1), nil, plan.ConsequenceRestart, ""},
		{"a container disk goes", strings.Replace(data, "data, emptyDisk: {capacity: 1Gi}", "data, containerDisk: {image: \"a/b:1\"}", 1), plain, nil, plan.ConsequenceData, "goes with it"},
		{"a container disk becomes an empty one", strings.Replace(plain, "emptyDisk: {capacity: 1Gi}", "containerDisk: {image: \"a/b:1\"}", 1), plain, nil, plan.ConsequenceData, "goes with it"},
		{"an interface comes", plain, second("bridge: {}"), nil, plan.ConsequenceLive, ""},
		{"an interface goes", second("bridge: {}"), plain, nil, plan.ConsequenceLive, ""},
		{"an e1000 comes", plain, second("bridge: {}, model: e1000"), nil, plan.ConsequenceRestart, "model e1000 cannot"},
		{"another model", second("bridge: {}"), second("bridge: {}, model: e1000e"), nil, plan.ConsequenceRestart, ""},
		{"a link goes down", second("bridge: {}"), second("bridge: {}, state: down"), nil, plan.ConsequenceLive, ""},
		{"a link goes up", second("bridge: {}, state: down"), second("bridge: {}, state: up"), nil, plan.ConsequenceLive, ""},
		{"an interface becomes absent", second("bridge: {}"), second("bridge: {}, state: absent"), nil, plan.ConsequenceLive, ""},
		{"another network", second("bridge: {}"), strings.Replace(second("bridge: {}"), "networkName: lan", "networkName: wan", 1), nil, plan.ConsequenceRestart, "stays connected"},
		{"a port is opened", plain, strings.Replace(plain, "default, masquerade: {}", "default, masquerade: {}, ports: [{port: 80}]", 1), nil, plan.ConsequenceLive, ""},
		{"resources", plain, strings.Replace(plain, "        devices:", "        resources: {requests: {memory: 64Mi}}\n        devices:", 1), nil, plan.ConsequenceNone, ""},
		{"another UUID", plain, strings.Replace(plain, "        devices:", "        firmware: {uuid: 5d307ca9-b3ef-428c-8861-06e72d69f223}\n        devices:", 1), nil, plan.ConsequenceReplace, ""},
	}
}

func TestConsequencesForARunningGuest(t *testing.T) {
	for _, test := range liveCases() {
		t.Run(test.reason, func(t *testing.T) {
			have := capable(running(t, fleet, test.before))
			want := desired(t, fleet, test.after)
			if test.host != nil {
				test.host(&have, have.Domains[0])
			}
			if have.Domains[0].LiveRefusedReason != "" {
				have.Domains[0].LiveRefused = want.VMs[0].Hash
			}
			p, err := plan.Build(want, have, plan.Options{})
			if err != nil || len(p.Steps) != 1 {
				t.Fatalf("%v, steps %+v, held %+v", err, p.Steps, p.Held)
			}
			step := p.Steps[0]
			if step.Consequence != test.consequence {
				t.Errorf("%s, want %s: %+v", step.Consequence, test.consequence, step.Changes)
			}
			if !slices.ContainsFunc(step.Changes, func(c plan.Change) bool { return strings.Contains(c.Note, test.note) }) {
				t.Errorf("no note holds %q: %+v", test.note, step.Changes)
			}
			live := test.consequence == plan.ConsequenceLive
			if down := severe(test.consequence); step.Live != live || (step.DowntimeSeconds > 0) != down || !step.Define || (step.Power == plan.PowerCycle) != down {
				t.Errorf("live %v, down %d s, define %v, power %q", step.Live, step.DowntimeSeconds, step.Define, step.Power)
			}
		})
	}
}

func severe(consequence plan.Consequence) bool {
	switch consequence {
	case plan.ConsequenceRestart, plan.ConsequenceReplace, plan.ConsequenceData:
		return true
	}
	return false
}

func TestChangesOfAGuestThatIsOffWaitForItsNextBoot(t *testing.T) {
	for _, test := range liveCases() {
		off := func(manifest string) string { return strings.Replace(manifest, "Always", "Halted", 1) }
		have := capable(running(t, fleet, off(test.before)))
		p, err := plan.Build(desired(t, fleet, off(test.after)), have, plan.Options{})
		if err != nil || len(p.Steps) != 1 {
			t.Fatalf("%s: %v, steps %+v", test.reason, err, p.Steps)
		}
		step := p.Steps[0]
		switch step.Consequence {
		case plan.ConsequenceNone, plan.ConsequenceNextBoot, plan.ConsequenceReplace:
		default:
			t.Errorf("%s: %s", test.reason, step.Consequence)
		}
		if step.Live || step.DowntimeSeconds != 0 {
			t.Errorf("%s: live %v, down %d s", test.reason, step.Live, step.DowntimeSeconds)
		}
	}
}
