// Package diskfile knows what a disk image file on this host is: its format by its own bytes, the space around it,
// who has it open, and how to write one so that a crash leaves the old file or the new one and nothing between. It knows
// neither virtual machines nor where disks live; package disks and package images do.
package diskfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Format is a disk image format, spelled as QEMU spells it.
type Format string

// The formats that gitvirt runs. All others are refused by name.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// Info is what the bytes of an image say about it.
type Info struct {
	Format Format
	// VirtualSize is the size of the disk that the guest sees, in bytes, rounded up to whole 512-byte sectors.
	VirtualSize int64
}

// ErrForeignData says that an image refers to another file, a backing file or an external data file. QEMU would open
// that file for the guest, whatever it is, so such an image is never used.
var ErrForeignData = errors.New("the image refers to another file on the host")

// FormatError says why an image cannot be used, and what to do about it.
type FormatError struct {
	// Reason is what is wrong with the image.
	Reason string
	// Fix is what the user can do.
	Fix string
	// Err is ErrForeignData, or nil.
	Err error
}

// Error returns the reason and the fix in one line.
func (e *FormatError) Error() string {
	if e.Fix == "" {
		return e.Reason
	}
	return e.Reason + "; " + e.Fix
}

// Unwrap returns ErrForeignData when that is the reason.
func (e *FormatError) Unwrap() error { return e.Err }

const sectorSize = 512

// foreignFormat is an image format that QEMU can read and that is refused by name.
type foreignFormat struct {
	name   string
	magic  string
	offset int64 // from the end of the file when negative
	fix    string
}

const convert = "convert it: qemu-img convert -O qcow2 IN OUT"

// foreignFormats are read off QEMU's own probes (block/*.c, *_probe) and the common compressors.
func foreignFormats() []foreignFormat {
	return []foreignFormat{
		{"VMDK", "KDMV", 0, convert},
		{"VMDK", "COWD", 0, convert},
		{"VMDK (descriptor)", "# Disk DescriptorFile", 0, convert},
		{"VHDX", "vhdxfile", 0, convert},
		{"VHD", "conectix", 0, convert},
		{"VHD", "conectix", -sectorSize, convert},
		{"VDI", "\x7f\x10\xda\xbe", 0x40, convert},
		{"QED", "QED\x00", 0, convert},
		{"Parallels", "WithoutFreeSpace", 0, convert},
		{"Parallels", "WithouFreSpacExt", 0, convert},
		{"Bochs", "Bochs Virtual HD Image", 0, convert},
		{"DMG", "koly", -sectorSize, convert},
		{"cloop", "#!/bin/sh\n#V2.0 Format", 0, convert},
		{"gzip-compressed", "\x1f\x8b\x08", 0, "decompress it with gunzip"},
		{"xz-compressed", "\xfd7zXZ\x00", 0, "decompress it with unxz"},
		{"zstd-compressed", "\x28\xb5\x2f\xfd", 0, "decompress it with unzstd"},
		{"bzip2-compressed", "BZh", 0, "decompress it with bunzip2"},
	}
}

const qcow2Magic = "QFI\xfb"

// Detect tells the format of an image of size bytes by its magic. What is neither qcow2 nor one of the formats that
// are refused by name is a raw disk. A guest writes the bytes of its raw disk, so the format of a
// disk that a guest has used must never be detected again: remember what was decided when it was made.
func Detect(r io.ReaderAt, size int64) (Info, error) {
	if size <= 0 {
		return Info{}, &FormatError{Reason: "the image is empty"}
	}
	header := make([]byte, sectorSize)
	n, err := r.ReadAt(header, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Info{}, fmt.Errorf("reading the header: %w", err)
	}
	header = header[:n]
	if bytes.HasPrefix(header, []byte(qcow2Magic)) {
		return parseQCOW2(header, size)
	}
	for _, format := range foreignFormats() {
		matches, err := hasMagic(r, size, format)
		if err != nil {
			return Info{}, fmt.Errorf("reading the magic of %s: %w", format.name, err)
		}
		if matches {
			return Info{}, &FormatError{
				Reason: fmt.Sprintf("the image is %s, and only raw and qcow2 are supported", format.name),
				Fix:    format.fix,
			}
		}
	}
	if size > math.MaxInt64-sectorSize {
		return Info{}, &FormatError{Reason: "the image is too large"}
	}
	return Info{Format: Raw, VirtualSize: (size + sectorSize - 1) / sectorSize * sectorSize}, nil
}

