package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// automatic is a policy that waits for nobody.
const automatic = "  policy:\n    apply: {restart: automatic, replace: automatic, destroy: automatic, data: automatic}\n"

const fleetManifest = "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata:\n  name: e2e\nspec:\n  drift: correct\n" + automatic

// vm is a manifest whose guest boots a kernel out of the image: the quickest way to a running guest.
type vm struct {
	name     string
	strategy string
	memory   string
	script   string
	volumes  string // further volumes, YAML at six spaces
	disks    string // their disks, YAML at ten spaces
}

func (v vm) manifest(image string) string {
	if v.strategy == "" {
		v.strategy = "Always"
	}
	if v.memory == "" {
		v.memory = "96Mi"
	}
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: %s
spec:
  runStrategy: %s
  template:
    spec:
      terminationGracePeriodSeconds: 20
      domain:
        memory: {guest: %s}
        firmware:
          kernelBoot:
            kernelArgs: `+libvirttest.GuestArguments+`
            container:
              image: %s
              kernelPath: /boot/vmlinuz
              initrdPath: /boot/initramfs.img
        devices:
          disks:
          - name: init
            disk: {bus: virtio}
%s      volumes:
      - name: init
        cloudInitNoCloud:
          userData: |
            #!/bin/sh
            %s
%s`, v.name, v.strategy, v.memory, image, v.disks, v.script, v.volumes)
}

// TestPushBecomesRunningVM is the main job: a push becomes running guests that read their data, a second push changes,
// adds and removes, and the status comes back to git.
func TestPushBecomesRunningVM(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	image := libvirttest.PushGuest(t)
	hostDisk := filepath.Join(r.state, "by-hand.img")
	secret := "apiVersion: v1\nkind: Secret\nmetadata:\n  name: web\nstringData:\n  userdata: |\n    #!/bin/sh\n    echo proof-of-secret\n"
	web := strings.Replace(vm{name: "web-1"}.manifest(image), "          userData: |\n            #!/bin/sh\n            \n", "          secretRef: {name: web}\n", 1)
	db := vm{
		name: "db-1", script: "echo proof-of-db",
		disks:   "          - name: root\n            disk: {bus: virtio}\n          - name: data\n            serial: DATA\n            disk: {bus: virtio}\n          - name: extra\n            disk: {bus: virtio}\n",
		volumes: "      - name: root\n        containerDisk: {image: \"" + image + "\"}\n      - name: data\n        emptyDisk: {capacity: 32Mi}\n      - name: extra\n        hostDisk: {path: " + hostDisk + ", type: DiskOrCreate, capacity: 8Mi}\n",
	}.manifest(image)
	first := r.repo.Commit(map[string]string{"gitvirt.yaml": fleetManifest, "secret.yaml": secret, "vms/web-1.yaml": web, "vms/db-1.yaml": db})
	r.start()
	r.settled(first, map[string]status.Phase{"web-1": status.PhaseRunning, "db-1": status.PhaseRunning})
	r.says("web-1", "proof-of-secret", 1)
	r.says("db-1", "proof-of-db", 1)
	if console := r.console("db-1"); !strings.Contains(console, "32 MiB serial=DATA") || !strings.Contains(console, "8 MiB") || !strings.Contains(console, "hostname db-1") {
		t.Errorf("the guest does not see its disks or its name:\n%s", console)
	}
	if xml := r.daemon.Virsh("dumpxml", "default_web-1"); strings.Contains(xml, "proof-of-secret") {
		t.Error("a secret stands in the domain's XML")
	}

	r.typesAndReads("db-1")
	second := r.repo.Commit(map[string]string{
		"vms/web-1.yaml": strings.Replace(web, "96Mi", "112Mi", 1), "vms/new-1.yaml": vm{name: "new-1", script: "echo proof-of-new"}.manifest(image), "vms/db-1.yaml": "",
	})
	r.settled(second, map[string]status.Phase{"web-1": status.PhaseRunning, "new-1": status.PhaseRunning})
	r.says("new-1", "proof-of-new", 1)
	r.says("web-1", "proof-of-secret", 2)
	if domains := r.daemon.Virsh("list", "--all", "--name"); strings.Contains(domains, "db-1") {
		t.Errorf("db-1 is still there:\n%s", domains)
	}
	out, code := r.gitvirt("disks", "--state-dir", r.state)
	if code != 0 || !strings.Contains(out, "default/db-1/data") || !strings.Contains(out, "default/db-1/extra") || strings.Contains(out, "web-1") {
		t.Errorf("disks: exit %d\n%s", code, out)
	}
	if out, code := r.gitvirt("disks", "prune", "default/db-1/data", "--auto-approve", "--state-dir", r.state); code != 0 {
		t.Errorf("prune: exit %d\n%s", code, out)
	}
	if out, _ := r.gitvirt("disks", "--state-dir", r.state); strings.Contains(out, "default/db-1/data") || !strings.Contains(out, "default/db-1/extra") {
		t.Errorf("after prune:\n%s", out)
	}
	for path, content := range r.repo.Files("gitvirt/status") {
		if strings.Contains(content, "proof-of-") {
			t.Errorf("%s of the status branch holds a secret:\n%s", path, content)
		}
	}
	if said := r.said(); said == "" || strings.Contains(said, "proof-of-") {
		t.Error("the log is empty or holds a secret")
	}
}

// TestWhatPeopleDoByHandIsPutRight covers virsh's commands and a crash.
func TestWhatPeopleDoByHandIsPutRight(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	image := libvirttest.PushGuest(t)
	manifest := strings.Replace(vm{name: "a", script: "echo booted"}.manifest(image), "        memory:", "        cpu: {sockets: 2, maxSockets: 3}\n        memory:", 1)
	r.repo.Commit(map[string]string{"gitvirt.yaml": fleetManifest, "a.yaml": manifest})
	r.start()
	r.settled("", map[string]status.Phase{"a": status.PhaseRunning})
	r.says("a", "booted", 1)

	for i, test := range []struct {
		what string
		do   func()
	}{
		{"kill -9 of QEMU", func() { r.daemon.CrashQEMU("default_a") }},
		{"virsh destroy", func() { r.daemon.Virsh("destroy", "default_a") }},
	} {
		began := time.Now()
		before := r.daemon.QEMU("default_a")
		test.do()
		r.eventually(test.what+": runs again", func() bool {
			now, err := r.daemon.FindQEMU("default_a")
			return err == nil && now != before && strings.HasPrefix(r.daemon.Virsh("domstate", "default_a"), "running")
		})
		t.Logf("%s: runs again after %s", test.what, time.Since(began).Round(time.Millisecond))
		r.says("a", "booted", i+2)
	}

	before := r.daemon.QEMU("default_a")
	r.daemon.Virsh("setvcpus", "default_a", "1", "--config")
	r.eventually("setvcpus --config is reported", func() bool {
		out, _ := r.gitvirt("events")
		return strings.Contains(out, "DriftDetected")
	})
	r.eventually("setvcpus --config is corrected", func() bool {
		return strings.Contains(r.daemon.Virsh("dumpxml", "--inactive", "default_a"), "<vcpu placement='static' current='2'>3</vcpu>")
	})
	r.daemon.Virsh("undefine", "default_a")
	r.eventually("undefine is corrected", func() bool {
		return strings.Contains(r.daemon.Virsh("dominfo", "default_a"), "Persistent:     yes")
	})
	if r.daemon.QEMU("default_a") != before {
		t.Error("correcting a definition touched the running guest")
	}
	changedWhileItRuns(t, r, manifest)
}

// changedWhileItRuns changes the running guest behind gitvirt's back, and not its definition: what can be put right while it
// runs is, without a restart; what cannot is told and waits for what the policy says, and so is what only a restart brings.
func changedWhileItRuns(t *testing.T, r *rig, manifest string) {
	qemu := r.daemon.QEMU("default_a")
	live := func() string { return r.daemon.Virsh("dumpxml", "default_a") }
	told := func(field string) {
		t.Helper()
		r.eventually("the change of "+field+" is told", func() bool {
			out, _ := r.gitvirt("events")
			return strings.Contains(out, "changed outside gitvirt: in the running guest: "+field)
		})
	}
	fields := strings.Fields(r.daemon.Virsh("domiflist", "default_a"))
	mac := fields[len(fields)-1]
	r.daemon.Virsh("domif-setlink", "default_a", mac, "down")
	told("spec.template.spec.domain.devices.interfaces[default].state")
	r.eventually("the link is up again", func() bool { return !strings.Contains(live(), "<link state='down'/>") })

	disk := filepath.Join(r.state, "by-hand.img")
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r.daemon.Virsh("attach-disk", "default_a", disk, "vdz", "--live")
	told("spec.template.spec.domain.devices.disks[vdz]")
	r.eventually("the disk is taken away", func() bool { return !strings.Contains(live(), "vdz") })
	if _, err := os.Stat(disk); err != nil {
		t.Errorf("its file: %v", err)
	}

	// Taking a CPU away needs a restart, which waits here.
	condition := func(what, line string) {
		t.Helper()
		r.eventually(what, func() bool {
			return strings.Contains(r.repo.File("gitvirt/status", "vms/default/a.yaml"), line)
		})
	}
	r.repo.Commit(map[string]string{"gitvirt.yaml": strings.Replace(fleetManifest, "restart: automatic", "restart: approval", 1)})
	r.settled("", map[string]status.Phase{"a": status.PhaseRunning})
	r.daemon.Virsh("setvcpus", "default_a", "3", "--live")
	condition("the status tells that the guest has more CPUs", "reason: RunningGuestChanged\n    message: \"in the running guest: spec.template.spec.domain.cpu.sockets\"")
	condition("and what putting it right waits for", "waits for gitvirt approve (apply.restart is approval)")

	// A guest that only people restart runs its old configuration until they do.
	manual := strings.NewReplacer("runStrategy: Always", "runStrategy: Manual", "cpu: {sockets", "cpu: {model: qemu64, sockets").Replace(manifest)
	r.repo.Commit(map[string]string{"a.yaml": manual})
	condition("the status tells what a restart brings, and since when", "a restart brings spec.template.spec.domain.cpu.model, configured at 20")
	if r.daemon.QEMU("default_a") != qemu {
		t.Error("putting the running guest right has restarted it")
	}
	r.daemon.Virsh("destroy", "default_a")
	r.daemon.Virsh("start", "default_a")
	r.eventually("nothing is pending any more", func() bool {
		vm := r.statuses()["a"]
		return vm != nil && vm.Phase == status.PhaseRunning && vm.Condition(status.ConditionRestartPending).Status == status.False &&
			vm.Condition(status.ConditionDrifted).Status == status.False
	})
}

// TestNothingIsLostWhenProgramsDie kills the controller, the agent and libvirtd; guests run on, and the next round
// converges.
func TestNothingIsLostWhenProgramsDie(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	image := libvirttest.PushGuest(t)
	files := map[string]string{"gitvirt.yaml": fleetManifest, "a.yaml": vm{name: "a", script: "echo booted"}.manifest(image)}
	r.repo.Commit(files)
	r.start()
	r.settled("", map[string]status.Phase{"a": status.PhaseRunning})
	r.says("a", "booted", 1)
	qemu := r.daemon.QEMU("default_a")

	r.stop(syscall.SIGKILL)
	r.start()
	r.settled("", map[string]status.Phase{"a": status.PhaseRunning})

	if err := syscall.Kill(r.agentPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.settled("", map[string]status.Phase{"a": status.PhaseRunning})

	r.daemon.Kill()
	r.eventually("the host is unknown", func() bool {
		vms := r.statuses()
		return len(vms) == 1 && vms["a"].Phase == status.PhaseUnknown
	})
	r.repo.Commit(map[string]string{"b.yaml": vm{name: "b", strategy: "Halted"}.manifest(image)})
	r.daemon.Start()
	r.settled("", map[string]status.Phase{"a": status.PhaseRunning, "b": status.PhaseStopped})

	// In the middle of an apply: everything at once.
	r.repo.Commit(map[string]string{"b.yaml": vm{name: "b", script: "echo booted"}.manifest(image), "c.yaml": vm{name: "c", script: "echo booted"}.manifest(image)})
	time.Sleep(400 * time.Millisecond)
	if pid := r.agentPID(); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	r.stop(syscall.SIGKILL)
	r.daemon.Kill()
	r.daemon.Start()
	r.daemon.Mend("default_b", "default_c")
	r.start()
	r.settled("", map[string]status.Phase{"a": status.PhaseRunning, "b": status.PhaseRunning, "c": status.PhaseRunning})
	r.says("b", "booted", 1)
	r.says("c", "booted", 1)
	if r.daemon.QEMU("default_a") != qemu {
		t.Error("the guest was restarted although nobody asked for it")
	}
}

// TestOneBrokenVMStopsOnlyItself covers what a host refuses: a missing disk, a disk in use, a broken manifest, no space.
func TestOneBrokenVMStopsOnlyItself(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	image := libvirttest.PushGuest(t)
	shared := filepath.Join(r.state, "one.img")
	disk := func(name, path, kind string) string {
		if kind == "DiskOrCreate" {
			kind += ", capacity: 4Mi"
		}
		return vm{
			name: name, disks: "          - name: x\n            disk: {bus: virtio}\n",
			volumes: "      - name: x\n        hostDisk: {path: " + path + ", type: " + kind + "}\n",
		}.manifest(image)
	}
	r.repo.Commit(map[string]string{
		"gitvirt.yaml": fleetManifest,
		"good.yaml":    disk("good", shared, "DiskOrCreate"),
		"missing.yaml": disk("missing", filepath.Join(r.state, "nowhere.img"), "Disk"),
		"broken.yaml":  strings.Replace(vm{name: "broken"}.manifest(image), "memory:", "memroy:", 1),
		"large.yaml":   vm{name: "large", disks: "          - name: x\n            disk: {bus: virtio}\n", volumes: "      - name: x\n        hostDisk: {path: " + filepath.Join(r.state, "large.img") + ", type: DiskOrCreate, capacity: 900Ti}\n"}.manifest(image),
	})
	r.start()
	r.eventually("the good one runs and the others say why not", func() bool {
		vms := r.statuses()
		return len(vms) == 4 && vms["good"].Phase == status.PhaseRunning &&
			strings.Contains(vms["missing"].Message, "nowhere.img") && strings.Contains(vms["large"].Message, "space") &&
			vms["broken"].Condition(status.ConditionManifestValid).Status == status.False
	})
	if err := os.WriteFile(filepath.Join(r.state, "nowhere.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r.repo.Commit(map[string]string{"broken.yaml": vm{name: "broken", strategy: "Halted"}.manifest(image), "large.yaml": ""})
	r.settled("", map[string]status.Phase{"good": status.PhaseRunning, "missing": status.PhaseRunning, "broken": status.PhaseStopped})
	// The same disk under another path is one more VM on one disk: QEMU's lock refuses it.
	link := filepath.Join(r.state, "link")
	if err := os.Symlink(r.state, link); err != nil {
		t.Fatal(err)
	}
	r.repo.Commit(map[string]string{"second.yaml": disk("second", filepath.Join(link, "one.img"), "Disk")})
	r.eventually("two VMs on one disk are refused", func() bool {
		vms := r.statuses()
		return len(vms) == 4 && strings.Contains(vms["second"].Message, "use") && vms["good"].Phase == status.PhaseRunning
	})
}
