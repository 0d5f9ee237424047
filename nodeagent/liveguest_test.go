package nodeagent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// realGuest is a guest that boots. It tells of its hardware by itself; its user data adds whether the cable of its first network card
// is plugged in, and what its CD-ROMs begin with.
const realGuest = `
domain:
  memory: {guest: MEMORY, maxGuest: 1Gi}
  cpu: {sockets: SOCKETS, maxSockets: 4, model: qemu64}
  firmware:
    kernelBoot:
      kernelArgs: ` + libvirttest.GuestArguments + ` swiotlb=noforce
      container: {image: GUEST, kernelPath: /boot/vmlinuz, initrdPath: /boot/initramfs.img}
  devices:
    rng: {}
    disks:
    - {name: seed, serial: SEED, disk: {bus: virtio}}
DISKS
    - {name: claimed, disk: {bus: scsi}}
    - {name: files, cdrom: {bus: scsi}}
    - {name: keys, cdrom: {bus: scsi}}
    - {name: image, cdrom: {bus: scsi}}
    - {name: copy, cdrom: {bus: scsi}}
    interfaces:
    - {name: default, masquerade: {}, macAddress: "02:00:00:00:00:01"LINK}
INTERFACES
networks:
- {name: default, pod: {}}
- {name: more, pod: {}}
volumes:
- name: seed
  cloudInitNoCloud:
    userData: |
      #!/bin/sh
      (while sleep 1; do
        ip link set eth0 up 2>/dev/null
        link=$(cat /sys/class/net/eth0/carrier)
        [ "$link" = "$was" ] || echo "carrier $link"
        was=$link
        media=$(for drive in /dev/sr*; do dd if=$drive bs=2048 count=40 2>/dev/null; done | strings | grep ^disc- | sort | tr '\n' ' ')
        [ "$media" = "$had" ] || echo "media $media."
        had=$media
      done) >/dev/console &
VOLUMES
- {name: claimed, persistentVolumeClaim: {claimName: claimed}}
`

// The disks of the guest before it is changed and after.
const (
	beforeDisks = `
    - {name: old, serial: OLD, disk: {bus: virtio}}
    - {name: data, serial: DATA, disk: {bus: virtio}}`
	beforeVolumes = `
- {name: old, emptyDisk: {capacity: 16Mi}}
- {name: data, emptyDisk: {capacity: 64Mi}}`
	afterDisks = `
    - {name: data, serial: DATA, disk: {bus: virtio}}
    - {name: new, serial: NEW, disk: {bus: virtio}}
    - {name: more, serial: MORE, disk: {bus: scsi}}
    - {name: another, disk: {bus: scsi}}`
	afterVolumes = `
- {name: data, emptyDisk: {capacity: 128Mi}}
- {name: new, emptyDisk: {capacity: 32Mi}}
- {name: more, emptyDisk: {capacity: 48Mi}}
- {name: another, persistentVolumeClaim: {claimName: another}}`
	fewerDisks = `
    - {name: data, serial: DATA, disk: {bus: virtio}}
    - {name: new, serial: NEW, disk: {bus: virtio}}
    - {name: more, serial: MORE, disk: {bus: scsi}}`
	fewerVolumes = `
- {name: data, emptyDisk: {capacity: 128Mi}}
- {name: new, emptyDisk: {capacity: 32Mi}}
- {name: more, emptyDisk: {capacity: 48Mi}}`
	media = `
- {name: files, configMap: {name: files-WHICH}}
- {name: keys, secret: {secretName: keys}}
- {name: image, containerDisk: {image: IMAGE}}
- {name: copy, ephemeral: {persistentVolumeClaim: {claimName: WHICH}}}`
)

// liveGuest is the guest of the tests below on a real libvirt.
type liveGuest struct {
	*rig
	daemon *libvirttest.Daemon
	guest  string            // the reference of its kernel
	images map[string]string // the references of container disks
}

