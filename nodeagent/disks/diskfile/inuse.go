package diskfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrInUse says that a process holds QEMU's lock on a disk image.
var ErrInUse = errors.New("disk image in use")

// InUseError is ErrInUse with the name of the user.
type InUseError struct {
	// Path is the image.
	Path string
	// PID is the process that has it open; 0 when it cannot be seen from here.
	PID int
	// Process describes that process: its program, and its guest's name when it is a QEMU.
	Process string
}

// Error names the image and who uses it.
func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("disk %s is in use by a process that cannot be seen from here; stop it first", e.Path)
	}
	return fmt.Sprintf("disk %s is in use by %s (process %d); stop it first", e.Path, e.Process, e.PID)
}

// Is makes errors.Is(err, ErrInUse) true.
func (e *InUseError) Is(target error) bool { return target == ErrInUse }

// The bytes of an image that QEMU locks for each permission it takes and each it denies to others (RAW_LOCK_PERM_BASE and
// RAW_LOCK_SHARED_BASE in block/file-posix.c).
const (
	qemuLockStart  = 100
	qemuLockLength = 200
)

// CheckUnused returns an InUseError when a process, on this host, has the image at path open as a disk. It takes no
// lock, so what it says may be outdated a moment later; QEMU itself refuses a second writer.
func CheckUnused(path string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("looking for users of the disk: %w", err)
	}
	used, err := lockedByQEMU(file)
	var stat unix.Stat_t
	if err == nil && used {
		err = unix.Fstat(int(file.Fd()), &stat)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("looking for users of %s: %w", path, err)
	}
	if !used {
		return nil
	}
	pid, process := holder(stat.Dev, stat.Ino)
	return &InUseError{Path: path, PID: pid, Process: process}
}

// lockedByQEMU asks whether a write lock on QEMU's bytes would conflict with any lock; nothing is locked by asking.
func lockedByQEMU(file *os.File) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: qemuLockStart, Len: qemuLockLength}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("asking for locks: %w", err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// holder finds a process that has the file open. An OFD lock has no owner's id, so every process's open files are looked at;
// that is slow, and done only once a lock was seen. What cannot be read is passed over: the answer decorates an error.
func holder(device, inode uint64) (pid int, process string) {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, ""
	}
	for _, link := range links {
		var stat unix.Stat_t
		if unix.Stat(link, &stat) != nil || stat.Dev != device || stat.Ino != inode {
			continue
		}
		id, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil || id == os.Getpid() {
			continue
		}
		return id, describeProcess(id)
	}
	return 0, ""
}

// describeProcess returns "qemu-system-x86_64, guest web-1" or just the program.
func describeProcess(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(raw) == 0 {
		return "a process"
	}
	arguments := strings.Split(string(bytes.TrimRight(raw, "\x00")), "\x00")
	program := filepath.Base(arguments[0])
	for i := 1; i+1 < len(arguments); i++ {
		if arguments[i] != "-name" {
			continue
		}
		name, _, _ := strings.Cut(arguments[i+1], ",")
		return program + ", guest " + strings.TrimPrefix(name, "guest=")
	}
	return program
}
