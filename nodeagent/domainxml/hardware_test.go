package domainxml_test

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// This file reads from a domain what a guest or its owner can notice of it, the facts in which gitvirt's domains are compared
// with KubeVirt's. Paths of the host, aliases, metadata, texts of the SMBIOS and addresses that libvirt gives are none.

// element is one XML element.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element  `xml:",any"`
}

func (e *element) get(name string) string {
	if e != nil {
		for _, attribute := range e.Attrs {
			if attribute.Name.Local == name && attribute.Name.Space == "" {
				return attribute.Value
			}
		}
	}
	return ""
}

// find follows a path of names to the first element there.
func (e *element) find(path ...string) *element {
	for _, name := range path {
		if e == nil {
			return nil
		}
		var next *element
		for i := range e.Children {
			if e.Children[i].XMLName.Local == name {
				next = &e.Children[i]
				break
			}
		}
		e = next
	}
	return e
}

func (e *element) all(name string) []*element {
	var out []*element
	if e != nil {
		for i := range e.Children {
			if e.Children[i].XMLName.Local == name {
				out = append(out, &e.Children[i])
			}
		}
	}
	return out
}

func (e *element) text() string {
	if e == nil {
		return ""
	}
	return e.Text
}

// facts are paths and values.
type facts map[string]string

func (f facts) put(key, value string) {
	if value != "" {
		f[key] = value
	}
}

func (f facts) attrs(key string, e *element, names ...string) {
	for _, name := range names {
		f.put(key+"@"+name, e.get(name))
	}
}

// there says only that an element exists.
func (f facts) there(key string, e *element) {
	if e != nil {
		f[key] = "yes"
	}
}

var memoryUnits = map[string]int{"b": 1, "bytes": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30, "": 1 << 10}

