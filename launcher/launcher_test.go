package launcher_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// A whole guest: what it says is printed, it is asked to shut down when the Pod ends, and its end is the Pod's.
func TestLinuxGuest(t *testing.T) {
	t.Parallel()
	p := startPod(t, "-console")
	kernel, initramfs := libvirttest.LinuxGuest(t)
	xml := libvirttest.DomainXML(domain, "", p.give(kernel))
	p.define(xml,
		"<memory unit='MiB'>16</memory>", "<memory unit='MiB'>128</memory>",
		"</kernel>", "</kernel><initrd>"+p.give(initramfs)+"</initrd><cmdline>"+libvirttest.GuestArguments+"</cmdline>",
		"<memballoon", "<serial type='pty'><log file='/run/gitvirt/console' append='on'/></serial>\n    <memballoon")
	p.virsh("start", domain)
	p.await("the console is in the log", func() bool { return strings.Contains(p.stdout.String(), "gitvirt-guest: ready") })
	p.terminate()
	p.ends(0, protocol.Shutdown)
	if !strings.Contains(p.stdout.String(), "gitvirt-guest: powering off") {
		t.Error("the guest's last words are not in the log")
	}
}

func TestObedientGuest(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	p.start(libvirttest.GuestObedient)
	p.terminate() // in its firmware maybe, so the button is pressed again
	if ending := p.ends(0, protocol.Shutdown); ending.Domain != domain || ending.QEMU != "exit status 0" {
		t.Errorf("the message says %+v", ending)
	}
}

func TestStubbornGuest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(*pod)
		qemu    string
	}{
		"the guest ignores the button": {func(*pod) {}, "exit status 0"},
		"QEMU hangs":                   {func(p *pod) { p.kill(p.find(qemu), syscall.SIGSTOP) }, "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPod(t, "-grace", "100ms")
			p.start(libvirttest.GuestIdle)
			test.prepare(p)
			p.terminate()
			if ending := p.ends(11, protocol.Killed); ending.QEMU != test.qemu {
				t.Errorf("the message says %+v, want QEMU's end to be %q", ending, test.qemu)
			}
		})
	}
}

// The kubelet may start the launcher's container anew in its Pod: what it finds in the shared folder names processes that are gone, and
// whose numbers others have now.
func TestContainerRestarts(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	p.start(libvirttest.GuestIdle)
	_ = p.cmd.Process.Kill()
	<-p.ended
	stale := filepath.Join(p.dir, "run", "libvirt", "qemu", "run", "another.pid")
	if err := os.WriteFile(stale, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := launchIn(t, p.dir, ":", "-grace", "100ms")
	again.await("libvirt answers", again.logs("libvirt answers"))
	if state := strings.TrimSpace(again.virsh("domstate", domain)); state != "shut off" {
		t.Errorf("the guest is %s", state)
	}
	if _, err := os.Lstat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the daemon is told of processes that are gone (%v)", err)
	}
	again.virsh("start", domain)
	again.await("the guest is seen", again.logs(`msg="guest started"`))
	again.terminate()
	again.ends(11, protocol.Killed)
}

// A guest that nobody asked to end ends its Pod, with its fate.
func TestGuestEndsByItself(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		guest libvirttest.Guest
		end   func(*pod)
		code  int
		fate  protocol.Fate
		qemu  string
	}{
		{"powers off", libvirttest.GuestPowersOff, func(*pod) {}, 0, protocol.Shutdown, "exit status 0"},
		{"QEMU killed", libvirttest.GuestIdle, func(p *pod) { p.kill(p.find(qemu), syscall.SIGKILL) }, 10, protocol.Crashed, "signal: killed"},
		{"switched off", libvirttest.GuestIdle, func(p *pod) { p.virsh("destroy", domain) }, 12, protocol.Destroyed, "exit status 0"},
		{"killed while libvirt is dead", libvirttest.GuestIdle, func(p *pod) {
			p.kill(p.find("libvirtd"), syscall.SIGKILL)
			p.kill(p.find(qemu), syscall.SIGKILL)
		}, 10, protocol.Crashed, "signal: killed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := startPod(t)
			p.start(test.guest)
			test.end(p)
			if ending := p.ends(test.code, test.fate); ending.QEMU != test.qemu {
				t.Errorf("the message says %+v, want QEMU's end to be %q", ending, test.qemu)
			}
		})
	}
}

