package nodeagent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// answering serves one answer to everybody who connects, byte by byte what it says.
func answering(t *testing.T, answer string) (port int) {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		served.Wait()
	})
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(listener.Addr())
	}
	return address.Port
}

// TestGuestThatSaysAnything: what a guest answers ends nobody's watch, and only a little of it is told.
func TestGuestThatSaysAnything(t *testing.T) {
	long := "\xff\x1b[2J\n" + strings.Repeat("é", 100_000)
	for reason, answer := range map[string]string{
		"words that are no text": "HTTP/1.1 500 \xff\xfe\r\nContent-Length: 0\r\n\r\n",
		"very many words":        "HTTP/1.1 500 " + strings.Repeat("x", 30_000) + "\r\nContent-Length: 0\r\n\r\n",
		"no HTTP":                long,
	} {
		t.Run(reason, func(t *testing.T) {
			r := newRig(t, nil)
			var probe kubevirtv1.Probe
			text := fmt.Sprintf(`{"failureThreshold":1,"httpGet":{"host":"127.0.0.1","port":%d}}`, answering(t, answer))
			if err := json.Unmarshal([]byte(text), &probe); err != nil {
				t.Fatal(err)
			}
			in := credentialed("a", "s3cret")
			change := in.change
			in.change = func(s *kubevirtv1.VirtualMachineInstanceSpec) { change(s); s.ReadinessProbe = &probe }
			r.must(r.request(in, ""))
			r.fake.SetGuestAgent("default_a", func(string) (string, error) { return "", errors.New(long) })
			r.must(r.request(in, "on"))
			r.eventually("a", "told of both", func(d *api.Domain) bool {
				return d.GetReady() == "false" && d.GetReadyReason() != "the guest has not been asked yet" && d.GetCredentialsProblem() != ""
			})
			for _, text := range []string{r.domain("a").GetReadyReason(), r.domain("a").GetCredentialsProblem()} {
				if len(text) > 310 || !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\n") {
					t.Errorf("told: %d bytes, %q", len(text), text)
				}
			}
			r.must(r.request(vm{name: "b", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}, "on")) // is told, too
		})
	}
}

// TestLivenessOfAGuestThatNobodyAsked: a hypervisor that cannot ask guests costs no guest its life.
func TestLivenessOfAGuestThatNobodyAsked(t *testing.T) {
	for _, fault := range []error{fmt.Errorf("%w: restarting", hypervisor.ErrUnavailable), context.DeadlineExceeded} {
		r := newRig(t, nil)
		in := probed("a", ping(), ping())
		r.must(r.request(in, ""))
		r.fake.SetGuestAgent("default_a", func(string) (string, error) { return `{"return":{}}`, nil })
		r.must(r.request(in, "on"))
		r.eventually("a", "ready", func(d *api.Domain) bool { return d.GetReady() == "true" })
		var asked atomic.Int64
		r.fake.Fail(fake.GuestAgent, func(context.Context, string) error {
			asked.Add(1)
			return fault
		})
		r.eventually("a", "asked in vain", func(d *api.Domain) bool { return asked.Load() > 20 && d.GetReady() == "unknown" })
		if state := r.state("a"); state != hypervisor.StateRunning {
			t.Errorf("%v: the guest is %s", fault, state)
		}
		r.fake.Fail(fake.GuestAgent, nil)
		r.eventually("a", "ready again", func(d *api.Domain) bool { return d.GetReady() == "true" })
	}
}

// TestKillIsRepeated: a hypervisor that fails for a while does not leave a dead guest running.
func TestKillIsRepeated(t *testing.T) {
	r := newRig(t, nil)
	in := probed("a", ping(), nil)
	r.must(r.request(in, ""))
	r.fake.SetGuestAgent("default_a", func(string) (string, error) { return `{"return":{}}`, nil })
	r.must(r.request(in, "on"))
	var tried atomic.Int64
	r.fake.Fail(fake.SetPower, func(context.Context, string) error {
		if tried.Add(1) <= 3 {
			return errors.New("not now")
		}
		return nil
	})
	r.fake.SetGuestAgent("default_a", nil)
	r.eventually("a", "switched off as crashed", func(d *api.Domain) bool { return d.GetState() == "stopped" && d.GetStop() == "crashed" })
}

// TestStartThatNeverEnds: a guest that is being started for ever is switched off, which counts as a crash.
func TestStartThatNeverEnds(t *testing.T) {
	r := newRig(t, nil)
	r.must(r.request(vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}, "on"))
	r.fake.StartsForEver("default_a")
	r.eventually("a", "switched off as crashed", func(d *api.Domain) bool { return d.GetState() == "stopped" && d.GetStop() == "crashed" })

	r.must(r.request(vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}, "on"))
	r.fake.Fail(fake.SetPower, func(context.Context, string) error { return errors.New("cannot acquire state change lock") })
	r.fake.StartsForEver("default_a")
	r.eventually("a", "told how it is mended", func(d *api.Domain) bool {
		return d.GetReady() == "false" && strings.Contains(d.GetReadyReason(), "state change lock") && strings.Contains(d.GetReadyReason(), "remove /run/libvirt/qemu/default_a.xml")
	})
	r.fake.Fail(fake.SetPower, nil)
	r.eventually("a", "switched off in the end", func(d *api.Domain) bool { return d.GetState() == "stopped" && d.GetReady() == "" })
}

// credentialed is a VM with a password that goes through the guest agent.
func credentialed(name, password string) vm {
	return vm{
		name: name, contents: map[string]map[string]string{"accessCredentials/0": {"admin": password}},
		change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.AccessCredentials = []kubevirtv1.AccessCredential{{UserPassword: &kubevirtv1.UserPasswordAccessCredential{
				Source:            kubevirtv1.UserPasswordAccessCredentialSource{Secret: &kubevirtv1.AccessCredentialSecretSource{SecretName: "passwords"}},
				PropagationMethod: kubevirtv1.UserPasswordAccessCredentialPropagationMethod{QemuGuestAgent: &kubevirtv1.QemuGuestAgentUserPasswordAccessCredentialPropagation{}},
			}}}
		},
	}
}

func (r *rig) credentialsFile(name string) string {
	return filepath.Join(r.dir, "state", "vms", "default", name, "credentials.json")
}

// TestLostCredentials says what to do when the agent does not have them any more.
func TestLostCredentials(t *testing.T) {
	r := newRig(t, nil)
	in := credentialed("a", "s3cret")
	agent := &recorder{}
	r.must(r.request(in, "on"))
	if err := os.Remove(r.credentialsFile("a")); err != nil {
		t.Fatal(err)
	}
	r.fake.SetGuestAgent("default_a", agent.answer)
	r.eventually("a", "without its credentials", func(d *api.Domain) bool {
		return strings.Contains(d.GetCredentialsProblem(), "apply the VM again")
	})
	r.must(r.request(in, ""))
	agent.saw(t, `"username":"admin"`)
	r.eventually("a", "in the guest", func(d *api.Domain) bool { return d.GetCredentialsProblem() == "" })
}
