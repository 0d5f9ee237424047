package guestmetrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// DiskSize is the size of a metrics disk in bytes, vhostmd's.
const DiskSize = 256 << 10

// The header of the disk: "mvbd", whether it is being written, the sum of the body's bytes, and its length; each four bytes,
// big-endian. The body follows.
const (
	signature  = "mvbd"
	headerSize = 16
	// maxBody leaves what readers leave: they take 24 bytes for the header.
	maxBody = DiskSize - 24
)

func header(busy bool, body []byte) []byte {
	var sum, flag uint32
	for _, b := range body {
		sum += uint32(b)
	}
	if busy {
		flag = 1
	}
	out := []byte(signature)
	out = binary.BigEndian.AppendUint32(out, flag)
	out = binary.BigEndian.AppendUint32(out, sum)
	return binary.BigEndian.AppendUint32(out, uint32(len(body))) //nolint:gosec // at most DiskSize
}

// CreateDisk makes the disk at path, without figures, unless it is there.
func CreateDisk(path string) error {
	info, err := os.Lstat(path)
	if err == nil && info.Mode().IsRegular() && info.Size() == DiskSize {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("metrics disk: %w", err)
	}
	err = diskfile.Write(path, diskfile.WriteOptions{Mode: 0o600, Volatile: true}, func(file *os.File) error {
		if err := file.Truncate(DiskSize); err != nil {
			return err
		}
		return writeBody(file, []byte("<metrics></metrics>\n"))
	})
	if err != nil {
		return fmt.Errorf("metrics disk: %w", err)
	}
	return nil
}

// WriteDisk puts figures onto the disk at path, which a guest has open: the file stays the same one. A guest that reads
// meanwhile sees that it is being written, or a sum that does not fit, and reads again.
func WriteDisk(path string, body []byte) error {
	if len(body) > maxBody {
		return fmt.Errorf("metrics disk: the figures have %d bytes and at most %d are allowed", len(body), maxBody)
	}
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("metrics disk: %w", err)
	}
	err = errors.Join(writeBody(file, body), file.Close())
	if err != nil {
		return fmt.Errorf("metrics disk: %w", err)
	}
	return nil
}

func writeBody(file *os.File, body []byte) error {
	if _, err := file.WriteAt(header(true, body), 0); err != nil {
		return err
	}
	if _, err := file.WriteAt(body, headerSize); err != nil {
		return err
	}
	_, err := file.WriteAt(header(false, body), 0)
	return err
}
