package domainxml

import (
	"strconv"

	kubevirtv1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// enabled reports whether a feature that is named in the manifest is on: it is, unless it says enabled: false.
func enabled(state *kubevirtv1.FeatureState) bool {
	return state != nil && (state.Enabled == nil || *state.Enabled)
}

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

// state renders a feature of the manifest as libvirt's on/off element; nil stays nil.
func state(feature *kubevirtv1.FeatureState) *libvirtxml.DomainFeatureState {
	if feature == nil {
		return nil
	}
	return &libvirtxml.DomainFeatureState{State: onOff(enabled(feature))}
}

func (r *renderer) features() *libvirtxml.DomainFeatureList {
	out := &libvirtxml.DomainFeatureList{VMPort: &libvirtxml.DomainFeatureState{State: "off"}}
	features := r.spec.Domain.Features
	if features == nil || features.ACPI.Enabled == nil || *features.ACPI.Enabled {
		out.ACPI = &libvirtxml.DomainFeature{}
	}
	if features == nil {
		return out
	}
	if features.APIC != nil && (features.APIC.Enabled == nil || *features.APIC.Enabled) {
		out.APIC = &libvirtxml.DomainFeatureAPIC{}
		if features.APIC.EndOfInterrupt {
			out.APIC.EOI = "on"
		}
	}
	if enabled(features.SMM) {
		out.SMM = &libvirtxml.DomainFeatureSMM{State: "on"}
	}
	if features.KVM != nil {
		out.KVM = &libvirtxml.DomainFeatureKVM{Hidden: &libvirtxml.DomainFeatureState{State: onOff(features.KVM.Hidden)}}
	}
	out.PVSpinlock = state(features.Pvspinlock)
	if passthrough := features.HypervPassthrough; passthrough != nil && passthrough.Enabled != nil && *passthrough.Enabled {
		out.HyperV = &libvirtxml.DomainFeatureHyperV{Mode: "passthrough"}
	} else if features.Hyperv != nil && *features.Hyperv != (kubevirtv1.FeatureHyperv{}) {
		out.HyperV = hyperV(features.Hyperv)
	}
	return out
}

func hyperV(in *kubevirtv1.FeatureHyperv) *libvirtxml.DomainFeatureHyperV {
	out := &libvirtxml.DomainFeatureHyperV{
		Relaxed:         state(in.Relaxed),
		VAPIC:           state(in.VAPIC),
		VPIndex:         state(in.VPIndex),
		Runtime:         state(in.Runtime),
		Synic:           state(in.SyNIC),
		Reset:           state(in.Reset),
		Frequencies:     state(in.Frequencies),
		ReEnlightenment: state(in.Reenlightenment),
		IPI:             state(in.IPI),
		EVMCS:           state(in.EVMCS),
	}
	if in.Spinlocks != nil {
		out.Spinlocks = &libvirtxml.DomainFeatureHyperVSpinlocks{DomainFeatureState: *state(&in.Spinlocks.FeatureState)}
		if in.Spinlocks.Retries != nil && enabled(&in.Spinlocks.FeatureState) {
			out.Spinlocks.Retries = uint(*in.Spinlocks.Retries)
		}
	}
	if in.SyNICTimer != nil {
		out.STimer = &libvirtxml.DomainFeatureHyperVSTimer{
			DomainFeatureState: *state(&in.SyNICTimer.FeatureState),
			Direct:             state(in.SyNICTimer.Direct),
		}
	}
	if in.VendorID != nil {
		out.VendorId = &libvirtxml.DomainFeatureHyperVVendorId{
			DomainFeatureState: *state(&in.VendorID.FeatureState), Value: in.VendorID.VendorID,
		}
	}
	if in.TLBFlush != nil {
		out.TLBFlush = &libvirtxml.DomainFeatureHyperVTLBFlush{
			DomainFeatureState: *state(&in.TLBFlush.FeatureState),
			Direct:             state(in.TLBFlush.Direct), Extended: state(in.TLBFlush.Extended),
		}
	}
	return out
}

func (r *renderer) clock() *libvirtxml.DomainClock {
	in := r.spec.Domain.Clock
	if in == nil {
		return nil
	}
	out := &libvirtxml.DomainClock{Offset: "utc", Adjustment: "reset"}
	switch {
	case in.UTC != nil && in.UTC.OffsetSeconds != nil:
		out.Offset, out.Adjustment, out.Basis = "variable", strconv.Itoa(*in.UTC.OffsetSeconds), "utc"
	case in.Timezone != nil:
		out.Offset, out.Adjustment, out.TimeZone = "timezone", "", string(*in.Timezone)
	}
	if in.Timer != nil {
		out.Timer = timers(in.Timer)
	}
	return out
}

// present renders a timer's switch: on unless the manifest says present: false.
func present(on *bool) string { return yesNo(on == nil || *on) }

func timers(in *kubevirtv1.Timer) []libvirtxml.DomainTimer {
	var out []libvirtxml.DomainTimer
	if in.RTC != nil {
		out = append(out, libvirtxml.DomainTimer{
			Name: "rtc", TickPolicy: string(in.RTC.TickPolicy), Track: string(in.RTC.Track), Present: present(in.RTC.Enabled),
		})
	}
	if in.PIT != nil {
		out = append(out, libvirtxml.DomainTimer{Name: "pit", TickPolicy: string(in.PIT.TickPolicy), Present: present(in.PIT.Enabled)})
	}
	if in.KVM != nil {
		out = append(out, libvirtxml.DomainTimer{Name: "kvmclock", Present: present(in.KVM.Enabled)})
	}
	if in.HPET != nil {
		out = append(out, libvirtxml.DomainTimer{Name: "hpet", TickPolicy: string(in.HPET.TickPolicy), Present: present(in.HPET.Enabled)})
	}
	if in.Hyperv != nil {
		out = append(out, libvirtxml.DomainTimer{Name: "hypervclock", Present: present(in.Hyperv.Enabled)})
	}
	return out
}
