package nodeagent_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// small and large are two wishes for one guest; each can become the other while it runs, but for the vCPUs of large.
const (
	small = `
hostname: a
domain:
  memory: {guest: 256Mi, maxGuest: 1Gi}
  cpu: {sockets: 1, maxSockets: 4}
  devices:
    disks:
    - {name: root, disk: {bus: virtio}}
    - {name: old, disk: {bus: virtio}}
    - {name: seed, disk: {bus: virtio}}
    - {name: cd, cdrom: {bus: scsi}}
    interfaces:
    - {name: lan, bridge: {}}
    - {name: old, bridge: {}}
networks:
- {name: lan, multus: {networkName: lan}}
- {name: old, multus: {networkName: old}}
volumes:
- {name: root, emptyDisk: {capacity: 1Mi}}
- {name: old, emptyDisk: {capacity: 1Mi}}
- {name: seed, cloudInitNoCloud: {userData: "#!/bin/sh"}}
`
	large = `
hostname: a
domain:
  memory: {guest: 384Mi, maxGuest: 1Gi}
  cpu: {sockets: 3, maxSockets: 4}
  devices:
    disks:
    - {name: root, disk: {bus: virtio}}
    - {name: new, disk: {bus: virtio}}
    - {name: cd, cdrom: {bus: scsi}}
    - {name: more, disk: {bus: scsi}}
    interfaces:
    - {name: lan, bridge: {}, state: down}
    - {name: new, bridge: {}}
networks:
- {name: lan, multus: {networkName: lan}}
- {name: new, multus: {networkName: new}}
volumes:
- {name: root, emptyDisk: {capacity: 2Mi}}
- {name: new, emptyDisk: {capacity: 1Mi}}
- {name: more, emptyDisk: {capacity: 1Mi}}
- {name: cd, configMap: {name: files}}
`
)

func liveVM(t *testing.T, spec string) vm {
	t.Helper()
	encoded, err := yaml.YAMLToJSON([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	return vm{name: "a", change: specOf(t, string(encoded)), contents: map[string]map[string]string{"cd": {"file": "text"}}}
}

// run is the number of the guest's present run.
func (r *rig) run(name string) string {
	r.t.Helper()
	domain, err := r.fake.Domain(context.Background(), "default_"+name)
	if err != nil {
		r.t.Fatal(err)
	}
	root, _, _ := strings.Cut(domain.Live, ">")
	return root
}

func (r *rig) running(name string) string {
	r.t.Helper()
	domain, err := r.fake.Domain(context.Background(), "default_"+name)
	if err != nil {
		r.t.Fatal(err)
	}
	return domain.Live
}

// isRunning fails unless the guest is told to run what a step wanted, in the run that began before.
func (r *rig) isRunning(request *api.ExecuteRequest, run string) {
	r.t.Helper()
	domain, wanted := r.domain("a"), request.GetVm().GetHash()
	if domain.GetHash() != wanted || domain.GetRunningHash() != wanted || domain.GetLiveRefused() != nil {
		r.t.Errorf("the guest runs %s, %s is defined, want %s: %v", domain.GetRunningHash(), domain.GetHash(), wanted, domain.GetLiveRefused())
	}
	if now := r.run("a"); now != run {
		r.t.Errorf("the guest was restarted: %s, %s", run, now)
	}
	if drift := append(domain.GetDrift(), domain.GetRunningDrift()...); len(drift) > 0 {
		r.t.Errorf("drift: %v", drift)
	}
}

func TestLiveChange(t *testing.T) {
	r := newRig(t, nil)
	r.must(r.request(liveVM(t, small), "on"))
	run := r.run("a")
	if headroom := r.domain("a").GetHeadroom(); headroom.GetMaxVcpus() != 4 || headroom.GetMaxMemoryBytes() != 1<<30 || headroom.GetFreePciSlots() < 2 {
		t.Errorf("headroom is %v", headroom)
	}
	seed := filepath.Join(r.dir, "state", "vms", "default", "a", "seed.iso")
	if _, err := os.Stat(seed); err != nil {
		t.Fatal(err)
	}
	request := r.request(liveVM(t, large), "")
	r.must(request)
	r.isRunning(request, run)
	live := r.running("a")
	for _, want := range []string{"ua-new", "ua-more", `<requested unit='KiB'>131072</requested>`, `current='3'`, `state="down"`, "cd.iso"} {
		if !strings.Contains(live, want) {
			t.Errorf("no %s in\n%s", want, live)
		}
	}
	for _, gone := range []string{`"ua-old"`, `"ua-seed"`} {
		if strings.Contains(live, gone) {
			t.Errorf("%s in\n%s", gone, live)
		}
	}
	if size := r.fake.DiskSize("default_a", "vda"); size != 2<<20 {
		t.Errorf("the disk has %d bytes", size)
	}
	if _, err := os.Stat(seed); err == nil {
		t.Error("the seed is left")
	}
	if _, err := os.Stat(filepath.Join(r.dir, "state", "disks", "default", "a", "old.qcow2")); err != nil {
		t.Error("a disk with data is gone:", err)
	}
	// Back again: all but the vCPUs and the size of the disk, neither of which is taken away.
	back := strings.NewReplacer("sockets: 1, m", "sockets: 3, m", "root, emptyDisk: {capacity: 1Mi}", "root, emptyDisk: {capacity: 2Mi}")
	request = r.request(liveVM(t, back.Replace(small)), "")
	r.must(request)
	r.isRunning(request, run)
	if live := r.running("a"); !strings.Contains(live, `"ua-old"`) || strings.Contains(live, `"ua-new"`) || strings.Contains(live, "cd.iso") {
		t.Errorf("the guest is not what it was:\n%s", live)
	}
}

// TestNotLive: what cannot be done is refused before anything is touched, remembered, and forgotten with the guest's run.
func TestNotLive(t *testing.T) {
	r := newRig(t, nil)
	r.must(r.request(liveVM(t, small), "on"))
	run, config := r.run("a"), r.config("a")
	fewer := strings.Replace(small, "maxSockets: 4", "maxSockets: 2", 1)
	request := r.request(liveVM(t, fewer), "")
	err := r.execute(request)
	if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "the largest number of vCPUs can only change at a restart") {
		t.Fatalf("got %v", err)
	}
	if r.config("a") != config || r.run("a") != run {
		t.Error("something was touched")
	}
	refused := func(d *api.Domain) bool {
		return d.GetLiveRefused().GetHash() == request.GetVm().GetHash() && strings.Contains(d.GetLiveRefused().GetReason(), "vCPUs") &&
			d.GetFingerprint() != request.GetPrecondition()
	}
	r.eventually("a", "refused", refused)
	more := strings.Replace(small, "sockets: 1", "sockets: 2", 1)
	request = r.request(liveVM(t, more), "")
	r.must(request)
	r.isRunning(request, run)
	cycle := r.request(liveVM(t, fewer), "cycle")
	r.must(cycle)
	r.isRunning(cycle, r.run("a"))
}

// TestRefusedLive: libvirt or the guest says no in the middle. The next try of this run is refused without asking again.
func TestRefusedLive(t *testing.T) {
	r := newRig(t, nil)
	r.must(r.request(liveVM(t, small), "on"))
	var asked atomic.Int64
	r.fake.Fail(fake.SetVCPUs, func(context.Context, string) error {
		asked.Add(1)
		return fmt.Errorf("%w: the guest says no", hypervisor.ErrRefused)
	})
	for range 2 {
		err := r.execute(r.request(liveVM(t, large), ""))
		if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "plugging in vCPUs (3 of 4): the guest says no") {
			t.Fatalf("got %v", err)
		}
		r.eventually("a", "refused", func(d *api.Domain) bool {
			return d.GetLiveRefused().GetReason() != "" && d.GetRunningHash() != d.GetHash()
		})
	}
	if asked.Load() != 1 {
		t.Errorf("the guest was asked %d times", asked.Load())
	}
	cycle := r.request(liveVM(t, large), "cycle")
	r.must(cycle)
	r.isRunning(cycle, r.run("a"))
}

