package networks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrHostNetwork says that a namespace is that of the node: nothing is ever made or removed there.
var ErrHostNetwork = errors.New("the Pod is on the node's own network (hostNetwork), where a guest cannot be connected")

// Pod is the network namespace of a Pod. Its methods may be called by several goroutines; one changes it at a time.
type Pod struct {
	file   *os.File // the namespace
	link   *netlink.Handle
	folder string // of networks.json
	// identity is that of the namespace: a Pod's sandbox may be made anew, and what was noted of the old one is void then.
	identity string

	mu sync.Mutex
	// closed is set once: a netlink handle that was closed speaks to the namespace of whoever uses it, which is the node's.
	closed atomic.Bool
	// steps is called before each change of the namespace, with what it is; tests make it fail. nil for nothing.
	steps func(string) error
}

// Open opens the namespace at path (/proc/PID/ns/net of a process in the Pod, or a file that it is bound to). stateDir is a folder of
// this Pod alone, that outlives the agent and not the Pod.
func Open(path, stateDir string) (*Pod, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the Pod's network namespace: %w", err)
	}
	p := &Pod{file: file, folder: stateDir}
	if err := p.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the Pod's network namespace %s: %w", path, err), file.Close())
	}
	return p, nil
}

func (p *Pod) open() error {
	var kind unix.Statfs_t
	if err := unix.Fstatfs(p.fd(), &kind); err != nil {
		return err
	}
	if kind.Type != unix.NSFS_MAGIC {
		return errors.New("it is no namespace")
	}
	for _, host := range []string{"/proc/thread-self/ns/net", "/proc/1/ns/net"} {
		same, err := p.is(host)
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if same {
			return ErrHostNetwork
		}
	}
	var err error
	if p.identity, err = p.identify(); err != nil {
		return err
	}
	if p.link, err = netlink.NewHandleAt(netns.NsHandle(p.fd()), unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("reaching it over netlink: %w", err)
	}
	return nil
}

// Close lets go of the namespace. Nothing in it changes. Serve has to have ended.
func (p *Pod) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Swap(true) {
		return nil
	}
	p.link.Close()
	return p.file.Close()
}

// usable is the error of a namespace that was closed.
func (p *Pod) usable() error {
	if p.closed.Load() {
		return fmt.Errorf("the Pod's network namespace: %w", os.ErrClosed)
	}
	return nil
}

func (p *Pod) fd() int { return int(p.file.Fd()) }

// is reports whether the namespace is the one at path.
func (p *Pod) is(path string) (bool, error) {
	here, err := p.file.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	return os.SameFile(here, there), nil
}

// identify returns what no other namespace ever has: the kernel's cookie for it, and the boot of the machine. Kernels before 5.14 have
// no cookies; the namespace's inode stands in for it then, and may come back.
func (p *Pod) identify() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	var cookie uint64
	err = p.inside(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(socket) }()
		cookie, err = unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		var stat unix.Stat_t
		err = unix.Fstat(p.fd(), &stat)
		cookie = stat.Ino
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), cookie), nil
}

// inside runs f on a thread that is in the namespace, and no other goroutine's code. f starts no goroutines and waits for nobody. A thread that
// cannot go back ends.
func (p *Pod) inside(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			result <- err
			runtime.UnlockOSThread()
			return
		}
		defer func() { _ = back.Close() }()
		if err := unix.Setns(p.fd(), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("entering the Pod's network namespace (it takes CAP_SYS_ADMIN): %w", err)
			runtime.UnlockOSThread()
			return
		}
		err = f()
		if unix.Setns(int(back.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // else the thread stays locked, and ends with this goroutine
		}
		result <- err
	}()
	return <-result
}

// nftables opens a connection to the namespace's tables.
func (p *Pod) nftables() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(p.fd()))
	if err != nil {
		return nil, fmt.Errorf("reaching nftables: %w", err)
	}
	return conn, nil
}

// step announces a change of the namespace.
func (p *Pod) step(format string, arguments ...any) error {
	if p.steps == nil {
		return nil
	}
	return p.steps(fmt.Sprintf(format, arguments...))
}

// sysctl sets settings of the namespace's network, each a path below /proc/sys/net and a value. One that has its value is not written; one
// that this kernel does not have counts as set when optional is said.
func (p *Pod) sysctl(optional bool, settings ...[2]string) error {
	for _, setting := range settings {
		path, have, err := p.readSysctl(setting[0])
		if errors.Is(err, fs.ErrNotExist) && optional || err == nil && have == setting[1] {
			continue
		}
		if err != nil {
			return err
		}
		if err := p.step("set %s to %s", setting[0], setting[1]); err != nil {
			return err
		}
		if err := p.inside(func() error { return os.WriteFile(path, []byte(setting[1]), 0o644) }); err != nil { //nolint:gosec // a file of the kernel's, which is there
			return fmt.Errorf("setting %s to %s: %w", path, setting[1], err)
		}
	}
	return nil
}

// readSysctl returns where a setting of the namespace's network stands, and what it is.
func (p *Pod) readSysctl(name string) (path, value string, err error) {
	path = filepath.Join("/proc/sys/net", name)
	var have []byte
	// /proc/sys/net is that of the thread which opens the file.
	err = p.inside(func() (err error) { have, err = os.ReadFile(path); return err })
	if err != nil {
		return path, "", fmt.Errorf("reading %s: %w", path, err)
	}
	return path, strings.TrimSpace(string(have)), nil
}
