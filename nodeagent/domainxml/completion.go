package domainxml

import (
	"encoding/xml"
	"slices"
	"strconv"
	"strings"
)

// This file is what gitvirt knows of how libvirt completes a definition (https://libvirt.org/formatdomain.html): how it
// spells values anew, what it takes for granted, and what it adds by itself. TestRealLibvirtSeesNoDrift holds it.

// normalise brings a domain into one spelling: memory in KiB, the family of the machine, the number of vCPUs that are
// plugged in.
func normalise(domain *node) {
	domain.children = slices.DeleteFunc(domain.children, func(child *node) bool { return child.name == "metadata" })
	domain.attrs = slices.DeleteFunc(domain.attrs, func(a xml.Attr) bool {
		return a.Name.Local == "id" || a.Name.Local == "xmlns" || a.Name.Space == "xmlns"
	})
	inKiB(domain)
	totalMemory(domain)
	eachCPU(domain.child("cputune"))
	if memory := domain.child("memory"); memory != nil && domain.child("currentMemory") == nil {
		domain.children = append(domain.children, &node{name: "currentMemory", text: memory.text})
	}
	if vcpu := domain.child("vcpu"); vcpu != nil && vcpu.get("current") == "" {
		vcpu.set("current", pluggedIn(domain, vcpu.text))
	}
	if clock := domain.child("clock"); clock != nil {
		if base := clock.get("offset"); isNumber(clock.get("adjustment")) && (base == "utc" || base == "localtime") {
			clock.set("offset", "variable")
			clock.set("basis", base)
		}
	}
	if devices := domain.child("devices"); devices != nil {
		for _, device := range devices.children {
			switch device.name {
			case "disk":
				normaliseDisk(device)
			case "console":
				// libvirt counts consoles anew whenever it reads them, with the serial port's twin or without it.
				if target := device.child("target"); target != nil {
					target.drop("port")
				}
			}
		}
	}
	system := domain.child("os")
	if system == nil {
		return
	}
	if kind := system.child("type"); kind != nil {
		kind.set("machine", machineFamily(kind.get("machine")))
	}
	// libvirt adds <boot dev='hd'/> when no device has a boot order.
	system.children = slices.DeleteFunc(system.children, func(child *node) bool { return child.name == "boot" && child.get("dev") == "hd" })
}

// pluggedIn counts the vCPUs that are there from the beginning; without a list of them it is all.
func pluggedIn(domain *node, all string) string {
	vcpus := domain.child("vcpus")
	if vcpus == nil {
		return all
	}
	count := 0
	for _, vcpu := range vcpus.children {
		if vcpu.get("enabled") == "yes" {
			count++
		}
	}
	return strconv.Itoa(count)
}

func isNumber(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err == nil
}

func normaliseDisk(disk *node) {
	if disk.child("source") == nil {
		disk.set("type", "file") // of an empty drive libvirt forgets what it could hold
	}
	if disk.get("device") == "cdrom" && disk.child("readonly") == nil {
		disk.children = append(disk.children, &node{name: "readonly"}) // what else
	}
}

// totalMemory sets the memory to that of the NUMA cells and of the memory devices, as libvirt does when there are cells.
func totalMemory(domain *node) {
	memory, numa := domain.child("memory"), domain.child("cpu").child("numa")
	if memory == nil || numa == nil {
		return
	}
	total := uint64(0)
	for _, cell := range numa.children {
		total += kibOf(cell.get("memory"))
	}
	if devices := domain.child("devices"); devices != nil {
		for _, device := range devices.children {
			if device.name == "memory" {
				if size := device.child("target").child("size"); size != nil {
					total += kibOf(size.text)
				}
			}
		}
	}
	if total > 0 {
		memory.text = strconv.FormatUint(total, 10) + " KiB"
	}
}

// kibOf reads what kib wrote.
func kibOf(text string) uint64 {
	number, _, _ := strings.Cut(text, " ")
	value, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0
	}
	return value
}

// eachCPU writes the scheduler of several vCPUs or IO threads as one of each, as libvirt does when it likes.
func eachCPU(cputune *node) {
	if cputune == nil {
		return
	}
	var children []*node
	for _, child := range cputune.children {
		attribute := map[string]string{"vcpusched": "vcpus", "iothreadsched": "iothreads"}[child.name]
		set, ok := parseCPUSet(child.get(attribute))
		if attribute == "" || !ok || len(children) > maxCPUs {
			children = append(children, child)
			continue
		}
		for cpu, in := range set {
			if in {
				each := &node{name: child.name, attrs: slices.Clone(child.attrs)}
				each.set(attribute, strconv.Itoa(cpu))
				children = append(children, each)
			}
		}
	}
	cputune.children = children
}

