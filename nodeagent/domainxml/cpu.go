package domainxml

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// topology is the guest's processors.
type topology struct {
	sockets, cores, threads uint32
	// maxSockets is how many sockets the running guest can grow to; 0 for as many as it has.
	maxSockets uint32
}

// topologyOf returns the topology of a spec. A VM without one gets its vCPUs as sockets from the CPU limit or request, as
// KubeVirt does; one vCPU without either.
func topologyOf(spec *kubevirtv1.VirtualMachineInstanceSpec) topology {
	out := topology{sockets: 1, cores: 1, threads: 1}
	cpu := spec.Domain.CPU
	if cpu != nil {
		out.maxSockets = cpu.MaxSockets
		if arch, err := architectureOf(spec); err != nil || !arch.cpuHotplug {
			out.maxSockets = 0
		}
	}
	if cpu != nil && (cpu.Sockets != 0 || cpu.Cores != 0 || cpu.Threads != 0) {
		out.sockets, out.cores, out.threads = max(cpu.Sockets, 1), max(cpu.Cores, 1), max(cpu.Threads, 1)
		return out
	}
	resources := spec.Domain.Resources
	cpus := resources.Limits.Cpu()
	if cpus.IsZero() {
		cpus = resources.Requests.Cpu()
	}
	if !cpus.IsZero() {
		out.sockets = uint32(min(max(cpus.Value(), 1), maxThreads+1)) //nolint:gosec // bounded; too many are refused
	}
	return out
}

// vcpus is how many the guest starts with.
func (t topology) vcpus() uint { return uint(t.sockets) * uint(t.cores) * uint(t.threads) }

// most is how many vCPUs the guest can have.
func (t topology) most() uint {
	return max(uint(t.maxSockets)*uint(t.cores)*uint(t.threads), t.vcpus())
}

func (r *renderer) dedicatedCPUs() bool {
	return r.spec.Domain.CPU != nil && r.spec.Domain.CPU.DedicatedCPUPlacement
}

// realtime returns the real-time settings; like KubeVirt's they mean something only on dedicated CPUs.
func (r *renderer) realtime() *kubevirtv1.Realtime {
	if !r.dedicatedCPUs() {
		return nil
	}
	return r.spec.Domain.CPU.Realtime
}

// cpus writes how many vCPUs there are and where they run.
func (r *renderer) cpus() error {
	var placement *CPUPlacement
	cpuset := ""
	if r.dedicatedCPUs() {
		placement = r.host.Assignment.CPUs
		if placement == nil || len(placement.VCPUs) < int(r.topology.vcpus()) {
			return fmt.Errorf("dedicatedCpuPlacement: the host has not assigned %d CPUs", r.topology.vcpus())
		}
		// What is pinned nowhere else stays on the CPUs of the machine: QEMU's threads of its own, for one.
		cpuset = formatCPUs(append(slices.Clone(placement.VCPUs), placement.Emulator...))
	}
	r.text("vcpu", decimal(r.topology.most()), "placement", "static", "cpuset", cpuset)
	if r.topology.maxSockets != 0 {
		r.start("vcpus")
		first := uint(r.topology.cores) * uint(r.topology.threads)
		for id := range r.topology.most() {
			// The first socket stays.
			r.leaf("vcpu", "id", decimal(id), "enabled", yesNo(id < r.topology.vcpus()), "hotpluggable", yesNo(id >= first))
		}
		r.end("vcpus")
	}
	if r.threads.count > 0 {
		r.text("iothreads", decimal(r.threads.count))
	}
	if placement == nil {
		return nil
	}
	if err := r.cpuTune(placement); err != nil {
		return err
	}
	if cells := r.cells(); len(cells) > 0 && cells[0].node >= 0 {
		r.start("numatune")
		var nodes []int
		for _, cell := range cells {
			nodes = append(nodes, cell.node)
		}
		r.leaf("memory", "mode", "strict", "nodeset", formatCPUs(nodes))
		for id, cell := range cells {
			r.leaf("memnode", "cellid", decimal(id), "mode", "strict", "nodeset", decimal(cell.node))
		}
		r.end("numatune")
	}
	return nil
}

