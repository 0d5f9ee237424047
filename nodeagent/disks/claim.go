package disks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/schemas"
)

// ErrBusy says that a claim is being made or copied; trying again helps.
var ErrBusy = errors.New("claim is being worked on")

// Claim is a PersistentVolumeClaim as a machine wants it.
type Claim struct {
	Namespace, Name string
	// Capacity is the wanted size in bytes; 0 takes the size that there is, or that Fill brings.
	Capacity int64
	// Path is a file, a directory or a block device of the host that stands for the claim; empty for an image of the store's
	// own.
	Path string
	// Block says that Path is a block device.
	Block bool
	// Shared allows an image that another guest has open, too, be it to write.
	Shared bool
	// ReadOnly says that the guest only reads: then it may be open elsewhere, and a device even be mounted by the host.
	ReadOnly bool
	// Origin says, for people, where Fill takes the first content from.
	Origin string
	// Fill makes the first content as a raw image in the empty directory dir and returns its path; nil leaves the image empty. An
	// image that is there is never filled again.
	Fill func(ctx context.Context, dir string) (path string, err error)
}

// fillingDir is where Fill works: hidden, because what lies there is not whole.
const fillingDir = ".filling"

func (c Claim) id() string { return c.Namespace + "/" + c.Name }

func (c Claim) check() error {
	return errors.Join(checkName("namespace", c.Namespace), checkName("claim", c.Name))
}

// claimKey is what the lock of a claim is known by; no volume of a machine has such a name.
func claimKey(id string) string { return "claim " + id }

// EnsureClaim returns the image of a claim, a sparse raw file, and makes it the first time. It grows while nobody has
// it open, and never shrinks. One whose file was lost is an error (ErrMissing) rather than a fresh one.
func (s *Store) EnsureClaim(ctx context.Context, want Claim) (Ensured, error) {
	if err := want.check(); err != nil {
		return Ensured{}, err
	}
	if want.Path != "" {
		ensured, err := s.ensureClaimPath(ctx, want)
		return ensured, wrapClaim(want, err)
	}
	release, err := s.lock(ctx, claimKey(want.id()))
	if err != nil {
		return Ensured{}, err
	}
	defer release()
	ensured, err := s.ensureClaim(ctx, want)
	return ensured, wrapClaim(want, err)
}

func wrapClaim(want Claim, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("claim %s: %w", want.id(), err)
}

func (s *Store) ensureClaim(ctx context.Context, want Claim) (Ensured, error) {
	record, recorded, err := s.readClaim(want)
	if err != nil {
		return Ensured{}, err
	}
	if recorded && record.Folder {
		return Ensured{}, fmt.Errorf("it holds files and was shared as a file system; use another claim for a disk: %w", ErrForbidden)
	}
	path := s.files.ClaimImage(want.Namespace, want.Name)
	current, err := rawCapacity(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && recorded && !record.Filling:
		return Ensured{}, fmt.Errorf("%s was made at %s and is gone; put it back, or start anew after `gitvirt disks prune %s`: %w",
			path, record.Created.Format("2006-01-02 15:04"), want.id(), ErrMissing)
	case errors.Is(err, fs.ErrNotExist):
		return s.newClaim(ctx, want)
	case err != nil:
		return Ensured{}, err
	}
	return s.reuseClaim(want, current, record, recorded)
}

