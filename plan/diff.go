package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gitvirt/gitvirt/schemas"
)

// diffRecords compares two records field by field after the same defaults were filled in on both sides, so that a
// default that somebody writes out is no change. The result is ordered by path.
func diffRecords(before, after []byte, j judge) ([]Change, error) {
	old, err := schemas.ReadRecord(before, true)
	if err != nil {
		return nil, fmt.Errorf("reading what was applied: %w", err)
	}
	wanted, err := schemas.ReadRecord(after, true)
	if err != nil {
		return nil, fmt.Errorf("reading what is wanted: %w", err)
	}
	return diff(old, wanted, j), nil
}

func diff(old, wanted *schemas.Recorded, j judge) []Change {
	differences := schemas.Compare(old, wanted)
	changes := make([]Change, len(differences))
	for i := range differences {
		changes[i] = changeOf(&differences[i])
	}
	j.before, j.after = machineOf(old), machineOf(wanted)
	j.consequences(changes)
	return changes
}

func machineOf(read *schemas.Recorded) *machine {
	return &machine{spec: &read.Object.Spec.Template.Spec, claims: read.Claims}
}

// changeOf is a difference without what is sensitive.
func changeOf(difference *schemas.Difference) Change {
	change := Change{Path: difference.Path}
	if hidden(difference.Path) {
		change.Sensitive = true
		return change
	}
	change.Before, change.After = conceal(difference.Before), conceal(difference.After)
	// What differs may be in the concealed part alone.
	if sameValue(change.Before, change.After) {
		change.Before, change.After, change.Sensitive = nil, nil, true
	}
	return change
}

func sameValue(a, b any) bool {
	if a, ok := a.(string); ok {
		b, ok := b.(string)
		return ok && a == b
	}
	return a != nil && b != nil && reflect.DeepEqual(a, b)
}

// sensitiveFields are never shown, not even as digests.
var sensitiveFields = []string{"userData", "userDataBase64", "networkData", "networkDataBase64", "extraHeaders"}

// hidden reports whether the value at path is sensitive.
func hidden(path string) bool {
	if within(path, "secrets") {
		return true
	}
	last := path[strings.LastIndexByte(path, '.')+1:]
	return slices.Contains(sensitiveFields, last)
}

// concealed stands in for a sensitive value inside a larger one.
const concealed = "(sensitive)"

// conceal replaces sensitive values inside an added or removed subtree, and the queries of URLs. It changes the subtree.
func conceal(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, element := range v {
			if slices.Contains(sensitiveFields, key) {
				v[key] = concealed
				continue
			}
			v[key] = conceal(element)
		}
	case []any:
		for i, element := range v {
			v[i] = conceal(element)
		}
	case string:
		address, _, query := strings.Cut(v, "?")
		if scheme, _, ok := strings.Cut(address, "://"); ok && query && (scheme == "http" || scheme == "https") {
			return address + "?" + concealed
		}
	}
	return value
}

// shrunkDisk says which disk a list of changes would make smaller, or "".
func shrunkDisk(changes []Change) string {
	for _, change := range changes {
		claim := strings.HasPrefix(change.Path, "claims[") && strings.HasSuffix(change.Path, "].capacity")
		if !claim && !strings.HasSuffix(change.Path, ".emptyDisk.capacity") && !strings.HasSuffix(change.Path, ".hostDisk.capacity") {
			continue
		}
		before, after := quantity(change.Before), quantity(change.After)
		if before != nil && after != nil && after.Cmp(*before) < 0 {
			return fmt.Sprintf("%s: a disk cannot shrink from %s to %s without losing data; make a new volume and copy", shortPath(change.Path), before, after)
		}
	}
	return ""
}

func quantity(value any) *resource.Quantity {
	text, ok := value.(string)
	if !ok {
		return nil
	}
	parsed, err := resource.ParseQuantity(text)
	if err != nil {
		return nil
	}
	return &parsed
}

// shortPath leaves out what every path of a VM begins with.
func shortPath(path string) string {
	for _, prefix := range []string{"spec.template.spec.domain.", "spec.template.spec.", "spec.template.", "spec."} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			return rest
		}
	}
	return path
}

// brief returns a JSON value for a line of text: scalars as they are, larger ones cut short.
func brief(value any) string {
	switch v := value.(type) {
	case nil:
		return "(none)"
	case string:
		if v == "" || strings.ContainsAny(v, " \t\n\"") {
			return cut(strconv.Quote(v))
		}
		return cut(v)
	}
	return cut(string(appendJSON(nil, value)))
}

const briefLength = 120

func cut(text string) string {
	if len(text) <= briefLength { // which is no fewer than it has characters
		return text
	}
	runes := []rune(text)
	if len(runes) <= briefLength {
		return text
	}
	return string(runes[:briefLength]) + "..."
}

// isDigest reports whether the values are digests of a content, which tell people nothing.
func (c Change) isDigest() bool {
	before, ok := c.Before.(string)
	after, alsoOK := c.After.(string)
	return ok && alsoOK && within(c.Path, "contents") && strings.HasPrefix(before, "sha256:") && strings.HasPrefix(after, "sha256:")
}
