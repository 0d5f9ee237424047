package launcher_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// patience bounds every wait; nothing is asserted about time.
const patience = 60 * time.Second

// sandbox does what a container runtime does for the Pod of a VM: namespaces of its own for processes and mounts, a root file system
// that cannot be written to but for the shared folder, a user without any privilege, none to be had, and nothing in the environment
// that matters. What the image adds is an entry for the user, without whom libvirt serves nobody. It becomes the launcher, which so is PID 1.
const sandbox = `set -eu
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/gitvirt
mount --bind "$1" /run/gitvirt
printf 'root:x:0:0::/:/bin/sh\nqemu:x:107:107::/run/gitvirt/home:/usr/sbin/nologin\n' >/run/passwd
mount --bind /run/passwd /etc/passwd
eval "$2"
mount -o remount,ro /run
mount -o remount,bind,ro /
shift 2
exec setpriv --reuid=107 --regid=107 --clear-groups --inh-caps=-all --ambient-caps=-all --bounding-set=-all --no-new-privs "$@"
`

// user is whom KubeVirt and the sandbox run QEMU as.
const user = 107

// pod is a launcher that runs as the Pod's PID 1.
type pod struct {
	t      testing.TB
	dir    string // the shared folder, seen from outside
	cmd    *exec.Cmd
	stdout output
	stderr output
	ended  chan struct{}
}

// output is a file descriptor's worth of text that may be read meanwhile.
type output struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

// build builds the launcher once, the way it is shipped.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gitvirt-launcher")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "gitvirt-launcher")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../cmd/gitvirt-launcher")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(said))
	}
	return path, os.Chmod(dir, 0o755)
})

// capabilities are what a daemon found out about QEMU, by the names of its files. That takes a second, so the daemons of the Pods that
// come later are given it, over the shared folder, as the node agent can do as well. The daemon checks whether it is still true.
var capabilities struct {
	sync.Mutex
	files map[string][]byte
}

const capabilitiesDir = "cache/libvirt/qemu/cache/capabilities"

func (p *pod) keepCapabilities() {
	p.t.Helper()
	capabilities.Lock()
	defer capabilities.Unlock()
	if capabilities.files != nil {
		return
	}
	found, err := filepath.Glob(filepath.Join(p.dir, capabilitiesDir, "*.xml"))
	if err != nil || len(found) == 0 {
		p.t.Fatalf("libvirt keeps nothing of what it finds out about QEMU (%v)", err)
	}
	capabilities.files = map[string][]byte{}
	for _, path := range found {
		if capabilities.files[filepath.Base(path)], err = os.ReadFile(path); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pod) giveCapabilities() {
	p.t.Helper()
	capabilities.Lock()
	defer capabilities.Unlock()
	for name, content := range capabilities.files {
		path := filepath.Join(p.dir, capabilitiesDir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := exec.Command("chown", "-R", strconv.Itoa(user), p.dir).Run(); err != nil {
		p.t.Fatal(err)
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// startPod starts a launcher with arguments and waits until its libvirt answers.
func startPod(t testing.TB, arguments ...string) *pod {
	t.Helper()
	p := launch(t, arguments...)
	p.await("libvirt answers", p.logs("libvirt answers"))
	return p
}

// logs returns whether the launcher has logged a text.
func (p *pod) logs(text string) func() bool {
	return func() bool { return strings.Contains(p.stderr.String(), text) }
}

// launch starts a launcher with arguments.
func launch(t testing.TB, arguments ...string) *pod {
	t.Helper()
	return launchIn(t, sharedFolder(t), ":", arguments...)
}

// launchIn starts a launcher with a shared folder, after a shell command has made its sandbox different.
func launchIn(t testing.TB, dir, different string, arguments ...string) *pod {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("tests of the launcher make namespaces and users as a container runtime does: run them as root, or with sudo")
	}
	program, err := build()
	if err != nil {
		t.Fatalf("build the launcher: %v", err)
	}
	p := &pod{t: t, dir: dir, ended: make(chan struct{})}
	if err := errors.Join(os.WriteFile(filepath.Join(p.dir, "message"), nil, 0o666), os.Chmod(filepath.Join(p.dir, "message"), 0o666)); err != nil {
		t.Fatal(err)
	}
	p.giveCapabilities()
	p.cmd = exec.Command("sh", append([]string{"-c", sandbox, "sandbox", p.dir, different, program, "-termination-message", "/run/gitvirt/message"}, arguments...)...)
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GITVIRT_SECRET=not for libvirt"}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = patience
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start the launcher in namespaces of its own: %v", err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // ProcessState tells
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // and with PID 1 all others
		<-p.ended
		if t.Failed() {
			t.Logf("the launcher said:\n%s\nand printed:\n%s", p.stderr.String(), p.stdout.String())
		}
	})
	return p
}

// sharedFolder makes a folder that the Pod's user may write to.
func sharedFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pod") // not t.TempDir: others than root have to get there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the shared folder: %v", err)
		}
	})
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, user, user)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// await waits for a condition. It fails when the launcher ends before.
func (p *pod) await(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-p.ended:
			if !holds() {
				p.t.Fatalf("%s: the launcher has ended with %d", what, p.cmd.ProcessState.ExitCode())
			}
			return
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: not after %s", what, patience)
		}
	}
}