func (s *Store) readClaim(want Claim) (Record, bool, error) {
	record, err := readRecordFile(s.files.ClaimRecord(want.Namespace, want.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	return record, err == nil, err
}

func (s *Store) writeClaim(want Claim, record Record) error {
	return writeRecordFile(s.files.ClaimRecord(want.Namespace, want.Name), want.id(), record)
}

func (s *Store) claimRecord(namespace, name string, capacity int64) Record {
	return Record{
		Address: schemas.Address{Kind: schemas.KindPersistentVolumeClaim, Namespace: namespace, Name: name}, Kind: KindClaim,
		Path: s.files.ClaimImage(namespace, name), Format: diskfile.Raw, CapacityBytes: capacity, Created: s.opts.Now().UTC(), Made: true,
	}
}

// rawCapacity is the size of an image that is raw whatever it holds.
func rawCapacity(path string) (int64, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	stat, err := file.Stat()
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	if !stat.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is %s, not a regular file: %w", path, fileKind(stat.Mode()), ErrForbidden)
	}
	return stat.Size(), nil
}

// newClaim makes the image of a claim beside its place and publishes it whole. The record is written first: one that says
// "filling" without an image is what a killed process leaves, and the work is begun anew.
func (s *Store) newClaim(ctx context.Context, want Claim) (Ensured, error) {
	if want.Capacity <= 0 && want.Fill == nil {
		return Ensured{}, errors.New("it does not exist here and nothing says its size; set spec.resources.requests.storage")
	}
	dir := s.files.Claim(want.Namespace, want.Name)
	filling := filepath.Join(dir, fillingDir)
	err := os.MkdirAll(dir, dirMode)
	if err == nil {
		err = os.RemoveAll(filling)
	}
	if err == nil {
		err = os.Mkdir(filling, 0o700)
	}
	if err != nil {
		return Ensured{}, diskfile.ExplainNoSpace(fmt.Errorf("making its directory: %w", err), s.files.Claims(), dir, 0)
	}
	record := s.claimRecord(want.Namespace, want.Name, roundUp(want.Capacity))
	record.Origin, record.Filling = want.Origin, true
	err = s.writeClaim(want, record)
	if err == nil {
		record.CapacityBytes, err = s.fillClaim(ctx, want, filling)
	}
	if err != nil {
		s.forgetUnfilled(want)
		return Ensured{}, err
	}
	record.Filling = false
	if err := s.writeClaim(want, record); err != nil {
		return Ensured{}, err
	}
	return Ensured{Path: record.Path, Format: diskfile.Raw, CapacityBytes: record.CapacityBytes, Created: true}, os.RemoveAll(filling)
}

// fillClaim makes the image in the directory filling and moves it to its place.
func (s *Store) fillClaim(ctx context.Context, want Claim, filling string) (capacity int64, err error) {
	made := filepath.Join(filling, "empty")
	if want.Fill == nil {
		err = os.WriteFile(made, nil, fileMode)
	} else {
		made, err = want.Fill(ctx, filling)
	}
	if err != nil {
		return 0, err
	}
	size, err := rawCapacity(made)
	if err != nil {
		return 0, err
	}
	capacity = max(roundUp(want.Capacity), roundUp(size))
	if want.Capacity > 0 && capacity > roundUp(want.Capacity) {
		return 0, fmt.Errorf("its source has %s and the claim asks for %s; ask for at least %s: %w",
			diskfile.FormatBytes(size), diskfile.FormatBytes(want.Capacity), diskfile.FormatBytes(roundUp(size)), ErrShrink)
	}
	if capacity == 0 {
		return 0, errors.New("its source is empty")
	}
	if err := os.Truncate(made, capacity); err != nil {
		return 0, diskfile.ExplainNoSpace(fmt.Errorf("giving it its size: %w", err), filling, made, capacity)
	}
	return capacity, s.publish(made, s.files.ClaimImage(want.Namespace, want.Name), false)
}

// forgetUnfilled leaves nothing of a claim that could not be made. What cannot be removed now is swept by the next try.
func (s *Store) forgetUnfilled(want Claim) {
	dir := s.files.Claim(want.Namespace, want.Name)
	if _, err := os.Lstat(s.files.ClaimImage(want.Namespace, want.Name)); err == nil {
		return // it is whole: only the record could not be finished
	}
	_ = os.RemoveAll(filepath.Join(dir, fillingDir))
	_ = removeFile(s.files.ClaimRecord(want.Namespace, want.Name))
	_ = removeIfEmpty(dir)
	_ = removeIfEmpty(filepath.Dir(dir))
}

// reuseClaim checks, and if need be grows, an image that is there.
func (s *Store) reuseClaim(want Claim, current int64, record Record, recorded bool) (Ensured, error) {
	path, capacity := s.files.ClaimImage(want.Namespace, want.Name), roundUp(want.Capacity)
	if want.Capacity > 0 && current > capacity {
		return Ensured{}, fmt.Errorf("it has %s and the manifest asks for %s; ask for at least %s, or use a new claim and copy the data: %w",
			diskfile.FormatBytes(current), diskfile.FormatBytes(capacity), diskfile.FormatBytes(current), ErrShrink)
	}
	capacity = max(capacity, current)
	switch err := diskfile.CheckUnused(path); {
	case err != nil && (!want.Shared && !want.ReadOnly || !errors.Is(err, ErrInUse)):
		return Ensured{}, err
	case err != nil:
		capacity = current // another machine has it open; it grows when it is started next
	}
	if capacity > current {
		if err := os.Truncate(path, capacity); err != nil {
			return Ensured{}, diskfile.ExplainNoSpace(fmt.Errorf("growing it to %s: %w", diskfile.FormatBytes(capacity), err), filepath.Dir(path), path, capacity)
		}
	}
	if !recorded || record.Filling || record.CapacityBytes != capacity {
		if !recorded {
			record = s.claimRecord(want.Namespace, want.Name, capacity)
		}
		record.CapacityBytes, record.Filling = capacity, false
		if err := s.writeClaim(want, record); err != nil {
			return Ensured{}, err
		}
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(path), fillingDir)); err != nil {
		return Ensured{}, fmt.Errorf("sweeping what filled it: %w", err)
	}
	return Ensured{Path: path, Format: diskfile.Raw, CapacityBytes: capacity, Grown: capacity > current}, nil
}

