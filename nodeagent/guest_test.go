package nodeagent_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/guestagent"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// TestRealGuest has a guest with Debian's qemu-guest-agent, on a real libvirt: it becomes ready in each way that its agent tells of, its
// keys arrive, it gets new ones while it runs, is switched off when its agent dies, and has the new ones when it runs again.
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
				"readinessProbe": {"periodSeconds": 10, "timeoutSeconds": 30, "exec": {"command": ["test", "-s", "/root/.ssh/authorized_keys"]}}`+probes+`
			}`),
		}
	}
	hasKey := func(key string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Minute); strings.TrimSpace(exec("cat /root/.ssh/authorized_keys")) != key; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the key %q never arrives", key)
			}
		}
	}
	const bootID = "cat /proc/sys/kernel/random/boot_id"
	r.must(r.request(with("ssh-ed25519 FIRST", ""), "on"))
	r.readiness("agent", 0, patient, codes.OK, "the guest agent answers")
	r.saysLast("agent-guest: ready")
	r.readiness("cloud-init", 0, brief, codes.DeadlineExceeded, "cloud-init is not done")
	// What cloud-init leaves at its end, by https://docs.cloud-init.io/en/latest/explanation/return_codes.html, some time later.
	const done = `mkdir -p /run/cloud-init; (sleep 1; echo '{"v1": {"datasource": "DataSourceNoCloud", "errors": ERRORS}}' >/run/cloud-init/result.json) >/dev/null 2>&1 &`
	exec(strings.Replace(done, "ERRORS", "[]", 1))
	r.readiness("cloud-init", 0, patient, codes.OK, "cloud-init is done")
	exec(strings.Replace(strings.Replace(done, "ERRORS", `["p4ssword"]`, 1), "sleep 1", "rm /run/cloud-init/result.json", 1))
	r.readiness("cloud-init", 0, patient, codes.FailedPrecondition, "cloud-init ended with 1 error(s); read /run/cloud-init/result.json in the guest")
	r.eventually("a", "ready", func(d *api.Domain) bool { return d.GetReady() == "true" && d.GetCredentialsProblem() == "" })
	r.readiness("probe", 0, patient, codes.OK, "the readiness probe succeeds")
	hasKey("ssh-ed25519 FIRST")
	before, boot := daemon.QEMU("default_a"), exec(bootID)
	alive := `, "livenessProbe": {"periodSeconds": 10, "timeoutSeconds": 30, "guestAgentPing": {}}`
	r.must(r.request(with("ssh-ed25519 SECOND", alive), ""))
	hasKey("ssh-ed25519 SECOND")
	if daemon.QEMU("default_a") != before || exec(bootID) != boot {
		t.Error("new keys restarted the guest")
	}
	exec("mv /bin/qemu-ga /bin/gone; (sleep 1; killall qemu-ga) >/dev/null 2>&1 &")
	r.eventually("a", "switched off by its liveness probe", func(d *api.Domain) bool { return d.GetState() == "stopped" && d.GetStop() == "crashed" })
	r.readiness("agent", 0, patient, codes.FailedPrecondition, "the guest crashed")

	// The guest keeps nothing; what it is to have is brought in again.
	r.must(r.request(with("ssh-ed25519 SECOND", ""), "on"))
	r.readiness("probe", 0, patient, codes.OK, "the readiness probe succeeds")
	hasKey("ssh-ed25519 SECOND")
}
