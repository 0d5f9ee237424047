package domainxml

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// describer fills a spec from a definition.
type describer struct {
	domain  *node
	spec    *kubevirtv1.VirtualMachineInstanceSpec
	volumes []Volume
	targets []string
	// arch is libvirt's name of the architecture.
	arch string
}

func (n *node) childText(name string) string {
	if child := n.child(name); child != nil {
		return child.text
	}
	return ""
}

// all returns the children of a name; a nil element has none.
func (n *node) all(name string) []*node {
	if n == nil {
		return nil
	}
	var out []*node
	for _, child := range n.children {
		if child.name == name {
			out = append(out, child)
		}
	}
	return out
}

func (d *describer) machine() error {
	if kind := d.domain.get("type"); kind != "kvm" && kind != "qemu" {
		return fmt.Errorf("it is of type %q; only kvm and qemu domains are described by manifests", kind)
	}
	system := d.domain.child("os").child("type")
	if system == nil || system.text != "hvm" {
		return errors.New("it is no virtual machine (os type hvm)")
	}
	d.arch = system.get("arch")
	var prefix string
	switch d.arch {
	case "x86_64":
		prefix = "pc-q35-"
	case "aarch64":
		d.spec.Architecture, prefix = "arm64", "virt-"
	case "s390x":
		d.spec.Architecture, prefix = "s390x", "s390-ccw-virtio-"
	default:
		return fmt.Errorf("its architecture is %q; manifests describe x86_64, aarch64 and s390x", d.arch)
	}
	if machine := system.get("machine"); strings.HasPrefix(machine, prefix) || machine == strings.TrimPrefix(strings.TrimSuffix(prefix, "-"), "pc-") {
		d.spec.Domain.Machine = &kubevirtv1.Machine{Type: machine}
	}
	return nil
}

func count(text string) uint32 {
	value, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(value)
}

func (d *describer) cpu() {
	out := &kubevirtv1.CPU{Sockets: 1, Cores: 1, Threads: 1}
	d.spec.Domain.CPU = out
	vcpu := d.domain.child("vcpu")
	total := max(count(d.domain.childText("vcpu")), 1)
	cpu := d.domain.child("cpu")
	if topology := cpu.child("topology"); topology != nil {
		out.Cores, out.Threads = max(count(topology.get("cores")), 1), max(count(topology.get("threads")), 1)
	}
	core := out.Cores * out.Threads
	out.Sockets = max(total/core, 1)
	if current := count(vcpu.get("current")); current != 0 && current < total && current%core == 0 && d.domain.child("vcpus") != nil {
		out.Sockets, out.MaxSockets = current/core, total/core
	}
	switch mode := cpu.get("mode"); mode {
	case kubevirtv1.CPUModeHostModel, kubevirtv1.CPUModeHostPassthrough:
		out.Model = mode
	case "custom", "":
		if model := cpu.childText("model"); cpu != nil {
			out.Model = model
		}
	}
	for _, feature := range cpu.all("feature") {
		if name := feature.get("name"); readable(name) != "" && !strings.Contains(name, "+") {
			out.Features = append(out.Features, kubevirtv1.CPUFeature{Name: name, Policy: feature.get("policy")})
		}
	}
}

func (d *describer) memory() error {
	memory := d.domain.child("memory")
	if memory == nil {
		return errors.New("it has no memory")
	}
	size := kibOf(kib(memory.text, memory.get("unit")))
	if size == 0 || size > 1<<50 {
		return fmt.Errorf("its memory is %q %s", memory.text, memory.get("unit"))
	}
	d.spec.Domain.Memory = &kubevirtv1.Memory{Guest: resource.NewQuantity(int64(size)<<10, resource.BinarySI)}
	return nil
}

func on() *bool {
	yes := true
	return &yes
}

func off() *bool { return new(bool) }

func (d *describer) firmware() {
	firmware := &kubevirtv1.Firmware{UUID: types.UID(strings.ToLower(d.domain.childText("uuid")))}
	d.spec.Domain.Firmware = firmware
	for _, info := range d.domain.all("sysinfo") {
		for _, entry := range info.child("system").all("entry") {
			if info.get("type") == "smbios" && entry.get("name") == "serial" {
				firmware.Serial = entry.text
			}
		}
	}
	system := d.domain.child("os")
	loader := system.child("loader")
	uefi := system.get("firmware") == "efi" || loader.get("type") == "pflash"
	if !uefi {
		if system.child("bios").get("useserial") == "yes" {
			firmware.Bootloader = &kubevirtv1.Bootloader{BIOS: &kubevirtv1.BIOS{UseSerial: on()}}
		}
		return
	}
	secure := loader.get("secure") == "yes" && d.domain.child("features").child("smm").get("state") == "on"
	firmware.Bootloader = &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: &secure, Persistent: on()}}
}

