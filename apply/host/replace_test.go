package host_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

const anotherUUID = "5d307ca9-b3ef-428c-8861-06e72d69f223"

// adoptable is a domain of others with a screen that has a password, and with something that no manifest says.
const adoptable = `<domain type='qemu'><name>old-web</name><uuid>6bd2ad53-4f1e-4a1b-9d0c-0c4a5a7f1c11</uuid><memory unit='KiB'>524288</memory>
<vcpu>1</vcpu><cputune><shares>512</shares></cputune><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
<devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/srv/images/web.qcow2'/><target dev='vda' bus='virtio'/></disk>
<graphics type='vnc' port='-1' passwd='hush'/></devices></domain>`

// replaceable is a domain that is to be replaced, and is not what its machine's address says.
type replaceable struct {
	domain string
	// prepare makes it, and returns what is wanted then, for a Fleet that reports drift only.
	prepare func(r *rig) *schemas.Desired
	// keeps is in the definition all the time.
	keeps string
	disk  string // below the state directory
}

func replaceables() map[string]replaceable {
	report := strings.Replace(fleet, "metadata:", "spec: {drift: report}\nmetadata:", 1)
	withUUID := func(text string) string {
		return strings.Replace(text, "        memory:", "        firmware: {uuid: "+anotherUUID+"}\n        memory:", 1)
	}
	return map[string]replaceable{
		"renamed": {domain: "default_a", keeps: "/disks/default/a/data.qcow2", disk: "disks/default/a/data.qcow2", prepare: func(r *rig) *schemas.Desired {
			r.converge(desired(r.t, manifest("a", "Always", "64Mi")))
			b := strings.Replace(manifest("b", "Always", "64Mi"), "  name: b\n", "  name: b\n  annotations: {gitvirt.io/previous-name: a}\n", 1)
			r.converge(desired(r.t, b))
			r.hypervisor.EditConfig("default_a", func(xml string) string { return strings.Replace(xml, `<graphics `, `<graphics passwd="hush" `, 1) })
			return desiredWith(r.t, report, withUUID(b))
		}},
		"adopted": {domain: "old-web", keeps: "<shares>512</shares>", prepare: func(r *rig) *schemas.Desired {
			if err := r.hypervisor.Define(context.Background(), adoptable); err != nil {
				r.t.Fatal(err)
			}
			text := described(r.t, r.hypervisor, "old-web", "web")
			r.converge(desired(r.t, text))
			changed := strings.Replace(text, "6bd2ad53-4f1e-4a1b-9d0c-0c4a5a7f1c11", anotherUUID, 1)
			if changed == text {
				r.t.Fatalf("the manifest has no UUID:\n%s", text)
			}
			return desiredWith(r.t, report, changed)
		}},
	}
}

// TestReplacementInterrupted ends the agent, or lets libvirt fail, at each call of a replacement and once the old domain is undefined:
// it comes to the same end, with the name, the disk and the old definition that are the machine's own, and its screen is never open.
func TestReplacementInterrupted(t *testing.T) {
	for name, what := range replaceables() {
		for _, kill := range []bool{false, true} {
			calls := replaceInterrupted(t, what, 0, kill)
			for n := 1; n <= calls; n++ {
				t.Run(fmt.Sprintf("%s, killed %v, call %d of %d", name, kill, n, calls), func(t *testing.T) {
					t.Parallel()
					replaceInterrupted(t, what, n, kill)
				})
			}
		}
	}
}