func (r *renderer) cpuTune(placement *CPUPlacement) error {
	vcpus := placement.VCPUs[:r.topology.vcpus()]
	r.start("cputune")
	for vcpu, cpu := range vcpus {
		r.leaf("vcpupin", "vcpu", decimal(vcpu), "cpuset", decimal(cpu))
	}
	isolated := r.spec.Domain.CPU.IsolateEmulatorThread && len(placement.Emulator) > 0
	if isolated {
		r.leaf("emulatorpin", "cpuset", formatCPUs(placement.Emulator))
	}
	count := r.threads.count
	for thread := uint(1); thread <= count; thread++ {
		var cpus []int
		switch n := uint(len(vcpus)); {
		case isolated:
			cpus = placement.Emulator
		case count >= n:
			cpus = vcpus[thread%n : thread%n+1]
		default: // an even share of the CPUs, the first threads with one more
			share, extra := n/count, n%count
			from := (thread-1)*share + min(thread-1, extra)
			to := from + share
			if thread <= extra {
				to++
			}
			cpus = vcpus[from:to]
		}
		r.leaf("iothreadpin", "iothread", decimal(thread), "cpuset", formatCPUs(cpus))
	}
	if realtime := r.realtime(); realtime != nil {
		mask, err := realtimeMask(realtime.Mask, len(vcpus))
		if err != nil {
			return err
		}
		r.leaf("vcpusched", "vcpus", mask, "scheduler", "fifo", "priority", "1")
	}
	r.end("cputune")
	return nil
}

// realtimeMask returns the vCPUs that run in real time, all without a mask. A mask lists numbers and ranges; ^ takes
// one out again: "0-3,^1".
func realtimeMask(mask string, vcpus int) (string, error) {
	in := make([]bool, vcpus)
	if mask == "" {
		mask = "0-" + strconv.Itoa(vcpus-1)
	}
	for part := range strings.SplitSeq(mask, ",") {
		bounds, excluded := strings.CutPrefix(strings.TrimSpace(part), "^")
		first, last, ranged := strings.Cut(bounds, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return "", fmt.Errorf("cpu.realtime.mask %q: %q is no vCPU; want numbers and ranges, such as 0-3,^1", mask, part)
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil || to < from {
			return "", fmt.Errorf("cpu.realtime.mask %q: %q is no range of vCPUs, such as 0-3", mask, part)
		}
		for vcpu := from; vcpu <= to && vcpu < uint64(len(in)); vcpu++ {
			in[vcpu] = !excluded
		}
	}
	var chosen []int
	for vcpu, yes := range in {
		if yes {
			chosen = append(chosen, vcpu)
		}
	}
	if len(chosen) == 0 {
		return "", fmt.Errorf("cpu.realtime.mask %q names none of the guest's %d vCPUs", mask, vcpus)
	}
	return formatCPUs(chosen), nil
}

// formatCPUs writes numbers as libvirt does: ordered, each once, neighbours as a range.
func formatCPUs(cpus []int) string {
	sorted := slices.Compact(slices.Sorted(slices.Values(cpus)))
	var out []byte
	for i := 0; i < len(sorted); {
		end := i
		for end+1 < len(sorted) && sorted[end+1] == sorted[end]+1 {
			end++
		}
		if len(out) > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(sorted[i]), 10)
		if end > i {
			out = append(out, '-')
			out = strconv.AppendInt(out, int64(sorted[end]), 10)
		}
		i = end + 1
	}
	return string(out)
}

func (r *renderer) cpu() {
	cpu := r.spec.Domain.CPU
	if cpu == nil {
		cpu = &kubevirtv1.CPU{}
	}
	mode, model := cpu.Model, ""
	switch mode {
	case "":
		mode = r.arch.cpuModel
	case kubevirtv1.CPUModeHostModel, kubevirtv1.CPUModeHostPassthrough:
	default:
		mode, model = "custom", cpu.Model
	}
	if r.host.DomainType == "qemu" && (mode == kubevirtv1.CPUModeHostPassthrough || mode == kubevirtv1.CPUModeHostModel && r.arch.name != "x86_64") {
		mode = "maximum" // software emulation has no CPU of the host to pass on; this is all that it can do
	}
	r.start("cpu", "mode", mode)
	if model != "" {
		r.text("model", model)
	}
	sockets := max(r.topology.sockets, r.topology.maxSockets)
	r.leaf("topology", "sockets", decimal(sockets), "cores", decimal(r.topology.cores), "threads", decimal(r.topology.threads))
	mpx := model != "" && r.arch.name == "x86_64"
	for _, feature := range cpu.Features {
		policy := feature.Policy
		if policy == "" {
			policy = "require" // libvirt's default, which its schema wants said
		}
		mpx = mpx && feature.Name != "mpx"
		r.leaf("feature", "policy", policy, "name", feature.Name)
	}
	if mpx {
		// libvirt's models have it and no processor does any more.
		r.leaf("feature", "policy", "disable", "name", "mpx")
	}
	if cells := r.cells(); len(cells) > 0 {
		r.start("numa")
		for id, cell := range cells {
			r.leaf("cell", "id", decimal(id), "cpus", cell.cpus, "memory", decimal(cell.memory), "unit", "b")
		}
		r.end("numa")
	}
	r.end("cpu")
}
