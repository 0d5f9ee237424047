package launcher

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long the launcher waits before it starts a daemon that died: at once the first time, then longer.
const (
	firstDelay = 50 * time.Millisecond
	longDelay  = 10 * time.Second
	// livedLong is after how long a daemon's death has nothing to do with the one before.
	livedLong = time.Minute
	// hopeless is how many daemons may die one after the other before any of them has answered.
	hopeless = 6
)

// daemon is the Pod's libvirt daemon, which is a child of the launcher. No guest depends on it: QEMU's processes are no children of
// the daemon, they go on when it dies, and the next one finds them.
type daemon struct {
	program string
	folder  folder
	output  *os.File

	pid     int // 0 while none runs
	started time.Time
	deaths  int // one after the other
	restart <-chan time.Time
}

// findDaemon returns the libvirt daemon of this image.
func findDaemon() (string, error) {
	path, err := exec.LookPath("/usr/sbin/libvirtd")
	if err != nil {
		return "", fmt.Errorf("the image lacks libvirt: %w", err)
	}
	return path, nil
}

func (d *daemon) start() error {
	d.restart, d.started = nil, time.Now()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("starting %s: %w", d.program, err)
	}
	defer null.Close() //nolint:errcheck // nothing was written
	process, err := os.StartProcess(d.program, []string{d.program}, &os.ProcAttr{
		Dir: "/", Env: d.folder.environment(), Files: []*os.File{null, d.output, d.output},
		// A group of its own: an interrupt at a terminal is for the launcher, which asks the guest first.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w", d.program, err)
	}
	d.pid = process.Pid
	return process.Release() // it is reaped with all the others
}

// died notes that the daemon has ended, and when it is to be started again.
func (d *daemon) died(now time.Time) time.Duration {
	d.pid = 0
	if now.Sub(d.started) > livedLong {
		d.deaths = 0
	}
	d.deaths++
	delay := min(firstDelay<<min(d.deaths-1, 16), longDelay)
	d.restart = time.After(delay)
	return delay
}

// stop ends the daemon for good. It has nothing to tidy up: its files go with the Pod.
func (d *daemon) stop() {
	if d.pid == 0 {
		return
	}
	if unix.Kill(d.pid, unix.SIGKILL) == nil {
		_, _ = unix.Wait4(d.pid, nil, 0, nil)
	}
	d.pid = 0
}
