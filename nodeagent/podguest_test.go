package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/launcher/launchertest"
	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/podfiles"
	"github.com/gitvirt/gitvirt/schemas"
)

// podRig is the agent of a VM in a Pod, with a launcher and a libvirt that are the Pod's.
type podRig struct {
	t     *testing.T
	pod   *launchertest.Pod
	agent *PodAgent
	state string
	cache string
	stop  func()
}

// connectPod is how agents of Pods connect to libvirt.
func connectPod(name string, source func() (string, func(), error)) PodHypervisor {
	return libvirt.NewFrom(name, source, libvirt.WithConnections(2))
}

// newPodRig starts an agent for the VM of a name, whose launcher was started with arguments.
func newPodRig(t *testing.T, name string, arguments ...string) *podRig {
	t.Helper()
	folder := launchertest.NewFolder(t)
	dir, _ := guestImage(t)
	for from, to := range map[string]string{
		"disk.qcow2": "images/root/disk/disk.qcow2", "vmlinuz": "images/kernel-boot/boot/vmlinuz", "initramfs.img": "images/kernel-boot/boot/initramfs.img",
	} {
		content, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			t.Fatal(err)
		}
		launchertest.Put(t, folder, to, content)
	}
	r := &podRig{t: t, pod: launchertest.LaunchIn(t, folder, ":", arguments...), state: t.TempDir(), cache: t.TempDir()}
	r.begin(name)
	return r
}

// begin starts the agent, also one that was stopped.
func (r *podRig) begin(name string) {
	r.t.Helper()
	agent, err := NewInPod(PodConfig{
		Config:  Config{Node: "node-1", StateDir: r.state, DomainType: "qemu", Logger: slogTo(r.t)},
		Address: address(name), Dir: r.pod.Folder, Connect: connectPod, CapabilitiesDir: r.cache,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.agent = agent
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); agent.Run(ctx) }()
	done := false
	r.stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		<-ended
		if err := agent.Close(); err != nil {
			r.t.Error(err)
		}
	}
	r.t.Cleanup(r.stop)
	r.eventually("the Pod's libvirt answers", func(state PodState) bool { return state.Unknown == "" })
}

// eventually waits for a state.
func (r *podRig) eventually(what string, holds func(PodState) bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var last PodState
	met := false
	r.agent.Watch(ctx, func(state PodState) {
		if last = state; !met && holds(state) {
			met = true
			cancel()
		}
	})
	if !met {
		r.t.Fatalf("never: %s; last: %+v", what, last)
	}
}

// execute carries out a step on the VM as it is now.
func (r *podRig) execute(request *api.ExecuteRequest) error {
	r.t.Helper()
	if now, err := r.agent.refresh(r.t.Context(), r.agent.name); err == nil {
		request.Precondition = (&execution{now: now}).fingerprint()
	}
	_, err := r.agent.Execute(r.t.Context(), request, func(string) {})
	return err
}

func (r *podRig) must(request *api.ExecuteRequest) {
	r.t.Helper()
	if err := r.execute(request); err != nil {
		r.t.Fatal(err)
	}
}

// console waits for the guest to be ready for the n-th time and returns what its console said.
func (r *podRig) console(n int) string {
	r.t.Helper()
	var said string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		said, _ = r.agent.volumes.console(r.t.Context(), schemas.Address{})
		if strings.Count(said, "gitvirt-guest: ready") >= n {
			return strings.ReplaceAll(said, "\r", "")
		}
	}
	r.t.Fatalf("the guest did not get ready:\n%s", said)
	return ""
}

