package disks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// Runner executes a program and returns an error that holds what it wrote to its standard error.
type Runner func(ctx context.Context, program string, arguments ...string) error

// runProcess is the Runner that runs a child process. Its words are in English, because qemuImg reads one of them.
func runProcess(ctx context.Context, program string, arguments ...string) error {
	cmd := exec.CommandContext(ctx, program, arguments...) //nolint:gosec // no shell is involved, and qemuImg prefixes every path
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if said := strings.TrimSpace(stderr.String()); said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// qemuImg runs qemu-img for the image at path.
func (s *Store) qemuImg(ctx context.Context, path string, need int64, arguments ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.opts.Timeout, fmt.Errorf("no end after %v", s.opts.Timeout))
	defer cancel()
	err := s.opts.Run(ctx, s.opts.QEMUImg, arguments...)
	if err == nil {
		return nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s is not installed; apt-get install qemu-utils: %w", s.opts.QEMUImg, err)
	}
	// The exit status says nothing about the kind of failure; the text is strerror's, in the C locale.
	if strings.Contains(err.Error(), unixNoSpace()) {
		return diskfile.ExplainNoSpace(unix.ENOSPC, filepath.Dir(path), path, need)
	}
	return fmt.Errorf("%s %s: %w", filepath.Base(s.opts.QEMUImg), arguments[0], err)
}

func unixNoSpace() string { return "No space left on device" }

// local names a file so that QEMU takes it for nothing else: without the prefix a name such as "json:{...}" or "nbd:..." would
// be opened by another driver. Every path here is absolute, too.
func local(path string) string { return "file:" + path }

// createQCOW2 makes a sparse image that appears under path only when it is whole.
func (s *Store) createQCOW2(ctx context.Context, path string, capacity int64) error {
	return s.create(ctx, path, false, "create", "-q", "-f", "qcow2", "--", local(diskfile.TemporaryName(path)), strconv.FormatInt(capacity, 10))
}

// createOverlay makes an image over backing. The backing image came from a registry: -u keeps qemu-img, which runs as root, from
// opening it, and its format and size are passed instead of being read off its bytes.
func (s *Store) createOverlay(ctx context.Context, path string, backing Backing) error {
	return s.create(ctx, path, true, "create", "-q", "-u", "-f", "qcow2", "-b", backing.Path, "-F", string(backing.Format),
		"--", local(diskfile.TemporaryName(path)), strconv.FormatInt(backing.VirtualSize, 10))
}

// create runs qemu-img for the temporary name of path and puts the result in its place.
func (s *Store) create(ctx context.Context, path string, volatile bool, arguments ...string) error {
	temporary := diskfile.TemporaryName(path)
	if err := removeFile(temporary); err != nil {
		return fmt.Errorf("sweeping an unfinished disk: %w", err)
	}
	err := s.qemuImg(ctx, path, 0, arguments...)
	if err == nil {
		err = s.publish(temporary, path, volatile)
	}
	if err != nil {
		return errors.Join(err, removeFile(temporary))
	}
	return nil
}

// publish gives a finished temporary file its owner, mode and name.
func (s *Store) publish(temporary, path string, volatile bool) error {
	file, err := os.OpenFile(temporary, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("opening the new disk: %w", err)
	}
	err = file.Chmod(fileMode)
	if err == nil && s.opts.Owner != nil {
		err = file.Chown(s.opts.Owner.UID, s.opts.Owner.GID)
	}
	if err == nil && !volatile {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return diskfile.ExplainNoSpace(fmt.Errorf("finishing the new disk: %w", err), filepath.Dir(path), path, 0)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("finishing the new disk: %w", err)
	}
	if volatile {
		return nil
	}
	return diskfile.SyncDir(filepath.Dir(path))
}
