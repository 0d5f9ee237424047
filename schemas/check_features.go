package schemas

import (
	"fmt"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// minSpinlocks is the least number of retries that Hyper-V's spinlocks take, as libvirt has it.
const minSpinlocks = 4095

// checkFeatures checks the clock and the features, with what they need of each other filled in by the defaults.
func (c *checker) checkFeatures(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	features, clock := spec.Domain.Features, spec.Domain.Clock
	if clock != nil {
		if clock.UTC != nil && clock.Timezone != nil {
			c.fail(c.in("domain", "clock"), "utc and timezone exclude each other", "keep one")
		}
		if zone := clock.Timezone; zone != nil && !isToken(strings.ReplaceAll(string(*zone), "/", ".")) {
			c.fail(c.in("domain", "clock", "timezone"), quoteValue(string(*zone))+" is not a time zone", "write it as Europe/Berlin")
		}
		if clock.Timer != nil {
			c.checkTimers(clock.Timer)
		}
	}
	if hyperv := features.Hyperv; hyperv != nil {
		c.checkHyperv(hyperv)
		if timer := hyperv.SyNICTimer; timer != nil && isTrueOr(timer.Enabled, true) && (clock == nil || clock.Timer == nil || clock.Timer.Hyperv == nil || !isTrueOr(clock.Timer.Hyperv.Enabled, true)) {
			c.warn(c.in("domain", "features", "hyperv", "synictimer"), "QEMU starts it with the Hyper-V clock only", "add clock.timer.hyperv: {} to domain")
		}
	}
	if features.Hyperv != nil && features.HypervPassthrough != nil && isTrueOr(features.HypervPassthrough.Enabled, true) {
		c.warn(c.in("domain", "features", "hypervPassthrough"), "the single enlightenments under hyperv count, not all of the host", "keep one of the two")
	}
}

// checkHyperv checks what the enlightenments need of each other.
func (c *checker) checkHyperv(hyperv *kubevirtv1.FeatureHyperv) {
	in := func(parts ...any) []any { return c.in(append(at("domain", "features", "hyperv"), parts...)...) }
	timer := &kubevirtv1.FeatureState{Enabled: new(bool)}
	if hyperv.SyNICTimer != nil {
		timer.Enabled = hyperv.SyNICTimer.Enabled
	}
	for _, rule := range []struct {
		name  string
		state *kubevirtv1.FeatureState
		needs string
		other *kubevirtv1.FeatureState
	}{
		{"evmcs", hyperv.EVMCS, "vapic", hyperv.VAPIC},
		{"ipi", hyperv.IPI, "vpindex", hyperv.VPIndex},
		{"synic", hyperv.SyNIC, "vpindex", hyperv.VPIndex},
		{"synictimer", timer, "synic", hyperv.SyNIC},
	} {
		if enabled(rule.state) && !enabled(rule.other) {
			c.fail(in(rule.name), fmt.Sprintf("%s needs %s, which is switched off", rule.name, rule.needs), "remove one of the two")
		}
	}
	flush := hyperv.TLBFlush
	if flush != nil && isTrueOr(flush.Enabled, true) && !enabled(hyperv.VPIndex) {
		c.fail(in("tlbflush"), "tlbflush needs vpindex, which is switched off", "remove one of the two")
	}
	if flush != nil && !isTrueOr(flush.Enabled, true) {
		for _, part := range []struct {
			name  string
			state *kubevirtv1.FeatureState
		}{{"direct", flush.Direct}, {"extended", flush.Extended}} {
			if enabled(part.state) {
				c.fail(in("tlbflush", part.name), "it is a part of tlbflush, which is switched off", "remove it, or enabled: false above")
			}
		}
	}
	if direct := hyperv.SyNICTimer; direct != nil && !isTrueOr(direct.Enabled, true) && enabled(direct.Direct) {
		c.fail(in("synictimer", "direct"), "it is a part of synictimer, which is switched off", "remove it, or enabled: false above")
	}
	if vendor := hyperv.VendorID; vendor != nil {
		switch {
		case vendor.VendorID == "" && isTrueOr(vendor.Enabled, true):
			c.fail(in("vendorid", "vendorid"), "no vendor", "write up to 12 characters, such as KVMKVMKVM")
		case len(vendor.VendorID) > 12:
			c.fail(in("vendorid", "vendorid"), "longer than 12 characters", "shorten it")
		case strings.ContainsFunc(vendor.VendorID, func(r rune) bool { return r == ',' || r < 0x20 || r > 0x7e }):
			c.fail(in("vendorid", "vendorid"), quoteValue(vendor.VendorID)+" holds a comma or something else that no vendor has", "use ASCII letters and digits")
		}
	}
	if locks := hyperv.Spinlocks; locks != nil && locks.Retries != nil && isTrueOr(locks.Enabled, true) && *locks.Retries < minSpinlocks {
		c.fail(in("spinlocks", "spinlocks"), fmt.Sprintf("%d is less than %d", *locks.Retries, minSpinlocks), "use 8191, which Windows expects")
	}
}

func (c *checker) checkTimers(timer *kubevirtv1.Timer) {
	in := func(name, field string) func() []any {
		return func() []any { return c.in("domain", "clock", "timer", name, field) }
	}
	if timer.HPET != nil {
		oneOf(c, in("hpet", "tickPolicy"), timer.HPET.TickPolicy, "delay", "catchup", "merge", "discard")
	}
	if timer.PIT != nil {
		oneOf(c, in("pit", "tickPolicy"), timer.PIT.TickPolicy, "delay", "catchup", "discard")
	}
	if timer.RTC != nil {
		oneOf(c, in("rtc", "tickPolicy"), timer.RTC.TickPolicy, "delay", "catchup")
		oneOf(c, in("rtc", "track"), timer.RTC.Track, "guest", "wall")
	}
}
