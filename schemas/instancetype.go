package schemas

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
)

// instancetype is the spec of a VirtualMachineInstancetype or a VirtualMachineClusterInstancetype.
type instancetype struct {
	spec instancetypev1.VirtualMachineInstancetypeSpec
}

// preference is the spec of a VirtualMachinePreference or a VirtualMachineClusterPreference.
type preference struct {
	spec instancetypev1.VirtualMachinePreferenceSpec
}

// readInstancetype reads an instancetype of either scope. The older API versions have the same fields but for those
// that came later.
func readInstancetype(d *document, h *header) {
	manifest := &instancetypev1.VirtualMachineInstancetype{}
	d.decodeInto(manifest, h.kind)
	c := newChecker(d, h.address(), at("spec"))
	c.since(h, at("nodeSelector"), at("schedulerName"), at("ioThreads"), at("annotations"), at("cpu", "maxSockets"),
		at("memory", "overcommitPercent"), at("memory", "maxGuest"))
	spec := &manifest.Spec
	switch {
	case spec.CPU.Guest == 0 && !c.wasGiven(c.in("cpu", "guest")):
		c.fail(c.in("cpu", "guest"), "no number of vCPUs", "write cpu.guest, such as 2")
	case spec.CPU.Guest == 0:
		c.fail(c.in("cpu", "guest"), "must be at least 1", "write 1 or more")
	case spec.CPU.Guest > maxCPUs:
		c.fail(c.in("cpu", "guest"), fmt.Sprintf("%d vCPUs, at most %d are allowed", spec.CPU.Guest, maxCPUs), "write fewer")
	}
	c.checkInstancetype(spec)
	percent := spec.Memory.OvercommitPercent
	if percent < 0 || percent > 100 {
		c.fail(c.in("memory", "overcommitPercent"), fmt.Sprintf("%d is not from 0 to 100", percent), "write a percentage")
	}
	if percent != 0 && spec.Memory.Hugepages != nil {
		c.fail(c.in("memory", "overcommitPercent"), "hugepages cannot be overcommitted", "remove overcommitPercent or hugepages")
	}
	c.typeMetadata(&manifest.ObjectMeta, spec.Annotations)
	d.keep(h, &instancetype{spec: *spec})
}

// readPreference reads a preference of either scope.
func readPreference(d *document, h *header) {
	manifest := &instancetypev1.VirtualMachinePreference{}
	d.decodeInto(manifest, h.kind)
	c := newChecker(d, h.address(), at("spec"))
	c.since(h, at("volumes"), at("preferredSubdomain"), at("preferredTerminationGracePeriodSeconds"), at("requirements"),
		at("annotations"), at("preferSpreadSocketToCoreRatio"), at("preferredArchitecture"), at("preferredLaunchSecurity"),
		at("cpu", "spreadOptions"), at("cpu", "preferredCPUFeatures"), at("devices", "preferredAutoattachInputDevice"),
		at("devices", "preferredInterfaceMasquerade"), at("devices", "preferredPanicDeviceModel"), at("devices", "preferredVideoType"),
		at("firmware", "preferredEfi"))
	out := &preference{spec: manifest.Spec}
	spec := &out.spec
	topology := out.topology()
	if topology == instancetypev1.Spread {
		ratio, across := out.spread()
		where := c.in("cpu", "spreadOptions", "ratio")
		if !c.wasGiven(where) {
			where = c.in("preferSpreadSocketToCoreRatio")
		}
		switch {
		case ratio == 0:
			c.fail(where, "must be at least 1", "write 2, or leave it out")
		case across == instancetypev1.SpreadAcrossCoresThreads && ratio != threadsPerCore:
			c.fail(where, "a core has 2 threads when vCPUs are spread over cores and threads", "write 2, or leave it out")
		}
	}
	c.checkPreference(spec)
	c.typeMetadata(&manifest.ObjectMeta, spec.Annotations)
	d.keep(h, out)
}

// typeMetadata looks for settings of gitvirt in an instancetype or a preference, none of which reach a machine, and for
// annotations of KubeVirt that a machine would get from it.
func (c *checker) typeMetadata(own *metav1.ObjectMeta, given map[string]string) {
	c.misplaced(at("metadata", "labels"), own.Labels, KindVirtualMachine)
	c.misplaced(at("metadata", "annotations"), own.Annotations, KindVirtualMachine)
	c.misplaced(c.in("annotations"), given, KindVirtualMachine)
	c.unread(c.in("annotations"), given)
}

// since reports fields that the older API versions do not have.
func (c *checker) since(h *header, fields ...[]any) {
	if h.apiVersion == APIVersionInstancetype || h.apiVersion == "" {
		return
	}
	for _, field := range fields {
		path := c.in(field...)
		if c.wasGiven(path) {
			c.fail(path, printable(h.apiVersion)+" has no such field", "write apiVersion: "+APIVersionInstancetype)
		}
	}
}