func replaceInterrupted(t *testing.T, what replaceable, n int, kill bool) int {
	t.Helper()
	r := newRig(t)
	want := what.prepare(r)
	was := inode(t, filepath.Join(r.dir, "agent", what.disk))
	// The agent may still have to see what was edited last.
	var p *plan.Plan
	var step plan.Step
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		p = r.eventually(want, "a replacement", func(p *plan.Plan) bool { return len(p.Executable()) == 1 })
		if step = p.Executable()[0]; step.Action != plan.ActionReplace || step.Domain != what.domain {
			t.Fatalf("step %+v", step)
		}
		found, err := r.host.Check(context.Background(), apply.Target{Fleet: p.Fleet, Revision: p.Revision}, step)
		if err == nil && len(found.Problems) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it would be refused: %q, %v", found.Problems, err)
		}
	}
	var calls atomic.Int64
	lost := false
	for _, method := range []fake.Method{fake.SetPower, fake.HasPasswords, fake.Replace, fake.Replacing, fake.Define, fake.SetMetadata} {
		r.hypervisor.Fail(method, func(context.Context, string) error {
			if int(calls.Add(1)) != n {
				return nil
			}
			lost = method == fake.Replacing
			if kill {
				r.end()
			}
			return hypervisor.ErrUnavailable
		})
	}
	if err := r.apply(p); (err == nil) != (n == 0) {
		t.Fatalf("call %d: %v", n, err)
	}
	count := int(calls.Load())
	if lost {
		if names, _ := r.hypervisor.Names(context.Background()); len(names) > 0 {
			t.Errorf("there is %q in the middle of a replacement", names)
		}
	}
	if kill {
		r.restart()
	}
	r.converge(want)
	domain, err := r.hypervisor.Domain(context.Background(), what.domain)
	if err != nil {
		t.Fatal(err)
	}
	if domain.UUID != anotherUUID || !strings.Contains(domain.Config, what.keeps) {
		t.Errorf("the domain has another UUID than wanted, or lacks %s:\n%s", what.keeps, domain.Config)
	}
	if names, _ := r.hypervisor.Names(context.Background()); len(names) != 1 {
		t.Errorf("domains %q", names)
	}
	if now := inode(t, filepath.Join(r.dir, "agent", what.disk)); now != was {
		t.Errorf("the disk is %d and was %d", now, was)
	}
	if found, _ := filepath.Glob(filepath.Join(r.dir, "agent", "disks", "*", "*")); len(found) > 1 {
		t.Errorf("disks of more than one machine: %q", found)
	}
	password := `passwd="hush"`
	if lost {
		password = `passwd=""` // which lets nobody in
	}
	if secret := r.hypervisor.Secret(what.domain); !strings.Contains(secret, password) {
		t.Errorf("the screen has not %s:\n%s", password, secret)
	}
	return count
}

// inode is that of a file; that of a folder when the path is the state directory itself.
func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// TestReplacementNeedsPasswords: while it is not known whether a screen has a password the domain stays, and its guest runs on.
func TestReplacementNeedsPasswords(t *testing.T) {
	r := newRig(t)
	what := replaceables()["renamed"]
	want := what.prepare(r)
	r.hypervisor.Fail(fake.HasPasswords, func(context.Context, string) error { return hypervisor.ErrUnavailable })
	if err := r.apply(r.eventually(want, "a replacement", func(p *plan.Plan) bool { return len(p.Executable()) == 1 })); err == nil {
		t.Error("it was replaced")
	}
	if state := r.state(what.domain); state != hypervisor.StateRunning {
		t.Errorf("the guest is %q", state)
	}
}

// TestUnreadableTraceOfAnAdoptedDomain: a trace that cannot be read does not say the name of an adopted domain. While the domain is there
// it is told once, as it is.
func TestUnreadableTraceOfAnAdoptedDomain(t *testing.T) {
	r := newRig(t)
	if err := r.hypervisor.Define(context.Background(), adoptable); err != nil {
		t.Fatal(err)
	}
	want := desired(t, described(t, r.hypervisor, "old-web", "web"))
	r.converge(want)
	r.stop()
	if err := os.WriteFile(filepath.Join(r.dir, "agent", "vms", "default", "web", "record.xml"), []byte("<"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.converge(want)
	if told := r.host.Observed().Domains; len(told) != 1 || told[0].Name != "old-web" || told[0].Problem != "" {
		t.Errorf("told of %+v", told)
	}
}
