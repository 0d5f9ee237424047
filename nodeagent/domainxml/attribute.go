package domainxml

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// Drift is a Difference in the words of the manifest.
type Drift struct {
	// Path is the field of the manifest ("spec.template.spec.domain.cpu.sockets"), or where in the domain XML it is when no field
	// stands for it ("devices/disk[vda]/iotune/read_bytes_sec").
	Path string
	// Want and Have are JSON values: numbers, booleans and strings; nil means that it is not there.
	Want, Have any
}

// fieldPrefix is what the paths of a VM's hardware begin with, in records and in plans.
const fieldPrefix = "spec.template.spec."

// Attribute tells what differences mean for the fields of a machine's manifest. Several differences of one field, as most
// commands make them, are one. What may be secret is not shown. The result is ordered by path.
func (m Machine) Attribute(differences []Difference) []Drift {
	if len(differences) == 0 {
		return nil
	}
	type ranked struct {
		Drift
		rank int
	}
	a := newAttribution(m)
	var all []ranked
	for _, difference := range differences {
		drift, rank := a.drift(difference)
		all = append(all, ranked{drift, rank})
	}
	slices.SortStableFunc(all, func(x, y ranked) int {
		if order := strings.Compare(x.Path, y.Path); order != 0 {
			return order
		}
		return x.rank - y.rank
	})
	var out []Drift
	rank := 0
	for _, one := range all {
		if n := len(out); n > 0 && out[n-1].Path == one.Path && strings.HasPrefix(one.Path, fieldPrefix) {
			if one.rank == rank { // two halves of one fact: the mode and the model of a CPU, the file and the device of a disk
				out[n-1].Want, out[n-1].Have = cmp.Or(out[n-1].Want, one.Want), cmp.Or(out[n-1].Have, one.Have)
			}
			continue
		}
		rank = one.rank
		out = append(out, one.Drift)
	}
	return out
}

// attribution knows the devices of one machine by what tells them apart in domain XML.
type attribution struct {
	machine Machine
	// names are the manifest's names of devices: "disk[vda]", "interface[02:00:00:00:00:01]".
	names map[string]string
	// collections are the fields of the host's devices: "gpus", "hostDevices", "interfaces".
	collections map[string]string
	// kinds are what disks are to the guest: "disk", "cdrom", "lun".
	kinds map[string]string
}

func newAttribution(m Machine) *attribution {
	a := &attribution{machine: m, names: map[string]string{}, collections: map[string]string{}, kinds: map[string]string{}}
	r, err := newRenderer(m)
	if err != nil {
		return a // a machine that cannot be rendered has no differences either
	}
	var targets targets
	devices := &m.Spec.Domain.Devices
	for i := range devices.Disks {
		device := r.deviceOf(&devices.Disks[i])
		target, _ := targets.next(device.bus)
		if m.Kept == nil {
			a.names["disk["+target+"]"] = devices.Disks[i].Name
		}
		a.kinds[devices.Disks[i].Name] = device.device
	}
	if m.Kept != nil {
		a.keptDisks()
	}
	for i := range devices.Interfaces {
		a.names["interface["+m.Host.cardOf(m.Address, &devices.Interfaces[i])+"]"] = devices.Interfaces[i].Name
	}
	for i := range devices.Inputs {
		bus, kind := string(devices.Inputs[i].Bus), string(devices.Inputs[i].Type)
		if bus == "" {
			bus = "usb"
		}
		if kind == "" {
			kind = "tablet"
		}
		a.names["input["+kind+"-"+bus+"]"] = devices.Inputs[i].Name
	}
	a.hostDevices()
	return a
}

// keptDisks names the disks of an adopted domain: those that it had keep their places in it, others have aliases.
func (a *attribution) keptDisks() {
	if was, _, err := schemas.ParseRecord(a.machine.Kept.Spec, true); err == nil {
		for i, disk := range was.Spec.Template.Spec.Domain.Devices.Disks {
			if i < len(a.machine.Kept.Targets) {
				a.names["disk["+a.machine.Kept.Targets[i]+"]"] = disk.Name
			}
		}
	}
	tree, err := a.machine.tree()
	if err != nil {
		return
	}
	for _, disk := range tree.devicesOf("disk") {
		if name, ok := strings.CutPrefix(disk.child("alias").get("name"), "ua-"); ok {
			a.names["disk["+disk.child("target").get("dev")+"]"] = name
		}
	}
}

