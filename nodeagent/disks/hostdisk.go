package disks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/schemas"
)

// HostDisk is a disk at a path of the user's choice.
type HostDisk struct {
	// Path is absolute and clean. Its directories may be symbolic links as long as they stay below a root; the file itself may not be
	// one. A path below /dev names a block device, also by a link.
	Path string
	// Create makes the disk when it is not there (KubeVirt's type DiskOrCreate) instead of reporting ErrMissing (type Disk).
	Create bool
	// Capacity is the size of a disk that is made, in bytes. A disk that is there keeps its size.
	Capacity int64
	// Shared allows a disk that another guest has open, too, be it to write (KubeVirt's shared).
	Shared bool
	// ReadOnly says that the guest only reads: then it may be open elsewhere, and even be mounted by the host.
	ReadOnly bool
}

// EnsureHostDisk returns the hostDisk of a volume and, when allowed to, makes it: a sparse raw file, for which the file system
// must have room for the whole capacity. The path that is returned has its symbolic links resolved.
//
// KubeVirt takes every hostDisk as raw. Here a file that was there before is adopted with the format its bytes have at that
// time, and keeps that format for good; a qcow2 image that refers to another file is never adopted. See the package comment.
func (s *Store) EnsureHostDisk(ctx context.Context, owner schemas.Address, volumeName string, want HostDisk) (Ensured, error) {
	v, err := newVolume(owner, volumeName)
	if err != nil {
		return Ensured{}, err
	}
	if err := s.checkHostPath(want.Path); err != nil {
		return Ensured{}, fmt.Errorf("hostDisk %s: %w", v.id(), err)
	}
	// Two locks, always in this order: the volume, and the file that several volumes may name.
	release, err := s.lock(ctx, v.id())
	if err != nil {
		return Ensured{}, err
	}
	defer release()
	releasePath, err := s.lock(ctx, want.Path)
	if err != nil {
		return Ensured{}, err
	}
	defer releasePath()

	ensured, err := s.ensureHostDisk(v, want)
	if err != nil {
		return Ensured{}, fmt.Errorf("hostDisk %s: %w", v.id(), err)
	}
	return ensured, nil
}

// checkHostPath refuses what is not a plain path, and the store's own files: they are reached by their volumes.
func (s *Store) checkHostPath(path string) error {
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/":
		return fmt.Errorf("path %q: want an absolute path without \"..\", \".\" or doubled slashes: %w", path, ErrForbidden)
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("path %q: it holds a control character: %w", path, ErrForbidden)
	}
	named := path
	if relative, err := filepath.Rel(s.real, path); err == nil && filepath.IsLocal(relative) {
		named = filepath.Join(s.files.Dir, relative) // as the roots are named
	}
	if below(s.files.Dir, named) && !s.hasRootFor(named) {
		return fmt.Errorf("path %s: it lies among gitvirt's own files: %w", path, ErrForbidden)
	}
	return nil
}

// hasRootFor reports whether the operator set aside a directory inside the store's for host disks, and path lies in it.
func (s *Store) hasRootFor(path string) bool {
	for _, own := range []string{s.files.Disks(), s.files.Claims(), s.files.VMs()} {
		if below(own, path) {
			return false
		}
	}
	return slices.ContainsFunc(s.opts.HostDiskRoots, func(root string) bool {
		return root != s.files.Dir && below(s.files.Dir, root) && below(root, path)
	})
}

// below reports whether path is dir or lies in it, by name.
func below(dir, path string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(relative)
}

func (s *Store) ensureHostDisk(v volume, want HostDisk) (Ensured, error) {
	if isDevicePath(want.Path) {
		return s.ensureHostDevice(v, want)
	}
	parent, err := s.openParent(want)
	if err != nil {
		return Ensured{}, err
	}
	defer func() { _ = parent.Close() }() // only a directory's handle

	file, made, err := s.openHostDisk(v, parent, want)
	if err != nil {
		return Ensured{}, err
	}
	ensured, err := s.adopt(v, file, want, made)
	return ensured, errors.Join(err, file.Close())
}

