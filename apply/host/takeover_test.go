package host_test

import (
	"context"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// foreignDomain is a domain as virt-install and an administrator leave it: much of it has no field in a manifest.
const foreignDomain = `<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>old-web</name>
  <uuid>6bd2ad53-4f1e-4a1b-9d0c-0c4a5a7f1c11</uuid>
  <title>the old web server</title>
  <metadata>
    <libosinfo:libosinfo xmlns:libosinfo='http://libosinfo.org/xmlns/libvirt/domain/1.0'><libosinfo:os id='http://debian.org/debian/12'/></libosinfo:libosinfo>
  </metadata>
  <memory unit='KiB'>524288</memory>
  <currentMemory unit='KiB'>524288</currentMemory>
  <vcpu placement='static'>2</vcpu>
  <cputune><shares>512</shares></cputune>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type><boot dev='hd'/></os>
  <features><acpi/><apic/></features>
  <cpu mode='host-passthrough'/>
  <clock offset='utc'><timer name='rtc' tickpolicy='catchup'/></clock>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none'/><source file='/srv/images/web.qcow2'/><target dev='vda' bus='virtio'/></disk>
    <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/srv/images/ide.img'/><target dev='hda' bus='ide'/></disk>
    <interface type='bridge'><mac address='52:54:00:aa:bb:01'/><source bridge='br0'/><model type='virtio'/></interface>
    <serial type='pty'><target port='0'/></serial>
    <graphics type='vnc' port='-1' listen='127.0.0.1'/>
    <memballoon model='virtio'/>
  </devices>
  <qemu:commandline><qemu:arg value='-set'/></qemu:commandline>
</domain>`

// described is the manifest that a domain is described by.
func described(t *testing.T, hv hypervisor.Hypervisor, name, as string) string {
	t.Helper()
	domain, err := hv.Domain(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := domainxml.Describe(schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: as}, domain.Config)
	if err != nil {
		t.Fatal(err)
	}
	_, text, err := manifest.VM()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func withoutMetadata(document string) string {
	before, rest, _ := strings.Cut(document, "<metadata>")
	_, after, _ := strings.Cut(rest, "</metadata>")
	return before + after
}

// TestAdoption follows a domain of others from its description to its end: nothing of it changes but its metadata, the plan is empty
// then, and a change of the manifest changes nothing but what it says.
func TestAdoption(t *testing.T) {
	ctx := context.Background()
	r := newRig(t)
	if err := r.hypervisor.Define(ctx, foreignDomain); err != nil {
		t.Fatal(err)
	}
	if err := r.hypervisor.SetPower(ctx, "old-web", hypervisor.PowerOn); err != nil {
		t.Fatal(err)
	}
	before, _ := r.hypervisor.Domain(ctx, "old-web")
	manifest := described(t, r.hypervisor, "old-web", "web")
	want := desired(t, manifest)
	p := r.eventually(want, "an adoption", func(p *plan.Plan) bool { return len(p.Steps) == 1 && p.Steps[0].Blocked == "" })
	step := p.Steps[0]
	if step.Action != plan.ActionAdopt || step.Domain != "old-web" || len(step.Changes) > 0 {
		t.Fatalf("step %+v", step)
	}
	for _, path := range []string{"devices/disk[hda]", "devices/interface[52:54:00:aa:bb:01]", "commandline", "metadata/libosinfo:libosinfo", "title"} {
		if !strings.Contains(strings.Join(step.Kept, " "), path) {
			t.Errorf("%s is not told: %q", path, step.Kept)
		}
	}
	if err := r.apply(p); err != nil {
		t.Fatal(err)
	}
	after, _ := r.hypervisor.Domain(ctx, "old-web")
	if withoutMetadata(after.Config) != withoutMetadata(before.Config) || after.State != before.State || after.UUID != before.UUID {
		t.Errorf("adopting changed the domain:\n%s", after.Config)
	}
	if !strings.Contains(after.Config, "libosinfo") || !strings.Contains(after.Live, "gitvirt") {
		t.Error("the metadata of others is gone, or the running guest has none")
	}
	r.converge(want)

	t.Run("without the annotation", func(t *testing.T) {
		r.t = t
		r.converge(desired(t, strings.Replace(manifest, `"annotations":{"gitvirt.io/adopt":"old-web"},`, "", 1)))
	})
	r.t = t
	larger := desired(t, strings.Replace(manifest, `"guest":"512Mi"`, `"guest":"768Mi"`, 1))
	if err := r.apply(r.eventually(larger, "a change", func(p *plan.Plan) bool { return len(p.Executable()) == 1 })); err != nil {
		t.Fatal(err)
	}
	changed, _ := r.hypervisor.Domain(ctx, "old-web")
	for _, part := range []string{"libosinfo", "<shares>512</shares>", `"hda"`, `bridge="br0"`, "qemu:arg", "the old web server", "805306368"} {
		if !strings.Contains(changed.Config, part) {
			t.Errorf("the definition lacks %s:\n%s", part, changed.Config)
		}
	}
}

// TestRename gives a machine another name and takes that back: the domain, its run and its disk are the same all the time.
func TestRename(t *testing.T) {
	ctx := context.Background()
	r := newRig(t)
	old := desired(t, manifest("web-1", "Always", "128Mi"))
	r.converge(old)
	before, _ := r.hypervisor.Domain(ctx, "default_web-1")
	renamed := strings.Replace(manifest("web-2", "Always", "128Mi"), "  name: web-2\n", "  name: web-2\n  annotations: {gitvirt.io/previous-name: web-1}\n", 1)
	for _, want := range []*schemas.Desired{desired(t, renamed), old, desired(t, renamed)} {
		p := r.eventually(want, "a rename", func(p *plan.Plan) bool { return len(p.Steps) == 1 })
		if p.Steps[0].Action != plan.ActionRename || p.Steps[0].Consequence != plan.ConsequenceNone || len(p.Steps[0].Changes) > 0 {
			t.Fatalf("step %+v", p.Steps[0])
		}
		r.converge(want)
		after, _ := r.hypervisor.Domain(ctx, "default_web-1")
		if withoutMetadata(after.Config) != withoutMetadata(before.Config) || withoutMetadata(after.Live) != withoutMetadata(before.Live) {
			t.Errorf("renaming changed the domain:\n%s\nwas\n%s", after.Config, before.Config)
		}
		if observed := r.host.Observed(); len(observed.Domains) != 1 || observed.Domains[0].Address != want.VMs[0].Address {
			t.Errorf("the domain is told as %v", observed.Domains[0].Address)
		}
		r.restart()
		r.converge(want)
	}
}
