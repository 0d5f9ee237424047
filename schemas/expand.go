package schemas

import (
	"fmt"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
)

// expander adds an instancetype and a preference to a machine that has no defaults yet, by KubeVirt's rules
// (pkg/instancetype in kubevirt/kubevirt). The instancetype decides: what it sets, the machine must not set
// differently. The preference only speaks where the machine says nothing.
type expander struct {
	*checker
	vm   *kubevirtv1.VirtualMachine
	spec *kubevirtv1.VirtualMachineInstanceSpec
	// from is where the instancetype or the preference is that is being added.
	from *object
}

func (x *expander) expand(instance, prefer *object) {
	var it *instancetype
	var p *preference
	if instance != nil {
		it, _ = instance.value.(*instancetype)
	}
	if prefer != nil {
		p, _ = prefer.value.(*preference)
	}
	if p != nil {
		x.from = prefer
		x.requirements(p, it)
	}
	if it != nil {
		x.from = instance
		x.instancetype(&it.spec, p)
	}
	if p != nil && !x.broke {
		x.from = prefer
		x.preference(&p.spec)
	}
}

// said names the object that is being added.
func (x *expander) said() string { return x.from.said() }

// conflict reports a field that both the machine and the instancetype set.
func (x *expander) conflict(field string, value any, path ...any) {
	theirs := ""
	switch v := value.(type) {
	case nil:
	case string:
		theirs = " to " + quoteValue(v)
	default:
		theirs = fmt.Sprintf(" to %v", v)
	}
	x.fail(x.in(path...), fmt.Sprintf("%s sets %s%s", x.said(), field, theirs), "remove it here, or do without the instancetype")
}

// instancetype adds what an instancetype sets. A machine that repeats a value exactly is no conflict.
func (x *expander) instancetype(it *instancetypev1.VirtualMachineInstancetypeSpec, p *preference) {
	x.cpu(&it.CPU, p)
	x.memory(&it.Memory)
	domain := &x.spec.Domain
	if it.NodeSelector != nil {
		if x.spec.NodeSelector != nil && !maps.Equal(x.spec.NodeSelector, it.NodeSelector) {
			x.conflict("nodeSelector", nil, "nodeSelector")
		}
		x.spec.NodeSelector = maps.Clone(it.NodeSelector)
	}
	if it.SchedulerName != "" {
		if x.spec.SchedulerName != "" && x.spec.SchedulerName != it.SchedulerName {
			x.conflict("schedulerName", it.SchedulerName, "schedulerName")
		}
		x.spec.SchedulerName = it.SchedulerName
	}
	if len(it.GPUs) > 0 {
		if len(domain.Devices.GPUs) > 0 && !reflect.DeepEqual(domain.Devices.GPUs, it.GPUs) {
			x.conflict("gpus", nil, "domain", "devices", "gpus")
		}
		domain.Devices.GPUs = nil
		for i := range it.GPUs {
			domain.Devices.GPUs = append(domain.Devices.GPUs, *it.GPUs[i].DeepCopy())
		}
	}
	if len(it.HostDevices) > 0 {
		if len(domain.Devices.HostDevices) > 0 && !reflect.DeepEqual(domain.Devices.HostDevices, it.HostDevices) {
			x.conflict("hostDevices", nil, "domain", "devices", "hostDevices")
		}
		domain.Devices.HostDevices = nil
		for i := range it.HostDevices {
			domain.Devices.HostDevices = append(domain.Devices.HostDevices, *it.HostDevices[i].DeepCopy())
		}
	}
	if it.IOThreadsPolicy != nil {
		if domain.IOThreadsPolicy != nil && *domain.IOThreadsPolicy != *it.IOThreadsPolicy {
			x.conflict("ioThreadsPolicy", string(*it.IOThreadsPolicy), "domain", "ioThreadsPolicy")
		}
		policy := *it.IOThreadsPolicy
		domain.IOThreadsPolicy = &policy
	}
	adopt(x, &domain.IOThreads, it.IOThreads, "ioThreads", "domain", "ioThreads")
	adopt(x, &domain.LaunchSecurity, it.LaunchSecurity, "launchSecurity", "domain", "launchSecurity")
	x.metadata(it.Annotations, true)
}

