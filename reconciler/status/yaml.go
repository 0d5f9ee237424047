package status

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// The header of a status file.
const (
	apiVersion = "gitvirt.io/v1alpha1"
	kind       = "VirtualMachineStatus"
)

// maxText is the longest text in bytes that a status file holds: an error may quote a whole log.
const maxText = 1024

// YAML returns the status as a file. The order of its fields never changes, so that a commit shows what did.
func (vm *VM) YAML() []byte {
	w := yamlWriter{buf: make([]byte, 0, 1536)}
	w.field(0, "apiVersion", apiVersion)
	w.field(0, "kind", kind)
	w.open(0, "metadata")
	w.field(1, "name", vm.Address.Name)
	w.field(1, "namespace", vm.Address.Namespace)
	w.open(0, "status")
	w.field(1, "kind", vm.Address.Kind)
	w.field(1, "phase", string(vm.Phase))
	w.optional(1, "message", vm.Message)
	w.optional(1, "node", vm.Node)
	w.optional(1, "domain", vm.Domain)
	if len(vm.Addresses) > 0 {
		w.open(1, "addresses")
		for _, address := range vm.Addresses {
			w.item(1, address)
		}
	}
	w.optional(1, "source", vm.Source)
	w.optional(1, "wantedRevision", vm.WantedRevision)
	w.optional(1, "observedRevision", vm.ObservedRevision)
	if vm.Restarts > 0 {
		w.number(1, "restarts", int64(vm.Restarts))
	}
	w.open(1, "conditions")
	for _, c := range vm.Conditions {
		w.entry(1, "type", string(c.Type))
		w.field(2, "status", string(c.Status))
		w.field(2, "reason", c.Reason)
		w.optional(2, "message", c.Message)
		w.time(2, "lastTransitionTime", c.LastTransitionTime)
	}
	if len(vm.Disks) > 0 {
		w.open(1, "disks")
		for _, disk := range vm.Disks {
			w.entry(1, "volume", disk.Volume)
			w.field(2, "kind", disk.Kind)
			w.optional(2, "path", disk.Path)
			if disk.CapacityBytes > 0 {
				w.number(2, "capacityBytes", disk.CapacityBytes)
			}
		}
	}
	if last := vm.LastPlan; last != nil {
		w.open(1, "lastPlan")
		w.field(2, "id", last.ID)
		w.field(2, "action", string(last.Action))
		w.field(2, "consequence", string(last.Consequence))
		w.field(2, "summary", last.Summary)
		w.time(2, "time", last.Time)
	}
	return w.buf
}

// yamlWriter writes block mappings; every value is on its line.
type yamlWriter struct{ buf []byte }

func (w *yamlWriter) key(depth int, name string) {
	for range depth {
		w.buf = append(w.buf, "  "...)
	}
	w.buf = append(w.buf, name...)
	w.buf = append(w.buf, ':')
}

func (w *yamlWriter) open(depth int, name string) {
	w.key(depth, name)
	w.buf = append(w.buf, '\n')
}

func (w *yamlWriter) field(depth int, name, value string) {
	w.key(depth, name)
	w.buf = append(w.buf, ' ')
	w.buf = appendScalar(w.buf, value)
	w.buf = append(w.buf, '\n')
}

func (w *yamlWriter) optional(depth int, name, value string) {
	if value != "" {
		w.field(depth, name, value)
	}
}

func (w *yamlWriter) number(depth int, name string, value int64) {
	w.key(depth, name)
	w.buf = append(w.buf, ' ')
	w.buf = strconv.AppendInt(w.buf, value, 10)
	w.buf = append(w.buf, '\n')
}

func (w *yamlWriter) time(depth int, name string, value time.Time) {
	if !value.IsZero() {
		w.field(depth, name, value.UTC().Format(time.RFC3339))
	}
}

// entry begins a list element that is a mapping; its further fields are one deeper.
func (w *yamlWriter) entry(depth int, name, value string) {
	w.key(depth, "- "+name)
	w.buf = append(w.buf, ' ')
	w.buf = appendScalar(w.buf, value)
	w.buf = append(w.buf, '\n')
}