func newLiveGuest(t *testing.T) *liveGuest {
	r, daemon := newRealRig(t)
	g := &liveGuest{rig: r, daemon: daemon, guest: libvirttest.PushGuest(t), images: map[string]string{}}
	for _, which := range []string{"one", "two"} {
		disc := make([]byte, 1<<20)
		copy(disc, "disc-image-"+which)
		g.images[which] = libvirttest.PushFiles(t, map[string][]byte{"disk/disk.img": disc})
		copy(disc, "disc-copy-"+which+"\x00")
		if err := os.WriteFile(filepath.Join(r.dir, which+".img"), disc, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// wish is the guest with what stands for the capital words, and the contents of its media and claims.
func (g *liveGuest) wish(which string, claimed int64, labels map[string]string, pairs ...string) vm {
	g.t.Helper()
	pairs = append(pairs, "GUEST", g.guest)
	spec := strings.NewReplacer(pairs...).Replace(realGuest)
	out := liveVM(g.t, strings.NewReplacer("WHICH", which, "IMAGE", g.images[which]).Replace(spec))
	out.labels = labels
	out.contents = map[string]map[string]string{"files": {"file": "disc-files-" + which}, "keys": {"key": "disc-keys-" + which}}
	out.claims = map[string]*api.Claim{
		"claimed": {Namespace: "default", Name: "claimed", CapacityBytes: claimed},
		"another": {Namespace: "default", Name: "another", CapacityBytes: 20 << 20},
		"copy":    {Namespace: "default", Name: which, Path: filepath.Join(g.dir, which+".img"), CapacityBytes: 1 << 20},
	}
	return out
}

func (g *liveGuest) first() vm {
	return g.wish("one", 24<<20, nil, "MEMORY", "256Mi", "SOCKETS", "1", "LINK", "", "INTERFACES\n", "",
		"DISKS", beforeDisks[1:], "VOLUMES", beforeVolumes[1:]+media)
}

// said is all that the guest has written to its console.
func (g *liveGuest) said() string {
	content, _ := os.ReadFile(filepath.Join(g.dir, "state", "vms", "default", "a", "console.log"))
	return string(content)
}

// saw waits until the guest has said all of this since a moment.
func (g *liveGuest) saw(since int, wants ...string) {
	g.t.Helper()
	for _, want := range wants {
		for deadline := time.Now().Add(10 * time.Minute); !strings.Contains(g.said()[since:], want); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				g.t.Fatalf("the guest never says %q:\n%s", want, g.said()[since:])
			}
		}
	}
}

// becomes carries out a step and waits until the guest runs what it wants, with its labels in both documents of the domain.
func (g *liveGuest) becomes(in vm, power string) {
	g.t.Helper()
	request := g.request(in, power)
	g.must(request)
	hash := request.GetVm().GetHash()
	g.eventually("a", "running what is wanted, without drift", func(d *api.Domain) bool {
		return d.GetHash() == hash && d.GetRunningHash() == hash && d.GetState() == "running" && len(d.GetDrift())+len(d.GetRunningDrift()) == 0
	})
	for _, document := range [][]string{{"dumpxml", "default_a"}, {"dumpxml", "--inactive", "default_a"}} {
		xml := g.daemon.Virsh(document...)
		for key, value := range in.labels {
			if !strings.Contains(strings.ReplaceAll(xml, "&quot;", `"`), `"`+key+`":"`+value+`"`) {
				g.t.Errorf("virsh %s does not name the label %s=%s", strings.Join(document, " "), key, value)
			}
		}
	}
}

// TestLiveOnRealGuest changes a guest that runs on a real libvirt: it sees all of it without a reboot, nothing of it counts as
// drift, and it has the same once it is restarted.
func TestLiveOnRealGuest(t *testing.T) {
	g := newLiveGuest(t)
	g.becomes(g.first(), "on")
	g.saw(0, "ready", "carrier 1", " 24 MiB serial=", "media disc-copy-one disc-files-one disc-image-one disc-keys-one .")
	qemu := g.daemon.QEMU("default_a")
	g.undoesByHand()

	larger := []string{
		"MEMORY", "384Mi", "SOCKETS", "3", "DISKS", afterDisks[1:], "VOLUMES", afterVolumes[1:] + media,
		"LINK", ", state: down", "INTERFACES", "    - {name: more, masquerade: {}}",
	}
	after := g.wish("two", 40<<20, map[string]string{"team": "blue"}, larger...)
	since := len(g.said())
	g.becomes(after, "")
	g.saw(since, "memory 345 MiB, 3 CPUs", "disk vdc 128 MiB serial=DATA", "32 MiB serial=NEW", " 48 MiB serial=", "gone: disk vdb 16 MiB serial=OLD",
		" 20 MiB serial=", " 40 MiB serial=", "nic eth1", "carrier 0", "media disc-copy-two disc-files-two disc-image-two disc-keys-two .")

	since = len(g.said())
	g.becomes(g.wish("two", 40<<20, map[string]string{"team": "red"}, "MEMORY", "192Mi", "SOCKETS", "3", "DISKS", fewerDisks[1:],
		"VOLUMES", fewerVolumes[1:], "LINK", "", "INTERFACES\n", ""), "")
	g.saw(since, "gone: nic eth1", "carrier 1", "media .", "memory 153 MiB", " 20 MiB serial=")
	if boots := strings.Count(g.said(), "boot-id"); boots != 1 || g.daemon.QEMU("default_a") != qemu {
		t.Fatalf("the guest has booted %d times:\n%s", boots, g.said())
	}

	since = len(g.said())
	g.becomes(after, "cycle")
	g.saw(since, "boot-id", "3 CPUs", "128 MiB serial=DATA", "32 MiB serial=NEW", " 20 MiB serial=", " 40 MiB serial=", "nic eth1",
		"ready", "media disc-copy-two disc-files-two disc-image-two disc-keys-two .")
	if g.daemon.QEMU("default_a") == qemu {
		t.Error("the guest was not restarted")
	}
}

// undoesByHand does by hand what people do to a guest that runs, and has it undone.
func (g *liveGuest) undoesByHand() {
	g.t.Helper()
	image := filepath.Join(g.dir, "foreign.img")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		g.t.Fatal(err)
	}
	const spec = "spec.template.spec."
	for _, test := range []struct{ command, path string }{
		{"attach-disk DOMAIN " + image + " vdz --targetbus virtio --live", spec + "domain.devices.disks[vdz]"},
		{"detach-disk DOMAIN vdb --live", spec + "domain.devices.disks[old]"},
		{"domif-setlink DOMAIN 02:00:00:00:00:01 down", spec + "domain.devices.interfaces[default].state"},
		{"setmem DOMAIN 200M --live", spec + "domain.memory.guest"},
		{"change-media DOMAIN sdb --eject --force --live", spec + "volumes[files]"},
		{"detach-interface DOMAIN user --mac 02:00:00:00:00:01 --live", spec + "domain.devices.interfaces[default]"},
	} {
		g.daemon.Virsh(strings.Fields(strings.Replace(test.command, "DOMAIN", "default_a", 1))...)
		g.eventually("a", "changed by virsh "+test.command, func(d *api.Domain) bool {
			return len(d.GetRunningDrift()) == 1 && d.GetRunningDrift()[0].GetPath() == test.path && len(d.GetDrift()) == 0 &&
				(!strings.HasPrefix(test.command, "setmem") || string(d.GetRunningDrift()[0].GetAfter()) == `"200Mi"`)
		})
		undo := g.request(g.first(), "")
		undo.Define = false
		if err := g.execute(undo); err != nil {
			g.t.Fatalf("virsh %s: %v", test.command, err)
		}
		g.eventually("a", "as it was before virsh "+test.command, func(d *api.Domain) bool { return len(d.GetRunningDrift()) == 0 })
	}
	if _, err := os.Stat(image); err != nil {
		g.t.Errorf("the foreign disk's file: %v", err)
	}
}
