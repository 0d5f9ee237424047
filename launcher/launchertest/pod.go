// Package launchertest runs launchers for tests as a container runtime does: as PID 1 of namespaces of their own, without privileges, with
// a file system that is a Pod's.
package launchertest

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

// Patience bounds every wait; nothing is asserted about time.
const Patience = 60 * time.Second

// sandbox does what a container runtime does for the Pod of a VM: namespaces of its own for processes and mounts, a root file system
// that cannot be written to but for the Pod's volumes, a user without any privilege, none to be had, and nothing in the environment
// that matters. What the image adds is an entry for the user, without whom libvirt serves nobody. It becomes the launcher, which so is PID 1.
const sandbox = `set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1/root"
cd "$1/root"
mkdir upper work new
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay new
cd new
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p run/gitvirt disks claims devices images
mount --bind "$2" run/gitvirt
for volume in disks claims devices images; do mount --bind "$1/$volume" $volume; done
mount -o remount,bind,ro images
printf 'root:x:0:0::/:/bin/sh\nqemu:x:107:107::/run/gitvirt/home:/usr/sbin/nologin\n' >etc/passwd
eval "$3"
mount -o remount,ro run
mount -o remount,ro .
shift 3
exec chroot . setpriv --reuid=107 --regid=107 --clear-groups --inh-caps=-all --ambient-caps=-all --bounding-set=-all --no-new-privs "$@"
`

// User is whom KubeVirt and the sandbox run QEMU as.
const User = 107

// Pod is a launcher that runs as the Pod's PID 1.
type Pod struct {
	t testing.TB
	// Folder is the Pod's folder on the node, Dir the folder that it shares, both as they are seen from outside.
	Folder, Dir string
	Cmd         *exec.Cmd
	Stdout      Output
	Stderr      Output
	// Ended is closed when the launcher has ended.
	Ended chan struct{}
}

// Output is a file descriptor's worth of text that may be read meanwhile.
type Output struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

// built is the launcher that all tests of a package run.
var built struct {
	sync.Mutex
	path string
}

// Build builds the launcher once, the way it is shipped. Clean removes it.
func Build() (string, error) {
	built.Lock()
	defer built.Unlock()
	if built.path != "" {
		return built.path, nil
	}
	dir, err := os.MkdirTemp("", "gitvirt-launcher")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "gitvirt-launcher")
	cmd := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w", "-o", path, "github.com/gitvirt/gitvirt/cmd/gitvirt-launcher")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(errors.New(string(said)), os.RemoveAll(dir))
	}
	built.path = path
	return path, os.Chmod(dir, 0o755)
}

// Clean removes what was built; it is for TestMain.
func Clean() {
	built.Lock()
	defer built.Unlock()
	if built.path != "" {
		_ = os.RemoveAll(filepath.Dir(built.path))
		built.path = ""
	}
}

// capabilities are what a daemon found out about QEMU, by the names of its files. That takes a second, so the daemons of the Pods that
// come later are given it, over the shared folder, as the node agent can do as well. The daemon checks whether it is still true.
var capabilities struct {
	sync.Mutex
	files map[string][]byte
}

const capabilitiesDir = "cache/libvirt/qemu/cache/capabilities"

