// Package isofs builds small ISO 9660 images: what a guest reads its cloud-init data, a Secret or a ConfigMap from. Every reader sees the same names: Rock Ridge (Linux, BSD), Joliet (Windows) and the plain names
// (relaxed to lower case) are all written. The same files give the same bytes, whatever the time and the
// machine, so a caller may compare images instead of tracking changes.
//
// It is not a general writer: a few directories, no El Torito, images of some MiB built in memory. go-diskfs was weighed and reads these
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
	// A volume's name has 32 characters, and half as many in Joliet's two bytes each.
	maxLabelLength, maxJolietLabelLength = 32, 16
	// padding is what mkisofs appends too: readers look ahead, and busybox's findfs recognizes no volume below 68 KiB.
	padding = 150
)

// File is one file of an image.
type File struct {
	// Name is the file's path: names that are joined by slashes.
	Name string
	Data []byte
}

var validName = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

// The sectors of an image, in order. Path tables have one sector each, which bounds the number of directories; those and
// the files vary.
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

// Build returns an ISO 9660 image that holds files under the volume label. Labels have up to 32 characters, of which Joliet's
// readers see 16, names up to 64 of a-z, A-Z, 0-9, ".", "_" and "-".
func Build(label string, files []File) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	if err := check(label, files); err != nil {
		return nil, err
	}
	plan, err := arrange(files)
	if err != nil {
		return nil, err
	}
	image := make([]byte, plan.sectors*sectorSize)
	at := func(sector int) []byte { return image[sector*sectorSize:] }

	copy(at(primarySector), volumeDescriptor(label, plan, false))
	copy(at(jolietSector), volumeDescriptor(label, plan, true))
	copy(at(terminatorSector), "\xffCD001\x01")
	copy(at(pathLSector), plan.pathTable(binary.LittleEndian, false))
	copy(at(pathMSector), plan.pathTable(binary.BigEndian, false))
	copy(at(jolietPathLSector), plan.pathTable(binary.LittleEndian, true))
	copy(at(jolietPathMSector), plan.pathTable(binary.BigEndian, true))
	copy(at(plan.continuation), extensionReference())
	for d := range plan.directories {
		copy(at(plan.directories[d].plain.start), plan.directoryBytes(d, false))
		copy(at(plan.directories[d].joliet.start), plan.directoryBytes(d, true))
	}
	for _, file := range plan.files {
		copy(at(file.start), file.Data)
	}
	return image, nil
}

func check(label string, files []File) error {
	if len(label) == 0 || len(label) > maxLabelLength || !validName.MatchString(label) {
		return fmt.Errorf("volume label %q: want 1 to 32 letters, digits, dots, dashes or underscores", label)
	}
	total := 0
	for i, file := range files {
		for name := range strings.SplitSeq(file.Name, "/") {
			if len(name) > maxNameLength || !validName.MatchString(name) || strings.Trim(name, ".") == "" {
				return fmt.Errorf("file name %q: want 1 to %d letters, digits, dots, dashes or underscores", file.Name, maxNameLength)
			}
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

// volumeDescriptor is the primary one (ECMA-119, 8.4) or Joliet's supplementary one (8.5).
func volumeDescriptor(label string, plan layout, joliet bool) []byte {
	d := make([]byte, sectorSize)
	root, tableL, tableM := plan.directories[0].plain, pathLSector, pathMSector
	text := func(s string, width int) []byte { return padded([]byte(s), []byte{' '}, width) }
	d[0] = 1
	if joliet {
		d[0] = 2
		root, tableL, tableM = plan.directories[0].joliet, jolietPathLSector, jolietPathMSector
		label = label[:min(len(label), maxJolietLabelLength)]
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
	putBoth32(d[132:], uint32(len(plan.pathTable(binary.LittleEndian, joliet)))) //nolint:gosec // at most a sector
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

// longTime is the volume's time stamps: unset in creation would be allowed, but Windows shows it as an error.
const longTime = "1980010100000000\x00"

// shortTime is the time stamp of every file (ECMA-119, 9.1.5): the start of 1980, which FAT, ISO and UDF can all express.
func shortTime() []byte { return []byte{80, 1, 1, 0, 0, 0, 0} }

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