func (w *yamlWriter) item(depth int, value string) {
	for range depth {
		w.buf = append(w.buf, "  "...)
	}
	w.buf = append(w.buf, "- "...)
	w.buf = appendScalar(w.buf, value)
	w.buf = append(w.buf, '\n')
}

// plainScalar needs no quotes in any version of YAML: it begins with a letter and holds nothing that means something.
var plainScalar = regexp.MustCompile(`^[A-Za-z](?:[A-Za-z0-9 ._/-]*[A-Za-z0-9._/-])?$`)

// wordScalars look plain and are read as something else than a string.
var wordScalars = map[string]bool{
	"true": true, "false": true, "yes": true, "no": true, "on": true, "off": true, "null": true, "y": true, "n": true,
}

// appendScalar writes a string so that every YAML reader gets the same string back.
func appendScalar(buf []byte, value string) []byte {
	value = cut(value, maxText)
	if plainScalar.MatchString(value) && !wordScalars[strings.ToLower(value)] {
		return append(buf, value...)
	}
	buf = append(buf, '"')
	for _, r := range value {
		switch {
		case r == '"' || r == '\\':
			buf = append(buf, '\\', byte(r))
		case r == '\n':
			buf = append(buf, `\n`...)
		case r == '\t':
			buf = append(buf, `\t`...)
		case r < 0x20, r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r >= 0x200b && r <= 0x200f,
			r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff, r >= 0xfff0 && r <= 0xffff && r != utf8.RuneError:
			// Line breaks, what YAML forbids, and what makes text look other than it is.
			buf = fmt.Appendf(buf, `\u%04x`, r)
		default:
			buf = utf8.AppendRune(buf, r)
		}
	}
	return append(buf, '"')
}

// cut shortens a text to so many bytes, not within a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const more = "..."
	end := limit - len(more)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// document is the shape of a status file.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Status struct {
		Kind             string           `json:"kind"`
		Phase            Phase            `json:"phase"`
		Message          string           `json:"message"`
		Node             string           `json:"node"`
		Domain           string           `json:"domain"`
		Addresses        []string         `json:"addresses"`
		Source           string           `json:"source"`
		WantedRevision   string           `json:"wantedRevision"`
		ObservedRevision string           `json:"observedRevision"`
		Restarts         int              `json:"restarts"`
		Conditions       []Condition      `json:"conditions"`
		Disks            []Disk           `json:"disks"`
		LastPlan         *documentOfAPlan `json:"lastPlan"`
	} `json:"status"`
}

type documentOfAPlan struct {
	ID          string           `json:"id"`
	Action      plan.Action      `json:"action"`
	Consequence plan.Consequence `json:"consequence"`
	Summary     string           `json:"summary"`
	Time        time.Time        `json:"time"`
}

// Parse reads a status file back.
func Parse(content []byte) (VM, error) {
	const maxFile = 256 << 10
	if len(content) > maxFile {
		return VM{}, fmt.Errorf("reading a status file: %d bytes are too many", len(content))
	}
	var d document
	if err := yaml.Unmarshal(content, &d); err != nil {
		return VM{}, fmt.Errorf("reading a status file: %w", err)
	}
	if d.APIVersion != apiVersion || d.Kind != kind {
		return VM{}, fmt.Errorf("reading a status file: it is a %s of %s, not a %s of %s", d.Kind, d.APIVersion, kind, apiVersion)
	}
	s := d.Status
	vm := VM{
		Address: schemas.Address{Kind: s.Kind, Namespace: d.Metadata.Namespace, Name: d.Metadata.Name},
		Phase:   s.Phase, Message: s.Message, Node: s.Node, Domain: s.Domain, Addresses: s.Addresses, Source: s.Source,
		WantedRevision: s.WantedRevision, ObservedRevision: s.ObservedRevision, Restarts: s.Restarts,
		Conditions: s.Conditions, Disks: s.Disks,
	}
	if s.LastPlan != nil {
		last := LastPlan(*s.LastPlan)
		vm.LastPlan = &last
	}
	return vm, nil
}
