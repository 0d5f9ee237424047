package domainxml

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// Kept is what an adopted domain was before. What it holds and no manifest says stays in every later definition: that
// is the old definition with what the manifest has changed since (Machine.keep).
type Kept struct {
	// Definition is the domain's XML as libvirt had it, without gitvirt's record.
	Definition string `json:"definition"`
	// Spec is the record of the manifest that describes Definition, Volumes are its disks.
	Spec    json.RawMessage `json:"spec"`
	Volumes []Volume        `json:"volumes,omitempty"`
	// Targets has for each disk of Spec the name that it has in Definition: "hdc".
	Targets []string `json:"targets,omitempty"`
}

func (k *Kept) encode() (string, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // XML has its own
	if err := encoder.Encode(k); err != nil {
		return "", err
	}
	return strings.TrimSpace(out.String()), nil
}

// Volume returns an adopted disk by the path that a manifest names; nil when the domain had none there.
func (k *Kept) Volume(kind, path string) *Volume {
	if k == nil || path == "" {
		return nil
	}
	for i := range k.Volumes {
		if k.Volumes[i].Kind == kind && k.Volumes[i].Path == path {
			return &k.Volumes[i]
		}
	}
	return nil
}

// raw parses a document with its prefixes as they are written, and everything in it.
func raw(document string) (*node, error) { return parser{own: true}.parse(document) }

// renderKept is Render for an adopted domain.
func (m Machine) renderKept() (string, error) {
	tree, err := m.tree()
	if err != nil {
		return "", fmt.Errorf("rendering %s: %w", m.Address, err)
	}
	if m.Record != nil {
		text, err := m.Record.XML()
		if err != nil {
			return "", err
		}
		record, err := raw("<domain>" + text + "</domain>")
		if err != nil {
			return "", fmt.Errorf("rendering %s: %w", m.Address, err)
		}
		metadata := tree.child("metadata")
		if metadata == nil {
			metadata = &node{name: "metadata"}
			tree.children = append(tree.children, metadata)
		}
		metadata.children = append(metadata.children, record.children...)
	}
	var out strings.Builder
	tree.writeRaw(&out)
	return out.String(), nil
}

// CloseScreens gives the screens of a definition that say nothing of a password an empty one: libvirt lets nobody in with that.
func CloseScreens(definition string) (string, error) {
	tree, err := raw(definition)
	if err != nil {
		return "", fmt.Errorf("reading the definition: %w", err)
	}
	for _, screen := range tree.devicesOf("graphics") {
		if kind := screen.get("type"); kind == "vnc" || kind == "spice" {
			screen.set("passwd", screen.get("passwd"))
		}
	}
	var out strings.Builder
	tree.writeRaw(&out)
	return out.String(), nil
}

// keep returns the definition that an adopted domain has with this manifest: what it was, with what the manifest says
// otherwise than the one that describes what it was. It changes rendered, which is what the manifest alone makes.
func (m Machine) keep(rendered *node) (*node, error) {
	have, err := raw(m.Kept.Definition)
	if err != nil {
		return nil, fmt.Errorf("reading what the domain was: %w", err)
	}
	if own := have.child("uuid"); own != nil {
		m.UUID = own.text // another one, for which the domain is made anew, is a change
	}
	base, err := m.described()
	if err != nil {
		return nil, err
	}
	before, after := have.child("memory"), rendered.child("memory")
	resized := base.child("memory") != nil && after != nil && !same(base.child("memory"), after)
	if current := have.child("currentMemory"); current != nil && before != nil && (resized || kib(current.text, current.get("unit")) == kib(before.text, before.get("unit"))) {
		have.removeChild(current) // libvirt writes it into every definition; and a balloon was for the size that was
	}
	if resized {
		if err := resizeCell(have, after); err != nil {
			return nil, err
		}
	}
	k := keeper{targets: m.Kept.Targets, have: have}
	k.element(have, base, rendered, false)
	k.complete(rendered)
	return have, nil
}

// described is what the manifest makes that describes the domain as it was.
func (m Machine) described() (*node, error) {
	object, _, err := schemas.ParseRecord(m.Kept.Spec, true)
	if err != nil {
		return nil, fmt.Errorf("reading what the domain was: %w", err)
	}
	host := m.Host
	host.Assignment = Assignment{}
	return Machine{Address: m.Address, Name: m.Name, UUID: m.UUID, Spec: &object.Spec.Template.Spec, Host: host, Volumes: m.Kept.Volumes}.rendered()
}

// resizeCell gives a domain with one NUMA cell its new memory where libvirt takes it from.
func resizeCell(have, memory *node) error {
	numa := have.child("cpu").child("numa")
	if numa == nil || len(numa.children) == 0 {
		return nil
	}
	if len(numa.children) > 1 {
		return fmt.Errorf("memory: the domain has %d NUMA cells, which the manifest cannot express and which hold its memory; change it with virsh edit", len(numa.children))
	}
	numa.children[0].put(xml.Name{Local: "memory"}, memory.text)
	numa.children[0].put(xml.Name{Local: "unit"}, memory.get("unit"))
	return nil
}
