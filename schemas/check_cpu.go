package schemas

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func (c *checker) checkCPU(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	cpu := spec.Domain.CPU
	in := func(parts ...any) []any { return c.in(append(at("domain", "cpu"), parts...)...) }
	sockets := max(cpu.Sockets, cpu.MaxSockets)
	total := uint64(cpu.Cores) * uint64(sockets) // fits: both have 32 bits
	if total > maxCPUs || total*uint64(cpu.Threads) > maxCPUs {
		c.fail(in(), fmt.Sprintf("%d sockets of %d cores of %d threads are more than %d CPUs", sockets, cpu.Cores, cpu.Threads, maxCPUs),
			"cores, sockets and threads are multiplied: use smaller numbers")
	}
	if cpu.MaxSockets != 0 && cpu.Sockets > cpu.MaxSockets {
		path := in("sockets")
		if !c.wasGiven(path) {
			path = in("maxSockets")
		}
		c.fail(path, fmt.Sprintf("%d sockets are more than maxSockets, which is %d", cpu.Sockets, cpu.MaxSockets), "raise maxSockets or lower sockets")
	}
	if cpu.Model != "" && !isToken(cpu.Model) {
		c.fail(in("model"), quoteValue(cpu.Model)+" is not a CPU model", "use a name of `virsh cpu-models x86_64`, host-model or host-passthrough")
	}
	for i := range cpu.Features {
		c.checkCPUFeature(cpu.Features, i)
	}
	if cpu.IsolateEmulatorThread && !cpu.DedicatedCPUPlacement {
		c.fail(in("isolateEmulatorThread"), "only a machine with dedicated CPUs can keep one for the emulator", "add dedicatedCpuPlacement: true")
	}
	if cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil {
		path := func() []any { return in("numa", "guestMappingPassthrough") }
		if !cpu.DedicatedCPUPlacement {
			c.fail(path(), "the host's NUMA nodes can be shown to a machine with dedicated CPUs only", "add dedicatedCpuPlacement: true")
		} else if spec.Domain.Memory.Hugepages == nil {
			c.fail(path(), "the host's NUMA nodes can be shown to a machine on huge pages only", "add memory.hugepages with a pageSize")
		}
	}
	c.checkRealtime(cpu, in)
	if cpu.DedicatedCPUPlacement {
		c.checkDedicated(spec, in)
	}
	c.checkCPUResources(spec)
}

func (c *checker) checkCPUFeature(features []kubevirtv1.CPUFeature, i int) {
	in := func(field string) []any { return c.in("domain", "cpu", "features", i, field) }
	feature := &features[i]
	oneOf(c, func() []any { return in("policy") }, feature.Policy, "force", "require", "optional", "disable", "forbid")
	switch {
	case feature.Name == "":
		c.fail(in("name"), "no name", "name the CPU feature, such as vmx")
		return
	case !isToken(feature.Name) || strings.Contains(feature.Name, "+"):
		c.fail(in("name"), quoteValue(feature.Name)+" is not a CPU feature", "use a name such as vmx, without + or -")
		return
	}
	for j := range i {
		if features[j].Name == feature.Name {
			c.fail(in("name"), fmt.Sprintf("the CPU feature %s is given twice", quoteValue(feature.Name)), "keep one")
			return
		}
	}
}

func (c *checker) checkRealtime(cpu *kubevirtv1.CPU, in func(...any) []any) {
	if cpu.Realtime == nil {
		return
	}
	switch {
	case !cpu.DedicatedCPUPlacement:
		c.fail(in("realtime"), "a realtime machine needs CPUs of its own", "add dedicatedCpuPlacement: true")
	case cpu.NUMA == nil || cpu.NUMA.GuestMappingPassthrough == nil:
		c.fail(in("realtime"), "a realtime machine needs memory next to its CPUs", "add numa: {guestMappingPassthrough: {}} and memory.hugepages")
	}
	if cpu.Realtime.Mask == "" {
		return
	}
	total := uint64(cpu.Cores) * uint64(cpu.Sockets) * uint64(cpu.Threads)
	if problem := maskProblem(cpu.Realtime.Mask, total); problem != "" {
		c.fail(in("realtime", "mask"), problem, "write virtual CPUs as in 0-3,^1")
	}
}

// maskProblem says why mask does not pick some of the virtual CPUs 0 to total-1; "" when it does. The syntax is
// libvirt's: numbers and ranges with commas between them, ^ takes CPUs out again.
func maskProblem(mask string, total uint64) string {
	if len(mask) > 1024 {
		return "the mask is longer than 1024 characters"
	}
	kept := map[uint64]bool{}
	for part := range strings.SplitSeq(mask, ",") {
		part, out := strings.CutPrefix(strings.TrimSpace(part), "^")
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 32)
		last, err2 := strconv.ParseUint(to, 10, 32)
		switch {
		case err != nil || err2 != nil || first > last:
			return quoteValue(mask) + " is not a list of CPUs"
		case last >= total:
			return fmt.Sprintf("the mask names the virtual CPU %d, and the machine has %d from 0 on", last, total)
		}
		for i := first; i <= last && i < maxCPUs; i++ {
			kept[i] = !out
		}
	}
	for _, in := range kept {
		if in {
			return ""
		}
	}
	return quoteValue(mask) + " leaves no CPU"
}

