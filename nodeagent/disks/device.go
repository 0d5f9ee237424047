package disks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// devices is where block devices are named, among others by links that stay the same (/dev/disk/by-id).
const devices = "/dev"

// isDevicePath reports whether a path names a device rather than a file.
func isDevicePath(path string) bool { return path != devices && below(devices, path) }

// blockDevice is what is known of a block device, in bytes.
type blockDevice struct {
	size                        int64
	logicalBlock, physicalBlock uint
}

// ensured is the device as a disk.
func (d blockDevice) ensured(path string) Ensured {
	return Ensured{
		Path: path, Format: diskfile.Raw, CapacityBytes: d.size, Block: true, LogicalBlock: d.logicalBlock, PhysicalBlock: d.physicalBlock,
	}
}

// openDevice checks a block device and measures it. Its path may be a link, since those under /dev/disk are the names that
// outlast a reboot; it must not lead out of /dev. Other guests may write to a shared one; what the host itself has mounted
// is nobody's to write to.
func (s *Store) openDevice(path string, shared, readOnly bool) (device blockDevice, err error) {
	if err := s.checkRoots(path); err != nil {
		return device, err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return device, fmt.Errorf("there is no device %s: %w", path, ErrMissing)
	}
	if err != nil {
		return device, err
	}
	if !isDevicePath(real) {
		return device, fmt.Errorf("%s leads to %s, out of %s: %w", path, real, devices, ErrForbidden)
	}
	info, err := os.Lstat(real)
	if err != nil {
		return device, err
	}
	if info.Mode().Type() != fs.ModeDevice {
		return device, fmt.Errorf("%s is not a block device: %w", path, ErrForbidden)
	}
	flags := os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	if !readOnly {
		flags |= os.O_EXCL // refused while the host has mounted it, or made a part of something else of it; QEMU does not open it so
		s.probing.Lock()   // two who ask so at a time would refuse each other
		defer s.probing.Unlock()
	}
	file, err := os.OpenFile(real, flags, 0)
	if errors.Is(err, unix.EBUSY) {
		return device, fmt.Errorf("%s is in use by the host (mounted, or part of a volume group or RAID); unmount it first: %w", path, ErrInUse)
	}
	if err != nil {
		return device, err
	}
	device, err = measure(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return device, fmt.Errorf("reading the size of %s: %w", path, err)
	}
	if device.size == 0 {
		return device, fmt.Errorf("%s holds no medium: %w", path, ErrMissing)
	}
	if shared || readOnly {
		return device, nil
	}
	return device, diskfile.CheckUnused(real)
}

// measure reads the sizes of an open block device; those of its blocks stay 0 where they are not known.
func measure(file *os.File) (device blockDevice, err error) {
	if device.size, err = file.Seek(0, io.SeekEnd); err != nil {
		return device, err
	}
	if logical, err := unix.IoctlGetInt(int(file.Fd()), unix.BLKSSZGET); err == nil && logical > 0 {
		device.logicalBlock = uint(logical)
	}
	if physical, err := unix.IoctlGetInt(int(file.Fd()), unix.BLKPBSZGET); err == nil && physical > 0 {
		device.physicalBlock = uint(physical)
	}
	return device, nil
}

// checkRoots refuses a path outside the directories that the operator allows, by name.
func (s *Store) checkRoots(path string) error {
	roots := s.opts.HostDiskRoots
	if len(roots) > 0 && !slices.ContainsFunc(roots, func(root string) bool { return root != path && below(root, path) }) {
		return fmt.Errorf("path %s: host disks are allowed below %s only: %w", path, strings.Join(roots, ", "), ErrForbidden)
	}
	return nil
}

