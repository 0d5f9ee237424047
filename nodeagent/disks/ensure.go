package disks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/schemas"
)

// Ensured is a disk that is ready to be attached.
type Ensured struct {
	Path   string
	Format diskfile.Format
	// CapacityBytes is what the guest will see. It differs from what was asked for only for a hostDisk that was there before.
	CapacityBytes int64
	// Created says that this call made the disk.
	Created bool
	// Grown says that this call made the disk larger.
	Grown bool
	// Block says that Path is a block device; LogicalBlock and PhysicalBlock are the sizes of its blocks in bytes, 0 when unknown.
	Block                       bool
	LogicalBlock, PhysicalBlock uint
}

// EnsureEmptyDisk returns the emptyDisk of a volume, a sparse qcow2 image of capacity bytes, and makes it the first time.
// A disk that is smaller is grown, one that is larger is an error (ErrShrink), and one whose file was lost is an error
// (ErrMissing) rather than a fresh empty disk: no disk that held data is ever replaced here.
func (s *Store) EnsureEmptyDisk(ctx context.Context, owner schemas.Address, volumeName string, capacity int64) (Ensured, error) {
	v, err := newVolume(owner, volumeName)
	if err != nil {
		return Ensured{}, err
	}
	if capacity <= 0 {
		return Ensured{}, fmt.Errorf("emptyDisk %s: capacity is %d bytes; want more than 0", v.id(), capacity)
	}
	capacity = roundUp(capacity)
	release, err := s.lock(ctx, v.id())
	if err != nil {
		return Ensured{}, err
	}
	defer release()

	ensured, err := s.ensureEmptyDisk(ctx, v, capacity)
	if err != nil {
		return Ensured{}, fmt.Errorf("emptyDisk %s: %w", v.id(), err)
	}
	return ensured, nil
}

func (s *Store) ensureEmptyDisk(ctx context.Context, v volume, capacity int64) (Ensured, error) {
	record, recorded, err := s.readRecord(v)
	if err != nil {
		return Ensured{}, err
	}
	if recorded && record.Kind != KindEmptyDisk {
		return Ensured{}, fmt.Errorf("the volume was a %s before (%s); rename the volume, or remove that disk with `gitvirt disks prune %s`: %w",
			record.Kind, record.Path, v.id(), ErrForbidden)
	}
	path := s.dataPath(v)
	current, err := qcow2Capacity(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && recorded:
		return Ensured{}, fmt.Errorf("%s was made at %s and is gone; %s: %w", path, record.Created.Format("2006-01-02 15:04"), removedFix(v), ErrMissing)
	case errors.Is(err, fs.ErrNotExist):
		return s.newEmptyDisk(ctx, v, capacity)
	case err != nil:
		return Ensured{}, err
	}
	return s.reuseEmptyDisk(ctx, v, current, capacity, record, recorded)
}

func (s *Store) newEmptyDisk(ctx context.Context, v volume, capacity int64) (Ensured, error) {
	if err := os.MkdirAll(s.files.Data(v.owner), dirMode); err != nil {
		return Ensured{}, diskfile.ExplainNoSpace(fmt.Errorf("making its directory: %w", err), s.files.Dir, s.dataPath(v), 0)
	}
	path := s.dataPath(v)
	if err := s.createQCOW2(ctx, path, capacity); err != nil {
		return Ensured{}, err
	}
	// A crash before the record is written loses nothing: the name says the format.
	if err := s.writeRecord(v, s.emptyDiskRecord(v, capacity)); err != nil {
		return Ensured{}, err
	}
	return Ensured{Path: path, Format: diskfile.QCOW2, CapacityBytes: capacity, Created: true}, nil
}

func (s *Store) emptyDiskRecord(v volume, capacity int64) Record {
	return Record{
		Address: v.owner, Volume: v.name, Kind: KindEmptyDisk, Path: s.dataPath(v), Format: diskfile.QCOW2,
		CapacityBytes: capacity, Created: s.opts.Now().UTC(), Made: true,
	}
}

