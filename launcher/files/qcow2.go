package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// The layout of a new image (docs/interop/qcow2.txt in QEMU): the header, the table of refcount blocks, one such block, and the L1
// table, each from a cluster of its own, and nothing else. Guests' data comes after that.
const (
	clusterBits    = 16
	clusterSize    = 1 << clusterBits
	headerLength   = 104
	refcountTable  = 1 * clusterSize
	refcountBlock  = 2 * clusterSize
	l1Table        = 3 * clusterSize
	refcountOrder  = 4 // 16 bits each
	entrySize      = 8
	l1Covers       = clusterSize / entrySize * clusterSize // bytes of the disk that an entry of the L1 table stands for: 512 MiB
	maxBackingName = 1023                                  // QEMU's

	offsetVersion  = 4
	offsetCapacity = 24
	offsetL1Size   = 36
)

// roomToGrow is how large an image may become by growImage alone: its L1 table has entries for that from the start. Entries that nothing
// was written to are a hole in the file.
const roomToGrow = 16 << 40

// maxCapacity is the largest disk that is made, which bounds the L1 table.
const maxCapacity = 64 << 40

// sector is what capacities are rounded up to, as QEMU does.
const sector = 512

func roundUp(n int64) int64 { return (n + sector - 1) / sector * sector }

// checkCapacity refuses what is no size of a disk.
func checkCapacity(capacity int64) error {
	if capacity <= 0 || capacity > maxCapacity {
		return problemf(problemOther, "a capacity of %d bytes: want more than 0, and at most %s", capacity, diskfile.FormatBytes(maxCapacity))
	}
	return nil
}

// backing is the image below a new one; the zero backing is none.
type backing struct{ path, format string }

// writeImage writes an empty image of version 3 to an empty file. The format of what is below it stands in the image, so that QEMU
// never reads it off bytes that a guest may have written.
func writeImage(file *os.File, capacity int64, below backing) error {
	if len(below.path) > maxBackingName {
		return problemf(problemForbidden, "the path of the image below is longer than %d bytes", maxBackingName)
	}
	entries := max(capacity, roomToGrow)/l1Covers + 1
	l1Clusters := (entries*entrySize + clusterSize - 1) / clusterSize
	header := imageHeader(capacity, entries, below)

	table := binary.BigEndian.AppendUint64(nil, refcountBlock)
	var counts []byte
	for range l1Table/clusterSize + l1Clusters {
		counts = binary.BigEndian.AppendUint16(counts, 1)
	}
	for _, part := range []struct {
		at      int64
		content []byte
	}{{0, header}, {refcountTable, table}, {refcountBlock, counts}} {
		if _, err := file.WriteAt(part.content, part.at); err != nil {
			return err
		}
	}
	return file.Truncate(l1Table + l1Clusters*clusterSize)
}

// imageHeader is the header with its extensions and the name of the image below.
func imageHeader(capacity, entries int64, below backing) []byte {
	const extensionBackingFormat = 0xE2792ACA
	var extensions []byte
	if below.path != "" {
		extensions = binary.BigEndian.AppendUint32(extensions, extensionBackingFormat)
		extensions = binary.BigEndian.AppendUint32(extensions, uint32(len(below.format))) //nolint:gosec // "raw" or "qcow2"
		extensions = append(extensions, below.format...)
		for len(extensions)%entrySize != 0 {
			extensions = append(extensions, 0)
		}
	}
	extensions = append(extensions, make([]byte, entrySize)...) // their end

	name := 0
	if below.path != "" {
		name = headerLength + len(extensions)
	}
	out := append([]byte(nil), "QFI\xfb"...)
	put32 := func(n int64) { out = binary.BigEndian.AppendUint32(out, uint32(n)) } //nolint:gosec // all of them are small
	put64 := func(n int64) { out = binary.BigEndian.AppendUint64(out, uint64(n)) } //nolint:gosec // none is negative
	put32(3)                                                                       // version
	put64(int64(name))
	put32(int64(len(below.path)))
	put32(clusterBits)
	put64(capacity)
	put32(0) // not encrypted
	put32(entries)
	put64(l1Table)
	put64(refcountTable)
	put32(1) // cluster of the refcount table
	put32(0) // snapshots
	put64(0)
	put64(0) // incompatible features
	put64(0) // compatible ones
	put64(0) // those that are forgotten by who does not know them
	put32(refcountOrder)
	put32(headerLength)
	out = append(out, extensions...)
	return append(out, below.path...)
}

// growImage makes an image larger that nobody has open: its L1 table has room, so that the size in its header is all that changes.
func growImage(file *os.File, capacity int64) error {
	var header [headerLength]byte
	if _, err := file.ReadAt(header[:], 0); err != nil {
		return fmt.Errorf("reading its header: %w", err)
	}
	entries := int64(binary.BigEndian.Uint32(header[offsetL1Size:]))
	if binary.BigEndian.Uint32(header[offsetVersion:]) != 3 || capacity > entries*l1Covers {
		return problemf(problemOther, "it cannot grow to %s: at most %s", diskfile.FormatBytes(capacity), diskfile.FormatBytes(entries*l1Covers))
	}
	size := binary.BigEndian.AppendUint64(nil, uint64(capacity)) //nolint:gosec // it was checked
	if _, err := file.WriteAt(size, offsetCapacity); err != nil {
		return err
	}
	return file.Sync()
}

// imageCapacity reads the size of an image that is known to be qcow2. A guest cannot write its header; it is an error that it is
// damaged, or refers to another file, since somebody else must have been here.
func imageCapacity(path string) (int64, error) {
	file, info, err := openRegular(path)
	if err != nil {
		return 0, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	found, err := diskfile.Detect(file, info.Size())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if found.Format != diskfile.QCOW2 {
		return 0, fmt.Errorf("%s: %w", path, errors.New("it is not a qcow2 image any more"))
	}
	return found.VirtualSize, nil
}

// copyExactly copies size bytes; fewer are an error.
func copyExactly(to io.Writer, from io.Reader, size int64) error {
	_, err := io.CopyN(to, from, size)
	return err
}