// state reads libvirt's on/off element; nil when it is not there.
func state(element *node) *kubevirtv1.FeatureState {
	if element == nil {
		return nil
	}
	enabled := element.get("state") != "off"
	return &kubevirtv1.FeatureState{Enabled: &enabled}
}

func (d *describer) features() {
	have := d.domain.child("features")
	out := &kubevirtv1.Features{}
	d.spec.Domain.Features = out
	if have.child("acpi") == nil {
		out.ACPI.Enabled = off()
	}
	if apic := have.child("apic"); apic != nil {
		out.APIC = &kubevirtv1.FeatureAPIC{EndOfInterrupt: apic.get("eoi") == "on"}
	}
	if smm := have.child("smm"); smm != nil {
		out.SMM = state(smm)
	}
	out.Pvspinlock = state(have.child("pvspinlock"))
	if hidden := have.child("kvm").child("hidden"); hidden != nil {
		out.KVM = &kubevirtv1.FeatureKVM{Hidden: hidden.get("state") == "on"}
	}
	if hyperv := have.child("hyperv"); hyperv != nil && hyperv.get("mode") != "passthrough" {
		d.hyperV(hyperv, out)
	}
}

func (d *describer) hyperV(have *node, out *kubevirtv1.Features) {
	h := &kubevirtv1.FeatureHyperv{
		Relaxed: state(have.child("relaxed")), VAPIC: state(have.child("vapic")), VPIndex: state(have.child("vpindex")),
		Runtime: state(have.child("runtime")), SyNIC: state(have.child("synic")), Reset: state(have.child("reset")),
		Frequencies: state(have.child("frequencies")), Reenlightenment: state(have.child("reenlightenment")),
		IPI: state(have.child("ipi")), EVMCS: state(have.child("evmcs")),
	}
	if spinlocks := have.child("spinlocks"); spinlocks != nil {
		h.Spinlocks = &kubevirtv1.FeatureSpinlocks{FeatureState: *state(spinlocks)}
		if retries := count(spinlocks.get("retries")); retries != 0 {
			h.Spinlocks.Retries = &retries
		}
	}
	if timer := have.child("stimer"); timer != nil {
		h.SyNICTimer = &kubevirtv1.SyNICTimer{FeatureState: *state(timer), Direct: state(timer.child("direct"))}
	}
	if flush := have.child("tlbflush"); flush != nil {
		h.TLBFlush = &kubevirtv1.TLBFlush{FeatureState: *state(flush), Direct: state(flush.child("direct")), Extended: state(flush.child("extended"))}
	}
	if vendor := have.child("vendor_id"); vendor != nil {
		h.VendorID = &kubevirtv1.FeatureVendorID{FeatureState: *state(vendor), VendorID: vendor.get("value")}
	}
	if *h != (kubevirtv1.FeatureHyperv{}) {
		out.Hyperv = h
	}
}

func (d *describer) clock() {
	have := d.domain.child("clock")
	if have == nil {
		return
	}
	out := &kubevirtv1.Clock{}
	switch have.get("offset") {
	case "utc":
		out.UTC = &kubevirtv1.ClockOffsetUTC{}
	case "timezone":
		zone := kubevirtv1.ClockOffsetTimezone(have.get("timezone"))
		out.Timezone = &zone
	default:
		return
	}
	timer := &kubevirtv1.Timer{}
	for _, t := range have.all("timer") {
		present := off()
		if t.get("present") != "no" {
			present = nil
		}
		policy := t.get("tickpolicy")
		switch t.get("name") {
		case "rtc":
			timer.RTC = &kubevirtv1.RTCTimer{Enabled: present, TickPolicy: kubevirtv1.RTCTickPolicy(policy), Track: kubevirtv1.RTCTimerTrack(t.get("track"))}
		case "pit":
			timer.PIT = &kubevirtv1.PITTimer{Enabled: present, TickPolicy: kubevirtv1.PITTickPolicy(policy)}
		case "kvmclock":
			timer.KVM = &kubevirtv1.KVMTimer{Enabled: present}
		case "hpet":
			timer.HPET = &kubevirtv1.HPETTimer{Enabled: present, TickPolicy: kubevirtv1.HPETTickPolicy(policy)}
		case "hypervclock":
			timer.Hyperv = &kubevirtv1.HypervTimer{Enabled: present}
		}
	}
	if *timer != (kubevirtv1.Timer{}) {
		out.Timer = timer
	}
	d.spec.Domain.Clock = out
}
