package domainxml

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
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
	want, err := factsOf(rendered)
	if err != nil {
		return nil, fmt.Errorf("reading rendered XML: %w", err)
	}
	have, err := factsOf(defined)
	if err != nil {
		return nil, fmt.Errorf("reading the domain's XML: %w", err)
	}
	var out []Difference
	for path, value := range want {
		if found, ok := have[path]; !ok || found != value {
			out = append(out, Difference{Path: path, Want: value, Have: found})
		}
	}
	for path, value := range have {
		if _, ok := want[path]; !ok && foreign(path, want) {
			out = append(out, Difference{Path: path, Have: value})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return cmp.Compare(a.Path, b.Path) })
	return out, nil
}

// thereIs marks a fact that says only that an element is there.
const thereIs = "present"

// foreignRoots are the parts of a domain that nobody but a person adds: libvirt never makes them up. A path below a
// device that was not rendered is not told again, its device is.
var foreignRoots = []string{
	"cputune", "memtune", "blkiotune", "numatune", "resource", "iothreads", "maxMemory", "memoryBacking",
	"launchSecurity", "os/boot", "os/bootmenu", "vcpus", "commandline", "perf", "idmap",
}

// foreignDevices are the kinds of devices that libvirt never adds by itself.
var foreignDevices = map[string]bool{
	"disk": true, "interface": true, "hostdev": true, "filesystem": true, "redirdev": true, "memory": true,
	"shmem": true, "vsock": true, "tpm": true, "rng": true, "smartcard": true, "parallel": true, "sound": true,
}

// foreignParts are the children of a rendered disk or interface that only a person adds.
var foreignParts = []string{
	"/iotune", "/bandwidth", "/filterref", "/vlan", "/link@state", "/readonly", "/shareable", "/boot@order",
	"/serial", "/transient", "/mtu@size", "/auth", "/encryption",
}

// foreign reports whether a fact that was not rendered is somebody's change.
func foreign(path string, want map[string]string) bool {
	for _, root := range foreignRoots {
		if within(path, root) {
			return true
		}
	}
	rest, ok := strings.CutPrefix(path, "devices/")
	if !ok {
		return false
	}
	kind, _, _ := strings.Cut(rest, "[")
	device, part, nested := strings.Cut(path, "]")
	if !foreignDevices[kind] {
		return false
	}
	if _, rendered := want[device+"]"]; !rendered {
		return !nested || part == ""
	}
	return slices.ContainsFunc(foreignParts, func(prefix string) bool { return within(part, prefix) })
}

func within(path, root string) bool {
	rest, ok := strings.CutPrefix(path, root)
	return ok && (rest == "" || strings.ContainsRune("/@[", rune(rest[0])))
}

// node is one XML element.
type node struct {
	name     string
	attrs    map[string]string
	text     string
	children []*node
}

func (n *node) child(name string) *node {
	for _, child := range n.children {
		if child.name == name {
			return child
		}
	}
	return nil
}

func (n *node) attr(child, name string) string {
	if found := n.child(child); found != nil {
		return found.attrs[name]
	}
	return ""
}

func parse(document string) (*node, error) {
	decoder := xml.NewDecoder(strings.NewReader(document))
	root := &node{}
	stack := []*node{root}
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		top := stack[len(stack)-1]
		switch t := token.(type) {
		case xml.StartElement:
			if len(stack) == 2 && t.Name.Local == "metadata" {
				if err := decoder.Skip(); err != nil {
					return nil, err
				}
				continue
			}
			element := &node{name: t.Name.Local, attrs: make(map[string]string, len(t.Attr))}
			for _, attribute := range t.Attr {
				element.attrs[attribute.Name.Local] = attribute.Value
			}
			top.children = append(top.children, element)
			stack = append(stack, element)
		case xml.EndElement:
			top.text = strings.TrimSpace(top.text)
			stack = stack[:len(stack)-1]
		case xml.CharData:
			top.text += string(t)
		}
	}
	if len(root.children) != 1 || root.children[0].name != "domain" {
		return nil, errors.New("not a domain document")
	}
	return root.children[0], nil
}

// factsOf flattens a domain into path -> value.
func factsOf(document string) (map[string]string, error) {
	domain, err := parse(document)
	if err != nil {
		return nil, err
	}
	facts := make(map[string]string, 128)
	facts["type"] = domain.attrs["type"]
	for _, child := range domain.children {
		switch child.name {
		case "metadata", "currentMemory", "vcpu", "memory":
		case "devices":
			devices(child, facts)
		case "os":
			osFacts(child, facts)
		default:
			flatten(child.name, child, facts)
		}
	}
	memory, current := size(domain.child("memory")), size(domain.child("currentMemory"))
	facts["memory"] = memory
	facts["currentMemory"] = cmp.Or(current, memory)
	if vcpu := domain.child("vcpu"); vcpu != nil {
		facts["vcpu"] = vcpu.text
		facts["vcpu@current"] = cmp.Or(vcpu.attrs["current"], vcpu.text)
		if set := vcpu.attrs["cpuset"]; set != "" {
			facts["vcpus@cpuset"] = set
		}
	}
	return facts, nil
}

