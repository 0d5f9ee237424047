package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/capabilities"
	"github.com/gitvirt/gitvirt/nodeagent/cpus"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hostdevices"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/schemas"
)

// hostShare gives VMs what only one of them can have: devices and CPUs of the host. What each has stands in its domain's
// record; nothing else remembers it.
type hostShare struct {
	root         string
	reservedCPUs string
	capabilities capabilities.Host
	devices      hostdevices.Host
	// pod is what the VM has in its Pod; nil on a host. A Pod has what the launcher's image has, and nothing to choose from.
	pod func() domainxml.Assignment

	mu sync.Mutex
	// pending is what was chosen for domains whose record does not say so yet, as far as anybody has read it.
	pending map[string]domainxml.Assignment
}

func newHostShare(s settings) (*hostShare, error) {
	root := s.hostRoot
	if root == "" {
		root = "/"
	}
	if _, err := cpus.ParseList(s.reservedCPUs); err != nil {
		return nil, fmt.Errorf("reserved CPUs: %w", err)
	}
	return &hostShare{
		root: root, reservedCPUs: s.reservedCPUs, capabilities: capabilities.New(root), devices: hostdevices.New(root),
		pending: map[string]domainxml.Assignment{},
	}, nil
}

// check returns an error that names what a VM needs and the host lacks. What the image of a Pod lacks libvirt says.
func (s *hostShare) check(spec *kubevirtv1.VirtualMachineInstanceSpec) error {
	if s.pod != nil {
		return nil
	}
	return s.capabilities.Check(spec)
}

// settle forgets what was chosen for a domain: it has been read since.
func (s *hostShare) settle(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, name)
}

// giveUp removes what was made on the host for a VM and neither its definition nor its guest has any more, be it that an
// earlier step could not.
func (e *execution) giveUp() error {
	return e.agent.hosts.devices.Release(e.made.String(), devicesOf(e.now))
}

// devicesOf returns what a VM has, by its definition and in its guest.
func devicesOf(now *seen) (devices []domainxml.HostDevice) {
	if now == nil {
		return nil
	}
	for _, record := range []*domainxml.Record{now.record, now.running} {
		if record != nil {
			devices = append(devices, record.Assignment.Devices...)
		}
	}
	return devices
}

