package domainxml

import (
	"strconv"
	"strings"
)

// keys are the attributes that tell elements of one name apart, wherever they stand outside the devices.
var keys = map[string]string{
	"timer": "name", "feature": "name", "entry": "name", "env": "name", "event": "name", "property": "name",
	"vcpupin": "vcpu", "iothreadpin": "iothread", "vcpusched": "vcpus", "iothreadsched": "iothreads", "memnode": "cellid",
	"iothread": "id", "cell": "id", "vcpu": "id", "cachetune": "vcpus", "memorytune": "vcpus", "sysinfo": "type",
	"sibling": "id", "seclabel": "model", "throttlegroup": "group_name", "capability": "capability", "del": "capability",
	"add": "capability",
}

// lists are elements of which every one gets its number, the first as well.
var lists = map[string]bool{
	"arg": true, "table": true, "page": true, "listen": true, "initenv": true, "initarg": true,
	"ip": true, "route": true, "host": true,
}

// labelChildren gives each child the name that it has in paths: what stays with it when libvirt or a person reorders, its number
// where there is nothing of that kind. No two children have the same one.
func (n *node) labelChildren(devices bool) {
	if len(n.children) == 1 && !devices {
		child := n.children[0]
		child.label = childLabel(child, false, 0)
		return
	}
	taken := make(map[string]int, len(n.children))
	for _, child := range n.children {
		number := taken[child.name]
		taken[child.name]++
		child.label = childLabel(child, devices, number)
	}
	seen := make(map[string]int, len(n.children))
	for _, child := range n.children {
		seen[child.label]++
		if again := seen[child.label]; again > 1 {
			child.label += "#" + strconv.Itoa(again)
		}
	}
}

func childLabel(child *node, devices bool, number int) string {
	if devices {
		key := deviceKey(child)
		if key == "" {
			key = strconv.Itoa(number)
		}
		return child.name + "[" + key + "]"
	}
	if attribute, ok := keys[child.name]; ok {
		if key := readable(child.get(attribute)); key != "" {
			return child.name + "[" + key + "]"
		}
	}
	if lists[child.name] || number > 0 {
		return child.name + "[" + strconv.Itoa(number) + "]"
	}
	return child.name
}

// readable returns a key that can stand in a path, and "" for one that could be mistaken for something else there or would
// not fit on a line.
func readable(key string) string {
	if len(key) > 128 {
		return ""
	}
	for _, c := range key {
		if c <= ' ' || c > '~' || strings.ContainsRune("[]#\"'<>&", c) {
			return ""
		}
	}
	return key
}

// deviceKey is what stays with a device; "" when it has nothing of the kind and goes by its number.
func deviceKey(device *node) string {
	switch device.name {
	case "disk":
		return readable(device.child("target").get("dev"))
	case "interface":
		return readable(strings.ToLower(device.child("mac").get("address")))
	case "channel":
		return readable(device.child("target").get("name"))
	case "controller":
		return readable(device.get("type") + device.get("index"))
	case "input":
		return readable(device.get("type") + "-" + device.get("bus"))
	case "filesystem":
		return readable(device.child("target").get("dir"))
	case "shmem":
		return readable(device.get("name"))
	case "hostdev":
		return readable(hostdevKey(device))
	}
	return ""
}

// hostdevKey names the device of the host: "0000:81:01.0", an mdev's UUID, "1:5" or "1d6b:0002" for USB.
func hostdevKey(device *node) string {
	source := device.child("source")
	address := source.child("address")
	switch device.get("type") {
	case "pci":
		return pciKey(address)
	case "mdev":
		return strings.ToLower(address.get("uuid"))
	case "usb":
		if vendor := source.child("vendor"); vendor != nil {
			return hex(vendor.get("id"), 4) + ":" + hex(source.child("product").get("id"), 4)
		}
		if bus, device := address.get("bus"), address.get("device"); bus != "" {
			return canonicalNumber(bus) + ":" + canonicalNumber(device)
		}
	}
	return ""
}

func pciKey(address *node) string {
	if address == nil {
		return ""
	}
	return hex(address.get("domain"), 4) + ":" + hex(address.get("bus"), 2) + ":" + hex(address.get("slot"), 2) + "." + hex(address.get("function"), 1)
}

// hex writes a number in hexadecimal with at least so many digits; what is no number stays as it is.
func hex(text string, digits int) string {
	if text == "" {
		text = "0"
	}
	value, ok := number64(text)
	if !ok {
		return text
	}
	out := strconv.FormatUint(value, 16)
	return strings.Repeat("0", max(0, digits-len(out))) + out
}

// number64 reads a number as libvirt writes it: decimal, or hexadecimal with 0x.
func number64(text string) (uint64, bool) {
	base := 10
	if rest, ok := strings.CutPrefix(text, "0x"); ok {
		text, base = rest, 16
	}
	value, err := strconv.ParseUint(text, base, 64)
	return value, err == nil
}

// canonicalNumber writes a number in decimal; what is none stays as it is.
func canonicalNumber(text string) string {
	if value, ok := number64(text); ok {
		return strconv.FormatUint(value, 10)
	}
	return text
}
