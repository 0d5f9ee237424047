package disks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/schemas"
)

// Disk is a disk that holds data, whether its machine still exists or not.
type Disk struct {
	// ID names the disk for Delete: NAMESPACE/NAME/VOLUME.
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
		if statErr := disk.stat(); statErr != nil {
			err = errors.Join(err, statErr)
			continue
		}
		disks = append(disks, disk)
	}
	slices.SortFunc(disks, func(a, b Disk) int { return cmp.Compare(a.ID, b.ID) })
	return disks, err
}

func (d *Disk) stat() error {
	var stat unix.Stat_t
	err := unix.Lstat(d.Path, &stat)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.Missing = true
		return nil
	case err != nil:
		return fmt.Errorf("disk %s: looking at %s: %w", d.ID, d.Path, err)
	}
	const blockSize = 512 // of st_blocks, whatever the file system's
	d.AllocatedBytes = stat.Blocks * blockSize
	d.Modified = time.Unix(stat.Mtim.Unix()).UTC()
	return nil
}

// records reads every record, by ID, and makes one up for a disk whose record was not written before a crash. On an error
// the records that could be read are returned, too.
func (s *Store) records() (map[string]Record, error) {
	records := map[string]Record{}
	var errs []error
	err := filepath.WalkDir(filepath.Join(s.dir, disksDir), func(path string, entry fs.DirEntry, err error) error {
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
	return records, errors.Join(append(errs, err)...)
}

// volumeOf reads the names out of disks/NAMESPACE/NAME/VOLUME.EXT.
func (s *Store) volumeOf(path string) (id string, v volume, ok bool) {
	relative, err := filepath.Rel(filepath.Join(s.dir, disksDir), path)
	if err != nil {
		return "", volume{}, false
	}
	parts := strings.Split(relative, string(filepath.Separator))
	if len(parts) != 3 {
		return "", volume{}, false
	}
	name, isJSON := strings.CutSuffix(parts[2], recordExt)
	if !isJSON {
		if name, ok = strings.CutSuffix(parts[2], qcow2Ext); !ok {
			return "", volume{}, false
		}
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
		if err := diskfile.CheckUnused(record.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("deleting disk %s: %w", id, err)
		}
	}
	deleted := make([]Deleted, 0, len(ids))
	for _, id := range ids {
		// An unreadable record could name the same file: then the count is not known to be complete.
		shared := users[records[id].Path] > 1 || (readErr != nil && records[id].Kind == KindHostDisk)
		one, err := s.deleteOne(id, records[id], shared)
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
		one, err := s.lock(ctx, id)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, one)
	}
	return release, nil
}

// deleteOne removes the file first: a crash in between leaves a record whose file is missing, which can be deleted again.
func (s *Store) deleteOne(id string, record Record, shared bool) (Deleted, error) {
	disk := Disk{ID: id, Record: record}
	if err := disk.stat(); err != nil {
		return Deleted{}, err
	}
	out := Deleted{ID: id, Path: record.Path}
	switch {
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
	dir := filepath.Join(s.dir, disksDir, parts[0], parts[1])
	if err := removeFile(filepath.Join(dir, parts[2]+recordExt)); err != nil {
		return Deleted{}, err
	}
	return out, errors.Join(removeIfEmpty(dir), removeIfEmpty(filepath.Dir(dir)), syncIfThere(filepath.Join(s.dir, disksDir)))
}

func syncIfThere(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return diskfile.SyncDir(dir)
}