func osFacts(os *node, facts map[string]string) {
	for _, child := range os.children {
		switch child.name {
		case "type":
			facts["os/type"] = child.text
			facts["os/type@arch"] = child.attrs["arch"]
			facts["os/type@machine"] = machineFamily(child.attrs["machine"])
		case "boot":
			// libvirt adds <boot dev='hd'/> when no device has a boot order.
			if dev := child.attrs["dev"]; dev != "hd" {
				facts["os/boot["+dev+"]"] = thereIs
			}
		default:
			flatten("os/"+child.name, child, facts)
		}
	}
}

// machineFamily returns "q35" for "pc-q35-7.2": libvirt pins the version of an alias when it defines a domain.
func machineFamily(machine string) string {
	if machine == "pc" {
		return "i440fx" // libvirt's alias
	}
	rest, ok := strings.CutPrefix(machine, "pc-")
	if !ok {
		return machine
	}
	family, _, _ := strings.Cut(rest, "-")
	return family
}

// flatten writes an element's text, attributes and children. Elements that repeat are told apart by their name.
func flatten(path string, n *node, facts map[string]string) {
	if n.text != "" {
		facts[path] = n.text
	} else if len(n.attrs) == 0 && len(n.children) == 0 {
		facts[path] = thereIs
	}
	for name, value := range n.attrs {
		if value != "" && !defaulted(path, name, value) {
			facts[path+"@"+name] = value
		}
	}
	for _, child := range n.children {
		name := child.name
		if key := child.attrs["name"]; key != "" && (name == "timer" || name == "feature" || name == "entry") {
			if name == "entry" && child.text == "" {
				continue
			}
			name += "[" + key + "]"
		}
		flatten(path+"/"+name, child, facts)
	}
}

// defaulted reports whether an attribute only repeats what libvirt takes for granted.
func defaulted(path, name, value string) bool {
	switch {
	case name == "name" && (strings.HasSuffix(path, "]")):
		return true // already in the path
	case path == "os/loader" && name == "secure":
		return value == "no"
	case path == "clock" && name == "adjustment":
		return value == "reset"
	case name == "tray":
		return value == "closed"
	}
	return false
}

// devices flattens the devices; each is known by what stays with it when libvirt renumbers.
func devices(list *node, facts map[string]string) {
	counted := map[string]int{}
	for _, device := range list.children {
		if device.name == "emulator" || device.name == "controller" && device.attrs["type"] != "usb" && device.attrs["type"] != "scsi" {
			continue
		}
		key := deviceKey(device)
		if key == "" {
			key = strconv.Itoa(counted[device.name])
		}
		counted[device.name]++
		path := "devices/" + device.name + "[" + key + "]"
		facts[path] = thereIs
		for name, value := range device.attrs {
			if deviceAttribute(device.name, name) && value != "" {
				facts[path+"@"+name] = value
			}
		}
		for _, child := range device.children {
			if deviceChild(device.name, child) {
				flatten(path+"/"+child.name, child, facts)
			}
		}
	}
}

func deviceKey(device *node) string {
	switch device.name {
	case "disk":
		return device.attr("target", "dev")
	case "interface":
		return strings.ToLower(device.attr("mac", "address"))
	case "channel":
		return device.attr("target", "name")
	case "controller":
		return device.attrs["type"] + device.attrs["index"]
	case "input":
		return device.attrs["type"] + "-" + device.attrs["bus"]
	case "filesystem":
		return device.attr("target", "dir")
	}
	return ""
}

// deviceAttribute leaves out what libvirt decides about a running device.
func deviceAttribute(device, name string) bool {
	switch device {
	case "graphics":
		return name == "type"
	case "console", "serial":
		return name == "type"
	case "controller":
		return name == "model"
	}
	return name != "tty"
}

// deviceChild leaves out what libvirt adds to every device.
func deviceChild(device string, child *node) bool {
	switch child.name {
	case "address", "alias", "audio", "protocol", "privateData":
		return false
	case "backingStore":
		return false // libvirt completes the chain while the guest runs
	case "source":
		return device == "disk" || device == "interface"
	case "target":
		return device != "serial" && device != "console" && device != "channel"
	case "listen":
		return false
	case "driver":
		return device == "disk" || device == "interface"
	}
	return true
}

var units = map[string]uint64{
	"b": 1, "bytes": 1, "": 1 << 10, "k": 1 << 10, "kib": 1 << 10, "kb": 1000,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6, "g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
}

// size returns a memory element in KiB, rounded up as libvirt does.
func size(n *node) string {
	if n == nil {
		return ""
	}
	value, err := strconv.ParseUint(n.text, 10, 64)
	unit, ok := units[strings.ToLower(n.attrs["unit"])]
	if err != nil || !ok {
		return n.text + n.attrs["unit"]
	}
	return strconv.FormatUint((value*unit+1023)/1024, 10) + " KiB"
}
