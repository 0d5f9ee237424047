package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gitvirt/gitvirt/plan"
)

// idle is a VM whose guest has nothing to boot: QEMU runs it, and what needs no help of the guest can be changed live. It is
// down a second after it was asked to go.
type idle struct {
	name, annotations, labels, cpu, state, more string
	strategy                                    string
}

func (v idle) manifest() string {
	if v.strategy == "" {
		v.strategy = "Always"
	}
	disks, volumes := "", ""
	if v.more != "" {
		disks = "\n          - {name: more, serial: MORE, disk: {bus: scsi}}"
		volumes = "\n      - {name: more, emptyDisk: {capacity: " + v.more + "}}"
	}
	if v.cpu != "" {
		v.cpu = "\n        cpu: {model: " + v.cpu + "}"
	}
	if v.state != "" {
		v.state = ", state: " + v.state
	}
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %s, annotations: {%s}, labels: {%s}}
spec:
  runStrategy: %s
  template:
    spec:
      terminationGracePeriodSeconds: 1
      domain:
        memory: {guest: 32Mi}%s
        devices:
          disks:
          - {name: data, disk: {bus: virtio}}%s
          interfaces:
          - {name: default, masquerade: {}%s}
      networks:
      - {name: default, pod: {}}
      volumes:
      - {name: data, emptyDisk: {capacity: 8Mi}}%s
