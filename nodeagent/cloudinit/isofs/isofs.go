// Package isofs builds small ISO 9660 images with a flat directory: what a guest reads its cloud-init data, a Secret or a
// ConfigMap from. Every reader sees the same names: Rock Ridge (Linux, BSD), Joliet (Windows) and the plain names
// (relaxed to lower case) are all written. The same files give the same bytes, whatever the time and the
// machine, so a caller may compare images instead of tracking changes.
//
// It is not a general writer: no directories, no El Torito, images of some MiB built in memory. go-diskfs was weighed and reads these
// images in the tests; it stamps the current time on what it writes, needs its input as files on
// disk, which here are secrets, and drops write errors, so a full disk would give a truncated image.
//
// References: ECMA-119, IEEE P1281 (SUSP), IEEE P1282 (Rock Ridge), Joliet Specification 1995.
package isofs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"
)

const (
	sectorSize = 2048
	// MaxSize bounds an image, because it is built in memory.
	MaxSize = 64 << 20
	// maxNameLength keeps a directory record below its 255 bytes with the plain and the Rock Ridge name in it; Joliet allows 64 characters.
	maxNameLength = 64
	// padding is what mkisofs appends too: readers look ahead, and busybox's findfs recognizes no volume below 68 KiB.
	padding = 150
)

// File is one file of an image.
type File struct {
	Name string
	Data []byte
}

var validName = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

// The sectors of an image, in order. One sector each is enough for the path tables (a root only); the two directories vary.
const (
	primarySector = 16 + iota
	jolietSector
	terminatorSector
	pathLSector
	pathMSector
	jolietPathLSector
	jolietPathMSector
	firstDirectorySector
)

// Build returns an ISO 9660 image that holds files under the volume label. Labels have up to 16 characters, names up to 64 of
// a-z, A-Z, 0-9, ".", "_" and "-".
func Build(label string, files []File) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	if err := check(label, files); err != nil {
		return nil, err
	}
	plan := arrange(files)
	image := make([]byte, plan.sectors*sectorSize)
	at := func(sector int) []byte { return image[sector*sectorSize:] }

	copy(at(primarySector), volumeDescriptor(label, plan, false))
	copy(at(jolietSector), volumeDescriptor(label, plan, true))
	copy(at(terminatorSector), "\xffCD001\x01")
	copy(at(pathLSector), pathTable(binary.LittleEndian, plan.directory))
	copy(at(pathMSector), pathTable(binary.BigEndian, plan.directory))
	copy(at(jolietPathLSector), pathTable(binary.LittleEndian, plan.jolietDirectory))
	copy(at(jolietPathMSector), pathTable(binary.BigEndian, plan.jolietDirectory))
	copy(at(plan.directory.start), plan.directory.bytes(plan))
	copy(at(plan.continuation), extensionReference())
	copy(at(plan.jolietDirectory.start), plan.jolietDirectory.bytes(plan))
	for _, file := range plan.files {
		copy(at(file.start), file.Data)
	}
	return image, nil
}

func check(label string, files []File) error {
	if len(label) == 0 || len(label) > 16 || !validName.MatchString(label) {
		return fmt.Errorf("volume label %q: want 1 to 16 letters, digits, dots, dashes or underscores", label)
	}
	total := 0
	for i, file := range files {
		if len(file.Name) > maxNameLength || !validName.MatchString(file.Name) || strings.Trim(file.Name, ".") == "" {
			return fmt.Errorf("file name %q: want 1 to %d letters, digits, dots, dashes or underscores", file.Name, maxNameLength)
		}
		if i > 0 && files[i-1].Name == file.Name {
			return fmt.Errorf("file name %q: named twice", file.Name)
		}
		total += len(file.Data)
		if total > MaxSize {
			return fmt.Errorf("file %q: the files have more than %d MiB together", file.Name, MaxSize>>20)
		}
	}
	return nil
}

// placedFile is a File and where its data starts.
type placedFile struct {
	File
	start int
}

// layout says which sector everything starts at.
type layout struct {
	files           []placedFile
	directory       directory
	jolietDirectory directory
	continuation    int
	sectors         int
}

