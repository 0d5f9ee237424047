package domainxml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// OperationKind is a kind of change of a running guest, named as the hypervisor's method that makes it.
type OperationKind string

// The kinds of operations.
const (
	OperationDetach OperationKind = "detach" // Device, as the guest has it
	OperationUpdate OperationKind = "update" // Device, as the guest has it but for the change
	// OperationReinsert is two updates, to Empty and then to Device: a medium whose file is another by now.
	OperationReinsert OperationKind = "reinsert"
	OperationAttach   OperationKind = "attach" // Device
	OperationResize   OperationKind = "resize" // the disk Target grows to Bytes
	OperationMemory   OperationKind = "memory" // the target of the balloon becomes KiB
	OperationVCPUs    OperationKind = "vcpus"  // the guest has VCPUs from then on
)

// Operation is one change of a running guest.
type Operation struct {
	Kind OperationKind
	// Text says what is being done, for people: "plugging in disk data".
	Text string
	// Device is an element of domain XML, Empty the same without a medium.
	Device, Empty string
	// Target is a disk's device name in the running guest, Bytes its new size.
	Target string
	Bytes  uint64
	KiB    uint64
	VCPUs  uint
}

// NotLiveError says why a running guest cannot become what is wanted without a restart.
type NotLiveError struct {
	// Reasons are for people, each about one thing.
	Reasons []string
}

// Error implements error.
func (e *NotLiveError) Error() string { return strings.Join(e.Reasons, "; ") }

// Live works out what makes a running guest what a machine renders to, in the order in which it is to be done: what is
// taken away comes first, because it may make room. was is the machine of the guest's own record, want the wanted one, and live the
// guest's XML. No operation means that the guest is so already. A *NotLiveError says that a restart is needed, and why; what
// differs from the guest's own record already is not its reason, unless it can be put right.
func Live(was, want Machine, live string) ([]Operation, error) {
	before, err := newLiveChange(was, was, live)
	if err != nil {
		return nil, err
	}
	c, err := newLiveChange(was, want, live)
	if err != nil {
		return nil, err
	}
	c.detachments()
	c.updates()
	c.attachments()
	c.memory()
	c.vcpus()
	known := map[Difference]bool{}
	for _, difference := range before.compare() {
		known[difference] = true
	}
	for _, difference := range c.compare() {
		if !known[difference] {
			c.refuse("%s", c.restartFor(difference))
		}
	}
	if len(c.reasons) > 0 {
		return nil, &NotLiveError{Reasons: c.reasons}
	}
	return slices.Concat(c.detach, c.update, c.attach, c.size), nil
}

// device is an element as it is written, and as it is compared.
type device struct{ raw, norm *node }

func devicesOfBoth(raw, norm *node) []device {
	var out []device
	for i, element := range raw.devices() {
		out = append(out, device{raw: element, norm: norm.devices()[i]})
	}
	return out
}

// liveChange finds the operations for one guest. Each one that it finds it also makes in have, so that what is left to compare in
// the end is what no operation brings about.
type liveChange struct {
	was, machine Machine
	// want and have are the domains as they are compared; raw is the guest's as it is.
	want, have, raw *node
	wanted, present []device
	// partner has the guest's device for each wanted disk and network card that it has.
	partner map[*node]device
	// names are what people call a device, by the key of its path.
	names map[string]string

	detach, update, attach, size []Operation
	reasons                      []string
	freeSlots                    int
}

func newLiveChange(was, want Machine, live string) (*liveChange, error) {
	c := &liveChange{was: was, machine: want, partner: map[*node]device{}, names: map[string]string{}}
	var err error
	if c.want, err = want.tree(); err != nil {
		return nil, err
	}
	rendered, err := want.tree()
	if err != nil {
		return nil, err
	}
	if c.have, err = parseFast(live); err != nil {
		return nil, fmt.Errorf("reading the running guest's XML: %w", err)
	}
	if c.raw, err = parseFast(live); err != nil {
		return nil, fmt.Errorf("reading the running guest's XML: %w", err)
	}
	c.wanted, c.present = devicesOfBoth(rendered, c.want), devicesOfBoth(c.raw, c.have)
	c.freeSlots = freeSlots(c.raw)
	normalise(c.want)
	normalise(c.have)
	c.pair()
	c.align()
	return c, nil
}

func (c *liveChange) refuse(format string, arguments ...any) {
	if reason := fmt.Sprintf(format, arguments...); !slices.Contains(c.reasons, reason) {
		c.reasons = append(c.reasons, reason)
	}
}

// compare returns what differs now, by path.
func (c *liveChange) compare() []Difference {
	d := &differ{}
	d.element(place{}, c.want, c.have)
	slices.SortFunc(d.out, func(a, b Difference) int { return cmp.Compare(a.Path, b.Path) })
	return d.out
}

// identities are what a disk or a network card may be recognised by, the surest first.
func identities(device *node) []string {
	alias, target := device.child("alias").get("name"), device.child("target")
	var out []string
	add := func(kind, value string) {
		if value != "" {
			out = append(out, kind+value)
		}
	}
	switch device.name {
	case "disk":
		if strings.HasPrefix(alias, "ua-") {
			add("alias ", alias)
		}
		add("source ", sourceOf(device))
		if device.get("device") == "cdrom" && sourceOf(device) == "" {
			add("drive ", target.get("dev"))
		}
	case "interface":
		add("mac ", strings.ToLower(device.child("mac").get("address")))
		if strings.HasPrefix(alias, "ua-") {
			add("alias ", alias)
		}
	}
	return out
}

