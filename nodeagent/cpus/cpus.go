// Package cpus gives VMs with dedicatedCpuPlacement CPUs of the host for themselves. It reads the host's CPUs and NUMA nodes
// from sysfs and chooses deterministically. Cores are given whole, as a Kubernetes node with full-pcpus-only does: no two
// VMs share one, because what runs on one thread of a core slows the other and can spy on it. It pins nothing itself.
package cpus

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// ErrTooFew says that the host has too few free CPUs; it helps to change the VM, another VM or the reserve.
var ErrTooFew = errors.New("too few CPUs of the host are free")

// core is a core of the host with its online threads, in order.
type core struct {
	threads []int
	node    int
}

// Host is the CPUs of a host that VMs may have for themselves.
type Host struct {
	cores []core // in the order of their first threads
	// reserve says in words what is kept back.
	reserve string
}

// Read reads the host whose file system begins at root ("/", or a folder that a test filled). reserved is a list of CPUs
// such as "0-1,8" that stay with the host and the VMs that share CPUs; when it is empty the core of the first CPU does.
// Where the kernel was booted with isolcpus, only isolated CPUs are given away: nothing else runs there.
func Read(root, reserved string) (*Host, error) {
	kept, err := ParseList(reserved)
	if err != nil {
		return nil, fmt.Errorf("reading the reserved CPUs: %w", err)
	}
	online, err := readList(filepath.Join(root, "sys/devices/system/cpu/online"))
	if err != nil {
		return nil, fmt.Errorf("reading the host's CPUs: %w", err)
	}
	isolated, err := readList(filepath.Join(root, "sys/devices/system/cpu/isolated"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading the host's isolated CPUs: %w", err)
	}
	nodes := nodesOf(root)
	all := map[int]*core{}
	for _, cpu := range online {
		siblings, err := readList(filepath.Join(root, fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)))
		if err != nil {
			siblings = []int{cpu} // a machine without such files has no threads
		}
		first := slices.Min(append(siblings, cpu))
		if all[first] == nil {
			all[first] = &core{node: nodes[cpu]}
		}
		all[first].threads = append(all[first].threads, cpu)
	}
	host := &Host{reserve: "CPUs " + reserved + " are reserved"}
	cores := make([]core, 0, len(all))
	for _, c := range all {
		slices.Sort(c.threads)
		cores = append(cores, *c)
	}
	slices.SortFunc(cores, func(a, b core) int { return cmp.Compare(a.threads[0], b.threads[0]) })
	if len(kept) == 0 && len(cores) > 0 && len(isolated) == 0 {
		kept = cores[0].threads
		host.reserve = "CPUs " + FormatList(kept) + " stay with the host"
	}
	if len(isolated) > 0 {
		host.reserve = "only the isolated CPUs " + FormatList(isolated) + " are given away"
	}
	for _, c := range cores {
		given := !slices.ContainsFunc(c.threads, func(cpu int) bool {
			return slices.Contains(kept, cpu) || len(isolated) > 0 && !slices.Contains(isolated, cpu)
		})
		if given {
			host.cores = append(host.cores, c)
		}
	}
	return host, nil
}

// nodesOf returns the NUMA node of each CPU; everything is node 0 where there are no nodes.
func nodesOf(root string) map[int]int {
	nodes := map[int]int{}
	found, _ := filepath.Glob(filepath.Join(root, "sys/devices/system/node/node[0-9]*/cpulist")) // the pattern is right
	for _, path := range found {
		node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "node"))
		if err != nil {
			continue
		}
		list, err := readList(path)
		if err != nil {
			continue
		}
		for _, cpu := range list {
			nodes[cpu] = node
		}
	}
	return nodes
}

// Want is what a VM wants.
type Want struct {
	// VCPUs is how many vCPUs the guest has, Threads how many of them make a core of the guest.
	VCPUs, Threads int
	// Emulator asks for CPUs of their own for QEMU's own threads.
	Emulator bool
	// NUMA asks for the node of each vCPU, so that the guest can be shown them.
	NUMA bool
}

// Place chooses CPUs. before is what the VM has and keeps as long as it fits; taken are the placements of other VMs.
func (h *Host) Place(want Want, before *domainxml.CPUPlacement, taken []*domainxml.CPUPlacement) (*domainxml.CPUPlacement, error) {
	if want.VCPUs < 1 {
		return nil, fmt.Errorf("%w: the VM has no vCPUs", ErrTooFew)
	}
	used := map[int]bool{}
	for _, placement := range taken {
		for _, cpu := range slices.Concat(placement.VCPUs, placement.Emulator) {
			used[cpu] = true
		}
	}
	var free []core
	for _, c := range h.cores {
		if !slices.ContainsFunc(c.threads, func(cpu int) bool { return used[cpu] }) {
			free = append(free, c)
		}
	}
	if h.fits(want, before, free) {
		return before, nil
	}
	chosen := choose(want, free)
	if chosen == nil {
		threads := 0
		for _, c := range free {
			threads += len(c.threads)
		}
		emulator := ""
		if want.Emulator {
			emulator = " and one for the emulator"
		}
		return nil, fmt.Errorf("%w: dedicatedCpuPlacement needs %d%s on whole cores, %d on %d free cores are left (%s); use fewer, or stop a VM that has some",
			ErrTooFew, want.VCPUs, emulator, threads, len(free), h.reserve)
	}
	return place(want, chosen), nil
}

