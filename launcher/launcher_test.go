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

	"github.com/gitvirt/gitvirt/launcher/launchertest"
	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// A whole guest: what it says is printed, it is asked to shut down when the Pod ends, and its end is the Pod's.
func TestLinuxGuest(t *testing.T) {
	t.Parallel()
	p := launchertest.Start(t, "-console")
	kernel, initramfs := libvirttest.LinuxGuest(t)
	xml := libvirttest.DomainXML(launchertest.Domain, "", p.Give(kernel))
	p.Define(xml,
		"<memory unit='MiB'>16</memory>", "<memory unit='MiB'>128</memory>",
		"</kernel>", "</kernel><initrd>"+p.Give(initramfs)+"</initrd><cmdline>"+libvirttest.GuestArguments+"</cmdline>",
		"<memballoon", "<serial type='pty'><log file='/run/gitvirt/console' append='on'/></serial>\n    <memballoon")
	p.Virsh("start", launchertest.Domain)
	p.Await("the console is in the log", func() bool { return strings.Contains(p.Stdout.String(), "gitvirt-guest: ready") })
	p.Terminate()
	p.Ends(0, protocol.Shutdown)
	if !strings.Contains(p.Stdout.String(), "gitvirt-guest: powering off") {
		t.Error("the guest's last words are not in the log")
	}
}

func TestObedientGuest(t *testing.T) {
	t.Parallel()
	p := launchertest.Start(t)
	p.Start(libvirttest.GuestObedient)
	p.Terminate() // in its firmware maybe, so the button is pressed again
	if ending := p.Ends(0, protocol.Shutdown); ending.Domain != launchertest.Domain || ending.QEMU != "exit status 0" {
		t.Errorf("the message says %+v", ending)
	}
}

func TestStubbornGuest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(*launchertest.Pod)
		qemu    string
	}{
		"the guest ignores the button": {func(*launchertest.Pod) {}, "exit status 0"},
		"QEMU hangs":                   {func(p *launchertest.Pod) { p.Kill(p.Find(launchertest.QEMU), syscall.SIGSTOP) }, "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := launchertest.Start(t, "-grace", "100ms")
			p.Start(libvirttest.GuestIdle)
			test.prepare(p)
			p.Terminate()
			if ending := p.Ends(11, protocol.Killed); ending.QEMU != test.qemu {
				t.Errorf("the message says %+v, want QEMU's end to be %q", ending, test.qemu)
			}
		})
	}
}

// The kubelet may start the launcher's container anew in its Pod: what it finds in the shared folder names processes that are gone, and
// whose numbers others have now.
func TestContainerRestarts(t *testing.T) {
	t.Parallel()
	p := launchertest.Start(t)
	p.Start(libvirttest.GuestIdle)
	_ = p.Cmd.Process.Kill()
	<-p.Ended
	stale := filepath.Join(p.Dir, "run", "libvirt", "qemu", "run", "another.PID")
	if err := os.WriteFile(stale, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := launchertest.LaunchIn(t, p.Folder, ":", "-grace", "100ms")
	again.Await("libvirt answers", again.Logs("libvirt answers"))
	if state := strings.TrimSpace(again.Virsh("domstate", launchertest.Domain)); state != "shut off" {
		t.Errorf("the guest is %s", state)
	}
	if _, err := os.Lstat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the daemon is told of processes that are gone (%v)", err)
	}
	again.Virsh("start", launchertest.Domain)
	again.Await("the guest is seen", again.Logs(`msg="guest started"`))
	again.Terminate()
	again.Ends(11, protocol.Killed)
}

// A guest that nobody asked to end ends its Pod, with its fate.
func TestGuestEndsByItself(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		guest libvirttest.Guest
		end   func(*launchertest.Pod)
		code  int
		fate  protocol.Fate
		qemu  string
	}{
		{"powers off", libvirttest.GuestPowersOff, func(*launchertest.Pod) {}, 0, protocol.Shutdown, "exit status 0"},
		{"QEMU killed", libvirttest.GuestIdle, func(p *launchertest.Pod) { p.Kill(p.Find(launchertest.QEMU), syscall.SIGKILL) }, 10, protocol.Crashed, "signal: killed"},
		// The Pod may end before the daemon has answered whoever switched the guest off; the fate says whether it was done.
		{"switched off", libvirttest.GuestIdle, func(p *launchertest.Pod) { _, _ = p.TryVirsh("destroy", launchertest.Domain) }, 12, protocol.Destroyed, "exit status 0"},
		{"killed while libvirt is dead", libvirttest.GuestIdle, func(p *launchertest.Pod) {
			p.Kill(p.Find("libvirtd"), syscall.SIGKILL)
			p.Kill(p.Find(launchertest.QEMU), syscall.SIGKILL)
		}, 10, protocol.Crashed, "signal: killed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := launchertest.Start(t)
			p.Start(test.guest)
			test.end(p)
			if ending := p.Ends(test.code, test.fate); ending.QEMU != test.qemu {
				t.Errorf("the message says %+v, want QEMU's end to be %q", ending, test.qemu)
			}
		})
	}
}