// virsh drives the Pod's libvirt from outside, as the node agent does: over the socket in the volume.
func (p *pod) virsh(arguments ...string) string {
	p.t.Helper()
	said, err := p.tryVirsh(arguments...)
	if err != nil {
		p.t.Fatalf("virsh %s: %v\n%s", strings.Join(arguments, " "), err, said)
	}
	return said
}

func (p *pod) tryVirsh(arguments ...string) (string, error) {
	socket, err := os.Open(filepath.Join(p.dir, "run", "libvirt"))
	if err != nil {
		return "", err
	}
	defer socket.Close() //nolint:errcheck // it was only named
	cmd := exec.Command("virsh", append([]string{"-q", "-c", "qemu+unix:///session?socket=/proc/self/fd/3/libvirt-sock"}, arguments...)...)
	cmd.ExtraFiles = []*os.File{socket}
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// domain is the guest's domain. Its kernel is in the shared folder, where the Pod's user may read it.
const domain = "default_vm"

// start defines and starts a guest of a few bytes.
func (p *pod) start(guest libvirttest.Guest, edit ...string) {
	p.t.Helper()
	p.define(libvirttest.DomainXML(domain, "", p.give(guest.Kernel(p.t))), edit...)
	p.virsh("start", domain)
	p.await("the guest is seen", p.logs(`msg="guest started"`))
	p.keepCapabilities()
}

// define defines a domain after replacements in its XML.
func (p *pod) define(xml string, edit ...string) {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "domain.xml")
	if err := os.WriteFile(path, []byte(strings.NewReplacer(edit...).Replace(xml)), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.virsh("define", path)
}

// give copies a file into the shared folder and returns its path there.
func (p *pod) give(path string) string {
	p.t.Helper()
	content, err := os.ReadFile(path)
	name := filepath.Base(path)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, name), content, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return "/run/gitvirt/" + name
}

// terminate asks the launcher to end, as the kubelet does.
func (p *pod) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

// ends waits for the launcher's end and checks its exit code and its message.
func (p *pod) ends(code int, fate protocol.Fate) protocol.Ending {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("the launcher has not ended after %s", patience)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d", got, code)
	}
	var ending protocol.Ending
	content, err := os.ReadFile(filepath.Join(p.dir, "message"))
	if err == nil {
		err = json.Unmarshal(content, &ending)
	}
	if err != nil {
		p.t.Fatalf("the termination message %q: %v", content, err)
	}
	if ending.Fate != fate {
		p.t.Errorf("the message says %+v, want fate %q", ending, fate)
	}
	return ending
}

// process is a process of the Pod, seen from outside.
type process struct {
	pid, parent int // as the Pod numbers them
	outside     int
	name, state string
}

// processes lists what runs in the Pod, dead ones that were not reaped included.
func (p *pod) processes() []process {
	p.t.Helper()
	inside, err := os.Readlink("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/ns/pid")
	if err != nil {
		p.t.Fatal(err)
	}
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		p.t.Fatal(err)
	}
	var all []process
	for _, dir := range found {
		content, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue // gone
		}
		status := map[string][]string{}
		for line := range strings.Lines(string(content)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.Fields(value)
		}
		numbers := status["NSpid"]
		if len(numbers) < 2 {
			continue
		}
		one := process{name: status["Name"][0], state: status["State"][0]}
		one.outside, _ = strconv.Atoi(filepath.Base(dir))
		one.pid, _ = strconv.Atoi(numbers[len(numbers)-1])
		one.parent, _ = strconv.Atoi(status["PPid"][0])
		if link, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err == nil && link != inside || err != nil && one.state != "Z" {
			continue
		}
		all = append(all, one)
	}
	return all
}

// find returns the one process of the Pod with a name, and waits until there is one.
func (p *pod) find(name string) process {
	p.t.Helper()
	var found process
	p.await("process "+name, func() bool {
		for _, one := range p.processes() {
			if one.name == name && one.state != "Z" {
				found = one
				return true
			}
		}
		return false
	})
	return found
}

func (p *pod) kill(one process, signal syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(one.outside, signal); err != nil {
		p.t.Fatalf("send %s to %s: %v", signal, one.name, err)
	}
}

const qemu = "qemu-system-x86" // the kernel keeps 15 bytes of a name
