package nodeagent_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// told writes changes as people read them.
func told(changes []*api.Change) []string {
	var out []string
	for _, change := range changes {
		out = append(out, change.GetPath()+": "+string(change.GetBefore())+" -> "+string(change.GetAfter()))
	}
	return out
}

// TestGapsAreToldApart: what somebody does to the definition and what somebody does to the running guest are different
// things, each told for itself.
func TestGapsAreToldApart(t *testing.T) {
	r := newRig(t, nil)
	in := vm{name: "a", change: specOf(t, `{
		"domain": {"memory": {"guest": "64Mi"}, "devices": {
			"disks": [{"name": "data", "disk": {"bus": "virtio"}}], "interfaces": [{"name": "default", "macAddress": "02:00:00:00:00:01", "masquerade": {}}]
		}},
		"networks": [{"name": "default", "pod": {}}],
		"volumes": [{"name": "data", "emptyDisk": {"capacity": "1Mi"}}]
	}`)}
	r.must(r.request(in, "on"))
	r.eventually("a", "as applied", func(d *api.Domain) bool { return len(d.GetDrift())+len(d.GetRunningDrift()) == 0 })
	before := r.domain("a").GetFingerprint()

	foreign := `<disk type="file" device="disk"><source file="/foreign.img"/><target dev="vdc" bus="virtio"/></disk></devices>`
	r.fake.EditLive("default_a", func(xml string) string {
		xml = strings.Replace(xml, "</interface>", `<link state="down"/></interface>`, 1)
		return strings.Replace(xml, "</devices>", foreign, 1)
	})
	running := []string{
		`spec.template.spec.domain.devices.disks[vdc]:  -> "present"`,
		`spec.template.spec.domain.devices.interfaces[default].state: "up" -> "down"`,
	}
	r.eventually("a", "changed in the running guest", func(d *api.Domain) bool { return slices.Equal(told(d.GetRunningDrift()), running) })
	if now := r.domain("a"); now.GetFingerprint() == before || len(now.GetDrift()) > 0 {
		t.Errorf("a plan made before would not be stale, or the definition is said to have drifted: %v", now)
	}

	r.fake.EditConfig("default_a", func(xml string) string { return strings.Replace(xml, ">1</vcpu>", ">2</vcpu>", 1) })
	config := []string{"spec.template.spec.domain.cpu.sockets: 1 -> 2"}
	r.eventually("a", "changed in both", func(d *api.Domain) bool {
		return slices.Equal(told(d.GetDrift()), config) && slices.Equal(told(d.GetRunningDrift()), running)
	})
	if now := r.domain("a"); now.GetPendingSinceUnix() != 0 || now.GetRunningHash() != now.GetHash() {
		t.Errorf("nothing was applied that waits for a restart: %v", now)
	}
}

// TestMarkOfARunningGuest: what a guest runs with is told by its own mark. Without one the guest is compared with its
// definition; one that cannot be read makes it unknown until the guest is off.
func TestMarkOfARunningGuest(t *testing.T) {
	r := newRig(t, nil)
	in := vm{name: "a", change: specOf(t, `{"domain": {"cpu": {"sockets": 2}, "memory": {"guest": "64Mi"}, "devices": {}}}`)}
	r.must(r.request(in, "on"))
	r.eventually("a", "as applied", func(d *api.Domain) bool { return d.GetState() == "running" && len(d.GetRunningDrift()) == 0 })
	mark := regexp.MustCompile(`(?s)<gitvirt:vm.*</gitvirt:vm>`)
	edit := func(by string) {
		t.Helper()
		r.fake.EditLive("default_a", func(xml string) string {
			if !mark.MatchString(xml) && by == "" {
				t.Fatalf("no mark in %s", xml)
			}
			return mark.ReplaceAllString(xml, by)
		})
	}
	edit(`<gitvirt:vm xmlns:gitvirt="` + domainxml.MetadataURI + `">nonsense</gitvirt:vm>`)
	r.eventually("a", "a problem", func(d *api.Domain) bool {
		return strings.Contains(d.GetProblem(), "what the running guest was started from cannot be read")
	})
	edit("")
	r.eventually("a", "compared", func(d *api.Domain) bool { return d.GetProblem() == "" && len(d.GetRunningDrift()) == 0 })
	r.fake.EditLive("default_a", func(xml string) string { return strings.Replace(xml, ">2</vcpu>", ">1</vcpu>", 1) })
	r.eventually("a", "another guest than is defined", func(d *api.Domain) bool {
		return slices.Equal(told(d.GetRunningDrift()), []string{"spec.template.spec.domain.cpu.sockets: 2 -> 1"})
	})
}