func (a *attribution) hostDevices() {
	devices := &a.machine.Spec.Domain.Devices
	for _, assigned := range a.machine.Host.Assignment.Devices {
		key := "hostdev[" + strings.ToLower(assigned.Address) + "]"
		a.names[key], a.collections[key] = assigned.Name, "hostDevices"
		for i := range devices.GPUs {
			if devices.GPUs[i].Name == assigned.Name {
				a.collections[key] = "gpus"
			}
		}
		for i := range devices.Interfaces {
			if devices.Interfaces[i].Name == assigned.Name && devices.Interfaces[i].SRIOV != nil {
				a.collections[key] = "interfaces"
			}
		}
	}
}

// drift returns a difference in the words of the manifest, and how much it says about its field beside others: less is more.
func (a *attribution) drift(difference Difference) (Drift, int) {
	steps, attribute := splitPath(difference.Path)
	out := Drift{Path: difference.Path, Want: plain(difference.Want), Have: plain(difference.Have)}
	field, found := fieldOf(steps, attribute)
	if path := a.fill(field.path, steps); found && path != "" {
		out.Path = fieldPrefix + path
		if field.value != nil {
			out.Want, out.Have = field.value(a, difference.Want), field.value(a, difference.Have)
		}
	}
	if secret(steps, attribute) {
		out.Want, out.Have = concealed(difference.Want), concealed(difference.Have)
	}
	return out, field.rank
}

// plain is a value as it stands in the XML; "" is none.
func plain(value string) any {
	if value == "" {
		return nil
	}
	return value
}

func concealed(value string) any {
	if value == "" {
		return nil
	}
	return "(sensitive)"
}

// secret reports whether a value may be one that is nobody's business: passwords, what is passed to QEMU past libvirt, texts
// for the guest's eyes, and the queries of URLs.
func secret(steps []step, attribute string) bool {
	switch attribute {
	case "passwd", "query":
		return true
	}
	for _, step := range steps {
		switch step.name {
		case "commandline", "override", "oemStrings", "session", "dhCert", "secret", "cookie", "cookies":
			return true
		}
	}
	return false
}

// step is one element of a path: "disk" and "vda".
type step struct{ name, key string }

// splitPath takes the path of a Difference apart. Keys may hold whatever the path itself is made of.
func splitPath(path string) (steps []step, attribute string) {
	for path != "" {
		var one step
		end := strings.IndexAny(path, "/@[")
		if end < 0 {
			return append(steps, step{name: path}), ""
		}
		one.name, path = path[:end], path[end:]
		if path[0] == '[' {
			closing := strings.IndexByte(path, ']')
			if closing < 0 {
				return append(steps, one), ""
			}
			one.key, path = path[1:closing], path[closing+1:]
			if path != "" && path[0] == '#' { // one of several with the same key
				path = strings.TrimLeft(path, "#0123456789")
			}
		}
		steps = append(steps, one)
		switch {
		case path == "":
		case path[0] == '@':
			return steps, path[1:]
		default:
			path = strings.TrimPrefix(path, "/")
		}
	}
	return steps, ""
}

// fieldOf finds the row of the table for a path: its own, or that of an element around it which stands for all that is in it.
func fieldOf(steps []step, attribute string) (field, bool) {
	path := ""
	var found field
	ok := false
	for i, step := range steps {
		if i > 0 {
			path += "/"
		}
		keyed := path + step.name + "[" + step.key + "]"
		path += step.name
		for _, path := range [2]string{path, keyed} {
			if row, has := fields[path+"/..."]; has {
				found, ok = row, true
			}
			if i < len(steps)-1 {
				continue
			}
			if attribute != "" {
				path += "@" + attribute
			}
			if row, has := fields[path]; has {
				found, ok = row, true
			}
		}
	}
	return found, ok
}

// fill puts names in place of {name}, {key}, {kind} and {list} in a row's path; "" when what stands there is not of the
// manifest and has no name.
func (a *attribution) fill(path string, steps []step) string {
	if !strings.Contains(path, "{") || len(steps) == 0 {
		return path
	}
	last := steps[len(steps)-1].key
	device := steps[min(1, len(steps)-1)]
	id := device.name + "[" + device.key + "]"
	name, known := a.names[id]
	if !known {
		name = device.key // what somebody attached goes by what tells it apart
		if strings.Contains(path, "{kind}") || strings.Contains(path, "{list}") || (name == "" && strings.Contains(path, "{name}")) {
			return ""
		}
	}
	return strings.NewReplacer("{name}", name, "{key}", last, "{kind}", a.kinds[name], "{list}", a.collections[id]).Replace(path)
}