// sizes are elements whose text is a size, in KiB when it has no unit.
var sizes = map[string]bool{
	"memory": true, "currentMemory": true, "maxMemory": true, "hard_limit": true, "soft_limit": true, "swap_hard_limit": true,
	"min_guarantee": true, "size": true, "requested": true, "block": true, "current": true,
}

// inKiB writes every size in KiB.
func inKiB(n *node) {
	switch {
	case n.name == "cell" && n.get("memory") != "":
		n.set("memory", kib(n.get("memory"), n.get("unit")))
		n.drop("unit")
	case n.name == "page" && n.get("size") != "":
		n.set("size", kib(n.get("size"), n.get("unit")))
		n.drop("unit")
	case n.get("unit") != "" || (sizes[n.name] && n.text != ""):
		if n.text != "" {
			n.text = kib(n.text, n.get("unit"))
			n.drop("unit")
		}
	}
	for _, child := range n.children {
		inKiB(child)
	}
}

func (n *node) drop(name string) {
	n.attrs = slices.DeleteFunc(n.attrs, func(a xml.Attr) bool { return a.Name.Local == name })
}

var units = map[string]uint64{
	"b": 1, "bytes": 1, "": 1 << 10, "k": 1 << 10, "kib": 1 << 10, "kb": 1000,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6, "g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// kib returns a size in KiB, rounded up as libvirt does.
func kib(text, unit string) string {
	value, err := strconv.ParseUint(text, 10, 64)
	factor, ok := units[strings.ToLower(unit)]
	if err != nil || !ok || value > (1<<63)/factor {
		return text + unit
	}
	return strconv.FormatUint((value*factor+1023)/1024, 10) + " KiB"
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

// sameFact reports whether two values of an attribute or element of this name mean the same.
func sameFact(name, a, b string) bool {
	if a == b {
		return true
	}
	switch name {
	case "cpuset", "nodeset", "cpus", "vcpus", "cores":
		return sameCPUs(a, b)
	case "uuid", "address", "wwpn", "wwnn":
		if strings.EqualFold(a, b) {
			return true
		}
	}
	x, ok := number64(a)
	if !ok {
		return false
	}
	y, ok := number64(b)
	return ok && x == y
}

// maxCPUs is more than any guest or host has here.
const maxCPUs = 4096

// parseCPUSet reads a set of CPUs as libvirt writes it: "0-3,^2,8".
func parseCPUSet(text string) (set [maxCPUs]bool, ok bool) {
	if len(text) > maxCPUs {
		return set, false
	}
	for part := range strings.SplitSeq(text, ",") {
		part, excluded := strings.CutPrefix(part, "^")
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || from > to || to >= maxCPUs {
			return set, false
		}
		for cpu := from; cpu <= to; cpu++ {
			set[cpu] = !excluded
		}
	}
	return set, true
}

// sameCPUs reports whether two sets of CPUs are the same: "0-1" and "0,1".
func sameCPUs(a, b string) bool {
	x, ok := parseCPUSet(a)
	if !ok {
		return false
	}
	y, ok := parseCPUSet(b)
	return ok && x == y
}

// rootPort is the model of a slot for a PCI device. How many free ones a guest has is nothing that it is: they are there for
// what it may be given.
const rootPort = "pcie-root-port"

// emptyMeansNothing are elements that say nothing when they are empty.
var emptyMeansNothing = map[string]bool{"entry": true, "devices": true, "description": true, "title": true}

// defaults are attributes, and texts of elements (those without @), that mean the same as if they were not there.
var defaults = map[string]string{
	"loader@secure": "no", "clock@adjustment": "reset", "vcpu@placement": "static", "driver@cache": "default",
	"driver@io": "default", "target@tray": "closed", "feature@policy": "require", "cpu@match": "exact",
	"topology@dies": "1", "topology@clusters": "1", "model@primary": "yes", "model@fallback": "allow",
	"on_poweroff": "destroy", "on_reboot": "restart", "on_crash": "destroy", "iothreads": "0", "hyperv@mode": "custom", "hostdev@display": "off", "hostdev@ramfb": "off", "driver@name": "qemu", "driver@type": "raw", "driver@queues": "1",
	"clock@offset": "utc", "link@state": "up",
}

// isDefault reports whether a value is what libvirt takes for granted. The empty attribute is the element's text.
func isDefault(at *place, attribute, value string) bool {
	if at.above == nil {
		return false
	}
	name := at.node.name
	if attribute != "" {
		name += "@" + attribute
	}
	known, ok := defaults[name]
	return ok && known == value
}

// settings are the parts of a domain, devices apart, in which nobody but a person adds something.
var settings = map[string]bool{
	"cputune": true, "memtune": true, "blkiotune": true, "numatune": true, "resource": true, "iothreads": true,
	"iothreadids": true, "defaultiothread": true, "maxMemory": true, "memory": true, "memoryBacking": true,
	"launchSecurity": true, "os": true, "vcpu": true, "vcpus": true, "commandline": true, "override": true, "perf": true,
	"idmap": true, "features": true, "cpu": true, "clock": true, "sysinfo": true, "pm": true, "seclabel": true,
	"keywrap": true, "genid": true, "throttlegroups": true, "on_poweroff": true, "on_reboot": true, "on_crash": true,
	"bootloader": true, "capabilities": true, "deprecation": true,
}

// completed is what libvirt adds within the settings, by element or by element and attribute.
var completed = map[string]bool{
	"cpu@check": true, "cpu@migratable": true, "model@fallback": true, "loader": true, "nvram": true, "firmware": true,
	"cell@id": true, "gic": true, "vcpu@current": true, "topology@dies": true, "topology@clusters": true,
	"type@arch": true, "type@machine": true,
}

// devicesOfPeople are the kinds of devices that libvirt never adds by itself to a domain like ours.
var devicesOfPeople = map[string]bool{
	"disk": true, "interface": true, "hostdev": true, "filesystem": true, "redirdev": true, "redirfilter": true,
	"memory": true, "shmem": true, "vsock": true, "tpm": true, "rng": true, "smartcard": true, "parallel": true,
	"sound": true, "panic": true, "iommu": true, "crypto": true, "lease": true, "channel": true,
	"serial": true, "console": true, "graphics": true, "video": true, "nvram": true, "pstore": true,
}

// deviceOfPeople reports whether a person added a device.
func deviceOfPeople(device *node) bool {
	switch device.name {
	case "input":
		return device.get("bus") != "ps2" // libvirt adds a mouse and a keyboard where there are graphics
	case "console":
		return device.child("target").get("type") != "serial" // libvirt adds one that is the first serial port
	case "watchdog":
		return device.get("model") != "itco" // newer ones add the one that every q35 has
	}
	return devicesOfPeople[device.name]
}

// partsOfPeople are the parts of devices of a kind ("*": of any) that only people add.
var partsOfPeople = map[string][]string{
	"*":       {"boot", "rom", "acpi", "readonly"},
	"serial":  {"log"},
	"channel": {"log"},
	"disk": {
		"iotune", "shareable", "transient", "serial", "wwn", "vendor", "product", "auth", "encryption", "geometry", "blockio",
		"driver", "source", "throttlefilters", "@rawio", "@sgio", "target@removable", "target@rotation_rate", "target@tray",
	},
	"interface": {
		"bandwidth", "filterref", "vlan", "link", "mtu", "driver", "guest", "ip", "route", "script", "coalesce", "backend",
		"tune", "port", "portForward", "teaming", "virtualport", "@trustGuestRxFilters", "downscript", "target@managed",
	},
	"hostdev":    {"teaming", "@display", "@ramfb", "driver@iommufd"},
	"filesystem": {"space_hard_limit", "space_soft_limit", "binary", "idmap", "driver@queue", "@fmode", "@dmode"},
	"memory":     {"source", "uuid", "@access", "@discard"},
	"rng":        {"rate", "driver"},
	"tpm":        {"backend/encryption", "backend/source", "backend/active_pcr_banks"},
	"memballoon": {"stats", "driver", "@autodeflate", "@freePageReporting"},
	"controller": {"driver", "target@hotplug"},
	"input":      {"driver", "source"},
	"video":      {"acceleration", "model@blob"},
	"graphics":   {"@passwd", "@sharePolicy", "@websocket", "listen", "gl", "clipboard", "filetransfer", "@powerControl"},
	"shmem":      {"server", "msi", "size"},
	"vsock":      {"driver"},
	"redirdev":   {},
}

// addedByPeople reports whether something that was not rendered is somebody's change: an attribute, or the element itself
// when attribute is empty.
func addedByPeople(at *place, attribute string) bool {
	device := at.device()
	if device == nil {
		if at.above == nil || !settings[at.top().name] {
			return false
		}
		return !completed[at.node.name] && !(attribute != "" && completed[at.node.name+"@"+attribute])
	}
	var part []string
	for here := at; here != device; here = here.above {
		part = append(part, here.node.name)
	}
	slices.Reverse(part)
	path := strings.Join(part, "/")
	if attribute != "" {
		path += "@" + attribute
	}
	if device.node.name == "hostdev" && path == "driver@name" {
		return false
	}
	for _, kind := range []string{"*", device.node.name} {
		for _, prefix := range partsOfPeople[kind] {
			if rest, ok := strings.CutPrefix(path, prefix); ok && (rest == "" || rest[0] == '/' || rest[0] == '@') {
				return true
			}
		}
	}
	return false
}