func (f facts) size(key string, e *element, text string) {
	if e != nil {
		value, _ := strconv.Atoi(text)
		f[key] = strconv.Itoa(value * memoryUnits[strings.ToLower(e.get("unit"))])
	}
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

func factsOf(t testing.TB, document string) facts {
	t.Helper()
	var root element
	if err := xml.Unmarshal([]byte(document), &root); err != nil {
		t.Fatal(err)
	}
	f := facts{}
	f.machine(&root)
	f.cpu(&root)
	f.features(root.find("features"))
	f.tuning(&root)
	f.disks(root.find("devices"))
	for i, card := range root.find("devices").all("interface") {
		key := fmt.Sprintf("interface[%d]", i)
		f.attrs(key+"/model", card.find("model"), "type")
		f.attrs(key+"/boot", card.find("boot"), "order")
		f.attrs(key+"/driver", card.find("driver"), "queues", "name")
		f.attrs(key+"/acpi", card.find("acpi"), "index")
		f.attrs(key+"/rom", card.find("rom"), "enabled")
		f.attrs(key+"/link", card.find("link"), "state")
	}
	for i, device := range root.find("devices").all("hostdev") {
		f.attrs(fmt.Sprintf("hostdev[%d]", i), device, "type", "mode", "model", "display", "ramfb")
	}
	f.counted(root.find("devices"))
	if ports := root.find("devices").rootPorts(); ports > 0 {
		f[freeSlots] = strconv.Itoa(ports)
	}
	return f
}

// freeSlots is how many PCI slots stay free when libvirt has placed the devices. KubeVirt's documents have root ports for these
// alone; how many a domain of gitvirt's has is libvirt's to say.
const freeSlots = "pci/free"

func (e *element) rootPorts() (count int) {
	for _, controller := range e.all("controller") {
		if controller.get("model") == "pcie-root-port" {
			count++
		}
	}
	return count
}

func (f facts) machine(root *element) {
	f.size("memory", root.find("memory"), root.find("memory").text())
	f.size("maxMemory", root.find("maxMemory"), root.find("maxMemory").text())
	f.put("vcpu", root.find("vcpu").text())
	f.attrs("vcpu", root.find("vcpu"), "current")
	kind := root.find("os", "type")
	f.attrs("os/type", kind, "arch")
	machine := kind.get("machine")
	if strings.Contains(machine, "q35") {
		machine = "q35"
	}
	f.put("os/type@machine", machine)
	if loader := root.find("os", "loader"); loader != nil {
		f["os/efi"], f["os/efi@secure"] = "yes", or(loader.get("secure"), "no")
	}
	f.there("os/kernel", root.find("os", "kernel"))
	f.there("os/initrd", root.find("os", "initrd"))
	f.put("os/cmdline", root.find("os", "cmdline").text())
	f.attrs("os/bios", root.find("os", "bios"), "useserial")
	f.attrs("clock", root.find("clock"), "offset", "timezone", "adjustment")
	for _, timer := range root.find("clock").all("timer") {
		key := "clock/timer[" + timer.get("name") + "]"
		f.put(key, or(timer.get("present"), "yes"))
		f.attrs(key, timer, "tickpolicy", "track")
	}
	for _, event := range []string{"on_poweroff", "on_reboot", "on_crash"} {
		f.put(event, root.find(event).text())
	}
	f.attrs("launchSecurity", root.find("launchSecurity"), "type")
}

func (f facts) cpu(root *element) {
	cpu := root.find("cpu")
	f.attrs("cpu", cpu, "mode")
	f.put("cpu/model", cpu.find("model").text())
	f.attrs("cpu/topology", cpu.find("topology"), "sockets", "cores", "threads")
	for _, feature := range cpu.all("feature") {
		f.put("cpu/feature["+feature.get("name")+"]", feature.get("policy"))
	}
	for _, cell := range cpu.find("numa").all("cell") {
		f.put("cpu/numa["+cell.get("id")+"]", cell.get("cpus"))
	}
}

func (f facts) features(features *element) {
	if features == nil {
		return
	}
	for i := range features.Children {
		feature := &features.Children[i]
		key := "features/" + feature.XMLName.Local
		if feature.XMLName.Local != "hyperv" && feature.XMLName.Local != "kvm" {
			f.put(key, or(feature.get("state"), "on"))
			continue
		}
		f.attrs(key, feature, "mode")
		for j := range feature.Children {
			sub := &feature.Children[j]
			f.put(key+"/"+sub.XMLName.Local, or(sub.get("state"), "on"))
			f.attrs(key+"/"+sub.XMLName.Local, sub, "retries", "value")
		}
	}
}

func (f facts) tuning(root *element) {
	f.put("iothreads", root.find("iothreads").text())
	backing := root.find("memoryBacking")
	for _, name := range []string{"hugepages", "nosharepages", "locked"} {
		f.there("memoryBacking/"+name, backing.find(name))
	}
	for _, page := range backing.find("hugepages").all("page") {
		f.size("memoryBacking/hugepages/page", page, page.get("size"))
	}
	f.attrs("memoryBacking/access", backing.find("access"), "mode")
	if pins := root.find("cputune").all("vcpupin"); len(pins) > 0 {
		f["cputune/vcpupin"] = strconv.Itoa(len(pins))
	}
	f.there("cputune/emulatorpin", root.find("cputune", "emulatorpin"))
}

func (f facts) disks(devices *element) {
	for i, disk := range devices.all("disk") {
		key, driver := fmt.Sprintf("disk[%d]", i), disk.find("driver")
		f.put(key, or(disk.get("device"), "disk"))
		f.attrs(key+"/target", disk.find("target"), "bus", "dev", "tray")
		f.attrs(key+"/driver", driver, "type", "cache", "io", "error_policy", "discard", "queues")
		if driver.get("iothread") != "" {
			f[key+"/driver@iothread"] = "yes"
		}
		f.put(key+"@model", disk.get("model"))
		f.put(key+"/serial", disk.find("serial").text())
		f.attrs(key+"/boot", disk.find("boot"), "order")
		f.attrs(key+"/blockio", disk.find("blockio"), "logical_block_size", "physical_block_size")
		f.there(key+"/readonly", disk.find("readonly"))
		f.there(key+"/shareable", disk.find("shareable"))
		f.there(key+"/backing", disk.find("backingStore", "source"))
	}
}

// counted are the devices of which only kind and number matter.
func (f facts) counted(devices *element) {
	count := map[string]int{}
	for i := range devices.Children {
		device := &devices.Children[i]
		kind := []string{device.XMLName.Local}
		switch device.XMLName.Local {
		case "disk", "interface", "hostdev", "emulator", "console":
			continue
		case "controller":
			switch device.get("type") {
			case "pci", "sata", "ide", "fdc":
				continue // libvirt adds these itself
			}
			kind = append(kind, device.get("type"), or(device.get("model"), "default"))
		case "channel":
			kind = append(kind, device.find("target").get("type"), device.find("target").get("name"))
		case "serial":
			port := "0"
			if target := device.find("target"); target != nil {
				port = or(target.get("port"), "None")
			}
			kind = append(kind, "port", port)
		case "video":
			kind = append(kind, device.find("model").get("type"), "heads="+or(device.find("model").get("heads"), "None"))
		case "input", "graphics":
			kind = append(kind, device.get("type"), device.get("bus"))
		case "filesystem":
			kind = append(kind, device.find("driver").get("type"), device.find("target").get("dir"))
		case "memballoon":
			kind = append(kind, device.get("model"), "freePageReporting="+or(device.get("freePageReporting"), "off"))
		case "rng":
			kind = append(kind, device.get("model"), device.find("backend").text())
		case "tpm":
			kind = append(kind, device.get("model"), device.find("backend").get("version"))
		case "vsock":
			kind = append(kind, device.get("model"))
		default:
			kind = append(kind, device.get("model"), device.get("action"))
		}
		name := "devices"
		for _, part := range kind {
			if part != "" {
				name += "/" + part
			}
		}
		count[name]++
	}
	for name, n := range count {
		f[name] = strconv.Itoa(n)
	}
}
