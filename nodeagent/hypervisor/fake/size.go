package fake

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
)

// size is how much of CPUs and memory a domain has.
type size struct {
	VCPU struct {
		Current uint `xml:"current,attr"`
		Max     uint `xml:",chardata"`
	} `xml:"vcpu"`
	List []struct {
		Enabled string `xml:"enabled,attr"`
	} `xml:"vcpus>vcpu"`
	Memory    quantity  `xml:"memory"`
	Current   *quantity `xml:"currentMemory"`
	MaxMemory *struct {
		quantity
		Slots int `xml:"slots,attr"`
	} `xml:"maxMemory"`
	Balloon struct {
		Model string `xml:"model,attr"`
	} `xml:"devices>memballoon"`
	Plugged []part `xml:"devices>memory"`
}

// quantity is an amount of memory as libvirt writes it.
type quantity struct {
	Unit  string `xml:"unit,attr"`
	Value uint64 `xml:",chardata"`
}

// units are libvirt's words for amounts (https://libvirt.org/formatdomain.html#memory-allocation), in bytes.
var units = map[string]uint64{
	"b": 1, "bytes": 1, "KB": 1e3, "": 1 << 10, "k": 1 << 10, "KiB": 1 << 10, "MB": 1e6, "M": 1 << 20, "MiB": 1 << 20,
	"GB": 1e9, "G": 1 << 30, "GiB": 1 << 30, "TB": 1e12, "T": 1 << 40, "TiB": 1 << 40,
}

func (q quantity) kib() uint64 { return (q.Value*units[q.Unit] + 1023) / 1024 }

func sizeOf(live string) (size, error) {
	var s size
	if err := xml.Unmarshal([]byte(live), &s); err != nil {
		return s, fmt.Errorf("read the running definition: %w", err)
	}
	if s.VCPU.Max == 0 {
		s.VCPU.Max = 1 // libvirt's default
	}
	return s, nil
}

// vcpus returns how many vCPUs the guest has.
func (s *size) vcpus() uint {
	if s.VCPU.Current > 0 || len(s.List) == 0 {
		return cmp.Or(s.VCPU.Current, s.VCPU.Max)
	}
	count := uint(0)
	for _, vcpu := range s.List {
		if vcpu.Enabled == "yes" {
			count++
		}
	}
	return count
}

// virtioMem returns what virtio-mem devices give the guest, in KiB.
func (s *size) virtioMem() uint64 {
	var kib uint64
	for _, device := range s.Plugged {
		if device.Target.Requested != nil {
			kib += device.Target.Requested.kib()
		}
	}
	return kib
}

var (
	listedVCPU     = regexp.MustCompile(`<vcpu\s[^>]*\senabled=["'][a-z]*["']`)
	enabledOfVCPU  = regexp.MustCompile(`enabled=["'][a-z]*["']$`)
	vcpuElement    = regexp.MustCompile(`<vcpu(\s[^>]*)?>\s*[0-9]+\s*</vcpu>`)
	currentOfVCPU  = regexp.MustCompile(`\scurrent=("[0-9]*"|'[0-9]*')`)
	currentElement = regexp.MustCompile(`<current(\s[^>]*)?>\s*[0-9]+\s*</current>`)
	requestElement = regexp.MustCompile(`<requested(\s[^>]*)?>\s*[0-9]+\s*</requested>`)
)

// setVCPUs writes how many vCPUs a guest has.
func setVCPUs(live string, count, most uint) string {
	listed := uint(0)
	live = listedVCPU.ReplaceAllStringFunc(live, func(element string) string {
		enabled := "enabled='no'"
		if listed++; listed <= count {
			enabled = "enabled='yes'"
		}
		return enabledOfVCPU.ReplaceAllString(element, enabled)
	})
	written := vcpuElement.FindStringSubmatch(live)
	if written == nil {
		return strings.Replace(live, "</domain>", fmt.Sprintf("<vcpu current='%d'>%d</vcpu></domain>", count, most), 1)
	}
	attributes := currentOfVCPU.ReplaceAllString(written[1], "")
	return strings.Replace(live, written[0], fmt.Sprintf("<vcpu%s current='%d'>%d</vcpu>", attributes, count, most), 1)
}

// setKiB writes the amount of an element that stands directly below <domain>, or makes it.
func setKiB(live, element string, kib uint64) string {
	written := fmt.Sprintf("<%[1]s unit='KiB'>%[2]d</%[1]s>", element, kib)
	old := regexp.MustCompile(`<` + element + `(\s[^>]*)?>\s*[0-9]+\s*</` + element + `>`).FindString(live)
	if old != "" {
		return strings.Replace(live, old, written, 1)
	}
	return strings.Replace(live, "</memory>", "</memory>"+written, 1)
}

// addMemory writes that a guest has got memory.
func addMemory(live string, p *part) string { return changeMemory(live, p, 1) }

// removeMemory writes that memory is gone.
func removeMemory(live string, p *part) string { return changeMemory(live, p, -1) }

func changeMemory(live string, p *part, sign int64) string {
	s, err := sizeOf(live)
	if err != nil {
		return live
	}
	current := s.Memory.kib()
	if s.Current != nil {
		current = s.Current.kib()
	}
	amount := p.Target.Size.kib()
	guest := amount
	if p.Target.Requested != nil {
		guest = p.Target.Requested.kib()
	}
	add := func(to, what uint64) uint64 {
		if sign < 0 {
			return to - min(to, what)
		}
		return to + what
	}
	live = setKiB(live, "memory", add(s.Memory.kib(), amount))
	return setKiB(live, "currentMemory", add(current, guest))
}

// setCurrent writes what a virtio-mem device is asked to give and has given.
func setCurrent(device string, kib uint64) string {
	requested := fmt.Sprintf("<requested unit='KiB'>%d</requested>", kib)
	current := fmt.Sprintf("<current unit='KiB'>%d</current>", kib)
	device = requestElement.ReplaceAllString(device, requested)
	if currentElement.MatchString(device) {
		return currentElement.ReplaceAllString(device, current)
	}
	return strings.Replace(device, requested, requested+current, 1)
}