func hasMagic(r io.ReaderAt, size int64, format foreignFormat) (bool, error) {
	offset := format.offset
	if offset < 0 {
		offset += size
	}
	if offset < 0 || offset+int64(len(format.magic)) > size {
		return false, nil
	}
	got := make([]byte, len(format.magic))
	if _, err := r.ReadAt(got, offset); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return string(got) == format.magic, nil
}

// The header of qcow2 (docs/interop/qcow2.txt in QEMU): big-endian, 72 bytes in version 2, at least 104 in version 3.
const (
	qcow2HeaderV2    = 72
	qcow2HeaderV3    = 104
	incompatDataFile = 1 << 2
	incompatKnown    = 1<<5 - 1 // dirty, corrupt, data file, compression type, extended L2
	minClusterBits   = 9
	maxClusterBits   = 21
)

func parseQCOW2(header []byte, size int64) (Info, error) {
	if len(header) < qcow2HeaderV2 {
		return Info{}, &FormatError{Reason: fmt.Sprintf("the qcow2 header is cut off after %d bytes", len(header))}
	}
	version := binary.BigEndian.Uint32(header[4:])
	var incompatible uint64
	switch {
	case version == 2:
	case version == 3 && len(header) >= qcow2HeaderV3:
		incompatible = binary.BigEndian.Uint64(header[72:])
	case version == 3:
		return Info{}, &FormatError{Reason: fmt.Sprintf("the qcow2 header is cut off after %d bytes", len(header))}
	default:
		return Info{}, &FormatError{Reason: fmt.Sprintf("the image is qcow version %d, and only versions 2 and 3 are supported", version), Fix: convert}
	}
	if err := checkQCOW2References(header, incompatible); err != nil {
		return Info{}, err
	}
	return checkQCOW2Geometry(header, size)
}

// checkQCOW2References refuses what would make QEMU open another file, or ask for a key.
func checkQCOW2References(header []byte, incompatible uint64) error {
	const flatten = "flatten it: qemu-img convert -O qcow2 IN OUT"
	switch {
	case binary.BigEndian.Uint64(header[8:]) != 0 || binary.BigEndian.Uint32(header[16:]) != 0:
		return &FormatError{Reason: "the qcow2 image has a backing file", Fix: flatten, Err: ErrForeignData}
	case incompatible&incompatDataFile != 0:
		return &FormatError{Reason: "the qcow2 image keeps its data in another file", Fix: flatten, Err: ErrForeignData}
	case incompatible&^incompatKnown != 0:
		return &FormatError{Reason: fmt.Sprintf("the qcow2 image uses unknown features (%#x)", incompatible&^incompatKnown), Fix: convert}
	case binary.BigEndian.Uint32(header[32:]) != 0:
		return &FormatError{Reason: "the qcow2 image is encrypted", Fix: "decrypt it with qemu-img convert"}
	}
	return nil
}

func checkQCOW2Geometry(header []byte, size int64) (Info, error) {
	clusterBits := binary.BigEndian.Uint32(header[20:])
	virtual := binary.BigEndian.Uint64(header[24:])
	l1Offset := binary.BigEndian.Uint64(header[40:])
	refcountOffset := binary.BigEndian.Uint64(header[48:])
	switch {
	case clusterBits < minClusterBits || clusterBits > maxClusterBits:
		return Info{}, &FormatError{Reason: fmt.Sprintf("the qcow2 header is damaged (cluster bits %d)", clusterBits)}
	case virtual == 0:
		return Info{}, &FormatError{Reason: "the qcow2 image holds a disk of 0 bytes"}
	case virtual > math.MaxInt64-sectorSize:
		return Info{}, &FormatError{Reason: fmt.Sprintf("the qcow2 header is damaged (size %d)", virtual)}
	case l1Offset > uint64(size) || refcountOffset > uint64(size): //nolint:gosec // a size is not negative
		return Info{}, &FormatError{Reason: fmt.Sprintf("the qcow2 image is cut off: it has %d bytes and refers to more", size), Fix: "copy it again"}
	}
	return Info{Format: QCOW2, VirtualSize: (int64(virtual) + sectorSize - 1) / sectorSize * sectorSize}, nil
}
