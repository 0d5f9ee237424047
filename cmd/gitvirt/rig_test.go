package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// patience bounds every wait of these tests: guests boot in software emulation, several at a time, also on a machine that has a hundredth
// of a CPU for them.
const patience = 10 * time.Minute

// rig is a whole gitvirt: a git server, a registry, a libvirt of its own, and the programs as they are built.
type rig struct {
	t          testing.TB
	repo       *gittest.Repo
	url        string
	daemon     *libvirttest.Daemon
	state      string
	listen     string
	controller *exec.Cmd
	// flags are further ones of the controller.
	flags []string
	// log is a file and no pipe: an agent outlives the controller that was killed, and would hold a pipe open.
	log *os.File
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, repo: gittest.NewRepo(t), daemon: libvirttest.Start(t), listen: freeAddress(t)}
	r.url = gittest.NewHTTPServer(t, r.repo, gittest.HTTPOptions{}).RepoURL
	// Not t.TempDir: the path of a unix socket has at most 107 bytes.
	state, err := os.MkdirTemp("", "gitvirt-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	r.state = state
	if r.log, err = os.Create(filepath.Join(state, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.stop(syscall.SIGTERM)
		r.stopAgent()
		if t.Failed() {
			r.tell()
		}
		if err := errors.Join(r.log.Close(), os.RemoveAll(state)); err != nil {
			t.Error(err)
		}
	})
	return r
}

func freeAddress(t testing.TB) string {
	t.Helper()
	address, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// start runs the controller; it starts the agent.
func (r *rig) start() {
	r.t.Helper()
	r.controller = exec.Command(program(r.t, "gitvirt"), append([]string{
		"run", "--git", r.url, "--branch", "main", "--state-dir", r.state,
		"--libvirt-uri", r.daemon.URI, "--listen", r.listen, "--interval", "1s", "--emulation", "always", "--allow-local-imports",
	}, r.flags...)...)
	r.controller.Stdout, r.controller.Stderr = r.log, r.log
	if err := r.controller.Start(); err != nil {
		r.t.Fatal(err)
	}
}

// stop ends the controller with a signal.
func (r *rig) stop(signal syscall.Signal) {
	if r.controller == nil {
		return
	}
	_ = r.controller.Process.Signal(signal)
	_ = r.controller.Wait()
	r.controller = nil
}

// agentPID finds the agent by its state directory; 0 when none runs.
func (r *rig) agentPID() int {
	out, err := exec.Command("pgrep", "-f", "gitvirt-agent --socket "+r.state).Output()
	if err != nil {
		return 0
	}
	var pid int
	if _, err := fmt.Sscan(string(out), &pid); err != nil {
		return 0
	}
	return pid
}

// stopAgent ends an agent whose controller was killed.
func (r *rig) stopAgent() {
	for pid := r.agentPID(); pid != 0; pid = r.agentPID() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		time.Sleep(20 * time.Millisecond)
	}
}

// said returns what the controller and the agent logged.
func (r *rig) said() string {
	content, err := os.ReadFile(r.log.Name())
	if err != nil {
		r.t.Error(err)
	}
	return string(content)
}

func (r *rig) tell() {
	r.t.Logf("controller and agent said:\n%s", r.said())
	logs, _ := filepath.Glob(filepath.Join(r.state, "agent/vms/*/*/console.log"))
	for _, path := range logs {
		content, _ := os.ReadFile(path)
		r.t.Logf("%s:\n%s", path, content)
	}
}

// gitvirt runs a command of the CLI and returns what it printed and its exit code.
func (r *rig) gitvirt(args ...string) (string, int) {
	r.t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	environment := map[string]string{"GITVIRT_SERVER": "http://" + r.listen, "XDG_CACHE_HOME": filepath.Join(r.state, "cache")}
	code := run(ctx, args, strings.NewReader(""), &out, &out, func(name string) string { return environment[name] })
	return out.String(), code
}

// statuses asks the controller; nothing when it does not answer.
func (r *rig) statuses() map[string]*status.VM {
	out, code := r.gitvirt("get", "-o", "json")
	if code != 0 {
		return nil
	}
	var vms []status.VM
	if err := json.Unmarshal([]byte(out), &vms); err != nil {
		r.t.Fatalf("get -o json: %v\n%s", err, out)
	}
	byName := map[string]*status.VM{}
	for i := range vms {
		byName[vms[i].Address.Name] = &vms[i]
	}
	return byName
}

// eventually waits for a condition.
func (r *rig) eventually(what string, condition func() bool) {
	r.t.Helper()
	r.eventuallyWithin(patience, what, condition)
}

func (r *rig) eventuallyWithin(limit time.Duration, what string, condition func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		began := time.Now()
		if condition() {
			return
		}
		// Whoever asks much leaves the machine to what is waited for.
		time.Sleep(max(100*time.Millisecond, 4*time.Since(began)))
	}
	r.t.Fatalf("never: %s", what)
}

// settled waits until the VMs are exactly the named ones, in sync at a revision, in a phase.
func (r *rig) settled(revision string, phases map[string]status.Phase) {
	r.t.Helper()
	var last map[string]*status.VM
	r.eventually(fmt.Sprintf("settled at %v", phases), func() bool {
		last = r.statuses()
		if len(last) != len(phases) {
			return false
		}
		for name, phase := range phases {
			vm, ok := last[name]
			if !ok || vm.Phase != phase || vm.Synced() != status.True {
				return false
			}
		}
		return revision == "" || r.statusBranchAt(revision)
	})
}

// statusBranchAt reports whether the status branch tells of a revision.
func (r *rig) statusBranchAt(revision string) bool {
	return strings.Contains(r.repo.File("gitvirt/status", "README.md"), status.ShortRevision(revision))
}

// console returns what a guest wrote to its serial console.
func (r *rig) console(name string) string {
	content, err := os.ReadFile(filepath.Join(r.state, "agent/vms/default", name, "console.log"))
	if err != nil {
		return ""
	}
	return string(content)
}

// says waits until a guest has written a line to its serial console, at least n times.
func (r *rig) says(name, line string, n int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s says %q %d times", name, line, n), func() bool { return strings.Count(r.console(name), line) >= n })
}
