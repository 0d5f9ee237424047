package schemas

import (
	"fmt"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// maxCPUs bounds the number of virtual CPUs; no machine type of QEMU takes more.
const maxCPUs = 4096

// checker looks for what is wrong with one object after it was decoded. Positions are looked up only when there is
// something to tell.
type checker struct {
	*document
	// spec is the path of the VirtualMachineInstanceSpec.
	spec    []any
	address Address
	// holdings and, for sources, reached are gathered for Assemble.
	holdings []holding
	reached  []reach
	// wrong are the paths that had mistakes when the object was read, and those that misspelt fields were meant to be.
	wrong []string
	// setBy names the instancetype or the preference that gave the machine what is at a path; nil when there is none.
	setBy func(path []any) string
}

// newChecker is for a document that was decoded and not checked yet.
func newChecker(d *document, address Address, spec []any) *checker {
	c := &checker{document: d, spec: spec, address: address}
	if d.broke {
		c.wrong = slices.Clone(d.suggested)
		for this := range d.told {
			c.wrong = append(c.wrong, this.path)
		}
	}
	return c
}

// in returns the path of a field of the VirtualMachineInstanceSpec.
func (c *checker) in(parts ...any) []any { return slices.Concat(c.spec, parts) }

// fail reports a mistake at path, unless what is wrong there was told already: when it was read, or when a misspelt
// field was found that was meant to be it.
func (c *checker) fail(path []any, message, fix string) {
	if len(c.file.Diagnostics) > maxDiagnostics { // nothing more is told, and finding the place takes time
		c.broke = true
		return
	}
	if c.misread(path) {
		return
	}
	if c.setBy != nil && !c.wasGiven(path) {
		if by := c.setBy(path); by != "" {
			message += " (set by " + by + ")"
		}
	}
	c.report(locate(c.root, path), pathString(c.prefix, elements(path)), SeverityError, message, fix)
}

// misread reports whether something went wrong when the field at path, something below it or what holds it was read.
func (c *checker) misread(path []any) bool {
	if len(c.wrong) == 0 {
		return false
	}
	text := pathString(c.prefix, elements(path))
	return slices.ContainsFunc(c.wrong, func(wrong string) bool { return isWithin(wrong, text) || isWithin(text, wrong) })
}

// reported reports whether a mistake was told at path or below it.
func (c *checker) reported(path []any) bool {
	text := pathString(c.prefix, elements(path))
	for this := range c.told {
		if isWithin(this.path, text) {
			return true
		}
	}
	return false
}

// isWithin reports whether path is outer or a field below it.
func isWithin(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// listMisread reports whether the names in the list at path could not all be read.
func (c *checker) listMisread(path []any) bool {
	text := pathString(c.prefix, elements(path))
	return slices.ContainsFunc(c.wrong, func(wrong string) bool {
		rest, ok := strings.CutPrefix(wrong, text)
		return isWithin(text, wrong) || ok && (strings.HasSuffix(rest, "].name") || strings.HasSuffix(rest, "]"))
	})
}

func (c *checker) warn(path []any, message, fix string) {
	if len(c.file.Diagnostics) > maxDiagnostics {
		return
	}
	c.report(locate(c.root, path), pathString(c.prefix, elements(path)), SeverityWarning, message, fix)
}

// failOneOf reports a value that is none of the allowed ones.
func (c *checker) failOneOf(path []any, value string, allowed ...string) {
	fix := "use " + strings.Join(allowed, ", ")
	if len(allowed) > 1 {
		fix = "use " + strings.Join(allowed[:len(allowed)-1], ", ") + " or " + allowed[len(allowed)-1]
	}
	if near := closest(value, allowed); near != "" {
		fix = fmt.Sprintf("did you mean %s?", near)
	}
	c.fail(path, quoteValue(value)+" is not one of "+strings.Join(allowed, ", "), fix)
}

// oneOf reports value unless it is empty or allowed.
func oneOf[T ~string](c *checker, path func() []any, value T, allowed ...T) {
	if value == "" || slices.Contains(allowed, value) {
		return
	}
	words := make([]string, len(allowed))
	for i, word := range allowed {
		words[i] = string(word)
	}
	c.failOneOf(path(), string(value), words...)
}

// wasGiven reports whether the manifest has something at path; null counts as nothing.
func (c *checker) wasGiven(path []any) bool {
	n, all := locateAll(c.root, path)
	return all && !isNull(n)
}

// check looks through the whole spec of a machine, with its defaults filled in.
func (c *checker) check(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	if *c.budget < 0 { // as was said: much of the object was not read
		return
	}
	c.checkCPU(spec)
	c.checkMemory(spec)
	c.checkFirmware(spec)
	c.checkFeatures(spec)
	c.checkPlacement(spec)
	c.checkSmallDevices(spec)
	c.checkVolumes(spec)
	c.checkDisks(spec)
	c.checkNetworks(spec)
	c.checkInterfaces(spec)
	c.checkAddresses(&spec.Domain.Devices)
	c.checkCredentials(spec)
	c.checkProbe(spec, "livenessProbe", spec.LivenessProbe)
	c.checkProbe(spec, "readinessProbe", spec.ReadinessProbe)
	if isForeign(spec.Architecture) {
		c.checkArchitecture(spec)
	}
}

// maxItems bounds the lists of devices, as KubeVirt does.
const maxItems = 256

// given looks at what the defaults would paint over, and reports whether the lists are short enough to go on.
func (c *checker) given(spec *kubevirtv1.VirtualMachineInstanceSpec) bool {
	short := true
	for _, list := range []struct {
		path   []any
		length int
	}{
		{at("volumes"), len(spec.Volumes)},
		{at("networks"), len(spec.Networks)},
		{at("domain", "devices", "disks"), len(spec.Domain.Devices.Disks)},
		{at("domain", "devices", "interfaces"), len(spec.Domain.Devices.Interfaces)},
		{at("domain", "devices", "filesystems"), len(spec.Domain.Devices.Filesystems)},
		{at("domain", "devices", "gpus"), len(spec.Domain.Devices.GPUs)},
		{at("domain", "devices", "hostDevices"), len(spec.Domain.Devices.HostDevices)},
		{at("domain", "devices", "inputs"), len(spec.Domain.Devices.Inputs)},
		{at("domain", "devices", "panicDevices"), len(spec.Domain.Devices.PanicDevices)},
		{at("accessCredentials"), len(spec.AccessCredentials)},
		{at("topologySpreadConstraints"), len(spec.TopologySpreadConstraints)},
	} {
		if list.length > maxItems {
			c.fail(c.in(list.path...), fmt.Sprintf("%d entries, at most %d are allowed", list.length, maxItems), "remove some")
			short = false
		}
	}
	if cpu := spec.Domain.CPU; cpu != nil {
		for _, count := range []struct {
			name  string
			value uint32
		}{{"cores", cpu.Cores}, {"sockets", cpu.Sockets}, {"threads", cpu.Threads}, {"maxSockets", cpu.MaxSockets}} {
			path := c.in("domain", "cpu", count.name)
			if count.value == 0 && c.wasGiven(path) {
				c.fail(path, "must be at least 1", "write 1, or leave it out")
			}
		}
	}
	c.checkProbeNumbers("livenessProbe", spec.LivenessProbe)
	c.checkProbeNumbers("readinessProbe", spec.ReadinessProbe)
	return short
}
