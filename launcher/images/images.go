// Package images brings container disks into a VM's Pod where the cluster has no image volumes. Beside the launcher runs a container of each
// disk's image, with a copy of the launcher's program in it and nothing of the image's own: it opens the root of its file system and hands that
// to the launcher, which keeps it open and links to it where an image volume would be. Nothing of the image is copied, and nobody needs a
// privilege for it.
package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// programMode lets the users of all images run the program.
const programMode = 0o555

// Install copies the running program to a file, for the containers of images.
func Install(name string) error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("opening the launcher's own program: %w", err)
	}
	defer from.Close() //nolint:errcheck // it is only read
	// The name is that of a whole program, whenever the container is ended.
	to, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, programMode)
	if err != nil {
		return fmt.Errorf("copying the launcher's program: %w", err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Chmod(programMode), to.Close()); err == nil {
		err = os.Rename(to.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("copying the launcher's program: %w", err)
	}
	return nil
}

// Share hands the folder root to everybody who connects to a socket, until ctx ends.
func Share(ctx context.Context, root, socket string) error {
	folder, err := os.Open(root)
	if err != nil {
		return fmt.Errorf("opening the image: %w", err)
	}
	defer folder.Close() //nolint:errcheck // it is only read
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("sharing the image: %w", err) // what an earlier container left
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("sharing the image: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		connection, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("sharing the image: %w", err)
		}
		if to, ok := connection.(*net.UnixConn); ok {
			// Who went away meanwhile asks again.
			_, _, _ = to.WriteMsgUnix([]byte{0}, unix.UnixRights(int(folder.Fd())), nil)
		}
		_ = connection.Close()
	}
}

// The wait for a container that has been started and does not listen yet.
const pause = 20 * time.Millisecond

// Take fetches what is shared at a socket, and makes a link to it. The link leads there as long as this process lives.
func Take(ctx context.Context, socket, link string) error {
	folder, err := fetch(ctx, socket)
	for errors.Is(err, errNobody) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("taking the image %s: %w", filepath.Base(link), err)
		case <-time.After(pause):
		}
		folder, err = fetch(ctx, socket)
	}
	if err != nil {
		return fmt.Errorf("taking the image %s: %w", filepath.Base(link), err)
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("linking to the image: %w", err) // of an earlier container of the launcher
	}
	target := filepath.Join("/proc", strconv.Itoa(os.Getpid()), "fd", strconv.Itoa(folder))
	if err := os.Symlink(target, link); err != nil {
		return fmt.Errorf("linking to the image: %w", err)
	}
	return nil
}

// errNobody says that nobody shares an image yet.
var errNobody = errors.New("its container does not share it")

// fetch returns the descriptor of a folder that is shared. It is not handed on to programs.
func fetch(ctx context.Context, socket string) (int, error) {
	connection, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNobody, err)
	}
	defer connection.Close() //nolint:errcheck // what matters of it was read
	defer context.AfterFunc(ctx, func() { _ = connection.Close() })()
	from, ok := connection.(*net.UnixConn)
	if !ok {
		return 0, errors.New("no unix socket")
	}
	control := make([]byte, unix.CmsgSpace(4))
	_, size, _, _, err := from.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNobody, err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("%w: it sent no folder", errNobody)
	}
	descriptors, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(descriptors) != 1 {
		return 0, fmt.Errorf("%w: it sent no folder", errNobody)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(descriptors[0], &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, errors.Join(errors.New("what its container shares is no folder"), err, unix.Close(descriptors[0]))
	}
	return descriptors[0], nil
}
