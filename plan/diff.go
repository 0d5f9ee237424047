package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gitvirt/gitvirt/schemas"
)

// diffRecords compares two records field by field after the same defaults were filled in on both sides, so that a
// default that somebody writes out is no change. The result is ordered by path.
func diffRecords(before, after []byte, j judge) ([]Change, error) {
	old, oldMachine, err := normalise(before)
	if err != nil {
		return nil, fmt.Errorf("reading what was applied: %w", err)
	}
	wanted, newMachine, err := normalise(after)
	if err != nil {
		return nil, fmt.Errorf("reading what is wanted: %w", err)
	}
	var d differ
	d.compare("", old, wanted)
	slices.SortFunc(d.changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	j.before, j.after = oldMachine, newMachine
	j.consequences(d.changes)
	return d.changes, nil
}

// normalise returns a record as generic JSON with defaults filled in.
func normalise(record []byte) (map[string]any, *machine, error) {
	read, err := schemas.ReadRecord(record, true)
	if err != nil {
		return nil, nil, err
	}
	object := read.Object
	if firmware := object.Spec.Template.Spec.Domain.Firmware; firmware != nil {
		// libvirt compares UUIDs without regard to case.
		firmware.UUID = types.UID(strings.ToLower(string(firmware.UUID)))
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, nil, err
	}
	var out map[string]any
	if err := json.Unmarshal(encoded, &out); err != nil {
		return nil, nil, err
	}
	delete(out, "status")
	delete(out, "apiVersion")
	delete(out, "kind")
	for name, digests := range map[string]map[string]string{"secrets": read.Secrets, "contents": read.Contents} {
		if len(digests) > 0 {
			out[name] = anyMap(digests)
		}
	}
	if len(read.Claims) > 0 {
		if out["claims"], err = normaliseClaims(read.Claims); err != nil {
			return nil, nil, err
		}
	}
	return out, &machine{spec: &object.Spec.Template.Spec, claims: read.Claims}, nil
}

func anyMap(values map[string]string) map[string]any {
	out := make(map[string]any, len(values))
	for key, value := range values {
		out[key] = value
	}
	return out
}

// normaliseClaims returns claims by volume, as a list of named elements so that a path reads claims[root].capacity, with
// sizes as people write them.
func normaliseClaims(claims map[string]schemas.Claim) ([]any, error) {
	out := make([]any, 0, len(claims))
	for _, volume := range slices.Sorted(maps.Keys(claims)) {
		encoded, err := json.Marshal(claims[volume])
		if err != nil {
			return nil, err
		}
		claim := map[string]any{}
		if err := json.Unmarshal(encoded, &claim); err != nil {
			return nil, err
		}
		if capacity := claims[volume].Capacity; capacity > 0 {
			claim["capacity"] = resource.NewQuantity(capacity, resource.BinarySI).String()
		}
		claim["claim"] = claim["name"]
		claim["name"] = volume
		out = append(out, claim)
	}
	return out, nil
}

type differ struct{ changes []Change }

// compare walks two JSON values; a value that is missing on one side is nil there.
func (d *differ) compare(path string, before, after any) {
	if reflect.DeepEqual(before, after) {
		return
	}
	oldMap, oldIsMap := before.(map[string]any)
	newMap, newIsMap := after.(map[string]any)
	oldList, oldIsList := before.([]any)
	newList, newIsList := after.([]any)
	switch {
	case oldIsMap && newIsMap:
		d.compareMaps(path, oldMap, newMap)
	case (oldIsList && newIsList || oldIsList && after == nil || newIsList && before == nil) && named(oldList) && named(newList):
		d.compareNamed(path, oldList, newList)
	default:
		d.add(path, before, after)
	}
}

func (d *differ) compareMaps(path string, before, after map[string]any) {
	keys := slices.Collect(maps.Keys(before))
	for key := range after {
		if _, ok := before[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		d.compare(join(path, key), before[key], after[key])
	}
}

// join appends a key to a path; keys with dots or slashes, as labels have them, are put in brackets.
func join(path, key string) string {
	switch {
	case strings.ContainsAny(key, "./[]"):
		return path + "[" + key + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// compareNamed compares lists whose elements have names: by name, and their order as a field of its own, because the
// order of disks decides their device names in the guest.
func (d *differ) compareNamed(path string, before, after []any) {
	old, oldOrder := byName(before)
	wanted, newOrder := byName(after)
	names := slices.Clone(oldOrder)
	for _, name := range newOrder {
		if _, ok := old[name]; !ok {
			names = append(names, name)
		}
	}
	for _, name := range names {
		d.compare(path+"["+name+"]", old[name], wanted[name])
	}
	both := func(order []string, other map[string]any) []string {
		return slices.DeleteFunc(slices.Clone(order), func(name string) bool { _, ok := other[name]; return !ok })
	}
	if was, is := both(oldOrder, wanted), both(newOrder, old); !slices.Equal(was, is) {
		d.add(path+".order", strings.Join(was, ", "), strings.Join(is, ", "))
	}
}

// named reports whether every element is an object with a name of its own.
func named(list []any) bool {
	seen := make(map[string]bool, len(list))
	for _, element := range list {
		object, ok := element.(map[string]any)
		if !ok {
			return false
		}
		name, ok := object["name"].(string)
		if !ok || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func byName(list []any) (elements map[string]any, order []string) {
	elements = make(map[string]any, len(list))
	for _, element := range list {
		object := element.(map[string]any) //nolint:forcetypeassert // named() has looked
		name := object["name"].(string)    //nolint:forcetypeassert // named() has looked
		elements[name] = object
		order = append(order, name)
	}
	return elements, order
}

func (d *differ) add(path string, before, after any) {
	change := Change{Path: path, Before: before, After: after}
	if hidden(path) {
		change.Sensitive = true
	} else {
		change.Before, change.After = conceal(before), conceal(after)
		// What differs may be in the concealed part alone.
		change.Sensitive = reflect.DeepEqual(change.Before, change.After)
	}
	if change.Sensitive {
		change.Before, change.After = nil, nil
	}
	d.changes = append(d.changes, change)
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

// conceal replaces sensitive values inside an added or removed subtree, and the queries of URLs.
func conceal(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, element := range v {
			if slices.Contains(sensitiveFields, key) {
				out[key] = concealed
				continue
			}
			out[key] = conceal(element)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, element := range v {
			out[i] = conceal(element)
		}
		return out
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
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%v", value)
	}
	return cut(string(encoded))
}

const briefLength = 120

func cut(text string) string {
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
