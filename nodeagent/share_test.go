package nodeagent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// vgpu is the mediated device that is made for the VM a. It never changes: a guest that runs has it.
const vgpu = "3d6ef79a-eced-826b-a71f-4bc3af2a3384"

// mediatedRig is a host on which the VM with has a mediated device, and without has none any more.
func mediatedRig(t *testing.T) (r *rig, with, without vm) {
	t.Helper()
	kind := "sys/class/mdev_bus/0000:07:00.0/mdev_supported_types/nvidia-222/"
	r = newRig(t, map[string]string{
		kind + "name": "GRID T4-1Q", kind + "available_instances": "1", kind + "create": "",
		"sys/bus/mdev/devices/" + vgpu + "/mdev_type": "-> ../../../../class/mdev_bus/0000:07:00.0/mdev_supported_types/nvidia-222",
		"sys/bus/mdev/devices/" + vgpu + "/remove":    "",
	})
	with = vm{
		name:    "a",
		devices: map[string]*api.HostDeviceSelector{"vgpu": {Resource: "example.com/vgpu", Mediated: []string{"GRID T4-1Q"}}},
		change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.GPUs = []kubevirtv1.GPU{{Name: "vgpu", DeviceName: "example.com/vgpu"}}
		},
	}
	r.must(r.request(with, "on"))
	if config := r.config("a"); !strings.Contains(config, vgpu) {
		t.Fatalf("a has not the device:\n%s", config)
	}
	return r, with, vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}
}

// removed reports whether the agent told the kernel to remove the device.
func (r *rig) removed() bool {
	r.t.Helper()
	content, err := os.ReadFile(filepath.Join(r.dir, "host", "sys/bus/mdev/devices", vgpu, "remove"))
	if err != nil {
		r.t.Fatal(err)
	}
	return len(content) > 0
}

// pending defines a VM anew without regard to its guest.
func (r *rig) pending(in vm) {
	r.t.Helper()
	request := r.request(in, "")
	request.Live = false
	r.must(request)
}

func (r *rig) off() {
	r.t.Helper()
	r.fake.GuestPowersOff("default_a")
	r.eventually("a", "off", func(d *api.Domain) bool { return d.GetState() == "stopped" && d.GetStop() == "shutdown" })
}

// TestMediatedDeviceIsGivenBack: what was made for a VM goes when the VM wants it no longer, and not while its guest has it.
func TestMediatedDeviceIsGivenBack(t *testing.T) {
	for reason, end := range map[string]func(r *rig, with, without vm){
		"a new definition with a cycle": func(r *rig, _, without vm) { r.must(r.request(without, "cycle")) },
		"a pending definition, reverted, and a cycle": func(r *rig, with, without vm) {
			r.pending(without)
			r.must(r.request(with, ""))
			r.must(r.request(without, "cycle"))
		},
		"a pending definition and a cycle that defines again": func(r *rig, _, without vm) {
			r.pending(without)
			r.must(r.request(without, "cycle"))
		},
		"a pending definition and a cycle": func(r *rig, _, without vm) {
			r.pending(without)
			cycle := r.request(without, "cycle")
			cycle.Define = false
			r.must(cycle)
		},
		"a pending definition and a guest that ends by itself": func(r *rig, _, without vm) {
			r.pending(without)
			r.off()
			on := r.request(without, "on")
			on.Define = false
			r.must(on)
		},
		"a guest that ends by itself, and a new agent": func(r *rig, _, without vm) {
			r.pending(without)
			r.off()
			r.stop()
			r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
			for deadline := time.Now().Add(4 * time.Minute); !r.removed() && time.Now().Before(deadline); {
				time.Sleep(5 * time.Millisecond)
			}
		},
		"a start that fails once": func(r *rig, _, without vm) {
			r.off()
			r.fake.Fail(fake.SetPower, func(context.Context, string) error { return errors.New("not now") })
			if err := r.execute(r.request(without, "on")); err == nil {
				r.t.Error("the start succeeded")
			}
		},
		"the end of the VM": func(r *rig, _, _ vm) { r.must(r.remove("a")) },
		"the end of the VM with a pending definition": func(r *rig, _, without vm) {
			r.pending(without)
			r.must(r.remove("a"))
		},
	} {
		t.Run(reason, func(t *testing.T) {
			r, with, without := mediatedRig(t)
			r.pending(without)
			r.pending(with)
			if r.removed() {
				t.Error("the device was taken from a guest that runs")
			}
			end(r, with, without)
			if !r.removed() {
				t.Error("the device is left behind")
			}
		})
	}
}

// TestDeviceOfADamagedDomain: what a domain has that nobody can read is not given to another one.
func TestDeviceOfADamagedDomain(t *testing.T) {
	for reason, test := range map[string]struct {
		trace bool
		want  string
	}{
		"its trace says what it has": {true, "none is free"},
		"nothing says what it has":   {false, "what default_a has cannot be read"},
	} {
		t.Run(reason, func(t *testing.T) {
			r := newRig(t, pciDevice("0000:01:00.0", "1"))
			r.must(r.request(gpu("a"), ""))
			if !test.trace {
				if err := os.Remove(filepath.Join(r.dir, "state", "vms", "default", "a", "record.xml")); err != nil {
					t.Fatal(err)
				}
			}
			r.fake.EditConfig("default_a", func(xml string) string {
				return regexp.MustCompile(`(<gitvirt:vm[^>]*) hash="[^"]*"`).ReplaceAllString(xml, `$1 hash=""`)
			})
			r.eventually("a", "damaged", func(d *api.Domain) bool { return d.GetProblem() != "" })
			if err := r.execute(r.request(gpu("b"), "on")); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