func TestNeverStarted(t *testing.T) {
	t.Parallel()
	p := launchertest.Start(t)
	// A domain that does not start is the agent's to mend; the Pod waits.
	p.Define(libvirttest.DomainXML(launchertest.Domain, "", "/run/gitvirt/missing"))
	if said, err := p.TryVirsh("start", launchertest.Domain); err == nil {
		t.Fatalf("a guest without a kernel has started: %s", said)
	}
	p.Virsh("version") // it is there
	p.Terminate()
	p.Ends(13, protocol.NeverStarted)
}

// The daemon may die at any time: the guest does not notice, and another daemon finds it. One that hangs does not keep the Pod.
func TestDaemonDies(t *testing.T) {
	t.Parallel()
	p := launchertest.Start(t, "-grace", "100ms")
	p.Start(libvirttest.GuestIdle)
	before := p.Find(launchertest.QEMU)
	for range 2 {
		dead := p.Find("libvirtd")
		p.Kill(dead, syscall.SIGKILL)
		p.Await("another daemon finds the guest", func() bool {
			state, err := p.TryVirsh("domstate", launchertest.Domain)
			return err == nil && strings.TrimSpace(state) == "running" && p.Find("libvirtd").PID != dead.PID
		})
	}
	if after := p.Find(launchertest.QEMU); after.PID != before.PID {
		t.Errorf("QEMU was %+v and is %+v", before, after)
	}
	p.Kill(p.Find("libvirtd"), syscall.SIGSTOP)
	p.Terminate()
	p.Ends(11, protocol.Killed)
}

// The agent may stop and start the guest in its Pod, which a file in the shared folder holds meanwhile.
func TestGuestRestartsInItsPod(t *testing.T) {
	t.Parallel()
	p := launchertest.Start(t)
	p.Start(libvirttest.GuestIdle)
	first := p.Find(launchertest.QEMU)
	for range 2 {
		if err := protocol.Hold(p.Dir); err != nil {
			t.Fatal(err)
		}
		p.Virsh("destroy", launchertest.Domain)
		p.Virsh("start", launchertest.Domain)
		if err := protocol.Release(p.Dir); err != nil { // quicker than the news of both
			t.Fatal(err)
		}
	}
	ended := func() int { return strings.Count(p.Stderr.String(), `msg="guest ended"`) }
	p.Await("both ends are seen", func() bool { return ended() == 2 })
	if second := p.Find(launchertest.QEMU); second.PID == first.PID {
		t.Error("it is the same QEMU")
	}
	if err := protocol.Hold(p.Dir); err != nil {
		t.Fatal(err)
	}
	p.Virsh("destroy", launchertest.Domain)
	p.Await("the end is seen", func() bool { return ended() == 3 })
	p.Virsh("version") // the Pod is held
	if err := protocol.Release(p.Dir); err != nil {
		t.Fatal(err)
	}
	p.Ends(12, protocol.Destroyed)
}

// What the Pod's user and its processes may do, and that no process is left dead.
func TestPodIsUnprivilegedAndTidy(t *testing.T) {
	t.Parallel()
	p := launchertest.Start(t)
	p.Start(libvirttest.GuestIdle)
	for _, name := range []string{"gitvirt-launche", "libvirtd", launchertest.QEMU} {
		one := p.Find(name)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", one.Outside))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Uid:\t107\t107\t107\t107", "Gid:\t107\t107\t107\t107", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
			if !strings.Contains(string(status), want+"\n") {
				t.Errorf("%s lacks %q:\n%s", name, want, status)
			}
		}
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", one.Outside))
		if err != nil {
			t.Fatal(err)
		}
		if name != "gitvirt-launche" && strings.Contains(string(environment), "GITVIRT_SECRET") {
			t.Errorf("%s has the Pod's environment", name)
		}
	}
	// A process whose parent goes first, as `kubectl exec` leaves them.
	orphan := exec.Command("nsenter", "-t", strconv.Itoa(p.Cmd.Process.Pid), "-p", "-m", "sh", "-c", "(sleep 0.01; exec sleep 0.02) & exit 0")
	if said, err := orphan.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	p.Await("only what is needed is left", func() bool { return len(p.Processes()) == 3 })
	p.Terminate()
	p.Kill(p.Find(launchertest.QEMU), syscall.SIGKILL)
	p.Ends(10, protocol.Crashed)
}

func TestLauncherFails(t *testing.T) {
	t.Parallel()
	program, err := launchertest.Build()
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command(program, "-dir", t.TempDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "runs as root") {
		t.Errorf("as root: %v, %s", err, said)
	}
	for name, test := range map[string]struct{ different, detail string }{
		"no libvirt":             {"mount --bind /dev/null usr/sbin/libvirtd", "the image lacks libvirt"},
		"libvirt does not start": {"mount --bind /bin/false usr/sbin/libvirtd", "/usr/sbin/libvirtd does not start: exit status 1"},
		"folder not writable":    {"mount -o remount,bind,ro run/gitvirt", "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := launchertest.LaunchIn(t, launchertest.NewFolder(t), test.different)
			<-p.Ended
			if code := p.Cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.Stderr.String(), test.detail) {
				t.Errorf("exit code %d, want 1 and %q in the log", code, test.detail)
			}
		})
	}
}
