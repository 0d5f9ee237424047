package protocol

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// SocketPath is where the socket of the Pod's libvirt daemon is in the shared folder.
const SocketPath = "run/libvirt/libvirt-sock"

// Socket is an opened handle of a socket in the shared folder, the daemon's or the launcher's. It stays what it was when somebody in the Pod replaces the file, and its
// path is short: that of a volume below /var/lib/kubelet has more bytes than the address of a socket may have (107).
type Socket struct{ file *os.File }

// OpenSocket opens the daemon's socket in a shared folder, named as those outside the Pod see it. It follows no link inside the
// folder: a guest that has broken out of QEMU could lead the caller, who is root, to another daemon. The error is
// os.ErrNotExist when the daemon has none yet, which is so again for a moment after it died: open it anew for each connection.
func OpenSocket(dir string) (*Socket, error) { return open(dir, SocketPath) }

// OpenFiles opens the socket at which the launcher is asked for files, as OpenSocket does.
func OpenFiles(dir string) (*Socket, error) { return open(dir, FilesSocket) }

func open(dir, path string) (*Socket, error) {
	folder, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(folder) //nolint:errcheck // nothing was written
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	name := filepath.Join(dir, path)
	fd, err := unix.Openat2(folder, path, &how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	info, err := file.Stat()
	if err == nil && info.Mode().Type() != os.ModeSocket {
		err = fmt.Errorf("%s is no socket", name)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Socket{file}, nil
}

// Path is what this process connects to. It is good until Close.
func (s *Socket) Path() string {
	return "/proc/self/fd/" + strconv.FormatUint(uint64(s.file.Fd()), 10)
}

// URI is what this process gives libvirt's client library. It is good until Close; connections that were made stay.
func (s *Socket) URI() string { return "qemu+unix:///session?socket=" + s.Path() }

// Close closes the handle.
func (s *Socket) Close() error { return s.file.Close() }