func arrange(files []File) layout {
	plan := layout{files: make([]placedFile, len(files))}
	for i, file := range files {
		plan.files[i].File = file
	}
	plan.directory = directory{start: firstDirectorySector}
	plan.directory.sectors = len(plan.directory.bytes(plan)) / sectorSize
	plan.continuation = plan.directory.start + plan.directory.sectors
	plan.jolietDirectory = directory{start: plan.continuation + 1, joliet: true}
	plan.jolietDirectory.sectors = len(plan.jolietDirectory.bytes(plan)) / sectorSize

	next := plan.jolietDirectory.start + plan.jolietDirectory.sectors
	for i := range plan.files {
		plan.files[i].start = next
		next += (len(plan.files[i].Data) + sectorSize - 1) / sectorSize
	}
	plan.sectors = next + padding
	return plan
}

// volumeDescriptor is the primary one (ECMA-119, 8.4) or Joliet's supplementary one (8.5).
func volumeDescriptor(label string, plan layout, joliet bool) []byte {
	d := make([]byte, sectorSize)
	root, tableL, tableM := plan.directory, pathLSector, pathMSector
	text := func(s string, width int) []byte { return padded([]byte(s), []byte{' '}, width) }
	d[0] = 1
	if joliet {
		d[0] = 2
		root, tableL, tableM = plan.jolietDirectory, jolietPathLSector, jolietPathMSector
		text = func(s string, width int) []byte { return padded(utf16Bytes(s), []byte{0, ' '}, width) }
		copy(d[88:], "%/E") // UCS-2 level 3
	}
	copy(d[1:], "CD001\x01")
	copy(d[8:], text("LINUX", 32)) // system identifier
	copy(d[40:], text(label, 32))
	putBoth32(d[80:], uint32(plan.sectors)) //nolint:gosec // bounded by MaxSize
	putBoth16(d[120:], 1)                   // volume set size
	putBoth16(d[124:], 1)                   // volume sequence number
	putBoth16(d[128:], sectorSize)
	putBoth32(d[132:], pathTableLength)
	binary.LittleEndian.PutUint32(d[140:], uint32(tableL))
	binary.BigEndian.PutUint32(d[148:], uint32(tableM))
	copy(d[156:], record([]byte{0}, root.start, root.sectors*sectorSize, true, nil))
	copy(d[190:], text("", 128)) // volume set
	copy(d[318:], text("", 128)) // publisher
	copy(d[446:], text("", 128)) // preparer
	copy(d[574:], text("GITVIRT", 128))
	copy(d[702:], text("", 111)) // copyright, abstract and bibliographic files
	for _, offset := range []int{813, 830, 847, 864} {
		copy(d[offset:], longTime)
	}
	d[881] = 1 // file structure version
	return d
}

const (
	pathTableLength = 10
	// longTime is the volume's time stamps: unset in creation would be allowed, but Windows shows it as an error.
	longTime = "1980010100000000\x00"
)

// shortTime is the time stamp of every file (ECMA-119, 9.1.5): the start of 1980, which FAT, ISO and UDF can all express.
func shortTime() []byte { return []byte{80, 1, 1, 0, 0, 0, 0} }

func pathTable(order binary.AppendByteOrder, root directory) []byte {
	table := order.AppendUint32([]byte{1, 0}, uint32(root.start)) //nolint:gosec // bounded by MaxSize
	return append(order.AppendUint16(table, 1), 0, 0)
}

func putBoth16(b []byte, v uint16) {
	binary.LittleEndian.PutUint16(b, v)
	binary.BigEndian.PutUint16(b[2:], v)
}

func putBoth32(b []byte, v uint32) {
	binary.LittleEndian.PutUint32(b, v)
	binary.BigEndian.PutUint32(b[4:], v)
}

func padded(b, pad []byte, width int) []byte {
	for len(b)+len(pad) <= width {
		b = append(b, pad...)
	}
	return append(b, make([]byte, width-len(b))...)[:width]
}

func utf16Bytes(s string) []byte {
	var b []byte
	for _, unit := range utf16.Encode([]rune(s)) {
		b = binary.BigEndian.AppendUint16(b, unit)
	}
	return b
}
