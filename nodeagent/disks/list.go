package disks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/schemas"
)

// Disk is a disk that holds data, whether its machine still exists or not.
type Disk struct {
	// ID names the disk for Delete: NAMESPACE/NAME/VOLUME, or NAMESPACE/NAME for a claim.
	ID string `json:"id"`
	Record
	// AllocatedBytes is what the disk takes on the host.
	AllocatedBytes int64 `json:"allocatedBytes"`
	// Modified is when the disk was last written to.
	Modified time.Time `json:"modified,omitzero"`
	// Missing says that the record is there and the file is not.
	Missing bool `json:"missing,omitempty"`
}

// List returns the disks of the store, sorted by ID. Disks that cannot be read are left out and named in the error; the
// others are returned beside it.
func (s *Store) List(ctx context.Context) ([]Disk, error) {
	records, err := s.records()
	disks := make([]Disk, 0, len(records))
	for id, record := range records {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("listing disks: %w", context.Cause(ctx))
		}
		disk := Disk{ID: id, Record: record}
		if statErr := disk.stat(ctx); statErr != nil {
			err = errors.Join(err, statErr)
			continue
		}
		disks = append(disks, disk)
	}
	slices.SortFunc(disks, func(a, b Disk) int { return cmp.Compare(a.ID, b.ID) })
	return disks, err
}

func (d *Disk) stat(ctx context.Context) error {
	stat := unix.Lstat
	if d.Block {
		stat = unix.Stat // the names of devices are links
	}
	var info unix.Stat_t
	err := stat(d.Path, &info)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.Missing = true
		if !d.Filling {
			return nil
		}
		// What a killed process left of it takes space, too.
		d.AllocatedBytes, err = allocated(ctx, filepath.Join(filepath.Dir(d.Path), fillingDir))
		return err
	case err != nil:
		return fmt.Errorf("disk %s: looking at %s: %w", d.ID, d.Path, err)
	}
	d.AllocatedBytes = info.Blocks * blockSize
	d.Modified = time.Unix(info.Mtim.Unix()).UTC()
	switch {
	case d.Block:
		d.AllocatedBytes, d.Modified = 0, time.Time{} // the time is when the device appeared
	case d.Folder:
		d.AllocatedBytes, err = allocated(ctx, d.Path)
	}
	return err
}

// blockSize is that of st_blocks, whatever the file system's.
const blockSize = 512

// records reads every record, by ID, and makes one up for a disk whose record was not written before a crash. On an error
// the records that could be read are returned, too.
func (s *Store) records() (map[string]Record, error) {
	records := map[string]Record{}
	var errs []error
	err := filepath.WalkDir(s.files.Disks(), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
			return nil
		case err != nil:
			errs = append(errs, err)
			return nil
		case entry.IsDir() || strings.HasPrefix(entry.Name(), "."):
			return nil
		}
		id, v, ok := s.volumeOf(path)
		if !ok {
			return nil
		}
		record, err := s.recordOf(v, path)
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		if _, present := records[id]; !present || isRecord(entry.Name()) {
			records[id] = record
		}
		return nil
	})
	claims, claimsErr := s.claimRecords()
	maps.Copy(records, claims)
	return records, errors.Join(append(errs, err, claimsErr)...)
}

