package domainxml

import (
	"strconv"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

func isTrue(on *bool) bool { return on != nil && *on }

// notFalse is the rule of switches that are on unless the manifest says false.
func notFalse(on *bool) bool { return on == nil || *on }

// enabled reports whether a feature that is named in the manifest is on: it is, unless it says enabled: false.
func enabled(state *kubevirtv1.FeatureState) bool { return state != nil && notFalse(state.Enabled) }

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// switches is a feature of the manifest and its element.
type switches struct {
	name  string
	state *kubevirtv1.FeatureState
}

// state writes a feature of the manifest as libvirt's on/off element; one that the manifest does not name is not written.
func (r *renderer) state(name string, feature *kubevirtv1.FeatureState) {
	if feature != nil {
		r.leaf(name, "state", onOff(enabled(feature)))
	}
}

func (r *renderer) features() {
	features := r.spec.Domain.Features
	if features == nil {
		features = &kubevirtv1.Features{}
	}
	r.start("features")
	if r.arch.acpi && notFalse(features.ACPI.Enabled) {
		r.leaf("acpi")
	}
	if features.APIC != nil && notFalse(features.APIC.Enabled) {
		eoi := ""
		if features.APIC.EndOfInterrupt {
			eoi = "on"
		}
		r.leaf("apic", "eoi", eoi)
	}
	if features.Hyperv != nil {
		r.hyperV(features.Hyperv)
	} else if passthrough := features.HypervPassthrough; passthrough != nil && isTrue(passthrough.Enabled) {
		r.leaf("hyperv", "mode", "passthrough")
	}
	hint := r.dedicatedCPUs() && r.arch.name == "x86_64"
	if features.KVM != nil || hint {
		r.start("kvm")
		if features.KVM != nil {
			r.leaf("hidden", "state", onOff(features.KVM.Hidden))
		}
		if hint {
			r.leaf("hint-dedicated", "state", "on")
		}
		r.end("kvm")
	}
	r.state("pvspinlock", features.Pvspinlock)
	if r.realtime() != nil || r.launchSecurity() == securityTDX {
		r.leaf("pmu", "state", "off")
	}
	if enabled(features.SMM) {
		r.leaf("smm", "state", "on")
	}
	if r.arch.vmport {
		r.leaf("vmport", "state", "off")
	}
	r.end("features")
}

func (r *renderer) hyperV(in *kubevirtv1.FeatureHyperv) {
	if *in == (kubevirtv1.FeatureHyperv{}) {
		return
	}
	r.start("hyperv")
	for _, feature := range [...]switches{
		{"relaxed", in.Relaxed},
		{"vapic", in.VAPIC},
		{"vpindex", in.VPIndex},
		{"runtime", in.Runtime},
		{"synic", in.SyNIC},
		{"reset", in.Reset},
		{"frequencies", in.Frequencies},
		{"reenlightenment", in.Reenlightenment},
		{"ipi", in.IPI},
		{"evmcs", in.EVMCS},
	} {
		r.state(feature.name, feature.state)
	}
	if spinlocks := in.Spinlocks; spinlocks != nil {
		retries := ""
		if spinlocks.Retries != nil && notFalse(spinlocks.Enabled) {
			retries = strconv.FormatUint(uint64(*spinlocks.Retries), 10)
		}
		r.leaf("spinlocks", "state", onOff(notFalse(spinlocks.Enabled)), "retries", retries)
	}
	if timer := in.SyNICTimer; timer != nil {
		r.start("stimer", "state", onOff(notFalse(timer.Enabled)))
		r.state("direct", timer.Direct)
		r.end("stimer")
	}
	if vendor := in.VendorID; vendor != nil {
		r.leaf("vendor_id", "state", onOff(notFalse(vendor.Enabled)), "value", vendor.VendorID)
	}
	if flush := in.TLBFlush; flush != nil {
		r.start("tlbflush", "state", onOff(notFalse(flush.Enabled)))
		r.state("direct", flush.Direct)
		r.state("extended", flush.Extended)
		r.end("tlbflush")
	}
	r.end("hyperv")
}

func (r *renderer) clock() {
	in := r.spec.Domain.Clock
	if in == nil {
		return
	}
	// KubeVirt writes no offset for a clock of timers only; libvirt takes it for UTC, and its schema wants it said.
	offset, adjustment, zone := "utc", "", ""
	switch {
	case in.UTC != nil && in.UTC.OffsetSeconds != nil:
		adjustment = strconv.Itoa(*in.UTC.OffsetSeconds)
	case in.UTC != nil:
		adjustment = "reset"
	case in.Timezone != nil:
		offset, zone = "timezone", string(*in.Timezone)
	}
	r.start("clock", "offset", offset, "adjustment", adjustment, "timezone", zone)
	if timer := in.Timer; timer != nil {
		r.timers(timer)
	}
	r.end("clock")
}

func (r *renderer) timers(in *kubevirtv1.Timer) {
	present := func(on *bool) string { return yesNo(notFalse(on)) }
	if in.RTC != nil {
		r.leaf("timer", "name", "rtc", "track", string(in.RTC.Track), "tickpolicy", string(in.RTC.TickPolicy), "present", present(in.RTC.Enabled))
	}
	if in.PIT != nil {
		r.leaf("timer", "name", "pit", "tickpolicy", string(in.PIT.TickPolicy), "present", present(in.PIT.Enabled))
	}
	if in.KVM != nil {
		r.leaf("timer", "name", "kvmclock", "present", present(in.KVM.Enabled))
	}
	if in.HPET != nil {
		r.leaf("timer", "name", "hpet", "tickpolicy", string(in.HPET.TickPolicy), "present", present(in.HPET.Enabled))
	}
	if in.Hyperv != nil {
		r.leaf("timer", "name", "hypervclock", "present", present(in.Hyperv.Enabled))
	}
}
