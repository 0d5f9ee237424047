package domainxml

import (
	"cmp"
	"fmt"
	"slices"
)

// Difference is one fact of a domain that is not as it was rendered. An empty value means that the fact is not there.
type Difference struct {
	// Path is where in the domain XML: "vcpu", "devices/disk[vda]/driver@cache".
	Path string
	Want string
	Have string
}

// Compare tells how a domain's definition differs from what was rendered for it. What libvirt adds by itself
// (addresses, aliases, controllers, defaults) is no difference; what somebody added that changes the machine is.
// Both arguments are domain XML documents. The result is ordered by path.
func Compare(rendered, defined string) ([]Difference, error) {
	want, err := parseFast(rendered)
	if err != nil {
		return nil, fmt.Errorf("reading rendered XML: %w", err)
	}
	have, err := parseFast(defined)
	if err != nil {
		return nil, fmt.Errorf("reading the domain's XML: %w", err)
	}
	return compare(want, have), nil
}

// compare compares two trees, and changes them.
func compare(want, have *node) []Difference {
	normalise(want)
	normalise(have)
	sameBuses(want, have)
	d := &differ{}
	d.element(place{}, want, have)
	slices.SortFunc(d.out, func(a, b Difference) int { return cmp.Compare(a.Path, b.Path) })
	return d.out
}

// sameBuses gives disks that somebody put on another bus the names that the rendering has for them: libvirt's name of a disk
// begins with its bus, and it is the same disk.
func sameBuses(want, have *node) {
	for _, device := range have.devices() {
		alias, target := device.child("alias").get("name"), device.child("target")
		if device.name != "disk" || alias == "" || target == nil {
			continue
		}
		for _, wanted := range want.devices() {
			place := wanted.child("target")
			if wanted.name != "disk" || wanted.child("alias").get("name") != alias || place.get("bus") == target.get("bus") {
				continue
			}
			target.set("dev", place.get("dev"))
			wanted.without("address")
			device.without("address") // it is one of the other bus
		}
	}
}

// thereIs is the value of an element that says only that it is there.
const thereIs = "present"

// maxDifferences bounds the result. A definition that differs in more places is another machine.
const maxDifferences = 1000

// place is where in the domain an element stands.
type place struct {
	// above is the place of the parent; nil for the domain itself.
	above *place
	node  *node
	depth int
}

func (p *place) path() string {
	if p.above == nil {
		return ""
	}
	if p.depth == 1 {
		return p.node.label
	}
	return p.above.path() + "/" + p.node.label
}

// device returns the device that the place is in or is, and nil outside the devices.
func (p *place) device() *place {
	for ; p.depth > 2; p = p.above {
	}
	if p.depth == 2 && p.above.node.name == "devices" {
		return p
	}
	return nil
}

// top returns the child of the domain that the place is in or is.
func (p *place) top() *node {
	for ; p.depth > 1; p = p.above {
	}
	return p.node
}

type differ struct{ out []Difference }

func (d *differ) add(path, want, have string) {
	if len(d.out) < maxDifferences {
		d.out = append(d.out, Difference{Path: path, Want: want, Have: have})
	}
}

// element compares two elements of one place.
func (d *differ) element(at place, want, have *node) {
	d.attributes(at, want, have)
	if !sameFact(want.name, want.text, have.text) {
		if want.text != "" || (have.text != "" && len(want.children) == 0) {
			d.add(at.path(), want.text, have.text)
		}
	}
	d.children(at, want, have)
}

func (d *differ) attributes(at place, want, have *node) {
	for i := range want.attrs {
		attribute := &want.attrs[i]
		name := attribute.Name.Local
		found := have.get(name)
		if attribute.Value == "" || sameFact(name, attribute.Value, found) || (found == "" && isDefault(&at, name, attribute.Value)) {
			continue
		}
		d.add(attributePath(&at, name), attribute.Value, found)
	}
	for i := range have.attrs {
		attribute := &have.attrs[i]
		name := attribute.Name.Local
		if attribute.Value == "" || want.get(name) != "" || isDefault(&at, name, attribute.Value) || !addedByPeople(&at, name) {
			continue
		}
		d.add(attributePath(&at, name), "", attribute.Value)
	}
}

func attributePath(at *place, name string) string {
	if at.above == nil {
		return name
	}
	return at.path() + "@" + name
}

func (d *differ) children(at place, want, have *node) {
	if len(want.children) == 0 && len(have.children) == 0 {
		return
	}
	devices := at.depth == 1 && at.node.name == "devices"
	want.labelChildren(devices)
	have.labelChildren(devices)
	wanted, found := finder(want), finder(have)
	for _, child := range want.children {
		here := place{above: &at, node: child, depth: at.depth + 1}
		if partner := found(child.label); partner != nil {
			d.element(here, child, partner)
		} else {
			d.missing(here)
		}
	}
	for _, child := range have.children {
		if wanted(child.label) == nil {
			d.extra(place{above: &at, node: child, depth: at.depth + 1})
		}
	}
}

// finder returns a function that finds a child by its label.
func finder(n *node) func(label string) *node {
	if len(n.children) <= 24 {
		return func(label string) *node {
			for _, child := range n.children {
				if child.label == label {
					return child
				}
			}
			return nil
		}
	}
	all := make(map[string]*node, len(n.children))
	for _, child := range n.children {
		all[child.label] = child
	}
	return func(label string) *node { return all[label] }
}

// missing tells of an element that was rendered and is gone: a device as one, others by each of their values.
func (d *differ) missing(at place) {
	if at.depth == 2 && at.device() != nil {
		if at.node.get("model") != rootPort {
			d.add(at.path(), thereIs, "")
		}
		return
	}
	d.values(at, func(path, value string) { d.add(path, value, "") }, func(*place, string) bool { return true })
}

// extra tells of an element that was not rendered, when a person added it.
func (d *differ) extra(at place) {
	if at.depth == 2 && at.device() != nil {
		if deviceOfPeople(at.node) {
			d.add(at.path(), "", thereIs)
		}
		return
	}
	d.values(at, func(path, value string) { d.add(path, "", value) }, addedByPeople)
}

// values tells the values of an element and of what is in it, defaults apart, as far as counts says that they matter.
func (d *differ) values(at place, tell func(path, value string), counts func(at *place, attribute string) bool) {
	if len(d.out) >= maxDifferences {
		return
	}
	n := at.node
	told := false
	for i := range n.attrs {
		name, value := n.attrs[i].Name.Local, n.attrs[i].Value
		if value == "" || at.isLabel(name) {
			continue
		}
		if told = true; isDefault(&at, name, value) {
			continue
		}
		if counts(&at, name) {
			tell(attributePath(&at, name), value)
		}
	}
	if n.text != "" && !isDefault(&at, "", n.text) && counts(&at, "") {
		tell(at.path(), n.text)
	} else if n.text == "" && !told && len(n.children) == 0 && !emptyMeansNothing[n.name] && counts(&at, "") {
		tell(at.path(), thereIs)
	}
	n.labelChildren(false)
	for _, child := range n.children {
		d.values(place{above: &at, node: child, depth: at.depth + 1}, tell, counts)
	}
}

// isLabel reports whether an attribute says no more than the element's path does, the element having others or a text.
func (p *place) isLabel(attribute string) bool {
	return keys[p.node.name] == attribute && (p.node.text != "" || len(p.node.attrs) > 1 || len(p.node.children) > 0)
}