// openParent opens the directory of a host disk. With roots, nothing on the way may lead out of the root: os.Root
// resolves the path inside the kernel's openat semantics, so that a symbolic link cannot be slipped in between.
func (s *Store) openParent(want HostDisk) (*os.Root, error) {
	dir := filepath.Dir(want.Path)
	if len(s.opts.HostDiskRoots) == 0 {
		if want.Create {
			if err := os.MkdirAll(dir, dirMode); err != nil {
				return nil, diskfile.ExplainNoSpace(fmt.Errorf("making its directory: %w", err), "/", want.Path, want.Capacity)
			}
		}
		return explainParent(want, func() (*os.Root, error) { return os.OpenRoot(dir) })
	}
	for _, root := range s.opts.HostDiskRoots {
		if below(root, want.Path) && root != want.Path {
			return explainParent(want, func() (*os.Root, error) { return openBelow(root, dir, want.Create) })
		}
	}
	return nil, fmt.Errorf("path %s: host disks are allowed below %s only: %w", want.Path, strings.Join(s.opts.HostDiskRoots, ", "), ErrForbidden)
}

func openBelow(root, dir string, create bool) (*os.Root, error) {
	relative, err := filepath.Rel(root, dir)
	if err != nil {
		return nil, err
	}
	opened, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close() }() // only a directory's handle
	if create {
		if err := opened.MkdirAll(relative, dirMode); err != nil {
			return nil, err
		}
	}
	return opened.OpenRoot(relative)
}

func explainParent(want HostDisk, open func() (*os.Root, error)) (*os.Root, error) {
	parent, err := open()
	switch {
	case err == nil:
		return parent, nil
	case errors.Is(err, fs.ErrNotExist) && !want.Create:
		return nil, missingHostDisk(want)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("directory of %s: %w", want.Path, err)
	}
	// os.Root has no sentinel for a path that leaves it; what is left is that, or an I/O error, and both forbid the path.
	return nil, fmt.Errorf("directory of %s: %w: %w", want.Path, err, ErrForbidden)
}

func missingHostDisk(want HostDisk) error {
	return fmt.Errorf("%s does not exist; create it (qemu-img create -f raw %s SIZE), or set the hostDisk's type to DiskOrCreate: %w", want.Path, want.Path, ErrMissing)
}

// openHostDisk opens the file, or makes it unless it was there before.
func (s *Store) openHostDisk(v volume, parent *os.Root, want HostDisk) (file *os.File, made bool, err error) {
	if _, err := parent.Lstat(filepath.Base(want.Path)); errors.Is(err, fs.ErrNotExist) {
		record, recorded, err := s.readRecord(v)
		if err != nil {
			return nil, false, err
		}
		if recorded && record.named(want.Path) {
			return nil, false, fmt.Errorf("%s was in use since %s and is gone; %s: %w", want.Path, record.Created.Format("2006-01-02 15:04"), removedFix(v), ErrMissing)
		}
	}
	return s.openOrMake(parent, want)
}

// openOrMake opens the file, or makes it. An empty file holds no data: with Create it counts as one that a killed process
// was about to make.
func (s *Store) openOrMake(parent *os.Root, want HostDisk) (file *os.File, made bool, err error) {
	name := filepath.Base(want.Path)
	info, err := parent.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if !want.Create {
			return nil, false, missingHostDisk(want)
		}
		return s.makeHostDisk(parent, name, want, os.O_CREATE|os.O_EXCL)
	case err != nil:
		return nil, false, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, false, fmt.Errorf("%s is a symbolic link; name the file that it points to: %w", want.Path, ErrForbidden)
	case !info.Mode().IsRegular():
		return nil, false, fmt.Errorf("%s is %s, not a regular file: %w", want.Path, fileKind(info.Mode()), ErrForbidden)
	case info.Size() == 0 && want.Create:
		return s.makeHostDisk(parent, name, want, 0)
	}
	file, err = parent.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	return file, false, err
}

func (s *Store) makeHostDisk(parent *os.Root, name string, want HostDisk, flags int) (*os.File, bool, error) {
	if want.Capacity <= 0 {
		return nil, false, fmt.Errorf("%s does not exist and no capacity is given to create it with", want.Path)
	}
	dir := filepath.Dir(want.Path)
	if err := diskfile.RequireFree(dir, want.Path, want.Capacity); err != nil {
		return nil, false, err
	}
	file, err := parent.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|flags, fileMode)
	if err != nil {
		return nil, false, diskfile.ExplainNoSpace(err, dir, want.Path, want.Capacity)
	}
	err = file.Truncate(roundUp(want.Capacity))
	if err == nil && s.opts.Owner != nil {
		err = file.Chown(s.opts.Owner.UID, s.opts.Owner.GID)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		err = errors.Join(err, file.Close(), parent.Remove(name))
		return nil, false, diskfile.ExplainNoSpace(fmt.Errorf("making %s: %w", want.Path, err), dir, want.Path, want.Capacity)
	}
	return file, true, nil
}

