package isofs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// extent is where something lies: whole sectors.
type extent struct{ start, sectors int }

// placedFile is a File and where its data starts.
type placedFile struct {
	File
	start int
}

// entry is a name in a directory, and the number of the file or the directory that it stands for.
type entry struct {
	name        string
	number      int
	isDirectory bool
}

// directory is one directory in both trees, the plain one with Rock Ridge and Joliet's.
type directory struct {
	name          string
	parent        int // the root's is itself
	entries       []entry
	plain, joliet extent
}

func (d *directory) extent(joliet bool) extent {
	if joliet {
		return d.joliet
	}
	return d.plain
}

// layout says which sector everything starts at. The root is directory 0; parents come before their children, as path tables
// want it.
type layout struct {
	files        []placedFile
	directories  []directory
	continuation int
	sectors      int
}

// arrange places sorted files.
func arrange(files []File) (layout, error) {
	plan := layout{files: make([]placedFile, len(files)), directories: []directory{{}}}
	for i, file := range files {
		plan.files[i].File = file
	}
	if err := plan.makeTree(); err != nil {
		return plan, err
	}
	next := firstDirectorySector
	place := func(joliet bool, at func(*directory) *extent) {
		for d := range plan.directories {
			sectors := len(plan.directoryBytes(d, joliet)) / sectorSize
			*at(&plan.directories[d]) = extent{next, sectors}
			next += sectors
		}
	}
	place(false, func(d *directory) *extent { return &d.plain })
	plan.continuation = next
	next++
	place(true, func(d *directory) *extent { return &d.joliet })
	for i := range plan.files {
		plan.files[i].start = next
		next += (len(plan.files[i].Data) + sectorSize - 1) / sectorSize
	}
	plan.sectors = next + padding
	return plan, nil
}

// makeTree puts the files into directories, level by level.
func (l *layout) makeTree() error {
	type member struct {
		path []string
		file int
	}
	members := [][]member{make([]member, len(l.files))}
	for i, file := range l.files {
		members[0][i] = member{strings.Split(file.Name, "/"), i}
	}
	for d := 0; d < len(l.directories); d++ {
		below := map[string]int{}
		for _, m := range members[d] {
			name := m.path[0]
			if len(m.path) == 1 {
				l.directories[d].entries = append(l.directories[d].entries, entry{name, m.file, false})
				continue
			}
			number, known := below[name]
			if !known {
				number = len(l.directories)
				below[name] = number
				l.directories = append(l.directories, directory{name: name, parent: d})
				l.directories[d].entries = append(l.directories[d].entries, entry{name, number, true})
				members = append(members, nil)
			}
			members[number] = append(members[number], member{m.path[1:], m.file})
		}
		entries := l.directories[d].entries
		slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
		for i := 1; i < len(entries); i++ {
			if entries[i].name == entries[i-1].name {
				return fmt.Errorf("file name %q: named twice, as a file and as a directory", entries[i].name)
			}
		}
	}
	if len(l.pathTable(binary.LittleEndian, true)) > sectorSize {
		return fmt.Errorf("the files lie in %d directories, which is too many", len(l.directories))
	}
	return nil
}

// pathTable lists the directories with their parents (ECMA-119, 9.4).
func (l *layout) pathTable(order binary.AppendByteOrder, joliet bool) []byte {
	var table []byte
	for d := range l.directories {
		directory := &l.directories[d]
		name := []byte(directory.name)
		switch {
		case d == 0:
			name = []byte{0}
		case joliet:
			name = utf16Bytes(directory.name)
		}
		table = append(table, byte(len(name)), 0)                                 //nolint:gosec // bounded by maxNameLength
		table = order.AppendUint32(table, uint32(directory.extent(joliet).start)) //nolint:gosec // bounded by MaxSize
		table = order.AppendUint16(table, uint16(directory.parent+1))             //nolint:gosec // the table has one sector
		table = append(table, name...)
		if len(name)%2 == 1 {
			table = append(table, 0)
		}
	}
	return table
}

// directoryBytes returns whole sectors; a record never crosses the end of one (ECMA-119, 6.8.1.1). It may be called before the
// plan is complete: its length does not depend on where things lie.
func (l *layout) directoryBytes(d int, joliet bool) []byte {
	directory := &l.directories[d]
	var own, parent []byte
	if !joliet {
		own, parent = directoryAttributes(), directoryAttributes()
		if d == 0 {
			own = append(append(sharingProtocol(), own...), continuationArea(l.continuation)...)
		}
	}
	at, above := directory.extent(joliet), l.directories[directory.parent].extent(joliet)
	records := [][]byte{
		record([]byte{0}, at.start, at.sectors*sectorSize, true, own),
		record([]byte{1}, above.start, above.sectors*sectorSize, true, parent),
	}
	for _, entry := range directory.entries {
		records = append(records, l.entryRecord(entry, joliet))
	}
	var out []byte
	for _, r := range records {
		if left := sectorSize - len(out)%sectorSize; len(r) > left {
			out = append(out, make([]byte, left)...)
		}
		out = append(out, r...)
	}
	return append(out, make([]byte, (sectorSize-len(out)%sectorSize)%sectorSize)...)
}

func (l *layout) entryRecord(e entry, joliet bool) []byte {
	var use []byte
	var start, size int
	name := e.name
	if e.isDirectory {
		at := l.directories[e.number].extent(joliet)
		use, start, size = directoryAttributes(), at.start, at.sectors*sectorSize
	} else {
		use, start, size = fileAttributes(), l.files[e.number].start, len(l.files[e.number].Data)
		name += ";1"
	}
	if joliet {
		return record(utf16Bytes(name), start, size, e.isDirectory, nil)
	}
	return record([]byte(name), start, size, e.isDirectory, append(use, alternateName(e.name)...))
}
