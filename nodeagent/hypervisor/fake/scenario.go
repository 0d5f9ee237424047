package fake

import (
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// Fail makes every call of a method go through hook first; nil ends that.
func (h *Hypervisor) Fail(method Method, hook Hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hooks[method] = hook
}

// Down makes the hypervisor stop answering: every method fails with hypervisor.ErrUnavailable. Guests go on.
func (h *Hypervisor) Down() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return
	}
	h.emit(hypervisor.Event{Kind: hypervisor.EventDisconnected})
	h.down = true
}

// Up ends Down. See Forget for what a libvirtd that was restarted no longer knows.
func (h *Hypervisor) Up() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.down {
		return
	}
	h.down = false
	h.emit(hypervisor.Event{Kind: hypervisor.EventConnected})
}

// Forget makes the hypervisor forget why domains stopped, as a restart of libvirtd does.
func (h *Hypervisor) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.domains {
		d.StopReason = hypervisor.StopUnknown
	}
}

// GuestPowersOff makes a running guest power itself off. It reports whether there was one, as do all that follow.
func (h *Hypervisor) GuestPowersOff(name string) bool {
	return h.withActive(name, func(d *domain) { h.stop(d, hypervisor.StopShutdown) })
}

// GuestCrashes makes a guest's QEMU die.
func (h *Hypervisor) GuestCrashes(name string) bool {
	return h.withActive(name, func(d *domain) { h.stop(d, hypervisor.StopCrashed) })
}

// Pause pauses a running guest, as `virsh suspend` does.
func (h *Hypervisor) Pause(name string) bool {
	return h.withActive(name, func(d *domain) { h.change(d, hypervisor.StatePaused) })
}

// StartsForEver makes a guest one whose start never ends, as one of a libvirt that was killed in the middle of it.
func (h *Hypervisor) StartsForEver(name string) bool {
	return h.withActive(name, func(d *domain) { h.change(d, hypervisor.StateStarting) })
}

// SetAddresses sets the IP addresses that are known of a guest while it runs.
func (h *Hypervisor) SetAddresses(name string, addresses ...string) bool {
	return h.with(name, func(d *domain) { d.addresses = addresses })
}

// SetGuestAgent gives a guest an agent, which answers while the guest runs; nil takes it away.
func (h *Hypervisor) SetGuestAgent(name string, agent Agent) bool {
	return h.with(name, func(d *domain) { d.agent = agent })
}

// IgnoresPowerButton makes a guest ignore PowerShutdown, or not.
func (h *Hypervisor) IgnoresPowerButton(name string, ignores bool) bool {
	return h.with(name, func(d *domain) { d.ignoresButton = ignores })
}

// KeepsDevices makes a guest hold on to devices that are detached, or not.
func (h *Hypervisor) KeepsDevices(name string, keeps bool) bool {
	return h.with(name, func(d *domain) { d.keepsDevices = keeps })
}

// GivesVCPUsBack makes a guest give vCPUs back when it is asked to, or not.
func (h *Hypervisor) GivesVCPUsBack(name string, gives bool) bool {
	return h.with(name, func(d *domain) { d.givesVCPUs = gives })
}

// SetLiveChanges sets what the host can do for running guests, in place of everything. It refuses the rest.
func (h *Hypervisor) SetLiveChanges(able ...hypervisor.LiveChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.able = able
}

// SetDiskSize sets the size of a disk in bytes, by its target: below that ResizeDisk refuses.
func (h *Hypervisor) SetDiskSize(name, target string, bytes uint64) bool {
	return h.with(name, func(d *domain) { d.setDiskSize(target, bytes) })
}

// DiskSize returns the size of a disk that SetDiskSize or ResizeDisk set last, or 0.
func (h *Hypervisor) DiskSize(name, target string) uint64 {
	var bytes uint64
	h.with(name, func(d *domain) { bytes = d.sizes[target] })
	return bytes
}

func (d *domain) setDiskSize(target string, bytes uint64) {
	if d.sizes == nil {
		d.sizes = map[string]uint64{}
	}
	d.sizes[target] = bytes
}

// CrashesAtBoot makes a guest crash as soon as it is started, or not.
func (h *Hypervisor) CrashesAtBoot(name string, crashes bool) bool {
	return h.stopsAtBoot(name, hypervisor.StopCrashed, crashes)
}

// PowersOffAtBoot makes a guest power itself off as soon as it is started, or not.
func (h *Hypervisor) PowersOffAtBoot(name string, powersOff bool) bool {
	return h.stopsAtBoot(name, hypervisor.StopShutdown, powersOff)
}

func (h *Hypervisor) stopsAtBoot(name string, reason hypervisor.StopReason, stops bool) bool {
	if !stops {
		reason = hypervisor.StopUnknown
	}
	return h.with(name, func(d *domain) { d.stopsAtBoot = reason })
}

// EditConfig changes a domain's persistent definition without an event, as `virsh setvcpus --config` does.
func (h *Hypervisor) EditConfig(name string, edit func(xml string) string) bool {
	return h.with(name, func(d *domain) { d.Config = edit(d.Config) })
}

// EditLive changes the definition of a running guest, with an event, as `virsh attach-device --live` does.
func (h *Hypervisor) EditLive(name string, edit func(xml string) string) bool {
	return h.withActive(name, func(d *domain) {
		d.Live = edit(d.Live)
		h.emit(hypervisor.Event{Kind: hypervisor.EventChanged, Name: name})
	})
}

func (h *Hypervisor) with(name string, f func(*domain)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, found := h.domains[name]
	if found {
		f(d)
	}
	return found
}

func (h *Hypervisor) withActive(name string, f func(*domain)) bool {
	active := false
	h.with(name, func(d *domain) {
		if active = d.State.Active(); active {
			f(d)
		}
	})
	return active
}