// OpenClaim opens the image of a claim for a copy, while no process has it open and until release is called. It does not wait for
// a claim that somebody works on (ErrBusy): two claims that are copies of each other would wait for ever.
func (s *Store) OpenClaim(namespace, name string) (file *os.File, release func(), err error) {
	want := Claim{Namespace: namespace, Name: name}
	if err := want.check(); err != nil {
		return nil, nil, err
	}
	unlock, free := s.tryLock(claimKey(want.id()))
	if !free {
		return nil, nil, fmt.Errorf("claim %s: %w", want.id(), ErrBusy)
	}
	path := s.files.ClaimImage(namespace, name)
	file, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("there is no image of it on this host; it is made when a VM uses it first: %w", ErrMissing)
	}
	if err == nil {
		if err = diskfile.CheckUnused(path); err != nil {
			err = errors.Join(err, file.Close())
		}
	}
	if err != nil {
		unlock()
		return nil, nil, fmt.Errorf("claim %s: %w", want.id(), err)
	}
	return file, func() { _ = file.Close(); unlock() }, nil
}

// EnsureClaimFolder returns the folder of a claim that is shared as a file system, and makes it the first time. Its
// capacity is that of the host's file system.
func (s *Store) EnsureClaimFolder(ctx context.Context, want Claim) (string, error) {
	if err := want.check(); err != nil {
		return "", err
	}
	if want.Path != "" {
		path, err := s.claimDirectory(want)
		return path, wrapClaim(want, err)
	}
	release, err := s.lock(ctx, claimKey(want.id()))
	if err != nil {
		return "", err
	}
	defer release()
	path, err := s.ensureClaimFolder(want)
	return path, wrapClaim(want, err)
}

func (s *Store) ensureClaimFolder(want Claim) (string, error) {
	record, recorded, err := s.readClaim(want)
	if err != nil {
		return "", err
	}
	_, imageErr := os.Lstat(s.files.ClaimImage(want.Namespace, want.Name))
	switch {
	case (recorded && !record.Folder) || imageErr == nil:
		return "", fmt.Errorf("it holds a disk; use another claim for a file system: %w", ErrForbidden)
	case want.Fill != nil:
		return "", fmt.Errorf("it is filled with a disk image (%s), which is not a file system to share; use it as a disk: %w", want.Origin, ErrForbidden)
	}
	path := s.files.ClaimFolder(want.Namespace, want.Name)
	info, err := os.Lstat(path)
	switch {
	case err == nil && !info.IsDir():
		return "", fmt.Errorf("%s is %s, not a directory: %w", path, fileKind(info.Mode()), ErrForbidden)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case err != nil && recorded:
		return "", fmt.Errorf("%s was made at %s and is gone; put it back, or start anew after `gitvirt disks prune %s`: %w",
			path, record.Created.Format("2006-01-02 15:04"), want.id(), ErrMissing)
	}
	if err == nil && recorded {
		return path, nil
	}
	private := filepath.Dir(path)
	err = os.MkdirAll(filepath.Dir(private), dirMode)
	if err == nil {
		err = errors.Join(os.MkdirAll(private, 0o700), os.MkdirAll(path, 0o755)) //nolint:gosec // the folder above it is private
	}
	if err == nil {
		record = s.claimRecord(want.Namespace, want.Name, want.Capacity)
		record.Path, record.Folder = path, true
		err = s.writeClaim(want, record)
	}
	return path, diskfile.ExplainNoSpace(err, s.files.Claims(), path, 0)
}