// adopt takes over a part of the instancetype as it is.
func adopt[T any, P interface {
	*T
	DeepCopy() *T
}](x *expander, mine *P, theirs P, field string, path ...any) {
	if theirs == nil {
		return
	}
	if *mine != nil && !reflect.DeepEqual(*mine, theirs) {
		x.conflict(field, nil, path...)
	}
	*mine = theirs.DeepCopy()
}

// cpu spreads the vCPUs and takes over what else the instancetype says of the CPU.
func (x *expander) cpu(it *instancetypev1.CPUInstancetype, p *preference) {
	if x.spec.Domain.CPU == nil {
		x.spec.Domain.CPU = &kubevirtv1.CPU{}
	}
	cpu := x.spec.Domain.CPU
	sockets, cores, threads, problem := cpuTopology(it.Guest, p)
	if problem != "" {
		x.fail(at("spec", "preference"), problem+": so many has "+x.said(), "use an instancetype with another number of vCPUs, or another preference")
		return
	}
	for _, part := range []struct {
		name   string
		mine   *uint32
		theirs uint32
	}{{"sockets", &cpu.Sockets, sockets}, {"cores", &cpu.Cores, cores}, {"threads", &cpu.Threads, threads}} {
		if *part.mine != 0 && *part.mine != part.theirs {
			x.conflict("cpu.guest", it.Guest, "domain", "cpu", part.name)
		}
		*part.mine = part.theirs
	}
	x.resource(corev1.ResourceCPU, "cpu.guest", *resource.NewQuantity(int64(it.Guest), resource.DecimalSI))
	if it.Model != nil {
		if cpu.Model != "" && cpu.Model != *it.Model {
			x.conflict("cpu.model", *it.Model, "domain", "cpu", "model")
		}
		cpu.Model = *it.Model
	}
	for _, flag := range []struct {
		mine        *bool
		theirs      *bool
		field, name string
	}{
		{&cpu.DedicatedCPUPlacement, it.DedicatedCPUPlacement, "cpu.dedicatedCPUPlacement", "dedicatedCpuPlacement"},
		{&cpu.IsolateEmulatorThread, it.IsolateEmulatorThread, "cpu.isolateEmulatorThread", "isolateEmulatorThread"},
	} {
		if flag.theirs == nil {
			continue
		}
		if path := at("domain", "cpu", flag.name); *flag.mine != *flag.theirs && x.wasGiven(x.in(path...)) {
			x.conflict(flag.field, *flag.theirs, path...)
		}
		*flag.mine = *flag.theirs
	}
	adopt(x, &cpu.NUMA, it.NUMA, "cpu.numa", "domain", "cpu", "numa")
	adopt(x, &cpu.Realtime, it.Realtime, "cpu.realtime", "domain", "cpu", "realtime")
	if it.MaxSockets != nil {
		if cpu.MaxSockets != 0 && cpu.MaxSockets != *it.MaxSockets {
			x.conflict("cpu.maxSockets", *it.MaxSockets, "domain", "cpu", "maxSockets")
		}
		cpu.MaxSockets = *it.MaxSockets
	}
}

// resource reports requests and limits that say something else than the instancetype.
func (x *expander) resource(name corev1.ResourceName, field string, theirs resource.Quantity) {
	resources := &x.spec.Domain.Resources
	if mine, ok := resources.Requests[name]; ok && mine.Cmp(theirs) != 0 {
		x.conflict(field, theirs.String(), "domain", "resources", "requests", key(name))
	}
	if mine, ok := resources.Limits[name]; ok && mine.Cmp(theirs) != 0 {
		x.conflict(field, theirs.String(), "domain", "resources", "limits", key(name))
	}
}

