package guestfiles

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit/isofs"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// Image returns the volume as an ISO image.
func (s Set) Image() ([]byte, error) { return isofs.Build(s.Label, s.Files) }

// Modes of what a shared folder holds, as a Pod's volumes have them: any user of the guest may read it. On the host nobody
// passes through the folder above.
const (
	privateMode = 0o700
	sharedMode  = 0o755
	fileMode    = 0o644
)

// temporaryName is that of a file on its way. No key of a Secret is longer than its parts together.
const temporaryName = ".gitvirt-unfinished"

// WriteFolder makes the folder at dir hold exactly these files, and the folder above it private. A guest that runs sees each
// file change at once and whole. The guest may write to the folder, so nothing in it is followed or trusted: what is not
// a file of this set goes.
func (s Set) WriteFolder(dir string) error {
	// The image's rules are these files' as well; one set never works as a disk and fails as a folder.
	if _, err := s.Image(); err != nil {
		return err
	}
	private := filepath.Dir(dir)
	if err := os.MkdirAll(private, privateMode); err != nil {
		return diskfile.ExplainNoSpace(err, filepath.Dir(private), dir, 0)
	}
	if err := os.Chmod(private, privateMode); err != nil {
		return err
	}
	if info, err := os.Lstat(dir); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a folder; remove it", dir)
	}
	err := os.MkdirAll(dir, sharedMode)
	if err != nil {
		return diskfile.ExplainNoSpace(err, private, dir, 0)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	err = errors.Join(s.sync(root), root.Close())
	return diskfile.ExplainNoSpace(err, private, dir, 0)
}

// sync writes what differs and removes what does not belong.
func (s Set) sync(root *os.Root) error {
	wanted := map[string]fs.FileMode{} // the type of each name
	for _, file := range s.Files {
		name := path.Clean(file.Name)
		wanted[name] = 0
		for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
			wanted[folder] = fs.ModeDir
		}
	}
	if err := removeOthers(root, ".", wanted); err != nil {
		return err
	}
	for _, file := range s.Files {
		if err := writeBelow(root, path.Clean(file.Name), file.Data); err != nil {
			return fmt.Errorf("writing %s: %w", file.Name, err)
		}
	}
	return nil
}

// namesAtOnce bounds what is held of a folder that a guest may have filled.
const namesAtOnce = 256

// removeOthers removes from a folder what is not wanted, or is there as something else than is wanted.
func removeOthers(root *os.Root, folder string, wanted map[string]fs.FileMode) error {
	dir, err := root.Open(folder)
	if err != nil {
		return err
	}
	for {
		entries, err := dir.ReadDir(namesAtOnce)
		if errors.Is(err, io.EOF) {
			return dir.Close()
		}
		if err != nil {
			return errors.Join(err, dir.Close())
		}
		for _, entry := range entries {
			name := path.Join(folder, entry.Name())
			kind, known := wanted[name]
			switch {
			case !known || entry.Type() != kind:
				err = root.RemoveAll(name)
			case kind == fs.ModeDir:
				err = removeOthers(root, name, wanted)
			}
			if err != nil {
				return errors.Join(err, dir.Close())
			}
		}
	}
}

// writeBelow writes a file whole or not at all, unless it is there already.
func writeBelow(root *os.Root, name string, content []byte) error {
	if err := root.MkdirAll(path.Dir(name), sharedMode); err != nil {
		return err
	}
	if sameBelow(root, name, content) {
		return nil
	}
	if err := root.RemoveAll(temporaryName); err != nil {
		return err
	}
	file, err := root.OpenFile(temporaryName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(fileMode), file.Close())
	if err == nil {
		err = root.Rename(temporaryName, name)
	}
	if err != nil {
		return errors.Join(err, root.RemoveAll(temporaryName))
	}
	return nil
}

// sameBelow reports whether a file holds content. What a guest put there instead is neither waited for nor read to its end.
func sameBelow(root *os.Root, name string, content []byte) bool {
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // only read
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != fileMode {
		return false
	}
	present, err := io.ReadAll(io.LimitReader(file, int64(len(content))+1))
	return err == nil && bytes.Equal(present, content)
}
