package guestmetrics

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ReadHost reads the host's figures below root, "/" on a real one. What cannot be read is left 0: the others are still
// worth telling.
func ReadHost(root, name string, now time.Time) Host {
	memory := fields(filepath.Join(root, "proc/meminfo"))
	paging := fields(filepath.Join(root, "proc/vmstat"))
	page := uint64(os.Getpagesize()) / 1024 //nolint:gosec // a page has some KiB
	return Host{
		Name: name, Time: now,
		Sockets:        sockets(filepath.Join(root, "sys/devices/system/cpu")),
		CPUTime:        cpuTime(filepath.Join(root, "proc/stat")),
		FreeKiB:        memory["MemFree"],
		FreeVirtualKiB: memory["MemFree"] + memory["SwapFree"],
		UsedKiB:        less(memory["MemTotal"], memory["MemFree"], memory["Buffers"], memory["Cached"]),
		UsedVirtualKiB: less(memory["MemTotal"]+memory["SwapTotal"], memory["MemFree"], memory["Cached"], memory["Buffers"], memory["SwapCached"]),
		PagedInKiB:     paging["pswpin"] * page,
		PagedOutKiB:    paging["pswpout"] * page,
	}
}

// less subtracts without going below 0: the figures are not of one moment.
func less(total uint64, parts ...uint64) uint64 {
	for _, part := range parts {
		total -= min(part, total)
	}
	return total
}

// fields reads lines such as "MemFree:  123 kB" and "pswpin 4".
func fields(path string) map[string]uint64 {
	out := map[string]uint64{}
	file, err := os.Open(path)
	if err != nil {
		return out
	}
	defer func() { _ = file.Close() }() // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		if value, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			out[strings.TrimSuffix(words[0], ":")] = value
		}
	}
	return out
}

// ticks is USER_HZ, which Linux shows everywhere as 100.
const ticks = 100

// cpuTime is the time in user mode, nice user mode and the kernel.
func cpuTime(path string) time.Duration {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }() // only read
	line, err := bufio.NewReader(file).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) < 4 || words[0] != "cpu" {
		return 0
	}
	var sum time.Duration
	for _, word := range words[1:4] {
		value, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0
		}
		sum += time.Duration(value) * (time.Second / ticks)
	}
	return sum
}

// sockets counts the processors that the host's CPUs are in.
func sockets(dir string) int {
	paths, err := filepath.Glob(filepath.Join(dir, "cpu[0-9]*", "topology", "physical_package_id"))
	if err != nil {
		return 0
	}
	ids := map[string]bool{}
	for _, path := range paths {
		if id, err := os.ReadFile(path); err == nil {
			ids[strings.TrimSpace(string(id))] = true
		}
	}
	return len(ids)
}