func (x *expander) memory(it *instancetypev1.MemoryInstancetype) {
	if x.spec.Domain.Memory == nil {
		x.spec.Domain.Memory = &kubevirtv1.Memory{}
	}
	memory := x.spec.Domain.Memory
	if memory.Guest != nil && memory.Guest.Cmp(it.Guest) != 0 {
		x.conflict("memory.guest", it.Guest.String(), "domain", "memory", "guest")
	}
	x.resource(corev1.ResourceMemory, "memory.guest", it.Guest)
	guest := it.Guest.DeepCopy()
	memory.Guest = &guest
	if it.OvercommitPercent > 0 {
		resources := &x.spec.Domain.Resources
		if resources.Requests == nil {
			resources.Requests = corev1.ResourceList{}
		}
		resources.Requests[corev1.ResourceMemory] = overcommitted(guest, it.OvercommitPercent)
	}
	adopt(x, &memory.Hugepages, it.Hugepages, "memory.hugepages", "domain", "memory", "hugepages")
	if it.MaxGuest != nil {
		if memory.MaxGuest != nil && memory.MaxGuest.Cmp(*it.MaxGuest) != 0 {
			x.conflict("memory.maxGuest", it.MaxGuest.String(), "domain", "memory", "maxGuest")
		}
		maximum := it.MaxGuest.DeepCopy()
		memory.MaxGuest = &maximum
	}
}

// metadata adds annotations to those of the template; other values of an instancetype are conflicts, of a preference
// they yield.
func (x *expander) metadata(annotations map[string]string, strict bool) {
	target := &x.vm.Spec.Template.ObjectMeta
	for _, name := range sortedKeys(annotations) {
		value := annotations[name]
		mine, ok := target.Annotations[name]
		if ok && mine != value && strict {
			x.fail(at("spec", "template", "metadata", "annotations", key(name)),
				fmt.Sprintf("%s sets this annotation to %s", x.said(), quoteValue(value)), "remove it here, or do without the instancetype")
		}
		if ok {
			continue
		}
		if target.Annotations == nil {
			target.Annotations = map[string]string{}
		}
		target.Annotations[name] = value
	}
}

// requirements checks that the machine has at least what a preference asks for.
func (x *expander) requirements(p *preference, it *instancetype) {
	needs := p.spec.Requirements
	if needs == nil {
		return
	}
	if needs.CPU != nil {
		x.requiredCPUs(p, it, needs.CPU.Guest)
	}
	if needs.Memory != nil {
		path, have := x.in("domain", "memory", "guest"), resource.Quantity{}
		switch memory := x.spec.Domain.Memory; {
		case it != nil:
			path, have = at("spec", "instancetype"), it.spec.Memory.Guest
		case memory != nil && memory.Guest != nil:
			have = *memory.Guest
		default:
			have = x.spec.Domain.Resources.Requests[corev1.ResourceMemory]
		}
		if have.Cmp(needs.Memory.Guest) < 0 {
			x.fail(path, fmt.Sprintf("%s of memory, %s requires at least %s", have.String(), x.said(), needs.Memory.Guest.String()), "give it more memory")
		}
	}
	if needs.Architecture != nil && *needs.Architecture != "" {
		have := x.spec.Architecture
		if have == "" && p.spec.PreferredArchitecture != nil {
			have = *p.spec.PreferredArchitecture
		}
		if have == "" {
			have = archAMD64
		}
		if have != *needs.Architecture {
			x.fail(x.in("architecture"), fmt.Sprintf("the architecture is %s, %s requires %s", quoteValue(have), x.said(), quoteValue(*needs.Architecture)), "use another preference")
		}
	}
}

// requiredCPUs counts the vCPUs where the preference wants to see them.
func (x *expander) requiredCPUs(p *preference, it *instancetype, needs uint32) {
	path, have := x.in("domain", "cpu"), uint64(0)
	cpu := x.spec.Domain.CPU
	switch {
	case it != nil:
		path, have = at("spec", "instancetype"), uint64(it.spec.CPU.Guest)
	case cpu == nil:
	default:
		sockets, cores, threads := uint64(max(cpu.Sockets, 1)), uint64(max(cpu.Cores, 1)), uint64(max(cpu.Threads, 1))
		switch p.topology() {
		case instancetypev1.Sockets:
			have = sockets
		case instancetypev1.Cores:
			have = cores
		case instancetypev1.Threads:
			have = threads
		case instancetypev1.Spread:
			switch _, across := p.spread(); across {
			case instancetypev1.SpreadAcrossSocketsCores:
				have = sockets * cores
			case instancetypev1.SpreadAcrossCoresThreads:
				have = cores * threads
			default:
				have = sockets * cores * threads
			}
		default:
			have = sockets * cores * threads
		}
	}
	if have < uint64(needs) {
		x.fail(path, fmt.Sprintf("%d vCPUs, %s requires at least %d as %s", have, x.said(), needs, p.topology()), "give it more vCPUs")
	}
}
