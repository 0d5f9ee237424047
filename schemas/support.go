package schemas

import "strings"

// SupportStatus says what gitvirt does with a field that KubeVirt knows.
type SupportStatus uint8

const (
	// SupportUndecided is a field the table does not name; it is refused like SupportRefused.
	SupportUndecided SupportStatus = iota
	// SupportCarried is carried out.
	SupportCarried
	// SupportRefused is an error that names the field.
	SupportRefused
	// SupportKept is accepted and kept with the machine, and nothing on a host depends on it: it is for Pods, or the
	// guest sees nothing of it.
	SupportKept
	// SupportIgnored is accepted and not read, such as status, which the server side writes.
	SupportIgnored
)

// Support is one row of the support table: a field with everything below it, unless a longer path says otherwise.
type Support struct {
	// Path is the field's path without list indices, such as "domain.devices.gpus".
	Path   string
	Status SupportStatus
	// Instead says why the field is refused or only kept, or what to use in its place.
	Instead string
}

// supportNode is the tables as a tree, followed by the decoder as it goes down.
type supportNode struct {
	children map[string]*supportNode
	status   SupportStatus
	decided  bool
	instead  string
}

func (n *supportNode) add(rows []Support, prefix string) {
	for _, row := range rows {
		at := n
		for name := range strings.SplitSeq(prefix+row.Path, ".") {
			child := at.children[name]
			if child == nil {
				child = &supportNode{}
				if at.children == nil {
					at.children = map[string]*supportNode{}
				}
				at.children[name] = child
			}
			at = child
		}
		at.status, at.decided, at.instead = row.Status, true, row.Instead
	}
}

// below returns what holds for the field name under n, given what holds for n itself.
func (n *supportNode) below(name string, inherited SupportStatus) (*supportNode, SupportStatus) {
	if n == nil {
		return nil, inherited
	}
	child := n.children[name]
	if child == nil || !child.decided {
		return child, inherited
	}
	return child, child.status
}
