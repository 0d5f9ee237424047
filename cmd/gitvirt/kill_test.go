package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gitvirt/gitvirt/reconciler/status"
)

// ordered are VMs of which web depends on app, and app on db; other depends on nobody.
func ordered(cpu string) map[string]string {
	return map[string]string{
		"gitvirt.yaml": "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: drill}\nspec:\n  policy:\n    apply: {restart: automatic}\n" +
			"    rollout: {canary: 1}\n    budgets: [{name: gentle, restartPerHost: 1, restartPerRevision: 4}]\n",
		"web.yaml":   idle{name: "web", cpu: cpu, annotations: "gitvirt.io/depends-on: app"}.manifest(),
		"app.yaml":   idle{name: "app", cpu: cpu, annotations: "gitvirt.io/depends-on: db"}.manifest(),
		"db.yaml":    idle{name: "db", cpu: cpu}.manifest(),
		"other.yaml": idle{name: "other", cpu: cpu}.manifest(),
	}
}

// began is when the guest of a domain was started, in clock ticks of the host; 0 when it does not run.
func (h *hand) began(name string) (ticks int64) {
	pid, err := h.daemon.FindQEMU("default_" + name)
	if err != nil {
		return 0
	}
	content, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat"))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(content), ") ") // the name of a program may hold anything
	if fields := strings.Fields(rest); len(fields) > 19 {
		_, _ = fmt.Sscan(fields[19], &ticks) // 0 when it is none
	}
	return ticks
}

// typed begins an apply as somebody types it.
func (h *hand) typed() (*exec.Cmd, *bytes.Buffer) {
	h.t.Helper()
	var out bytes.Buffer
	command := exec.Command(program(h.t, "gitvirt"), h.arguments("apply", "--auto-approve")...)
	command.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(h.state, "cache"))
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		h.t.Fatal(err)
	}
	return command, &out
}

// inOrder wants the guests to have been started one after the other: what a VM depends on comes before it.
func (h *hand) inOrder(since map[string]int64) {
	h.t.Helper()
	db, app, web := h.began("db"), h.began("app"), h.began("web")
	if db == 0 || db > app || app > web || web == since["web"] || db == since["db"] {
		h.t.Errorf("db began at %d, app at %d, web at %d; before that %v", db, app, web, since)
	}
}

// TestOrderedAppliesSurviveKills kills whoever takes part in the middle of an ordered apply: the command, with an interrupt and
// for good, libvirtd, the controller and the agent. What is done next goes on where it ended, in the same order.
func TestOrderedAppliesSurviveKills(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	h.commit("Four VMs, three of them in an order", ordered(""))

	// By hand.
	command, _ := h.typed()
	h.eventually("db is started", func() bool { return h.began("db") != 0 })
	_ = command.Process.Kill()
	_ = command.Wait()
	command, out := h.typed()
	h.eventually("app is started", func() bool { return h.began("app") != 0 })
	if err := command.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	if code := command.ProcessState.ExitCode(); code != 130 && code != 0 {
		t.Errorf("an interrupted apply: exit %d\n%s", code, out)
	}
	h.apply()
	h.inOrder(nil)
	before := map[string]int64{}
	for _, name := range []string{"db", "app", "web", "other"} {
		before[name] = h.began(name)
	}

	// libvirtd dies under an apply that restarts all of them, one at a time.
	h.commit("Another processor", ordered("qemu64"))
	command, out = h.typed()
	h.eventually("a restart is under way", func() bool { return h.began("db") != before["db"] || h.began("other") != before["other"] })
	h.daemon.Kill()
	h.daemon.Start()
	h.daemon.Mend("default_db", "default_app", "default_web", "default_other")
	if err := command.Wait(); err == nil {
		t.Logf("the apply ended well although libvirtd was killed:\n%s", out)
	}
	h.eventually("the host can be read again", func() bool {
		_, code := h.gitvirt(h.arguments("plan")...)
		return code == 0
	})
	h.apply()
	h.inOrder(before)
	for name := range before {
		before[name] = h.began(name)
	}

	// The controller and the agent die while the controller does the same.
	h.git("push", "-q", "origin", "HEAD:main")
	h.start()
	phases := map[string]status.Phase{"web": status.PhaseRunning, "app": status.PhaseRunning, "db": status.PhaseRunning, "other": status.PhaseRunning}
	h.settled("", phases)
	h.commit("And another", ordered("Nehalem"))
	h.git("push", "-q", "origin", "HEAD:main")
	h.eventually("a restart is under way", func() bool { return h.began("db") != before["db"] || h.began("other") != before["other"] })
	h.stop(syscall.SIGKILL)
	h.start()
	h.eventually("app is restarted", func() bool { return h.began("app") != before["app"] })
	_ = syscall.Kill(h.agentPID(), syscall.SIGKILL)
	h.stop(syscall.SIGKILL)
	h.start()
	h.settled(h.git("rev-parse", "HEAD"), phases)
	h.inOrder(before)
	h.empty()
	for name := range phases {
		if xml := h.daemon.Virsh("dumpxml", "default_"+name); !strings.Contains(xml, "Nehalem") {
			t.Errorf("%s runs another processor:\n%s", name, xml)
		}
	}
}