// threadsPerCore is what KubeVirt gives a core that has threads.
const threadsPerCore = 2

// topology returns how vCPUs are shown to the guest, by the names that are not deprecated.
func (p *preference) topology() instancetypev1.PreferredCPUTopology {
	if p == nil || p.spec.CPU == nil || p.spec.CPU.PreferredCPUTopology == nil {
		return instancetypev1.Sockets
	}
	switch topology := *p.spec.CPU.PreferredCPUTopology; topology {
	case instancetypev1.DeprecatedPreferSockets, "":
		return instancetypev1.Sockets
	case instancetypev1.DeprecatedPreferCores:
		return instancetypev1.Cores
	case instancetypev1.DeprecatedPreferThreads:
		return instancetypev1.Threads
	case instancetypev1.DeprecatedPreferSpread:
		return instancetypev1.Spread
	case instancetypev1.DeprecatedPreferAny:
		return instancetypev1.Any
	default:
		return topology
	}
}

// spread returns the ratio and the levels that vCPUs are spread over.
func (p *preference) spread() (ratio uint32, across instancetypev1.SpreadAcross) {
	ratio, across = 2, instancetypev1.SpreadAcrossSocketsCores
	if p.spec.PreferSpreadSocketToCoreRatio != 0 {
		ratio = p.spec.PreferSpreadSocketToCoreRatio
	}
	if p.spec.CPU != nil && p.spec.CPU.SpreadOptions != nil {
		options := p.spec.CPU.SpreadOptions
		if options.Across != nil {
			across = *options.Across
		}
		if options.Ratio != nil {
			ratio = *options.Ratio
		}
	}
	return ratio, across
}

// cpuTopology spreads the vCPUs of an instancetype over sockets, cores and threads. problem says why they cannot be.
func cpuTopology(vcpus uint32, p *preference) (sockets, cores, threads uint32, problem string) {
	topology := p.topology()
	if topology == instancetypev1.Spread {
		ratio, across := p.spread()
		switch across {
		case instancetypev1.SpreadAcrossCoresThreads:
			sockets, cores, threads = 1, vcpus/ratio, ratio
		case instancetypev1.SpreadAcrossSocketsCoresThreads:
			sockets, cores, threads = vcpus/threadsPerCore/ratio, ratio, threadsPerCore
		default:
			sockets, cores, threads = vcpus/ratio, ratio, 1
		}
		if uint64(sockets)*uint64(cores)*uint64(threads) != uint64(vcpus) {
			return 0, 0, 0, fmt.Sprintf("%d vCPUs cannot be spread over %s with a ratio of %d", vcpus, across, ratio)
		}
		return sockets, cores, threads, ""
	}
	switch topology {
	case instancetypev1.Cores:
		return 1, vcpus, 1, ""
	case instancetypev1.Threads:
		return 1, 1, vcpus, ""
	}
	return vcpus, 1, 1, ""
}

// overcommitted is what a host has to have for a guest's memory.
func overcommitted(memory resource.Quantity, percent int) resource.Quantity {
	value := memory.Value()
	return *resource.NewQuantity(value-value/100*int64(percent)-value%100*int64(percent)/100, memory.Format)
}

// matcher is a reference to an instancetype or a preference.
type matcher struct {
	address  Address
	position Position
	path     string
}

// matcher reads a reference; cluster and own are the kinds that it may name, the first of which is the default.
func (c *checker) matcher(path []any, m kubevirtv1.Matcher, cluster, own string) *matcher {
	var kind, name string
	var inferred bool
	switch m := m.(type) {
	case *kubevirtv1.InstancetypeMatcher:
		if m == nil {
			return nil
		}
		kind, name, inferred = m.Kind, m.Name, m.InferFromVolume != ""
	case *kubevirtv1.PreferenceMatcher:
		if m == nil {
			return nil
		}
		kind, name, inferred = m.Kind, m.Name, m.InferFromVolume != ""
	}
	in := func(field string) []any { return append(append([]any{}, path...), field) }
	if name == "" && !inferred {
		c.fail(in("name"), "no name", "name the "+own)
	}
	out := &matcher{
		address:  Address{Kind: cluster, Namespace: DefaultNamespace, Name: name},
		position: c.position(locate(c.root, in("name"))), path: pathString(c.prefix, elements(in("name"))),
	}
	// KubeVirt takes the kinds in any case, and the plural names of the resources.
	switch strings.ToLower(kind) {
	case "", strings.ToLower(cluster), strings.ToLower(cluster) + "s":
	case strings.ToLower(own), strings.ToLower(own) + "s":
		out.address.Kind, out.address.Namespace = own, c.address.Namespace
	default:
		c.failOneOf(in("kind"), kind, own, cluster)
	}
	return out
}