// TestDiskDoesNotShrink: neither live nor at a restart, which would leave the guest off.
func TestDiskDoesNotShrink(t *testing.T) {
	r := newRig(t, nil)
	r.must(r.request(liveVM(t, large), "on"))
	for _, power := range []string{"", "cycle"} {
		err := r.execute(r.request(liveVM(t, strings.Replace(large, "capacity: 2Mi", "capacity: 1Mi", 1)), power))
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "volume root: it has 2.0 MiB and the manifest asks for 1.0 MiB") {
			t.Errorf("%q: got %v", power, err)
		}
	}
	if r.state("a") != hypervisor.StateRunning {
		t.Error("the guest is off")
	}
}

// TestLiveInterruptedAnywhere lets the n-th call of a live change fail, for every n, or ends the agent at it: the guest has all of
// it in the end, in the same run.
func TestLiveInterruptedAnywhere(t *testing.T) {
	for _, kill := range []bool{false, true} {
		calls := interruptLiveAt(t, math.MaxInt64, kill)
		for n := range calls {
			t.Run(fmt.Sprintf("killed %v, call %d of %d", kill, n+1, calls), func(t *testing.T) {
				t.Parallel()
				interruptLiveAt(t, n+1, kill)
			})
		}
	}
}

func interruptLiveAt(t *testing.T, n int64, kill bool) int64 {
	t.Helper()
	r := newRig(t, nil)
	r.must(r.request(liveVM(t, small), "on"))
	run := r.run("a")
	var calls atomic.Int64
	var hit atomic.Bool
	methods := []fake.Method{
		fake.Define, fake.SetMetadata, fake.AttachDevice, fake.DetachDevice, fake.UpdateDevice, fake.SetVCPUs, fake.SetMemory, fake.ResizeDisk,
	}
	for _, method := range methods {
		r.fake.Fail(method, func(context.Context, string) error {
			if calls.Add(1) != n {
				return nil
			}
			hit.Store(true)
			return hypervisor.ErrUnavailable
		})
	}
	var request *api.ExecuteRequest
	r.insist(func() *api.ExecuteRequest {
		request = r.request(liveVM(t, large), "")
		return request
	}, func() {
		if kill && hit.CompareAndSwap(true, false) {
			r.stop()
			r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
		}
	})
	r.isRunning(request, run)
	for _, method := range methods {
		r.fake.Fail(method, nil)
	}
	return calls.Load()
}