// sweepDevices removes what was made on the host for guests that dropped it and have ended without any step.
func (a *Agent) sweepDevices(ctx context.Context) error {
	all, _ := a.view.all()
	for _, now := range all {
		if now.record == nil || len(a.hosts.devices.Left(now.record.Made().String(), devicesOf(now))) == 0 {
			continue
		}
		name := now.record.DomainName()
		unlock, idle := a.locks.try(name)
		if !idle {
			continue // the step does it
		}
		now, err := a.refresh(ctx, name)
		if err == nil && now != nil && now.record != nil {
			err = a.hosts.devices.Release(now.record.Made().String(), devicesOf(now))
		}
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// wantedDevices lists the devices of the host that a VM wants.
func wantedDevices(m *machine) []hostdevices.Want {
	var wants []hostdevices.Want
	add := func(name string) {
		in := m.wire.GetHostDevices()[name]
		selector := schemas.HostDeviceSelector{Resource: in.GetResource(), PCI: in.GetPci(), Mediated: in.GetMediated()}
		for _, usb := range in.GetUsb() {
			selector.USB = append(selector.USB, kubevirtv1.USBSelector{Vendor: usb.GetVendor(), Product: usb.GetProduct()})
		}
		wants = append(wants, hostdevices.Want{Name: name, Selector: selector})
	}
	devices := &m.spec().Domain.Devices
	for i := range devices.GPUs {
		add(devices.GPUs[i].Name)
	}
	for i := range devices.HostDevices {
		add(devices.HostDevices[i].Name)
	}
	for i := range devices.Interfaces {
		if devices.Interfaces[i].SRIOV != nil {
			add(devices.Interfaces[i].Name)
		}
	}
	return wants
}

// assign checks that the host can run the VM and chooses what only this VM may have, before anything is changed.
func (e *execution) assign(ctx context.Context, before *domainxml.Record) (domainxml.Assignment, error) {
	hosts := e.agent.hosts
	if err := hosts.check(e.machine.spec()); err != nil {
		return domainxml.Assignment{}, err
	}
	var had domainxml.Assignment
	if before != nil {
		had = before.Assignment
	}
	assignment, err := e.choose(ctx, had)
	if err != nil {
		return assignment, err
	}
	if power := e.request.GetPower(); power == "on" || power == "cycle" {
		err = e.checkHugepages(assignment)
	}
	return assignment, err
}

// choose returns the VM's devices and CPUs: those that it has, where they still fit. A host that has none left is asked
// once more what is really taken: what is known may be older than the end of a VM.
func (e *execution) choose(ctx context.Context, had domainxml.Assignment) (domainxml.Assignment, error) {
	hosts, spec := e.agent.hosts, e.machine.spec()
	wants := wantedDevices(e.machine)
	if hosts.pod != nil {
		return e.chooseInPod(wants)
	}
	if len(wants) == 0 && !dedicated(spec) {
		return domainxml.Assignment{}, nil
	}
	hosts.mu.Lock()
	defer hosts.mu.Unlock()
	out, err := e.tryToChoose(wants, had)
	if errors.Is(err, hostdevices.ErrUnavailable) || errors.Is(err, cpus.ErrTooFew) {
		busy, readErr := e.agent.readHolders(ctx, e.name)
		if readErr != nil {
			return out, readErr
		}
		out, err = e.tryToChoose(wants, had)
		if err != nil && busy != "" {
			// Not for good: a step of another VM, which may give something back, is on its way.
			return out, fmt.Errorf("%s; waiting for %s", err.Error(), busy)
		}
	}
	if err == nil {
		hosts.pending[e.name] = out
	}
	return out, err
}

// chooseInPod returns what the VM has in its Pod: what was made there for it.
func (e *execution) chooseInPod(wants []hostdevices.Want) (domainxml.Assignment, error) {
	if len(wants) > 0 || dedicated(e.machine.spec()) {
		return domainxml.Assignment{}, fmt.Errorf("%w: a Pod has no devices and CPUs of its node to give away", ErrInvalid)
	}
	return e.agent.hosts.pod(), nil
}

func dedicated(spec *kubevirtv1.VirtualMachineInstanceSpec) bool {
	return spec.Domain.CPU != nil && spec.Domain.CPU.DedicatedCPUPlacement
}

// tryToChoose chooses by what is known. hosts.mu is held.
func (e *execution) tryToChoose(wants []hostdevices.Want, had domainxml.Assignment) (out domainxml.Assignment, err error) {
	hosts, spec := e.agent.hosts, e.machine.spec()
	others, err := e.agent.others(e.name)
	if err != nil {
		return out, fmt.Errorf("choosing devices and CPUs of the host: %w", err)
	}
	var devices []domainxml.HostDevice
	var placements []*domainxml.CPUPlacement
	for _, other := range others {
		devices = append(devices, other.Devices...)
		if other.CPUs != nil {
			placements = append(placements, other.CPUs)
		}
	}
	if out.Devices, err = hosts.devices.Choose(e.made.String(), wants, had.Devices, devices); err != nil || !dedicated(spec) {
		return out, err
	}
	host, err := cpus.Read(hosts.root, hosts.reservedCPUs)
	if err != nil {
		return out, err
	}
	want := cpus.Want{Emulator: spec.Domain.CPU.IsolateEmulatorThread}
	want.VCPUs, want.Threads = domainxml.GuestCPUs(spec)
	want.NUMA = spec.Domain.CPU.NUMA != nil && spec.Domain.CPU.NUMA.GuestMappingPassthrough != nil
	out.CPUs, err = host.Place(want, had.CPUs, placements)
	return out, err
}

// readHolders reads every VM but one that has something of the host for itself. busy names one that a step is working on.
// hosts.mu is held.
func (a *Agent) readHolders(ctx context.Context, except string) (busy string, err error) {
	holders := map[string]bool{}
	for name := range a.hosts.pending {
		holders[name] = true
	}
	all, _ := a.view.all()
	for _, now := range all {
		for _, record := range []*domainxml.Record{now.record, now.running} {
			if record != nil && (record.Assignment.CPUs != nil || len(record.Assignment.Devices) > 0) {
				holders[record.DomainName()] = true
			}
		}
	}
	delete(holders, except)
	for _, name := range slices.Sorted(maps.Keys(holders)) {
		unlock, idle := a.locks.try(name)
		if !idle {
			busy = name
			continue
		}
		_, err := a.refresh(ctx, name)
		unlock()
		if err != nil {
			return busy, err
		}
		delete(a.hosts.pending, name) // nobody is about to write what was chosen for it
	}
	return busy, nil
}

// others returns what all VMs but one have, those that are off or gone from the host for a while included; an error when that
// is not known. hosts.mu is held.
func (a *Agent) others(name string) (assignments []domainxml.Assignment, err error) {
	all, known := a.view.all()
	if !known {
		return nil, fmt.Errorf("%w: what other VMs have cannot be read", hypervisor.ErrUnavailable)
	}
	for _, now := range all {
		record := now.record
		if record == nil && now.problem != "" && now.domain.Name != name {
			// Its trace says what it was defined with last.
			if record, _ = a.records.get(now.domain.Name); record == nil { // its own problem is told, whatever the trace's is
				return nil, fmt.Errorf("what %s has cannot be read: %s", now.domain.Name, now.problem)
			}
		}
		for _, record := range []*domainxml.Record{record, now.running} {
			if record != nil && record.DomainName() != name {
				assignments = append(assignments, record.Assignment)
			}
		}
	}
	for other, assignment := range a.hosts.pending {
		if other != name {
			assignments = append(assignments, assignment)
		}
	}
	return assignments, nil
}

// checkHugepages reports when the guest would find too few huge pages. Those of the guest that runs come back first.
func (e *execution) checkHugepages(assignment domainxml.Assignment) error {
	size := pageSize(e.machine.spec())
	if size == "" {
		return nil
	}
	held := int64(0)
	if e.active() && e.now.running != nil {
		if object, _, err := schemas.ParseRecord(e.now.running.Spec, true); err == nil && pageSize(&object.Spec.Template.Spec) == size {
			held = int64(domainxml.GuestMemory(&object.Spec.Template.Spec)) //nolint:gosec // validated: positive
		}
	}
	var nodes []int
	if assignment.CPUs != nil {
		nodes = slices.Compact(slices.Sorted(slices.Values(assignment.CPUs.Nodes)))
	}
	memory := int64(domainxml.GuestMemory(e.machine.spec())) //nolint:gosec // validated: positive
	return e.agent.hosts.capabilities.CheckHugepages(size, memory, held, nodes)
}

func pageSize(spec *kubevirtv1.VirtualMachineInstanceSpec) string {
	if spec.Domain.Memory == nil || spec.Domain.Memory.Hugepages == nil {
		return ""
	}
	return spec.Domain.Memory.Hugepages.PageSize
}

// ready sees to what may have changed on the host since the domain was defined: USB devices that were plugged in anew,
// mediated devices that a reboot took away, huge pages that are gone. It corrects the definition when it must.
func (e *execution) ready(ctx context.Context, record *domainxml.Record) error {
	if err := e.agent.hosts.check(e.machine.spec()); err != nil {
		return err
	}
	assignment, err := e.choose(ctx, record.Assignment)
	if err != nil {
		return err
	}
	if err := e.checkHugepages(assignment); err != nil {
		return err
	}
	if err := e.agent.hosts.devices.Prepare(wantedDevices(e.machine), assignment.Devices); err != nil {
		return err
	}
	if reflect.DeepEqual(assignment, record.Assignment) {
		return nil
	}
	record.Assignment = assignment
	definition, err := e.render(record)
	if err != nil {
		return err
	}
	return e.write(ctx, record, definition)
}