// TestPendingSince: since when a restart is pending is the time of the first definition that the guest did not get.
func TestPendingSince(t *testing.T) {
	var now atomic.Int64
	r := unstartedRig(t)
	r.now = func() time.Time { return time.Unix(now.Load(), 0) }
	r.begin()
	named := func(host string) vm {
		return vm{name: "a", change: func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Hostname = host }}
	}
	now.Store(1000)
	r.must(r.request(named("x"), "on"))
	want := func(what string, since int64) {
		t.Helper()
		r.eventually("a", what, func(d *api.Domain) bool { return d.GetPendingSinceUnix() == since })
	}
	want("started", 0)
	now.Store(2000)
	r.pending(named("y"))
	want("defined anew", 2000)
	now.Store(3000)
	r.pending(named("z"))
	want("defined once more", 2000)
	r.stop()
	r.begin()
	want("told by an agent that was started anew", 2000)
	r.pending(named("x"))
	want("what runs again", 0)
	now.Store(4000)
	r.pending(named("y"))
	want("pending again", 4000)
	r.must(r.request(named("y"), "cycle"))
	want("restarted", 0)
}

// TestWhatLibvirtMakesOfADefinition is in every guest from its start, and nobody's change: a restart would not undo it.
func TestWhatLibvirtMakesOfADefinition(t *testing.T) {
	r := newRig(t, nil)
	add := func(device string) func(string) string {
		return func(xml string) string { return strings.Replace(xml, "</devices>", device+"</devices>", 1) }
	}
	once := sync.OnceFunc(func() {
		r.fake.EditLive("default_a", add(`<crypto model="virtio"><backend model="builtin"/></crypto>`))
	})
	r.fake.Fail(fake.SetMetadata, func(context.Context, string) error { once(); return nil })
	in := vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}
	r.must(r.request(in, "on"))
	r.eventually("a", "without a difference", func(d *api.Domain) bool { return d.GetRan() && len(d.GetRunningDrift()) == 0 })
	r.stop()
	r.begin()
	r.fake.EditLive("default_a", add(`<panic model="isa"/>`))
	r.eventually("a", "changed by somebody", func(d *api.Domain) bool {
		return slices.Equal(told(d.GetRunningDrift()), []string{`spec.template.spec.domain.devices.panicDevices:  -> "present"`})
	})
}

// TestRunningDriftIsUndone by a step that writes no definition: what somebody plugged in goes, its file stays.
func TestRunningDriftIsUndone(t *testing.T) {
	r := newRig(t, nil)
	r.must(r.request(liveVM(t, small), "on"))
	image := filepath.Join(t.TempDir(), "foreign.img")
	if err := os.WriteFile(image, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := r.config("a")
	ctx := context.Background()
	for _, err := range []error{
		r.fake.AttachDevice(ctx, "default_a", `<disk type="file" device="disk"><source file="`+image+`"/><target dev="vdz" bus="virtio"/></disk>`),
		r.fake.SetMemory(ctx, "default_a", 128<<10),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.eventually("a", "changed in the running guest", func(d *api.Domain) bool { return len(d.GetRunningDrift()) == 2 })
	undo := r.request(liveVM(t, small), "")
	undo.Define = false
	r.must(undo)
	r.eventually("a", "as it was", func(d *api.Domain) bool { return len(d.GetRunningDrift()) == 0 })
	if _, err := os.Stat(image); err != nil || r.config("a") != config {
		t.Errorf("the file of a foreign disk: %v, or the definition was written", err)
	}

	r.fake.EditLive("default_a", func(xml string) string {
		return strings.Replace(xml, "</devices>", `<panic model="isa"/></devices>`, 1)
	})
	r.eventually("a", "changed for good", func(d *api.Domain) bool { return len(d.GetRunningDrift()) == 1 })
	undo = r.request(liveVM(t, small), "")
	undo.Define = false
	if err := r.execute(undo); err == nil || !strings.Contains(err.Error(), "cannot be undone while the guest runs") {
		t.Errorf("what no host can undo: %v", err)
	}
	r.eventually("a", "told as refused", func(d *api.Domain) bool { return d.GetLiveRefused().GetHash() == d.GetHash() })
}
