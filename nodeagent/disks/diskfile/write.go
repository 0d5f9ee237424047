package diskfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Owner is the user and group that a file is given to.
type Owner struct{ UID, GID int }

// WriteOptions say how Write makes a file.
type WriteOptions struct {
	// Mode is the file's mode.
	Mode fs.FileMode
	// Owner is given the file; nil leaves it with the user of this process.
	Owner *Owner
	// Volatile skips fsync: the file may be lost, but not half written, when the machine dies.
	Volatile bool
}

// Write makes or replaces the file at path with what fill writes. The file appears under its name only when it is whole; until
// then it is a private temporary file beside it (mode 0600), named so that the next Write of path sweeps
// what a killed process left. A full file system is a NoSpaceError, and leaves nothing behind.
func Write(path string, opts WriteOptions, fill func(*os.File) error) error {
	temporary := TemporaryName(path)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sweeping an unfinished file: %w", err)
	}
	file, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return ExplainNoSpace(fmt.Errorf("creating a file: %w", err), filepath.Dir(path), path, 0)
	}
	err = errors.Join(finish(file, opts, fill), file.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil && !opts.Volatile {
		err = SyncDir(filepath.Dir(path))
	}
	if err != nil {
		_ = os.Remove(temporary) // err is what matters, and the next Write sweeps
		return ExplainNoSpace(fmt.Errorf("writing %s: %w", path, err), filepath.Dir(path), path, 0)
	}
	return nil
}

// TemporaryName is the name of the unfinished file at path.
func TemporaryName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
}

func finish(file *os.File, opts WriteOptions, fill func(*os.File) error) error {
	if err := fill(file); err != nil {
		return err
	}
	if opts.Owner != nil {
		if err := file.Chown(opts.Owner.UID, opts.Owner.GID); err != nil {
			return err
		}
	}
	if err := file.Chmod(opts.Mode); err != nil {
		return err
	}
	if opts.Volatile {
		return nil
	}
	return file.Sync()
}

// SyncDir makes the names in dir survive a crash of the machine.
func SyncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening the directory to sync it: %w", err)
	}
	return errors.Join(handle.Sync(), handle.Close())
}