// reuseEmptyDisk checks, and if need be grows, a disk that is there.
func (s *Store) reuseEmptyDisk(ctx context.Context, v volume, current, capacity int64, record Record, recorded bool) (Ensured, error) {
	path := s.dataPath(v)
	if current > capacity {
		return Ensured{}, fmt.Errorf("it has %s and the manifest asks for %s; set the capacity to at least %s, or use a new volume name and copy the data: %w",
			diskfile.FormatBytes(current), diskfile.FormatBytes(capacity), diskfile.FormatBytes(current), ErrShrink)
	}
	if err := diskfile.CheckUnused(path); err != nil {
		return Ensured{}, err
	}
	if current < capacity {
		if err := s.qemuImg(ctx, path, 0, "resize", "-q", "-f", "qcow2", "--", local(path), strconv.FormatInt(capacity, 10)); err != nil {
			return Ensured{}, fmt.Errorf("growing it to %s: %w", diskfile.FormatBytes(capacity), err)
		}
	}
	if !recorded || record.CapacityBytes != capacity {
		if !recorded {
			record = s.emptyDiskRecord(v, capacity)
		}
		record.CapacityBytes = capacity
		if err := s.writeRecord(v, record); err != nil {
			return Ensured{}, err
		}
	}
	return Ensured{Path: path, Format: diskfile.QCOW2, CapacityBytes: capacity, Grown: current < capacity}, nil
}

// qcow2Capacity reads the size of a disk that is known to be qcow2. Its header is QEMU's: a guest cannot write it. An error is
// returned when it is damaged or, since somebody else must have been here, refers to another file.
func qcow2Capacity(path string) (int64, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	info, err := detectFile(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if info.Format != diskfile.QCOW2 {
		return 0, fmt.Errorf("%s is not a qcow2 image any more; restore it from a backup", path)
	}
	return info.VirtualSize, nil
}

// detectFile reads the format of a regular file.
func detectFile(file *os.File) (diskfile.Info, error) {
	stat, err := file.Stat()
	if err != nil {
		return diskfile.Info{}, err
	}
	if !stat.Mode().IsRegular() {
		return diskfile.Info{}, fmt.Errorf("it is %s, not a regular file: %w", fileKind(stat.Mode()), ErrForbidden)
	}
	return diskfile.Detect(file, stat.Size())
}

func fileKind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	}
	return "a special file"
}

// roundUp makes a capacity whole 512-byte sectors, as QEMU does.
func roundUp(n int64) int64 { return (n + 511) / 512 * 512 }

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Backing is the image under an overlay: an image that nothing ever writes to.
type Backing struct {
	// Path is absolute.
	Path   string
	Format diskfile.Format
	// VirtualSize is the size of the disk in bytes, and becomes the overlay's.
	VirtualSize int64
}

// OverlayPath returns where the overlay of a container disk belongs, vms/NAMESPACE/NAME/VOLUME.overlay.qcow2.
func (s *Store) OverlayPath(owner schemas.Address, volumeName string) (string, error) {
	v, err := newVolume(owner, volumeName)
	if err != nil {
		return "", err
	}
	return s.overlayPath(v), nil
}

func (s *Store) overlayPath(v volume) string { return s.files.Overlay(v.owner, v.name) }

// NewOverlay makes a fresh qcow2 image over backing at vms/NAMESPACE/NAME/VOLUME.overlay.qcow2, replacing the one of the previous power-on.
func (s *Store) NewOverlay(ctx context.Context, owner schemas.Address, volumeName string, backing Backing) (string, error) {
	v, err := newVolume(owner, volumeName)
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(backing.Path) || backing.VirtualSize <= 0 || (backing.Format != diskfile.Raw && backing.Format != diskfile.QCOW2) {
		return "", fmt.Errorf("overlay of %s: %+v is not a complete backing image", v.id(), backing)
	}
	release, err := s.lock(ctx, v.id())
	if err != nil {
		return "", err
	}
	defer release()

	path := s.overlayPath(v)
	if err := s.newOverlay(ctx, path, backing); err != nil {
		return "", fmt.Errorf("overlay of %s: %w", v.id(), err)
	}
	return path, nil
}

func (s *Store) newOverlay(ctx context.Context, path string, backing Backing) error {
	if _, err := os.Stat(backing.Path); err != nil {
		return fmt.Errorf("its image %s: %w", backing.Path, errors.Join(err, ErrMissing))
	}
	if err := diskfile.CheckUnused(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return diskfile.ExplainNoSpace(fmt.Errorf("making its directory: %w", err), s.files.Dir, path, 0)
	}
	return s.createOverlay(ctx, path, backing)
}
