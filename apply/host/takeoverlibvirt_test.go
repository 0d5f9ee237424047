package host_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/plan"
)

// realDomain is a domain with a file as its disk, and an IDE disk that no field says.
const realDomain = `<domain type='qemu'>
  <name>NAME</name>
  <uuid>UUID</uuid>
  <title>somebody made it</title>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <features><acpi/></features>
  <clock offset='utc'/>
  <devices>
    <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='DIR/NAME.img'/><target dev='vda' bus='virtio'/></disk>
    <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='DIR/NAME-ide.img'/><target dev='hda' bus='ide'/></disk>
    <serial type='pty'/>
  </devices>
</domain>`

// TestAdoptionOnLibvirt adopts a domain that runs and one that is off, as libvirt has filled them in: the guest is the same process,
// nothing but metadata changes, and nothing is left to do.
func TestAdoptionOnLibvirt(t *testing.T) {
	ctx := context.Background()
	daemon := libvirttest.Start(t)
	driver := libvirt.New(daemon.URI)
	t.Cleanup(func() { _ = driver.Close() })
	dir, err := os.MkdirTemp("", "gitvirt-adopt-") // not t.TempDir: QEMU's user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, uuid := range map[string]string{"running": "6bd2ad53-4f1e-4a1b-9d0c-0c4a5a7f1c21", "stopped": "6bd2ad53-4f1e-4a1b-9d0c-0c4a5a7f1c22"} {
		for _, image := range []string{name + ".img", name + "-ide.img"} {
			if err := os.WriteFile(filepath.Join(dir, image), make([]byte, 1<<20), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := driver.Define(ctx, strings.NewReplacer("NAME", name, "UUID", uuid, "DIR", dir).Replace(realDomain)); err != nil {
			t.Fatal(err)
		}
	}
	if err := driver.SetPower(ctx, "running", hypervisor.PowerOn); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, driver: driver, dir: dir}
	r.start()
	t.Cleanup(func() { r.stop() })
	before := map[string]hypervisor.Domain{}
	var manifests []string
	for _, name := range []string{"running", "stopped"} {
		if before[name], err = driver.Domain(ctx, name); err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, described(t, driver, name, name))
	}
	pid := daemon.QEMU("running")
	want := desired(t, strings.Join(manifests, "\n---\n"))
	p := r.eventually(want, "two adoptions", func(p *plan.Plan) bool { return len(p.Executable()) == 2 })
	for i := range p.Steps {
		if step := &p.Steps[i]; step.Action != plan.ActionAdopt || len(step.Changes) > 0 || !strings.Contains(strings.Join(step.Kept, " "), "disk[hda]") {
			t.Errorf("step %+v", step)
		}
	}
	if err := r.apply(p); err != nil {
		t.Fatal(err)
	}
	for name, was := range before {
		now, err := driver.Domain(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if now.State != was.State {
			t.Errorf("%s is %v, was %v", name, now.State, was.State)
		}
		if !strings.Contains(now.Config, "gitvirt") {
			t.Errorf("%s has no record", name)
		}
		if got, had := lines(withoutMetadata(now.Config)), lines(withoutMetadata(was.Config)); got != had {
			t.Errorf("adopting changed %s:\n%s\nwas\n%s", name, got, had)
		}
	}
	if now := daemon.QEMU("running"); now != pid {
		t.Errorf("the guest is process %d, was %d", now, pid)
	}
	r.converge(want)
}

// lines leaves out how a document is indented, and lines of nothing.
func lines(document string) string {
	return strings.Join(strings.Fields(document), " ")
}
