package imports

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/images"
)

// finish turns what was downloaded to a file of size bytes into a raw image.
func (i *Importer) finish(ctx context.Context, path string, size int64, dir string, request Request) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	info, err := diskfile.Detect(file, size)
	if err == nil {
		err = i.checkSize(info.VirtualSize, request.Capacity)
	} else {
		err = fmt.Errorf("%w: %w", err, images.ErrInvalid)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return "", err
	}
	if info.Format == diskfile.Raw {
		return path, nil
	}
	raw, err := i.convert(ctx, path, info.VirtualSize, dir, request.Progress)
	if err != nil {
		return "", err
	}
	return raw, os.Remove(path)
}

// toRaw makes a raw image of an image that was checked before, and leaves that alone.
func (i *Importer) toRaw(ctx context.Context, path string, format diskfile.Format, virtual int64, dir string, progress func(string)) (string, error) {
	if format == diskfile.QCOW2 {
		return i.convert(ctx, path, virtual, dir, progress)
	}
	from, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = from.Close() }() // only read
	info, err := from.Stat()
	if err != nil {
		return "", err
	}
	return copyInto(ctx, from, info.Size(), dir, tell(progress, "copying the image"))
}

// memoryLimit bounds qemu-img: the tables of a damaged or hostile image can ask for anything.
const memoryLimit = 2 << 30

// convert makes a raw image, with holes, of a qcow2 image that refers to no other file.
func (i *Importer) convert(ctx context.Context, path string, virtual int64, dir string, progress func(string)) (string, error) {
	out := filepath.Join(dir, "disk")
	// The prefix keeps QEMU from taking a name for anything but a file's.
	cmd := exec.CommandContext(ctx, i.opts.QEMUImg, "convert", "-q", "-f", "qcow2", "-O", "raw", "-S", "4k", "--", "file:"+path, "file:"+out) //nolint:gosec // no shell is involved, and every path is prefixed
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	err := cmd.Start()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s is not installed; apt-get install qemu-utils: %w", i.opts.QEMUImg, err)
	}
	if err != nil {
		return "", err
	}
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: memoryLimit, Max: memoryLimit}, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return "", errors.Join(fmt.Errorf("bounding qemu-img's memory: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	stop := watchSize(out, virtual, tell(progress, "converting the image"))
	err = cmd.Wait()
	stop()
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case strings.Contains(said.String(), "No space left on device"):
		return "", diskfile.ExplainNoSpace(unix.ENOSPC, dir, out, virtual)
	}
	return "", fmt.Errorf("qemu-img convert: %w: %s: %w", err, firstLine(said.String(), dir), images.ErrInvalid)
}

// firstLine keeps what a program said short, and free of the names of temporary files.
func firstLine(said, dir string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	return strings.ReplaceAll(line, dir+"/", "")
}

// watchSize tells what a file takes while a program writes it, until stop is called.
func watchSize(path string, total int64, progress func(done, total int64)) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			var stat unix.Stat_t
			if unix.Stat(path, &stat) == nil {
				progress(min(stat.Blocks*512, total), total)
			}
		}
	}()
	return func() { close(done); <-ended }
}

// copyChunk is how much is copied between two looks at the context.
const copyChunk = 32 << 20

// copyInto copies an image of size bytes with its holes. A file system that can share blocks between files copies none.
func copyInto(ctx context.Context, from *os.File, size int64, dir string, progress func(done, total int64)) (path string, err error) {
	path = filepath.Join(dir, "disk")
	to, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", diskfile.ExplainNoSpace(err, dir, path, size)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return path, nil
	}
	err = copyData(ctx, to, from, size, progress)
	if err == nil {
		err = to.Truncate(size)
	}
	return path, diskfile.ExplainNoSpace(err, dir, path, size)
}

// copyData copies what is not a hole.
func copyData(ctx context.Context, to, from *os.File, size int64, progress func(done, total int64)) error {
	buffer := make([]byte, copyBuffer)
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO):
			return nil // nothing but holes up to the end
		case errors.Is(err, unix.EINVAL):
			start = at // the file system knows no holes
		case err != nil:
			return err
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			end = size
		}
		for at = start; at < min(end, size); {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n := min(copyChunk, end-at, size-at)
			if _, err := io.CopyBuffer(io.NewOffsetWriter(to, at), io.NewSectionReader(from, at, n), buffer); err != nil {
				return err
			}
			at += n
			progress(at, size)
		}
	}
	return nil
}
