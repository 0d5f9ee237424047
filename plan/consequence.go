package plan

import (
	"slices"
	"strings"
	"sync"
)

// Row is one row of the table of consequences: what a change of a field, or of anything below it, means for a running
// guest.
type Row struct {
	// Path is the field without the names of list elements: "spec.domain.cpu.sockets". What a VirtualMachine has in its template is
	// written as a VirtualMachineInstance has it.
	Path string
	// Consequence holds when the host can do what Needs says and When is true; else it is Otherwise.
	Consequence Consequence
	// Needs are the live changes that a host must be able to make, one of them.
	Needs []LiveChange
	// Whole says that the consequence is that of a whole element of the list, which comes or goes; for what is below it, Otherwise holds.
	Whole bool
	// Seldom says that Otherwise is what mostly holds.
	Seldom bool
	// When says under which condition the consequence holds, for people; empty for always.
	When string
	// Otherwise is what holds when the condition does not; ConsequenceRestart where it is empty.
	Otherwise Consequence
	// About says why, for people.
	About string

	// Loses says when the change destroys data, for people; then the consequence is ConsequenceData.
	Loses string

	holds condition
}

// condition looks at one change and says whether the row's consequence holds.
type condition func(j *judge, change *Change) verdict

// Worst is what the row says when its condition does not hold.
func (r *Row) Worst() Consequence {
	switch {
	case r.Otherwise != "":
		return r.Otherwise
	case r.holds != nil || len(r.Needs) > 0:
		return ConsequenceRestart
	}
	return r.Consequence
}

// Rows returns the table, ordered by path.
func Rows() []Row {
	rows := slices.Concat(aroundRows(), guestRows(), boardRows(), deviceRows(), volumeRows(), recordRows())
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Path, b.Path) })
	return rows
}

// rowTree is the table as a tree of path elements.
type rowTree struct {
	row      *Row
	children map[string]*rowTree
}

var rowTable = sync.OnceValue(func() *rowTree {
	root := &rowTree{}
	for _, row := range Rows() {
		at := root
		for name := range strings.SplitSeq(row.Path, ".") {
			if at.children == nil {
				at.children = map[string]*rowTree{}
			}
			child := at.children[name]
			if child == nil {
				child = &rowTree{}
				at.children[name] = child
			}
			at = child
		}
		at.row = &row
	}
	return root
})

// unknownField is the row of a field that the table does not name: a later version's, or one that is refused. A field is
// only called harmless when somebody has shown that it is.
var unknownField = Row{Consequence: ConsequenceRestart, About: "the field has no row in the table"}

// rowOf returns the row that decides about a path: that of the field, or of the nearest that it is below.
func rowOf(path string) *Row {
	at, found := rowTable(), &unknownField
	for name, rest := nextField(withoutTemplate(path)); name != ""; name, rest = nextField(rest) {
		at = at.children[name]
		if at == nil {
			break
		}
		if at.row != nil {
			found = at.row
		}
	}
	return found
}

// withoutTemplate writes the path of a VirtualMachine's template as a VirtualMachineInstance has it.
func withoutTemplate(path string) string {
	if rest, ok := strings.CutPrefix(path, "spec.template."); ok {
		return rest
	}
	return path
}

// nextField splits the first field off a path; the names of list elements and the keys of maps, which stand in brackets,
// are left out.
func nextField(path string) (name, rest string) {
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		return path, ""
	}
	name, rest = path[:end], path[end:]
	for strings.HasPrefix(rest, "[") {
		closing := strings.IndexByte(rest, ']')
		if closing < 0 {
			return name, ""
		}
		rest = rest[closing+1:]
	}
	return name, strings.TrimPrefix(rest, ".")
}

// consequenceOf returns what a change at path means for a running guest when everything allows the best.
func consequenceOf(path string) Consequence {
	row := rowOf(path)
	if row.Seldom || row.Whole && strings.Count(withoutTemplate(path), ".") > strings.Count(row.Path, ".") {
		return row.Worst()
	}
	return row.Consequence
}

// within reports whether path is prefix or lies below it.
func within(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
