package nodeagent_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// newRealRig is an agent with a libvirt of its own, on the real host.
func newRealRig(t *testing.T) (*rig, *libvirttest.Daemon) {
	t.Helper()
	daemon := libvirttest.Start(t)
	dir, err := os.MkdirTemp("", "gitvirt-agent-") // not t.TempDir: the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, guests: paced}
	h := libvirt.New(daemon.URI)
	r.start(h)
	t.Cleanup(func() {
		r.stop()
		_ = h.Close()
		_ = os.RemoveAll(dir)
	})
	return r, daemon
}

func specOf(t *testing.T, text string) func(*kubevirtv1.VirtualMachineInstanceSpec) {
	return func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		if err := json.Unmarshal([]byte(text), s); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPinnedOnRealHost defines and starts a VM with CPUs of its own, where the host has more than the one core that stays
// with it.
func TestPinnedOnRealHost(t *testing.T) {
	r, daemon := newRealRig(t)
	pinned := vm{name: "pinned", change: specOf(t, `{"domain": {"memory": {"guest": "64Mi"}, "cpu": {"cores": 1, "dedicatedCpuPlacement": true}, "devices": {}}}`)}
	if err := r.execute(r.request(pinned, "on")); err != nil {
		if status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "free cores are left") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	r.eventually("pinned", "running without drift", func(d *api.Domain) bool { return d.GetState() == "running" && len(d.GetDrift()) == 0 })
	if pin := daemon.Virsh("vcpupin", "default_pinned"); strings.Contains(pin, "-") || strings.Contains(pin, ",") {
		t.Errorf("the vCPU is not on one CPU: %s", pin)
	}
}

// TestFirmwareAndTPM starts VMs with UEFI and a TPM 2.0 through the agent, on a real libvirt with swtpm and OVMF. The one
// that boots Linux tells what it sees.
func TestFirmwareAndTPM(t *testing.T) {
	r, daemon := newRealRig(t)
	linux := vm{name: "linux", change: specOf(t, `{
		"domain": {
			"memory": {"guest": "256Mi"},
			"firmware": {
				"bootloader": {"efi": {"secureBoot": false}},
				"kernelBoot": {"kernelArgs": "`+libvirttest.GuestArguments+`", "container": {"image": "`+libvirttest.PushGuest(t)+`", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initramfs.img"}}
			},
			"devices": {"tpm": {}, "disks": [{"name": "init", "disk": {"bus": "virtio"}}]}
		},
		"volumes": [{"name": "init", "cloudInitNoCloud": {"userData": "#!/bin/sh\n[ -d /sys/firmware/efi ] && echo booted-by-efi\n[ -e /sys/firmware/acpi/tables/TPM2 ] && echo has-a-tpm\n"}}]
	}`)}
	secure := vm{name: "secure", change: specOf(t, `{"domain": {
		"memory": {"guest": "256Mi"}, "features": {"smm": {}},
		"firmware": {"bootloader": {"efi": {"secureBoot": true, "persistent": true}}}, "devices": {"tpm": {"persistent": true}}
	}}`)}
	r.must(r.request(linux, "on"))
	r.must(r.request(secure, "on"))
	for _, name := range []string{"linux", "secure"} {
		r.eventually(name, "running without drift", func(d *api.Domain) bool { return d.GetState() == "running" && len(d.GetDrift()) == 0 })
	}
	if xml := daemon.Virsh("dumpxml", "default_secure"); !strings.Contains(xml, "OVMF_CODE_4M.ms.fd") || !strings.Contains(xml, "tpm-crb") {
		t.Errorf("secure is\n%s", xml)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "state", "disks", "default", "secure", "firmware.nvram.fd")); err != nil {
		t.Errorf("the UEFI variables: %v", err)
	}
	// The state of a persistent TPM outlives power cycles and the VM: without it nobody can read a disk that it sealed.
	state := filepath.Join(daemon.Dir, "lib", "swtpm", r.domain("secure").GetUuid())
	daemon.Virsh("destroy", "default_secure")
	if _, err := os.Stat(state); err != nil {
		t.Errorf("the TPM's state while the VM is off: %v", err)
	}
	r.eventually("secure", "off", func(d *api.Domain) bool { return d.GetState() == "stopped" })
	r.must(&api.ExecuteRequest{Address: "VirtualMachine/default/secure", Domain: "default_secure", Precondition: r.domain("secure").GetFingerprint(), Destroy: true})
	if _, err := os.Stat(state); err != nil {
		t.Errorf("the TPM's state after the VM is gone: %v", err)
	}
	var console []byte
	for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		console, _ = os.ReadFile(filepath.Join(r.dir, "state", "vms", "default", "linux", "console.log"))
		if strings.Contains(string(console), "booted-by-efi") && strings.Contains(string(console), "has-a-tpm") {
			break
		}
	}
	if !strings.Contains(string(console), "booted-by-efi") || !strings.Contains(string(console), "has-a-tpm") {
		t.Errorf("the guest does not see its firmware or its TPM:\n%s", console)
	}
}