func sourceOf(disk *node) string {
	source := disk.child("source")
	return cmp.Or(source.get("file"), source.get("dev"))
}

// pair finds each wanted disk and network card in the guest: by its alias, the image, the MAC address, never by its place.
func (c *liveChange) pair() {
	taken := map[*node]bool{}
	for round := range 3 {
		for _, wanted := range c.wanted {
			keys := identities(wanted.norm)
			if _, found := c.partner[wanted.norm]; found || round >= len(keys) {
				continue
			}
			for _, present := range c.present {
				if present.norm.name == wanted.norm.name && !taken[present.norm] && slices.Contains(identities(present.norm), keys[round]) {
					c.partner[wanted.norm], taken[present.norm] = present, true
					break
				}
			}
		}
	}
}

// align writes both sides so that they can be compared: pairs get one name, and what only a running guest's XML says goes.
func (c *liveChange) align() {
	for _, wanted := range c.wanted {
		name := strings.TrimPrefix(wanted.norm.child("alias").get("name"), "ua-")
		partner, found := c.partner[wanted.norm]
		switch wanted.norm.name {
		case "disk":
			c.names["disk["+name+"]"] = "disk " + name
			wanted.norm.child("target").set("dev", name)
			if found {
				alignDisk(wanted.norm, partner.norm, name)
			}
		case "interface":
			mac := wanted.norm.child("mac").get("address")
			c.names["interface["+mac+"]"] = "interface " + name
			if found {
				partner.norm.without("alias")
				wanted.norm.without("alias")
				if theirs := partner.norm.child("mac"); theirs != nil && !strings.EqualFold(theirs.get("address"), mac) {
					c.refuse("interface %s has another MAC address; a network card gets that only at a restart", name)
					theirs.set("address", mac)
				}
			}
		}
	}
	for _, domain := range []*node{c.want, c.have} {
		if list := domain.child("vcpus"); list != nil {
			for _, vcpu := range list.children { // how many there are says vcpu@current
				vcpu.drop("order")
				vcpu.drop("enabled")
			}
		}
	}
	alignMemory(c.want, c.have)
}

func alignDisk(want, have *node, name string) {
	if target := have.child("target"); target != nil {
		target.set("dev", name)
		target.drop("tray")
		want.child("target").drop("tray")
	}
	for _, disk := range []*node{want, have} {
		disk.without("alias")
		disk.children = slices.DeleteFunc(disk.children, func(child *node) bool {
			return child.name == "address" && child.get("type") == "drive"
		})
		disk.eachChild(func(part *node) {
			if part.name == "source" || part.name == "backingStore" {
				part.drop("index")
			}
		})
		withoutEmptySource(disk)
	}
	if have.get("device") == "cdrom" {
		withoutMedium(want)
		withoutMedium(have)
	}
}

// eachChild visits all that is below an element.
func (n *node) eachChild(visit func(*node)) {
	for _, child := range n.children {
		visit(child)
		child.eachChild(visit)
	}
}

func (n *node) without(name string) {
	n.children = slices.DeleteFunc(n.children, func(child *node) bool { return child.name == name })
}

func (n *node) devices() []*node {
	if devices := n.child("devices"); devices != nil {
		return devices.children
	}
	return nil
}

// clone copies an element with all that is in it.
func (n *node) clone() *node {
	out := *n
	out.attrs, out.children = slices.Clone(n.attrs), make([]*node, 0, len(n.children))
	for _, child := range n.children {
		out.children = append(out.children, child.clone())
	}
	return &out
}

// replace puts elements of a name, as another element has them, in place of its own.
func (n *node) replace(name string, from *node) {
	n.without(name)
	for _, child := range from.children {
		if child.name == name {
			n.children = append(n.children, child.clone())
		}
	}
}

// restartFor says in the words of manifests what only a restart brings.
func (c *liveChange) restartFor(difference Difference) string {
	if rest, ok := strings.CutPrefix(difference.Path, "devices/"); ok {
		end := strings.IndexByte(rest, ']') + 1
		key, part := rest[:end], strings.TrimLeft(rest[end:], "/@")
		name := cmp.Or(c.names[key], key)
		switch {
		case part != "":
			return name + " changes in " + part + ", which the guest gets only at a restart"
		case difference.Have == "":
			return name + " can only be given to the guest at a restart"
		}
		return name + " can only be taken from the guest at a restart"
	}
	for _, area := range []struct{ prefix, words string }{
		{"vcpu", mostVCPUs},
		{"cpu/topology", mostVCPUs},
		{"cpu/numa/cell[0]@cpus", mostVCPUs},
		{"cpu/numa", "the memory that the guest starts with"},
		{"cpu", "the processor's model and features"},
		{"maxMemory", "memory.maxGuest"},
		{"memoryBacking", "what the memory is made of"},
		{"memory", "the memory that the guest starts with"},
		{"currentMemory", "the memory that the guest starts with"},
		{"os", "firmware and boot"},
		{"iothreads", "the I/O threads"},
		{"cputune", "where the guest's threads run"},
		{"numatune", "where the guest's memory lies"},
		{"sysinfo", "the SMBIOS tables"},
		{"features", "the machine's features"},
		{"clock", "the clock"},
		{"override", "what is passed to QEMU"},
		{"commandline", "what is passed to QEMU"},
	} {
		if strings.HasPrefix(difference.Path, area.prefix) {
			return area.words + " can only change at a restart"
		}
	}
	return difference.Path + " in the domain can only change at a restart"
}

const mostVCPUs = "the largest number of vCPUs"