// checkDedicated checks what is asked for together with CPUs that belong to one machine.
func (c *checker) checkDedicated(spec *kubevirtv1.VirtualMachineInstanceSpec, in func(...any) []any) {
	cpu, resources := spec.Domain.CPU, &spec.Domain.Resources
	quantity := func(list, name string) []any { return c.in("domain", "resources", list, key(name)) }
	for _, list := range []struct {
		name   string
		values corev1.ResourceList
	}{{"requests", resources.Requests}, {"limits", resources.Limits}} {
		if cpus := list.values[corev1.ResourceCPU]; cpus.MilliValue()%1000 != 0 {
			c.fail(c.firstGiven(quantity(list.name, "cpu"), quantity("limits", "cpu")), fmt.Sprintf("%s is not a whole number of CPUs, and dedicated ones cannot be shared", cpus.String()), "use a whole number")
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, limit := resources.Requests[name], resources.Limits[name]
		if !request.IsZero() && !limit.IsZero() && request.Cmp(limit) < 0 { // more than the limit is told elsewhere
			c.fail(quantity("requests", string(name)), fmt.Sprintf("the request of %s is not the limit of %s, as it has to be with dedicated CPUs", request.String(), limit.String()), "use one number for both")
		}
	}
	total := int64(cpu.Cores) * int64(cpu.Sockets) * int64(cpu.Threads)
	request, limit := resources.Requests[corev1.ResourceCPU], resources.Limits[corev1.ResourceCPU]
	if (!request.IsZero() || !limit.IsZero()) && request.Value() != total && limit.Value() != total {
		c.fail(c.firstGiven(quantity("requests", "cpu"), quantity("limits", "cpu")),
			fmt.Sprintf("the machine has %d CPUs, and dedicated ones are as many as the resources name", total), "remove it, or make it "+strconv.FormatInt(total, 10))
	}
	if cpu.Threads > 2 {
		c.fail(in("threads"), fmt.Sprintf("%d threads per core: a host core with dedicated CPUs has 2 at most", cpu.Threads), "use 1 or 2")
	}
}

// firstGiven returns the first of two paths that the manifest has something at.
func (c *checker) firstGiven(first, second []any) []any {
	if !c.wasGiven(first) && c.wasGiven(second) {
		return second
	}
	return first
}

// checkCPUResources checks what is asked for under resources, but for the amount of memory.
func (c *checker) checkCPUResources(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	resources := &spec.Domain.Resources
	for _, list := range []struct {
		name   string
		values corev1.ResourceList
	}{{"requests", resources.Requests}, {"limits", resources.Limits}} {
		for _, name := range slices.Sorted(maps.Keys(list.values)) {
			quantity := list.values[name]
			path := func() []any { return c.in("domain", "resources", list.name, key(name)) }
			switch {
			case quantity.Sign() < 0:
				c.fail(path(), fmt.Sprintf("%s is negative", quantity.String()), "use a number from 0 on, or remove it")
			case name == corev1.ResourceCPU, name == corev1.ResourceMemory:
			case isPodResource(string(name)):
				c.warn(path(), "it is a resource of Pods, nothing of it is set aside on a libvirt host", "remove it")
			default:
				c.fail(path(), "machines have no such resource", "use cpu and memory")
			}
		}
	}
	request, limit := resources.Requests[corev1.ResourceCPU], resources.Limits[corev1.ResourceCPU]
	if !limit.IsZero() && request.Cmp(limit) > 0 {
		c.fail(c.in("domain", "resources", "requests", key("cpu")), fmt.Sprintf("the request of %s is more than the limit of %s", request.String(), limit.String()), "raise the limit or lower the request")
	}
	if limit.CmpInt64(maxCPUs) > 0 || request.CmpInt64(maxCPUs) > 0 {
		c.fail(c.firstGiven(c.in("domain", "resources", "requests", key("cpu")), c.in("domain", "resources", "limits", key("cpu"))), fmt.Sprintf("more than %d CPUs", maxCPUs), "use a smaller number")
	}
}

// isPodResource tells the resources that Kubernetes knows beside cpu and memory: storage of the node, huge pages, and
// those of device plugins, which have a domain in their names.
func isPodResource(name string) bool {
	return name == "ephemeral-storage" || strings.HasPrefix(name, "hugepages-") || strings.Contains(name, "/")
}

// pageSizes are the sizes of huge pages by architecture.
func pageSizes(architecture string) []string {
	switch architecture {
	case "arm64":
		return []string{"64Ki", "2Mi", "32Mi", "512Mi", "1Gi", "16Gi"}
	case "s390x":
		return []string{"1Mi", "2Gi"}
	}
	return []string{"2Mi", "1Gi"}
}

// checkHugepages checks the size of the pages, and that memory consists of whole ones.
func (c *checker) checkHugepages(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	pages := spec.Domain.Memory.Hugepages
	if pages == nil {
		return
	}
	path := func() []any { return c.in("domain", "memory", "hugepages", "pageSize") }
	sizes := pageSizes(spec.Architecture)
	size, err := resource.ParseQuantity(pages.PageSize)
	known := false
	for _, one := range sizes {
		quantity := resource.MustParse(one)
		known = known || err == nil && quantity.Cmp(size) == 0
	}
	switch {
	case pages.PageSize == "":
		c.fail(path(), "no page size", "write one of "+strings.Join(sizes, ", "))
		return
	case !known:
		c.fail(path(), quoteValue(pages.PageSize)+" is not a size of huge pages", "use "+strings.Join(sizes, " or "))
		return
	}
	for _, memory := range []struct {
		path     []any
		quantity *resource.Quantity
	}{
		{at("domain", "memory", "guest"), spec.Domain.Memory.Guest},
		{at("domain", "resources", "requests", key("memory")), spec.Domain.Resources.Requests.Memory()},
	} {
		if memory.quantity != nil && memory.quantity.Sign() > 0 && memory.quantity.Value()%size.Value() != 0 && c.wasGiven(c.in(memory.path...)) {
			c.fail(c.in(memory.path...), fmt.Sprintf("%s is not a whole number of pages of %s", memory.quantity.String(), pages.PageSize), "use a multiple of "+pages.PageSize)
		}
	}
}