// ensureHostDevice is ensureHostDisk for a block device. The record makes it listed, and is no more than that: a device is raw.
func (s *Store) ensureHostDevice(v volume, want HostDisk) (Ensured, error) {
	device, err := s.openDevice(want.Path, want.Shared, want.ReadOnly)
	if err != nil {
		return Ensured{}, err
	}
	record, recorded, err := s.readRecord(v)
	if err != nil {
		return Ensured{}, err
	}
	if recorded && record.Path != want.Path {
		if err := s.setAside(v, record); err != nil {
			return Ensured{}, err
		}
		recorded = false
	}
	if !recorded || record.CapacityBytes != device.size {
		if !recorded {
			record = Record{Address: v.owner, Volume: v.name, Kind: KindHostDisk, Path: want.Path, Format: diskfile.Raw, Block: true, Created: s.opts.Now().UTC()}
		}
		record.CapacityBytes = device.size
		if err := s.MakeData(v.owner); err != nil {
			return Ensured{}, err
		}
		if err := s.writeRecord(v, record); err != nil {
			return Ensured{}, err
		}
	}
	return device.ensured(want.Path), nil
}

// ensureClaimPath finds the disk of a claim whose PersistentVolume names a place on the host: a block device, a file, or
// a directory that holds the image disk.img, as a volume of KubeVirt does. The image is raw, whatever its bytes look like, and is
// the host's: it is neither recorded nor grown here.
func (s *Store) ensureClaimPath(ctx context.Context, want Claim) (Ensured, error) {
	if err := s.checkHostPath(want.Path); err != nil {
		return Ensured{}, err
	}
	release, err := s.lock(ctx, want.Path)
	if err != nil {
		return Ensured{}, err
	}
	defer release()
	if want.Block || isDevicePath(want.Path) {
		device, err := s.openDevice(want.Path, want.Shared, want.ReadOnly)
		return device.ensured(want.Path), err
	}
	disk := HostDisk{Path: want.Path, Capacity: want.Capacity, Shared: want.Shared, ReadOnly: want.ReadOnly}
	if info, err := os.Lstat(want.Path); err == nil && info.IsDir() {
		disk.Path, disk.Create = filepath.Join(want.Path, "disk.img"), true
	}
	parent, err := s.openParent(disk)
	if err != nil {
		return Ensured{}, err
	}
	defer func() { _ = parent.Close() }() // only a directory's handle
	file, made, err := s.openOrMake(parent, disk)
	if err != nil {
		return Ensured{}, err
	}
	path, err := s.realPath(file, disk)
	if err == nil && !disk.Shared && !disk.ReadOnly {
		err = diskfile.CheckUnused(path)
	}
	var capacity int64
	if err == nil {
		capacity, err = capacityOf(file, diskfile.Raw, path)
	}
	return Ensured{Path: path, Format: diskfile.Raw, CapacityBytes: capacity, Created: made}, errors.Join(err, file.Close())
}

// claimDirectory finds the directory of a claim whose PersistentVolume names one, to share it as a file system. What a guest is
// given so it reads and writes with the rights of the host, so that the operator has to say where that may be.
func (s *Store) claimDirectory(want Claim) (string, error) {
	if err := s.checkHostFolder(want.Path); err != nil {
		return "", err
	}
	if len(s.opts.HostDiskRoots) == 0 {
		return "", fmt.Errorf("path %s: a directory of the host is shared with a guest only below a folder that the operator named; start gitvirt-agent with --host-disk-root %s: %w",
			want.Path, want.Path, ErrForbidden)
	}
	// Opened as the parent of a file in it, the directory is checked against the roots.
	dir, err := s.openParent(HostDisk{Path: filepath.Join(want.Path, "files")})
	if err != nil {
		return "", err
	}
	defer func() { _ = dir.Close() }() // only a directory's handle
	file, err := dir.Open(".")
	if err != nil {
		return "", err
	}
	path, err := s.realPath(file, HostDisk{Path: want.Path})
	return path, errors.Join(err, s.checkHostFolder(path), file.Close())
}

// checkHostFolder is checkHostPath for a directory, below which gitvirt's own files must not lie either.
func (s *Store) checkHostFolder(path string) error {
	if below(path, s.files.Dir) || below(path, s.real) {
		return fmt.Errorf("path %s: gitvirt's own files lie below it; name another directory: %w", path, ErrForbidden)
	}
	return s.checkHostPath(path)
}
