package main

import (
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// typesAndReads opens the console of a guest that has booted, gets a shell there and reads what it answers, while nobody else gets the
// console; then it takes it by force. Statistics are those of the guest.
func (r *rig) typesAndReads(name string) {
	r.t.Helper()
	open := func(more ...string) (typing io.WriteCloser, said *heard, wait func() error) {
		r.t.Helper()
		command := exec.CommandContext(r.t.Context(), program(r.t, "gitvirt"), append([]string{"console", name, "--state-dir", r.state}, more...)...)
		said = &heard{}
		command.Stdout, command.Stderr = said, said
		typing, err := command.StdinPipe()
		if err == nil {
			err = command.Start()
		}
		if err != nil {
			r.t.Fatal(err)
		}
		return typing, said, command.Wait
	}
	answers := func(typing io.Writer, said *heard, command, answer string) {
		r.t.Helper()
		if _, err := io.WriteString(typing, command); err != nil {
			r.t.Fatal(err)
		}
		r.eventually("the guest answers "+answer, func() bool { return strings.Contains(said.String(), answer) })
	}
	typing, said, wait := open()
	answers(typing, said, "\n", "# ")
	answers(typing, said, "echo answer-$((40 + 2))\n", "answer-42")
	if out, code := r.gitvirt("console", name, "--state-dir", r.state); code != 1 || !strings.Contains(out, "somebody else has the console of default/"+name+"; --force takes it") {
		r.t.Errorf("a second one: exit %d\n%s", code, out)
	}
	other, otherSaid, otherWait := open("--force")
	answers(other, otherSaid, "echo again-$((40 + 2))\n", "again-42")
	if err := wait(); err != nil || !strings.Contains(said.String(), "The console has ended: the guest is off, or somebody else has taken it.") {
		r.t.Errorf("the first ends with %v\n%s", err, said)
	}
	if _, err := io.WriteString(other, "ignored\x1d"); err != nil {
		r.t.Fatal(err)
	}
	if err := otherWait(); err != nil {
		r.t.Errorf("leaving: %v\n%s", err, otherSaid)
	}
	if out, code := r.gitvirt("console", name, "--lines", "50", "--state-dir", r.state); code != 0 || !strings.Contains(out, "\nanswer-42\n") {
		r.t.Errorf("the last lines: exit %d\n%s", code, out)
	}
	out, code := r.gitvirt("stats", name, "--interval", "100ms", "-o", "json", "--state-dir", r.state)
	found := usage{}
	if err := json.Unmarshal([]byte(out), &found); err != nil || code != 0 {
		r.t.Fatalf("stats: exit %d, %v\n%s", code, err, out)
	}
	disks := map[string]diskUsage{}
	for _, disk := range found.Disks {
		disks[disk.Name] = disk
	}
	if found.VM != "default/"+name || found.CPU.VCPUs != 1 || found.CPU.Seconds <= 0 || found.Memory.ResidentBytes < 32<<20 || disks["data"].CapacityBytes != 32<<20 {
		r.t.Errorf("stats: %+v", found)
	}
	if out, code := r.gitvirt("top", name, "--interval", "100ms", "--state-dir", r.state); code != 0 || !strings.Contains(out, "data    vd") {
		r.t.Errorf("stats: exit %d\n%s", code, out)
	}
	if out, code := r.gitvirt("stats", "absent", "--state-dir", r.state); code != 1 || !strings.Contains(out, "there is no VM default/absent here") {
		r.t.Errorf("stats of nobody: exit %d\n%s", code, out)
	}
}

// heard is what a program has said so far.
type heard struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (h *heard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(p)
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// TestUsageOf: rates are those of the time between the readings, and a counter that begins anew has none.
func TestUsageOf(t *testing.T) {
	total, usable := uint64(100<<20), uint64(60<<20)
	before := &api.Statistics{
		TimeUnixNano: 1e9, CpuNs: 4e9, Disks: []*api.DiskStatistics{{Target: "vda", ReadBytes: 1000, WriteBytes: 5000}},
		Interfaces: []*api.InterfaceStatistics{{Device: "tap0", ReceivedBytes: 100}},
	}
	now := &api.Statistics{
		State: "running", TimeUnixNano: 3e9, CpuNs: 7e9, Vcpus: 2, MemoryBytes: 1 << 30, ResidentBytes: 300 << 20, GuestTotalBytes: &total, GuestUsableBytes: &usable,
		Disks:      []*api.DiskStatistics{{Name: "root", Target: "vda", ReadBytes: 5096, WriteBytes: 10, CapacityBytes: 2 << 30}, {Target: "vdb", ReadBytes: 10}},
		Interfaces: []*api.InterfaceStatistics{{Name: "default", Device: "tap0", ReceivedBytes: 2148, SentBytes: 20, DroppedPackets: 3}},
	}
	found := usageOf(schemas.Address{Kind: "VirtualMachine", Namespace: "shop", Name: "web"}, before, now)
	var out strings.Builder
	if err := (&cli{stdout: &out}).showUsage(found); err != nil {
		t.Fatal(err)
	}
	want := `VM         STATE     VCPUS   CPU       CPU TIME   MEMORY    RESIDENT    GUEST
shop/web   running   2       150.0 %   7.0s       1.0 GiB   300.0 MiB   40.0 MiB of 100.0 MiB

DISK   TARGET   READ/s    WRITTEN/s   READ      WRITTEN   ALLOCATED   CAPACITY
root   vda      2.0 KiB   0 B         5.0 KiB   10 B      0 B         2.0 GiB
-      vdb      5 B       0 B         10 B      0 B       0 B         0 B

NETWORK   DEVICE   RECEIVED/s   SENT/s   RECEIVED   SENT   DROPPED
default   tap0     1.0 KiB      10 B     2.1 KiB    20 B   3
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if same := usageOf(schemas.Address{}, now, now); same.CPU.Percent != 0 || same.Networks[0].SentBytesPerSecond != 0 {
		t.Errorf("without time: %+v", same)
	}
}