// realPath is the path of an open file with its symbolic links resolved, which has to be allowed as well.
func (s *Store) realPath(file *os.File, want HostDisk) (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return "", fmt.Errorf("finding the real path of %s: %w", want.Path, err)
	}
	return path, s.checkHostPath(path)
}

// adopt finds or writes the record of an open host disk and checks the disk against it.
func (s *Store) adopt(v volume, file *os.File, want HostDisk, made bool) (Ensured, error) {
	path, err := s.realPath(file, want)
	if err != nil {
		return Ensured{}, err
	}
	if !want.Shared && !want.ReadOnly {
		if err := diskfile.CheckUnused(path); err != nil {
			return Ensured{}, err
		}
	}
	record, recorded, err := s.readRecord(v)
	if err != nil {
		return Ensured{}, err
	}
	if recorded && record.Path != path {
		if err := s.setAside(v, record); err != nil {
			return Ensured{}, err
		}
		recorded = false
	}
	format := record.Format
	if !recorded {
		if format, err = s.formatOf(path, file, made); err != nil {
			return Ensured{}, err
		}
	}
	capacity, err := capacityOf(file, format, want.Path)
	if err != nil {
		return Ensured{}, err
	}
	if !recorded {
		record = Record{Address: v.owner, Volume: v.name, Kind: KindHostDisk, Path: path, Format: format, Created: s.opts.Now().UTC(), Made: made}
	}
	if !recorded || record.CapacityBytes != capacity {
		record.CapacityBytes = capacity
		if err := os.MkdirAll(s.files.Data(v.owner), dirMode); err != nil {
			return Ensured{}, diskfile.ExplainNoSpace(err, s.files.Dir, s.recordPath(v), 0)
		}
		if err := s.writeRecord(v, record); err != nil {
			return Ensured{}, err
		}
	}
	return Ensured{Path: path, Format: format, CapacityBytes: capacity, Created: made}, nil
}

// formatOf decides the format of a disk that this volume has no record of: the one that any other record says, raw when
// it was just made, and what its bytes say only when nobody has ever used it here.
func (s *Store) formatOf(path string, file *os.File, made bool) (diskfile.Format, error) {
	if made {
		return diskfile.Raw, nil
	}
	records, err := s.records()
	if err != nil {
		return "", err
	}
	for _, other := range records {
		if other.Path == path {
			return other.Format, nil
		}
	}
	info, err := detectFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return info.Format, nil
}

// capacityOf checks that a disk still is what its format says. A raw disk may hold anything.
func capacityOf(file *os.File, format diskfile.Format, name string) (int64, error) {
	stat, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if format == diskfile.Raw {
		if stat.Size() == 0 {
			return 0, fmt.Errorf("%s is empty; give it a size (truncate -s SIZE %s)", name, name)
		}
		return roundUp(stat.Size()), nil
	}
	info, err := detectFile(file)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if info.Format != format {
		return 0, fmt.Errorf("%s was a %s image and is not any more; restore it from a backup", name, format)
	}
	return info.VirtualSize, nil
}

// setAside keeps the record of the disk that a volume had before its path changed, so that the disk is still listed.
func (s *Store) setAside(v volume, record Record) error {
	if record.Kind == KindEmptyDisk {
		return fmt.Errorf("the volume was an emptyDisk before (%s); rename the volume, or remove that disk with `gitvirt disks prune %s`: %w",
			record.Path, v.id(), ErrForbidden)
	}
	sum := sha256.Sum256([]byte(record.Path))
	name := v.name + "." + hex.EncodeToString(sum[:4])
	aside := volume{owner: v.owner, name: name}
	if err := os.Rename(s.recordPath(v), s.recordPath(aside)); err != nil {
		return fmt.Errorf("keeping the record of %s: %w", record.Path, err)
	}
	return nil
}

// named reports whether the record is of the disk at path, whose directories may be symbolic links.
func (r Record) named(path string) bool {
	if r.Path == path {
		return true
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	return err == nil && r.Path == filepath.Join(dir, filepath.Base(path))
}
