package launcher_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/launcher/launchertest"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// budget is what a Pod may take besides QEMU, in KiB.
const budget = 45 << 10

// memory is what a process has resident, in KiB: all of it, its share of it when what it has in common with others is divided among
// them, and what is its own alone.
type memory struct{ rss, pss, private int }

func memoryOf(t testing.TB, p *launchertest.Pod, of string) memory {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.Find(of).Outside))
	if err != nil {
		t.Fatal(err)
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
func busy(t testing.TB, p *launchertest.Pod) {
	t.Helper()
	p.Start(libvirttest.GuestIdle)
	for _, question := range []string{"dumpxml", "dominfo", "domblklist", "domiflist", "domstats"} {
		p.Virsh(question, launchertest.Domain)
	}
}

// TestResidentMemory holds the promise: at most 45 MiB besides QEMU, even when what the programs share with other Pods of the
// node counts in full.
func TestResidentMemory(t *testing.T) {
	t.Parallel()
	p := launchertest.Start(t, "-console")
	busy(t, p)
	launcher, libvirtd := memoryOf(t, p, "gitvirt-launche"), memoryOf(t, p, "libvirtd")
	t.Logf("launcher %+v KiB, libvirtd %+v KiB", launcher, libvirtd)
	if sum := launcher.rss + libvirtd.rss; sum > budget {
		t.Errorf("%d KiB resident besides QEMU, more than %d: launcher %+v, libvirtd %+v", sum, budget, launcher, libvirtd)
	}
}

// BenchmarkPod measures from the start of PID 1 to a guest that runs, and what is resident then besides QEMU.
func BenchmarkPod(b *testing.B) {
	var launcher, libvirtd memory
	for b.Loop() {
		p := launchertest.Start(b)
		p.Start(libvirttest.GuestIdle)
		b.StopTimer()
		launcher, libvirtd = memoryOf(b, p, "gitvirt-launche"), memoryOf(b, p, "libvirtd")
		_ = p.Cmd.Process.Kill()
		<-p.Ended
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