// claimRecords reads the record of every claim, by ID, and makes one up for an image that has none.
func (s *Store) claimRecords() (map[string]Record, error) {
	records := map[string]Record{}
	var errs []error
	dirs, err := filepath.Glob(filepath.Join(s.files.Claims(), "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		claim := Claim{Namespace: filepath.Base(filepath.Dir(dir)), Name: filepath.Base(dir)}
		if claim.check() != nil {
			continue
		}
		record, recorded, err := s.readClaim(claim)
		if err == nil && !recorded {
			var capacity int64
			capacity, err = rawCapacity(s.files.ClaimImage(claim.Namespace, claim.Name))
			record = s.claimRecord(claim.Namespace, claim.Name, capacity)
			record.Created = time.Time{}
			if folder := s.files.ClaimFolder(claim.Namespace, claim.Name); errors.Is(err, fs.ErrNotExist) && isDirectory(folder) {
				record.Path, record.Folder, err = folder, true, nil
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
		case err != nil:
			errs = append(errs, err)
		default:
			records[claim.id()] = record
		}
	}
	return records, errors.Join(errs...)
}

func isDirectory(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// volumeOf reads the names out of disks/NAMESPACE/NAME/VOLUME.EXT.
func (s *Store) volumeOf(path string) (id string, v volume, ok bool) {
	relative, err := filepath.Rel(s.files.Disks(), path)
	if err != nil {
		return "", volume{}, false
	}
	parts := strings.Split(relative, string(filepath.Separator))
	if len(parts) != 3 {
		return "", volume{}, false
	}
	extension := filepath.Ext(parts[2])
	name := strings.TrimSuffix(parts[2], extension)
	if extension != recordExt && extension != qcow2Ext && (extension != nvramExt || name != layout.Firmware) {
		return "", volume{}, false
	}
	owner := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: parts[0], Name: parts[1]}
	v, err = newVolume(owner, name)
	return v.id(), v, err == nil
}

func (s *Store) recordOf(v volume, path string) (Record, error) {
	if isRecord(filepath.Base(path)) {
		return readRecordFile(path)
	}
	record, recorded, err := s.readRecord(v)
	if err != nil || recorded {
		return record, err
	}
	if strings.HasSuffix(path, nvramExt) {
		capacity, err := rawCapacity(path)
		return Record{Address: v.owner, Volume: v.name, Kind: KindNVRAM, Path: path, Format: diskfile.Raw, CapacityBytes: capacity, Made: true}, err
	}
	capacity, err := qcow2Capacity(path)
	if err != nil {
		return Record{}, err
	}
	record = s.emptyDiskRecord(v, capacity)
	record.Created = time.Time{}
	return record, nil
}

// Deleted is what Delete did about one disk.
type Deleted struct {
	ID   string `json:"id"`
	Path string `json:"path"`
	// Freed is how many bytes the host got back.
	Freed int64 `json:"freed"`
	// Kept says why the file was left and only forgotten; empty when it was deleted.
	Kept string `json:"kept,omitempty"`
}

// Delete deletes the disks with these IDs and no other. When one of them is unknown or in use, none is deleted. A hostDisk
// that gitvirt did not make, or that another volume names as well, is forgotten and its file kept.
func (s *Store) Delete(ctx context.Context, ids ...string) ([]Deleted, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	release, err := s.lockAll(ctx, ids)
	if err != nil {
		return nil, err
	}
	defer release()

	records, readErr := s.records()
	users := map[string]int{}
	for _, record := range records {
		users[record.Path]++
	}
	for _, id := range ids {
		record, known := records[id]
		if !known {
			return nil, fmt.Errorf("disk %q: %w; `gitvirt disks` lists them", id, errors.Join(ErrUnknown, readErr))
		}
		if record.Block || record.Folder {
			continue // a device is only forgotten; who shares a folder is the caller's to know
		}
		if err := diskfile.CheckUnused(record.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("deleting disk %s: %w", id, err)
		}
	}
	deleted := make([]Deleted, 0, len(ids))
	for _, id := range ids {
		// An unreadable record could name the same file: then the count is not known to be complete.
		shared := users[records[id].Path] > 1 || (readErr != nil && records[id].Kind == KindHostDisk)
		one, err := s.deleteOne(ctx, id, records[id], shared)
		if err != nil {
			return deleted, fmt.Errorf("deleting disk %s: %w", id, err)
		}
		users[records[id].Path]--
		deleted = append(deleted, one)
	}
	return deleted, nil
}

// lockAll locks volumes in the order of their sorted IDs, so that two callers never wait for each other.
func (s *Store) lockAll(ctx context.Context, ids []string) (release func(), err error) {
	held := make([]func(), 0, len(ids))
	release = func() {
		for _, one := range held {
			one()
		}
	}
	for _, id := range ids {
		key := id
		if isClaim(id) {
			key = claimKey(id)
		}
		one, err := s.lock(ctx, key)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, one)
	}
	return release, nil
}

// isClaim tells the ID of a claim from that of a machine's volume.
func isClaim(id string) bool { return strings.Count(id, "/") == 1 }

// deleteOne removes the file first: a crash in between leaves a record whose file is missing, which can be deleted again.
func (s *Store) deleteOne(ctx context.Context, id string, record Record, shared bool) (Deleted, error) {
	disk := Disk{ID: id, Record: record}
	if err := disk.stat(ctx); err != nil {
		return Deleted{}, err
	}
	out := Deleted{ID: id, Path: record.Path}
	switch {
	case isClaim(id) && (record.Filling || !disk.Missing):
		out.Freed = disk.AllocatedBytes // everything in its directory is gitvirt's
	case disk.Missing:
		out.Kept = "the file is gone already"
	case !record.Made:
		out.Kept = "gitvirt did not make this file"
	case shared:
		out.Kept = "another volume uses this file"
	default:
		if err := removeFile(record.Path); err != nil {
			return Deleted{}, err
		}
		out.Freed = disk.AllocatedBytes
	}
	parts := strings.Split(id, "/")
	if isClaim(id) {
		return out, s.removeClaim(parts[0], parts[1])
	}
	dir := filepath.Join(s.files.Disks(), parts[0], parts[1])
	if err := removeFile(filepath.Join(dir, parts[2]+recordExt)); err != nil {
		return Deleted{}, err
	}
	return out, errors.Join(removeIfEmpty(dir), removeIfEmpty(filepath.Dir(dir)), syncIfThere(s.files.Disks()))
}

// removeClaim removes everything of a claim, its record last.
func (s *Store) removeClaim(namespace, name string) error {
	dir := s.files.Claim(namespace, name)
	for _, path := range []string{
		s.files.ClaimImage(namespace, name), filepath.Dir(s.files.ClaimFolder(namespace, name)), filepath.Join(dir, fillingDir), s.files.ClaimRecord(namespace, name),
	} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return errors.Join(removeIfEmpty(dir), removeIfEmpty(filepath.Dir(dir)), syncIfThere(s.files.Claims()))
}

func syncIfThere(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return diskfile.SyncDir(dir)
}