func TestNeverStarted(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	// A domain that does not start is the agent's to mend; the Pod waits.
	p.define(libvirttest.DomainXML(domain, "", "/run/gitvirt/missing"))
	if said, err := p.tryVirsh("start", domain); err == nil {
		t.Fatalf("a guest without a kernel has started: %s", said)
	}
	p.virsh("version") // it is there
	p.terminate()
	p.ends(13, protocol.NeverStarted)
}

// The daemon may die at any time: the guest does not notice, and another daemon finds it. One that hangs does not keep the Pod.
func TestDaemonDies(t *testing.T) {
	t.Parallel()
	p := startPod(t, "-grace", "100ms")
	p.start(libvirttest.GuestIdle)
	before := p.find(qemu)
	for range 2 {
		dead := p.find("libvirtd")
		p.kill(dead, syscall.SIGKILL)
		p.await("another daemon finds the guest", func() bool {
			state, err := p.tryVirsh("domstate", domain)
			return err == nil && strings.TrimSpace(state) == "running" && p.find("libvirtd").pid != dead.pid
		})
	}
	if after := p.find(qemu); after.pid != before.pid {
		t.Errorf("QEMU was %+v and is %+v", before, after)
	}
	p.kill(p.find("libvirtd"), syscall.SIGSTOP)
	p.terminate()
	p.ends(11, protocol.Killed)
}

// The agent may stop and start the guest in its Pod, which a file in the shared folder holds meanwhile.
func TestGuestRestartsInItsPod(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	p.start(libvirttest.GuestIdle)
	first := p.find(qemu)
	for range 2 {
		if err := protocol.Hold(p.dir); err != nil {
			t.Fatal(err)
		}
		p.virsh("destroy", domain)
		p.virsh("start", domain)
		if err := protocol.Release(p.dir); err != nil { // quicker than the news of both
			t.Fatal(err)
		}
	}
	ended := func() int { return strings.Count(p.stderr.String(), `msg="guest ended"`) }
	p.await("both ends are seen", func() bool { return ended() == 2 })
	if second := p.find(qemu); second.pid == first.pid {
		t.Error("it is the same QEMU")
	}
	if err := protocol.Hold(p.dir); err != nil {
		t.Fatal(err)
	}
	p.virsh("destroy", domain)
	p.await("the end is seen", func() bool { return ended() == 3 })
	p.virsh("version") // the Pod is held
	if err := protocol.Release(p.dir); err != nil {
		t.Fatal(err)
	}
	p.ends(12, protocol.Destroyed)
}

// What the Pod's user and its processes may do, and that no process is left dead.
func TestPodIsUnprivilegedAndTidy(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	p.start(libvirttest.GuestIdle)
	for _, name := range []string{"gitvirt-launche", "libvirtd", qemu} {
		one := p.find(name)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", one.outside))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Uid:\t107\t107\t107\t107", "Gid:\t107\t107\t107\t107", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
			if !strings.Contains(string(status), want+"\n") {
				t.Errorf("%s lacks %q:\n%s", name, want, status)
			}
		}
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", one.outside))
		if err != nil {
			t.Fatal(err)
		}
		if name != "gitvirt-launche" && strings.Contains(string(environment), "GITVIRT_SECRET") {
			t.Errorf("%s has the Pod's environment", name)
		}
	}
	// A process whose parent goes first, as `kubectl exec` leaves them.
	orphan := exec.Command("nsenter", "-t", strconv.Itoa(p.cmd.Process.Pid), "-p", "-m", "sh", "-c", "(sleep 0.01; exec sleep 0.02) & exit 0")
	if said, err := orphan.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	p.await("only what is needed is left", func() bool { return len(p.processes()) == 3 })
	p.terminate()
	p.kill(p.find(qemu), syscall.SIGKILL)
	p.ends(10, protocol.Crashed)
}

func TestLauncherFails(t *testing.T) {
	t.Parallel()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command(program, "-dir", t.TempDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "runs as root") {
		t.Errorf("as root: %v, %s", err, said)
	}
	for name, test := range map[string]struct{ different, detail string }{
		"no libvirt":             {"mount --bind /dev/null /usr/sbin/libvirtd", "the image lacks libvirt"},
		"libvirt does not start": {"mount --bind /bin/false /usr/sbin/libvirtd", "/usr/sbin/libvirtd does not start: exit status 1"},
		"folder not writable":    {"mount -o remount,bind,ro /run/gitvirt", "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := launchIn(t, sharedFolder(t), test.different)
			<-p.ended
			if code := p.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.stderr.String(), test.detail) {
				t.Errorf("exit code %d, want 1 and %q in the log", code, test.detail)
			}
		})
	}
}