func (p *Pod) keepCapabilities() {
	p.t.Helper()
	capabilities.Lock()
	defer capabilities.Unlock()
	if capabilities.files != nil {
		return
	}
	found, err := filepath.Glob(filepath.Join(p.Dir, capabilitiesDir, "*.xml"))
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

func (p *Pod) giveCapabilities() {
	p.t.Helper()
	capabilities.Lock()
	defer capabilities.Unlock()
	for name, content := range capabilities.files {
		path := filepath.Join(p.Dir, capabilitiesDir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := exec.Command("chown", "-R", strconv.Itoa(User), p.Dir).Run(); err != nil {
		p.t.Fatal(err)
	}
}

// Start starts a launcher with arguments and waits until its libvirt answers.
func Start(t testing.TB, arguments ...string) *Pod {
	t.Helper()
	p := Launch(t, arguments...)
	p.Await("libvirt answers", p.Logs("libvirt answers"))
	return p
}

// Logs returns whether the launcher has logged a text.
func (p *Pod) Logs(text string) func() bool {
	return func() bool { return strings.Contains(p.Stderr.String(), text) }
}

// Launch starts a launcher with arguments.
func Launch(t testing.TB, arguments ...string) *Pod {
	t.Helper()
	return LaunchIn(t, NewFolder(t), ":", arguments...)
}

// Volumes are the folders of a Pod's folder that its volumes are in, beside the shared one: "disks", "claims", "devices" and "images".
func volumes() []string { return []string{"disks", "claims", "devices", "images"} }

// LaunchIn starts a launcher in a Pod's folder, after a shell command has made its sandbox different.
func LaunchIn(t testing.TB, folder, different string, arguments ...string) *Pod {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("tests of the launcher make namespaces and users as a container runtime does: run them as root, or with sudo")
	}
	program, err := Build()
	if err != nil {
		t.Fatalf("build the launcher: %v", err)
	}
	p := &Pod{t: t, Folder: folder, Dir: shared(folder), Ended: make(chan struct{})}
	if err := errors.Join(os.WriteFile(filepath.Join(p.Dir, "message"), nil, 0o666), os.Chmod(filepath.Join(p.Dir, "message"), 0o666)); err != nil {
		t.Fatal(err)
	}
	p.giveCapabilities()
	p.Cmd = exec.Command("sh", append([]string{"-c", sandbox, "sandbox", p.Folder, p.Dir, different, program, "-termination-message", "/run/gitvirt/message"}, arguments...)...)
	p.Cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GITVIRT_SECRET=not for libvirt"}
	p.Cmd.Stdout, p.Cmd.Stderr = &p.Stdout, &p.Stderr
	p.Cmd.WaitDelay = Patience
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Setpgid: true}
	if err := p.Cmd.Start(); err != nil {
		t.Fatalf("start the launcher in namespaces of its own: %v", err)
	}
	go func() {
		defer close(p.Ended)
		_ = p.Cmd.Wait() // ProcessState tells
	}()
	t.Cleanup(func() {
		_ = p.Cmd.Process.Kill() // and with PID 1 all others
		<-p.Ended
		if t.Failed() {
			t.Logf("the launcher said:\n%s\nand printed:\n%s", p.Stderr.String(), p.Stdout.String())
		}
	})
	return p
}

// shared is the folder that a Pod shares with the node.
func shared(folder string) string {
	return filepath.Join(folder, "volumes", "kubernetes.io~empty-dir", protocol.RuntimeVolume)
}

// NewFolder makes a Pod's folder as the kubelet does, with volumes that the Pod's user may write to.
func NewFolder(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "pod") // not t.TempDir: others than root have to get there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Errorf("remove the Pod's folder: %v", err)
		}
	})
	err = errors.Join(os.Chmod(folder, 0o755), os.Mkdir(filepath.Join(folder, "root"), 0o755), os.MkdirAll(shared(folder), 0o755), os.Chown(shared(folder), User, User))
	for _, name := range volumes() {
		err = errors.Join(err, os.Mkdir(filepath.Join(folder, name), 0o755), os.Chown(filepath.Join(folder, name), User, User))
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// Await waits for a condition. It fails when the launcher ends before.
func (p *Pod) Await(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(Patience); !holds(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-p.Ended:
			if !holds() {
				p.t.Fatalf("%s: the launcher has ended with %d", what, p.Cmd.ProcessState.ExitCode())
			}
			return
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: not after %s", what, Patience)
		}
	}
}

// Virsh drives the Pod's libvirt from outside, as the node agent does: over the socket in the volume.
func (p *Pod) Virsh(arguments ...string) string {
	p.t.Helper()
	said, err := p.TryVirsh(arguments...)
	if err != nil {
		p.t.Fatalf("virsh %s: %v\n%s", strings.Join(arguments, " "), err, said)
	}
	return said
}

// TryVirsh is Virsh for what may fail.
func (p *Pod) TryVirsh(arguments ...string) (string, error) {
	socket, err := os.Open(filepath.Join(p.Dir, "run", "libvirt"))
	if err != nil {
		return "", err
	}
	defer socket.Close() //nolint:errcheck // it was only named
	cmd := exec.Command("virsh", append([]string{"-q", "-c", "qemu+unix:///session?socket=/proc/self/fd/3/libvirt-sock"}, arguments...)...)
	cmd.ExtraFiles = []*os.File{socket}
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// Domain is the guest's domain. Its kernel is in the shared folder, where the Pod's user may read it.
const Domain = "default_vm"

// Start defines and starts a guest of a few bytes.
func (p *Pod) Start(guest libvirttest.Guest, edit ...string) {
	p.t.Helper()
	p.Define(libvirttest.DomainXML(Domain, "", p.Give(guest.Kernel(p.t))), edit...)
	p.Virsh("start", Domain)
	p.Await("the guest is seen", p.Logs(`msg="guest started"`))
	p.keepCapabilities()
}

// Define defines a domain after replacements in its XML.
func (p *Pod) Define(xml string, edit ...string) {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "domain.xml")
	if err := os.WriteFile(path, []byte(strings.NewReplacer(edit...).Replace(xml)), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.Virsh("define", path)
}

// Give copies a file into the shared folder and returns its path there.
func (p *Pod) Give(path string) string {
	p.t.Helper()
	content, err := os.ReadFile(path)
	name := filepath.Base(path)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.Dir, name), content, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return "/run/gitvirt/" + name
}

// Terminate asks the launcher to end, as the kubelet does.
func (p *Pod) Terminate() {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

// Ends waits for the launcher's end and checks its exit code and its message.
func (p *Pod) Ends(code int, fate protocol.Fate) protocol.Ending {
	p.t.Helper()
	select {
	case <-p.Ended:
	case <-time.After(Patience):
		p.t.Fatalf("the launcher has not ended after %s", Patience)
	}
	if got := p.Cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d", got, code)
	}
	var ending protocol.Ending
	content, err := os.ReadFile(filepath.Join(p.Dir, "message"))
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

// Put writes a file of a Pod's volumes, such as "images/root/disk/disk.img", that its user may read.
func Put(t testing.TB, folder, name string, content []byte) {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
		t.Fatal(err)
	}
}
