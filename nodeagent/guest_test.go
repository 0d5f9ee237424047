package nodeagent_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/guestagent"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// TestRealGuest has a guest with Debian's qemu-guest-agent, on a real libvirt: its keys arrive, it becomes ready by that,
// gets new ones while it runs, and is switched off when its agent dies.
func TestRealGuest(t *testing.T) {
	kernel, initramfs := libvirttest.AgentGuest(t)
	files := map[string][]byte{}
	for name, path := range map[string]string{"boot/vmlinuz": kernel, "boot/initramfs.img": initramfs} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = content
	}
	reference := libvirttest.PushFiles(t, files)
	r, daemon := newRealRig(t)
	h := libvirt.New(daemon.URI)
	defer func() { _ = h.Close() }()
	guest := guestagent.New(func(ctx context.Context, command string) (string, error) {
		return h.GuestAgent(ctx, "default_a", command)
	})
	exec := func(command string) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, output, err := guest.Exec(ctx, "sh", "-c", command)
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		return string(output)
	}

	with := func(key, probes string) vm {
		return vm{
			name: "a", contents: map[string]map[string]string{"accessCredentials/0": {"key": key}},
			change: specOf(t, `{
				"domain": {"memory": {"guest": "128Mi"}, "devices": {}, "firmware": {"kernelBoot": {"kernelArgs": "`+libvirttest.AgentArguments+`",
					"container": {"image": "`+reference+`", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initramfs.img"}}}},
				"accessCredentials": [{"sshPublicKey": {"source": {"secret": {"secretName": "key"}}, "propagationMethod": {"qemuGuestAgent": {"users": ["root"]}}}}],
				"readinessProbe": {"periodSeconds": 300, "timeoutSeconds": 30, "exec": {"command": ["test", "-s", "/root/.ssh/authorized_keys"]}}`+probes+`
			}`),
		}
	}
	r.must(r.request(with("ssh-ed25519 FIRST", ""), "on"))
	r.eventually("a", "ready", func(d *api.Domain) bool { return d.GetReady() == "true" && d.GetCredentialsProblem() == "" })
	if keys := exec("cat /root/.ssh/authorized_keys"); strings.TrimSpace(keys) != "ssh-ed25519 FIRST" {
		t.Errorf("the first keys: %q", keys)
	}
	before := daemon.QEMU("default_a")
	alive := `, "livenessProbe": {"periodSeconds": 300, "timeoutSeconds": 30, "guestAgentPing": {}}`
	r.must(r.request(with("ssh-ed25519 SECOND", alive), ""))
	for deadline := time.Now().Add(90 * time.Second); !strings.Contains(exec("cat /root/.ssh/authorized_keys"), "SECOND"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the second keys never arrive")
		}
	}
	if daemon.QEMU("default_a") != before {
		t.Error("new keys restarted the guest")
	}
	exec("mv /bin/qemu-ga /bin/gone; (sleep 1; killall qemu-ga) >/dev/null 2>&1 &")
	r.eventually("a", "switched off by its liveness probe", func(d *api.Domain) bool { return d.GetState() == "stopped" && d.GetStop() == "crashed" })
}