// slogTo logs to a test.
func slogTo(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// TestGuestInItsPod has one guest live through all that happens to one in its Pod: it reads and writes its volumes, is changed while it runs,
// started again in its Pod, outlives its libvirt and its agent, and ends with its Pod.
func TestGuestInItsPod(t *testing.T) {
	t.Parallel()
	r := newPodRig(t, "db", "-grace", "30s")
	claims := filepath.Join(r.pod.Folder, "claims", "data")
	if err := errors.Join(os.Mkdir(claims, 0o755), os.Chown(claims, launchertest.User, launchertest.User)); err != nil {
		t.Fatal(err)
	}
	object := machineYAML(t, "db", `
show keys
for disk in empty data root; do
  echo "$disk $(dd if=$(by $disk) bs=9 count=1 skip=4 2>/dev/null | tr -d '\0')"
  printf "proof-$disk" | dd of=$(by $disk) bs=9 seek=4 conv=notrunc 2>/dev/null
done
sync
`, `
- {name: root, containerDisk: {image: "somewhere/root:1"}}
- {name: empty, emptyDisk: {capacity: 32Mi}}
- {name: data, persistentVolumeClaim: {claimName: data}}
- {name: keys, secret: {secretName: s}}
`)
	no := false
	object.Spec.Template.Spec.Domain.Devices.AutoattachPodInterface = &no
	contents := map[string]*api.Content{"keys": keysOf(map[string]string{"token": "proof-of-secret"})}
	vm := wire(t, object, contents, map[string]*api.Claim{"data": {Namespace: "default", Name: "data", CapacityBytes: 16 << 20, Path: "/etc/passwd"}})
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Power: "on", Vm: vm})
	r.eventually("it runs", func(state PodState) bool { ready, _ := state.Ready(); return ready && state.Running() })
	first := r.console(1)
	for _, want := range []string{"keys token proof-of-secret", "64 MiB serial=root", "32 MiB serial=empty", "16 MiB serial=data"} {
		if !strings.Contains(first, want) {
			t.Errorf("the guest did not say %q:\n%s", want, first)
		}
	}

	t.Run("it is changed while it runs", func(t *testing.T) {
		spec := &object.Spec.Template.Spec
		spec.Volumes = append(spec.Volumes, kubevirtv1.Volume{Name: "more", VolumeSource: kubevirtv1.VolumeSource{EmptyDisk: &kubevirtv1.EmptyDiskSource{Capacity: resource.MustParse("48Mi")}}})
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, kubevirtv1.Disk{
			Name: "more", Serial: "more", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBusVirtio}},
		})
		vm = wire(t, object, contents, vm.GetClaims())
		vm.Hash = "hash-more"
		before := r.pod.Find(launchertest.QEMU)
		r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Live: true, Vm: vm})
		r.said("48 MiB serial=more")
		if r.pod.Find(launchertest.QEMU).PID != before.PID {
			t.Error("the guest was restarted")
		}
	})
	t.Run("it outlives its libvirt", func(t *testing.T) {
		before := r.pod.Find(launchertest.QEMU)
		daemon := r.pod.Find("libvirtd")
		r.pod.Kill(daemon, syscall.SIGKILL)
		r.pod.Await("another libvirt", func() bool { return r.pod.Find("libvirtd").PID != daemon.PID })
		r.pod.Await("it answers the agent", func() bool {
			_, err := r.agent.refresh(t.Context(), r.agent.name)
			return !errors.Is(err, hypervisor.ErrUnavailable)
		})
		if r.pod.Find(launchertest.QEMU).PID != before.PID {
			t.Error("the guest was restarted")
		}
	})
	t.Run("it is started again in its Pod", func(t *testing.T) {
		before := r.pod.Find(launchertest.QEMU)
		r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Power: "cycle", GraceSeconds: 20, Vm: vm})
		second := strings.TrimPrefix(r.console(2), first)
		for _, want := range []string{"empty proof-emp", "data proof-dat", "48 MiB serial=more"} {
			if !strings.Contains(second, want) {
				t.Errorf("the guest did not say %q", want)
			}
		}
		if strings.Contains(second, "root proof-roo") {
			t.Error("what a guest writes over its image outlived a restart")
		}
		if t.Failed() {
			t.Log(second)
		}
		if r.pod.Find(launchertest.QEMU).PID == before.PID {
			t.Error("it is the same QEMU")
		}
		if protocol.Held(r.pod.Dir) {
			t.Error("the Pod is held still")
		}
	})
	t.Run("it outlives its agent", func(t *testing.T) {
		r.stop()
		if err := protocol.Hold(r.pod.Dir); err != nil { // as if the agent had died in the middle of a restart
			t.Fatal(err)
		}
		r.begin("db")
		r.eventually("it runs", func(state PodState) bool { return state.Running() })
		r.pod.Await("the Pod is not held for ever", func() bool { return !protocol.Held(r.pod.Dir) })
		if domain := r.agent.view.domain("default_db"); len(domain.GetDrift()) > 0 || domain.GetProblem() != "" {
			t.Errorf("another agent finds %v", domain)
		}
	})
	t.Run("what libvirt found out about QEMU is kept for other Pods", func(t *testing.T) {
		kept, err := filepath.Glob(filepath.Join(r.cache, "*.xml"))
		if err != nil || len(kept) != 1 {
			t.Fatalf("kept are %v, %v", kept, err)
		}
		content, err := os.ReadFile(kept[0])
		if err != nil || !bytes.Contains(content, []byte("<qemuCaps>")) {
			t.Errorf("%v: %.100s", err, content)
		}
	})
	r.pod.Terminate()
	r.pod.Ends(0, protocol.Shutdown)
}

// said waits for words on the console.
func (r *podRig) said(words string) {
	r.t.Helper()
	var said string
	for deadline := time.Now().Add(patience); !strings.Contains(said, words); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("the guest did not say %q:\n%s", words, said)
		}
		said, _ = r.agent.volumes.console(r.t.Context(), schemas.Address{})
	}
}

// TestPodEndsUnderAStep: a step whose Pod is killed fails, wherever it was, and its agent can be closed.
func TestPodEndsUnderAStep(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"preparing disks", "defining default_db", "starting default_db"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			r := newPodRig(t, "db")
			object := machineYAML(t, "db", "", "- {name: empty, emptyDisk: {capacity: 1Mi}}")
			no := false
			object.Spec.Template.Spec.Domain.Devices.AutoattachPodInterface = &no
			vm := wire(t, object, nil, nil)
			_, err := r.agent.Execute(t.Context(), &api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Power: "on", Vm: vm}, func(text string) {
				if text == at {
					_ = r.pod.Cmd.Process.Kill() // and with PID 1 all others
					<-r.pod.Ended
				}
			})
			if !errors.Is(err, hypervisor.ErrUnavailable) && !errors.Is(err, podfiles.ErrUnavailable) {
				t.Errorf("the step: %v", err)
			}
			r.eventually("nothing is known any more", func(state PodState) bool { ready, _ := state.Ready(); return state.Unknown != "" && !ready })
			r.stop()
		})
	}
}
