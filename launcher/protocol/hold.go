package protocol

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Hold keeps a Pod whose guest is about to end and to be started again. The folder is named as those outside the Pod see it. Holding what is
// held already succeeds. It opens and changes nothing that is there, for that may be a link that somebody in the Pod has made.
func Hold(dir string) error {
	path := filepath.Join(dir, HoldFile)
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "create", Path: path, Err: err}
	}
	return unix.Close(fd)
}

// Release ends what Hold began: from now on the guest's end, also one that has been, ends its Pod. Releasing what is not held succeeds.
func Release(dir string) error {
	err := os.Remove(filepath.Join(dir, HoldFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Held tells whether the Pod is held.
func Held(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, HoldFile))
	return err == nil
}
