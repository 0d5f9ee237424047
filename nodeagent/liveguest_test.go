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

// The wishes for a guest that boots: it has what before says, becomes after while it runs, and then less.
const (
	realGuest = `
domain:
  memory: {guest: MEMORY, maxGuest: 1Gi}
  cpu: {sockets: SOCKETS, maxSockets: 4, model: qemu64}
  firmware:
    kernelBoot:
      kernelArgs: console=ttyS0 quiet swiotlb=noforce
      container: {image: IMAGE, kernelPath: /boot/vmlinuz, initrdPath: /boot/initramfs.img}
  devices:
    rng: {}
    disks:
    - {name: seed, serial: SEED, disk: {bus: virtio}}
DISKS
    - {name: cd, cdrom: {bus: scsi}}
    interfaces:
INTERFACES
networks:
- {name: default, pod: {}}
- {name: more, pod: {}}
volumes:
- {name: seed, cloudInitNoCloud: {userData: "#!/bin/sh\n(while sleep 1; do now=$(cat /sys/class/net/eth0/carrier); [ \"$now\" = \"$was\" ] || echo \"carrier $now\"; was=$now; cd=$(dd if=/dev/sr0 bs=2048 count=17 2>/dev/null | tail -c 2047 | head -c 5); [ \"$cd\" = \"$had\" ] || echo \"medium $cd.\"; had=$cd; done) >/dev/console &\n"}}
VOLUMES
`
	beforeDisks = `
    - {name: old, serial: OLD, disk: {bus: virtio}}
    - {name: data, serial: DATA, disk: {bus: virtio}}`
	beforeVolumes = `
- {name: old, emptyDisk: {capacity: 16Mi}}
- {name: data, emptyDisk: {capacity: 64Mi}}`
	afterDisks = `
    - {name: data, serial: DATA, disk: {bus: virtio}}
    - {name: new, serial: NEW, disk: {bus: virtio}}
    - {name: more, serial: MORE, disk: {bus: scsi}}`
	afterVolumes = `
- {name: data, emptyDisk: {capacity: 128Mi}}
- {name: new, emptyDisk: {capacity: 32Mi}}
- {name: more, emptyDisk: {capacity: 48Mi}}
- {name: cd, configMap: {name: files}}`
)

// TestLiveOnRealGuest changes a guest that runs on a real libvirt: it sees all of it without a reboot, nothing of it counts as
// drift, and it has the same once it is restarted.
func TestLiveOnRealGuest(t *testing.T) {
	r, daemon := newRealRig(t)
	image := libvirttest.PushGuest(t)
	wish := func(pairs ...string) vm {
		return liveVM(t, strings.NewReplacer(append(pairs, "IMAGE", image)...).Replace(realGuest))
	}
	// saw waits until the guest has said all of this since a moment.
	path := filepath.Join(r.dir, "state", "vms", "default", "a", "console.log")
	said := func() string {
		content, _ := os.ReadFile(path)
		return string(content)
	}
	saw := func(since int, wants ...string) {
		t.Helper()
		for _, want := range wants {
			for deadline := time.Now().Add(90 * time.Second); !strings.Contains(said()[since:], want); time.Sleep(50 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the guest never says %q:\n%s", want, said()[since:])
				}
			}
		}
	}
	runs := func(request *api.ExecuteRequest) {
		t.Helper()
		hash := request.GetVm().GetHash()
		r.eventually("a", "running what is wanted, without drift", func(d *api.Domain) bool {
			return d.GetHash() == hash && d.GetRunningHash() == hash && d.GetState() == "running" && len(d.GetDrift())+len(d.GetRunningDrift()) == 0
		})
	}

	first := wish("MEMORY", "256Mi", "SOCKETS", "1", "DISKS", beforeDisks[1:], "VOLUMES", beforeVolumes[1:], "INTERFACES", "    - {name: default, masquerade: {}}")
	r.must(r.request(first, "on"))
	saw(0, "ready", "carrier 1")
	qemu := daemon.QEMU("default_a")

	after := []string{
		"MEMORY", "384Mi", "SOCKETS", "3", "DISKS", afterDisks[1:], "VOLUMES", afterVolumes[1:],
		"INTERFACES", "    - {name: default, masquerade: {}, state: down}\n    - {name: more, masquerade: {}}",
	}
	request := r.request(wish(after...), "")
	r.must(request)
	saw(0, "memory 345 MiB, 3 CPUs", "disk vdc 128 MiB serial=DATA", "32 MiB serial=NEW", "disk sda 48 MiB", "gone: disk vdb 16 MiB serial=OLD", "nic eth1", "carrier 0", "medium CD001.")
	runs(request)

	since := len(said())
	less := strings.NewReplacer("384Mi", "192Mi", ", state: down}\n    - {name: more, masquerade: {}}", "}", "- {name: cd, configMap: {name: files}}", "")
	fewer := make([]string, len(after))
	for i := range after {
		fewer[i] = less.Replace(after[i])
	}
	request = r.request(wish(fewer...), "")
	r.must(request)
	saw(since, "gone: nic eth1", "carrier 1", "medium .")
	runs(request)
	if boots := strings.Count(said(), "boot-id"); boots != 1 || daemon.QEMU("default_a") != qemu {
		t.Fatalf("the guest has booted %d times:\n%s", boots, said())
	}

	since = len(said())
	cycle := r.request(wish(after...), "cycle")
	r.must(cycle)
	saw(since, "boot-id", "3 CPUs", "128 MiB serial=DATA", "32 MiB serial=NEW", "nic eth1", "ready")
	runs(cycle)
	if daemon.QEMU("default_a") == qemu {
		t.Error("the guest was not restarted")
	}
}