// fits reports whether a placement is one that the VM may keep.
func (h *Host) fits(want Want, before *domainxml.CPUPlacement, free []core) bool {
	if before == nil || len(before.VCPUs) != want.VCPUs || (len(before.Emulator) > 0) != want.Emulator || (len(before.Nodes) > 0) != want.NUMA {
		return false
	}
	nodes := map[int]int{}
	for _, c := range free {
		for _, cpu := range c.threads {
			nodes[cpu] = c.node
		}
	}
	for i, cpu := range before.VCPUs {
		node, there := nodes[cpu]
		if !there || want.NUMA && node != before.Nodes[i] {
			return false
		}
	}
	return !slices.ContainsFunc(before.Emulator, func(cpu int) bool { _, there := nodes[cpu]; return !there })
}

// choose takes cores: those of one node when they are enough, the fullest such node, so that nodes stay free for large
// VMs; otherwise from the node with the most on. nil says that there are too few.
func choose(want Want, free []core) []core {
	byNode := map[int][]core{}
	for _, c := range free {
		byNode[c.node] = append(byNode[c.node], c)
	}
	var best []core
	room := len(free) + 1
	for _, node := range sorted(byNode) {
		if chosen := enough(want, byNode[node]); chosen != nil && len(byNode[node]) < room {
			best, room = chosen, len(byNode[node])
		}
	}
	if best != nil {
		return best
	}
	spread := slices.Clone(free)
	slices.SortStableFunc(spread, func(a, b core) int {
		return cmp.Or(cmp.Compare(len(byNode[b.node]), len(byNode[a.node])), cmp.Compare(a.node, b.node))
	})
	return enough(want, spread)
}

func sorted(byNode map[int][]core) []int {
	var nodes []int
	for node := range byNode {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	return nodes
}

// enough returns as many of the cores as a VM needs, or nil.
func enough(want Want, cores []core) []core {
	for n := 1; n <= len(cores); n++ {
		placement := place(want, cores[:n])
		if len(placement.VCPUs) == want.VCPUs && (len(placement.Emulator) > 0) == want.Emulator {
			return cores[:n]
		}
	}
	return nil
}

// place gives the threads of the cores to the vCPUs, those of one guest core together on one core where the host has as
// many threads, and what is left to the emulator. A guest whose vCPUs have no siblings gets all threads of each core.
func place(want Want, cores []core) *domainxml.CPUPlacement {
	out := &domainxml.CPUPlacement{}
	together := max(want.Threads, 1)
	for _, c := range cores {
		threads := c.threads
		if together > 1 && len(threads) >= together {
			threads = threads[:len(threads)-len(threads)%together]
		}
		for i, cpu := range c.threads {
			switch {
			case i < len(threads) && len(out.VCPUs) < want.VCPUs:
				out.VCPUs = append(out.VCPUs, cpu)
				if want.NUMA {
					out.Nodes = append(out.Nodes, c.node)
				}
			case want.Emulator && len(out.Emulator) == 0 && len(out.VCPUs) == want.VCPUs:
				out.Emulator = []int{cpu}
			}
		}
	}
	return out
}

// Online counts the CPUs of a host that are online.
func Online(root string) (int, error) {
	online, err := readList(filepath.Join(root, "sys/devices/system/cpu/online"))
	return len(online), err
}

func readList(path string) ([]int, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseList(strings.TrimSpace(string(content)))
}

// maxCPU bounds what a list may name; Linux has at most 8192.
const maxCPU = 1 << 16

// ParseList reads the kernel's lists of CPUs: "0-3,8".
func ParseList(text string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || last < first || last > maxCPU {
			return nil, fmt.Errorf("%q is not a list of CPUs such as 0-3,8", text)
		}
		for cpu := first; cpu <= last; cpu++ {
			out = append(out, cpu)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// FormatList writes a list as the kernel does.
func FormatList(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		end := i
		for end+1 < len(cpus) && cpus[end+1] == cpus[end]+1 {
			end++
		}
		if end == i {
			parts = append(parts, strconv.Itoa(cpus[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", cpus[i], cpus[end]))
		}
		i = end + 1
	}
	return strings.Join(parts, ",")
}