`, v.name, v.annotations, v.labels, v.strategy, v.cpu, disks, v.state, volumes)
}

// hand is a rig without a controller: somebody types gitvirt's commands, and an agent answers.
type hand struct {
	*rig
	work string // tree of the repository
}

func newHand(t *testing.T) *hand {
	h := &hand{rig: newRig(t)}
	agent := exec.Command(program(t, "gitvirt-agent"), "--socket", filepath.Join(h.state, "agent.sock"), "--state-dir", filepath.Join(h.state, "agent"),
		"--libvirt-uri", h.daemon.URI, "--emulation", "always")
	agent.Stdout, agent.Stderr = h.log, h.log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.stopAgent()
		_ = agent.Wait()
	})
	h.work = h.repo.WorkTree()
	// The socket is there before anybody listens on it, and a command that finds nobody there starts an agent of its own.
	flags := agentFlags{socket: filepath.Join(h.state, "agent.sock")}
	h.eventually("the agent answers", flags.answers)
	return h
}

// git runs git in the work tree.
func (h *hand) git(args ...string) string {
	h.t.Helper()
	command := exec.Command("git", append([]string{"-C", h.work, "-c", "user.name=An Author", "-c", "user.email=author@example.com"}, args...)...)
	out, err := command.CombinedOutput()
	if err != nil {
		h.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// arguments are those of a command about the work tree's repository and the agent.
func (h *hand) arguments(args ...string) []string {
	return append(args, "--git", h.work, "--state-dir", h.state)
}

// plan makes a plan of a revision.
func (h *hand) plan(revision string) *plan.Plan {
	h.t.Helper()
	out, code := h.gitvirt(h.arguments("plan", "--to", revision, "-o", "json")...)
	p := &plan.Plan{}
	if err := json.Unmarshal([]byte(out), p); err != nil || code != 0 {
		h.t.Fatalf("plan --to %s: exit %d, %v\n%s", revision, code, err, out)
	}
	return p
}

// apply carries out what the head of the branch asks for, after which nothing is left to do.
func (h *hand) apply() string {
	h.t.Helper()
	out, code := h.gitvirt(h.arguments("apply", "--auto-approve")...)
	if code != 0 {
		h.t.Fatalf("apply: exit %d\n%s", code, out)
	}
	h.empty()
	return out
}

func (h *hand) empty() {
	h.t.Helper()
	if out, code := h.gitvirt(h.arguments("plan", "--detailed-exitcode")...); code != 0 {
		h.t.Fatalf("something is left to do (exit %d):\n%s", code, out)
	}
}

// machine is a domain as virsh has it, without what tells when and at which revision it was written.
type machine struct {
	State, Config string
	LinkDown      bool
	// QEMU is the process of its guest; 0 when it is off.
	QEMU int
}

var record = regexp.MustCompile(`(?s)<metadata>.*?</metadata>`)

// configOf is what a definition says, in an order that does not depend on libvirt's, which moves controllers about.
func configOf(xml string) string {
	lines := strings.Split(record.ReplaceAllString(xml, ""), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// machines returns what is on the host: domains by name, and the disks with data by path, with what identifies the file.
func (h *hand) machines() (domains map[string]machine, disks map[string]uint64) {
	h.t.Helper()
	domains, disks = map[string]machine{}, map[string]uint64{}
	for _, name := range strings.Fields(h.daemon.Virsh("list", "--all", "--name")) {
		m := machine{State: strings.TrimSpace(h.daemon.Virsh("domstate", name)), Config: configOf(h.daemon.Virsh("dumpxml", "--inactive", name))}
		if strings.HasPrefix(m.State, "running") {
			m.QEMU = h.daemon.QEMU(name)
			m.LinkDown = strings.Contains(h.daemon.Virsh("dumpxml", name), "<link state='down'/>")
		}
		domains[name] = m
	}
	paths, err := filepath.Glob(filepath.Join(h.state, "agent/disks/*/*/*"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, path := range paths {
		var stat syscall.Stat_t
		if err := syscall.Stat(path, &stat); err != nil {
			h.t.Fatal(err)
		}
		if !strings.HasPrefix(filepath.Base(path), ".") {
			disks[strings.TrimPrefix(path, h.state)] = stat.Ino
		}
	}
	return domains, disks
}

// TestRevertsLeadBack makes a chain of commits and reverts each, the newest first: what going back means is told before, each
// revert leads to what was there before its commit, and no disk is lost on the way.
func TestRevertsLeadBack(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	fleet := "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: drill}\nspec: {}\n"
	changes := []struct {
		what  string
		files map[string]string
		// actions are those of the step of each machine, and of the revert's.
		there, back string
		// same says that the guest of web runs on.
		same bool
	}{
		{what: "two VMs", files: map[string]string{"gitvirt.yaml": fleet, "web.yaml": idle{name: "web"}.manifest(), "db.yaml": idle{name: "db", strategy: "Halted"}.manifest()}},
		{
			"a live change",
			map[string]string{"web.yaml": idle{name: "web", labels: "tier: front", state: "down", more: "4Mi"}.manifest()},
			"update web live", "update web live", true,
		},
		{
			"a change that needs a restart",
			map[string]string{"web.yaml": idle{name: "web", labels: "tier: front", state: "down", more: "4Mi", cpu: "qemu64"}.manifest()},
			"restart web restart", "restart web restart", false,
		},
		{
			"a VM for another",
			map[string]string{"db.yaml": "", "cache.yaml": idle{name: "cache", strategy: "Halted"}.manifest()},
			"create cache none, destroy db destroy", "create db none, destroy cache destroy", true,
		},
		{
			"another name",
			map[string]string{"web.yaml": "", "www.yaml": idle{name: "www", labels: "tier: front", state: "down", more: "4Mi", cpu: "qemu64", annotations: "gitvirt.io/previous-name: web"}.manifest()},
			"rename www none", "rename web none", true,
		},
	}
	type state struct {
		domains map[string]machine
		disks   map[string]uint64
	}
	var states []state
	for i, change := range changes {
		h.commit(change.what, change.files)
		if p := h.plan("HEAD"); i > 0 && actions(p) != change.there {
			t.Errorf("%s: the plan does %s, want %s", change.what, actions(p), change.there)
		}
		h.apply()
		domains, disks := h.machines()
		if i > 0 && (states[i-1].domains["default_web"].QEMU == domains["default_web"].QEMU) != change.same {
			t.Errorf("%s: QEMU was %d and is %d", change.what, states[i-1].domains["default_web"].QEMU, domains["default_web"].QEMU)
		}
		states = append(states, state{domains, disks})
	}
	seen := map[string]uint64{}
	for i := len(changes) - 1; i > 0; i-- {
		change, before, now := changes[i], states[i-1], state{}
		told := h.plan(fmt.Sprintf("HEAD~%d", 2*(len(changes)-1-i)+1)) // that of before the commit, which reverts came after
		h.git("revert", "--no-edit", fmt.Sprintf("HEAD~%d", 2*(len(changes)-1-i)))
		reverted := h.plan("HEAD")
		// The ID of a create is another at each revision.
		if diff := cmp.Diff(told.Steps, reverted.Steps, cmpopts.IgnoreFields(plan.Step{}, "VM", "ID")); diff != "" || actions(told) != change.back {
			t.Errorf("%s: the way back is %s, want %s; what was told of it (-told +reverted):\n%s", change.what, actions(told), change.back, diff)
		}
		_, disks := h.machines()
		for path, file := range disks {
			seen[path] = file
		}
		running := h.qemu()
		h.apply()
		if now.domains, now.disks = h.machines(); (running == h.qemu()) != change.same {
			t.Errorf("revert of %s: QEMU was %d and is %d", change.what, running, h.qemu())
		}
		if diff := cmp.Diff(before.domains, now.domains, cmpopts.IgnoreFields(machine{}, "QEMU")); diff != "" {
			t.Errorf("revert of %s: the host is not as before (-before +now):\n%s", change.what, diff)
		}
		for path, file := range seen {
			if now.disks[path] != file {
				t.Errorf("revert of %s: the disk %s is another file or gone", change.what, path)
			}
		}
	}
	if got := h.git("rev-parse", "HEAD^{tree}"); got != h.git("rev-parse", fmt.Sprintf("HEAD~%d^{tree}", 2*(len(changes)-1))) {
		t.Error("the manifests are not those of the first commit")
	}
}

// qemu is the process of web's guest.
func (h *hand) qemu() int {
	domains, _ := h.machines()
	return domains["default_web"].QEMU
}

func (h *hand) commit(message string, files map[string]string) {
	h.t.Helper()
	for name, content := range files {
		path := filepath.Join(h.work, name)
		var err error
		if content == "" {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
	h.git("add", "-A")
	h.git("commit", "-q", "-m", message)
}

// actions says in a line what a plan does: action, machine, consequence.
func actions(p *plan.Plan) string {
	var out []string
	for i := range p.Steps {
		step := &p.Steps[i]
		out = append(out, fmt.Sprintf("%s %s %s", step.Action, step.Address.Name, step.Consequence))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
