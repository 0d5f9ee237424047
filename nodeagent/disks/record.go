package disks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/schemas"
)

// Record is what is kept about a disk, as JSON beside it.
type Record struct {
	Address schemas.Address `json:"address"`
	Volume  string          `json:"volume"`
	Kind    Kind            `json:"kind"`
	Path    string          `json:"path"`
	// Format was decided when the disk was made or adopted; see the package comment.
	Format diskfile.Format `json:"format"`
	// CapacityBytes is what the guest sees.
	CapacityBytes int64     `json:"capacityBytes"`
	Created       time.Time `json:"created"`
	// Made says that gitvirt made the file, so that it may delete it when told. A hostDisk that was there before is
	// the user's and is never deleted.
	Made bool `json:"made"`
	// Block says that Path is a block device.
	Block bool `json:"block,omitempty"`
	// Folder says that Path is a folder: a claim that is shared as a file system.
	Folder bool `json:"folder,omitempty"`
	// Origin says where the first content of a claim came from; empty for one that began empty.
	Origin string `json:"origin,omitempty"`
	// Filling says that the first content of a claim is on its way: until the image is there, it is begun anew.
	Filling bool `json:"filling,omitempty"`
}

// readRecord returns the record of a volume, and false when there is none.
func (s *Store) readRecord(v volume) (Record, bool, error) {
	record, err := readRecordFile(s.recordPath(v))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, err
	}
	return record, true, nil
}

func readRecordFile(path string) (Record, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Record{}, fmt.Errorf("reading a disk's record: %w", err)
	}
	var record Record
	if err := json.Unmarshal(raw, &record); err != nil {
		return Record{}, fmt.Errorf("disk record %s: %w", path, err)
	}
	if record.Path == "" || (record.Format != diskfile.Raw && record.Format != diskfile.QCOW2) {
		return Record{}, fmt.Errorf("disk record %s: no path or an unknown format %q", path, record.Format)
	}
	return record, nil
}

func (s *Store) writeRecord(v volume, record Record) error {
	return writeRecordFile(s.recordPath(v), v.id(), record)
}

func writeRecordFile(path, id string, record Record) error {
	encoded, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the record of disk %s: %w", id, err)
	}
	err = diskfile.Write(path, diskfile.WriteOptions{Mode: fileMode}, func(file *os.File) error {
		_, err := file.Write(append(encoded, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("record of disk %s: %w", id, err)
	}
	return nil
}

// removedFix tells how to go on after a disk's file was lost.
func removedFix(v volume) string {
	return fmt.Sprintf("put it back, or start with an empty one after `gitvirt disks prune %s`", v.id())
}

// isRecord tells a record's name from a temporary file's.
func isRecord(name string) bool {
	return strings.HasSuffix(name, recordExt) && !strings.HasPrefix(name, ".")
}

// NoteCapacity writes down that a disk has grown while a guest had it open, to capacity bytes. A disk without a record needs
// none: its size is read off the image when the guest is off.
func (s *Store) NoteCapacity(ctx context.Context, path string, capacity int64) error {
	records, err := s.records()
	for id, record := range records {
		if record.Path != path || record.CapacityBytes >= capacity {
			continue
		}
		key, file := id, s.files.Record(record.Address, record.Volume)
		if record.Kind == KindClaim {
			key, file = claimKey(id), s.files.ClaimRecord(record.Address.Namespace, record.Address.Name)
		}
		release, err := s.lock(ctx, key)
		if err != nil {
			return err
		}
		record.CapacityBytes = capacity
		err = writeRecordFile(file, id, record)
		release()
		return err
	}
	return err
}
