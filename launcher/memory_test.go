package launcher_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// budget is what a Pod may take besides QEMU, in KiB.
const budget = 45 << 10

// memory is what a process has resident, in KiB: all of it, its share of it when what it has in common with others is divided among
// them, and what is its own alone.
type memory struct{ rss, pss, private int }

func (p *pod) memory(of string) memory {
	p.t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.find(of).outside))
	if err != nil {
		p.t.Fatal(err)
	}
	sizes := map[string]int{}
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			sizes[key], _ = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		}
	}
	return memory{rss: sizes["Rss"], pss: sizes["Pss"], private: sizes["Private_Clean"] + sizes["Private_Dirty"]}
}

// busy has a guest run and asks the daemon this and that.
func (p *pod) busy() {
	p.t.Helper()
	p.start(libvirttest.GuestIdle)
	for _, question := range []string{"dumpxml", "dominfo", "domblklist", "domiflist", "domstats"} {
		p.virsh(question, domain)
	}
}

// TestResidentMemory holds the promise: at most 45 MiB besides QEMU, even when what the programs share with other Pods of the
// node counts in full.
func TestResidentMemory(t *testing.T) {
	t.Parallel()
	p := startPod(t, "-console")
	p.busy()
	launcher, libvirtd := p.memory("gitvirt-launche"), p.memory("libvirtd")
	t.Logf("launcher %+v KiB, libvirtd %+v KiB", launcher, libvirtd)
	if sum := launcher.rss + libvirtd.rss; sum > budget {
		t.Errorf("%d KiB resident besides QEMU, more than %d: launcher %+v, libvirtd %+v", sum, budget, launcher, libvirtd)
	}
}

// BenchmarkPod measures from the start of PID 1 to a guest that runs, and what is resident then besides QEMU.
func BenchmarkPod(b *testing.B) {
	var launcher, libvirtd memory
	for b.Loop() {
		p := startPod(b)
		p.start(libvirttest.GuestIdle)
		b.StopTimer()
		launcher, libvirtd = p.memory("gitvirt-launche"), p.memory("libvirtd")
		_ = p.cmd.Process.Kill()
		<-p.ended
		b.StartTimer()
	}
	const kib = 1024
	b.ReportMetric(float64(launcher.rss)/kib, "launcher-rss-MiB")
	b.ReportMetric(float64(launcher.pss)/kib, "launcher-pss-MiB")
	b.ReportMetric(float64(libvirtd.rss)/kib, "libvirtd-rss-MiB")
	b.ReportMetric(float64(libvirtd.pss)/kib, "libvirtd-pss-MiB")
	b.ReportMetric(float64(launcher.rss+libvirtd.rss)/kib, "rss-MiB")
	b.ReportMetric(float64(launcher.pss+libvirtd.pss)/kib, "pss-MiB")
	b.ReportMetric(float64(launcher.private+libvirtd.private)/kib, "private-MiB")
}
