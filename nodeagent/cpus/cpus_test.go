package cpus_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/cpus"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// machine makes the sysfs of a host: two nodes of four cores with two threads, numbered as Linux does: CPUs 0-7 are the
// first threads, 8-15 the second, node 0 has cores 0-3. single leaves the second threads offline.
func machine(t *testing.T, isolated string, single bool) string {
	t.Helper()
	files := map[string]string{
		"sys/devices/system/cpu/online":         "0-15",
		"sys/devices/system/cpu/isolated":       isolated,
		"sys/devices/system/node/node0/cpulist": "0-3,8-11",
		"sys/devices/system/node/node1/cpulist": "4-7,12-15",
	}
	if single {
		files["sys/devices/system/cpu/online"] = "0-7"
	}
	for cpu := range 16 {
		siblings := fmt.Sprintf("%d,%d", cpu%8, cpu%8+8)
		if single {
			siblings = fmt.Sprint(cpu)
		}
		files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)] = siblings
	}
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func on(vcpus ...int) *domainxml.CPUPlacement { return &domainxml.CPUPlacement{VCPUs: vcpus} }

func TestPlace(t *testing.T) {
	for _, test := range []struct {
		reason             string
		reserved, isolated string
		single             bool
		want               cpus.Want
		before             *domainxml.CPUPlacement
		taken              []*domainxml.CPUPlacement
		placement          *domainxml.CPUPlacement
		problem            string
	}{
		{reason: "one vCPU has a core; the fullest node that is enough comes first", want: cpus.Want{VCPUs: 1}, placement: on(1)},
		{reason: "threads of a core go together", want: cpus.Want{VCPUs: 4, Threads: 2}, placement: on(1, 9, 2, 10)},
		{reason: "without threads in the guest as well", want: cpus.Want{VCPUs: 2, Threads: 1}, placement: on(1, 9)},
		{reason: "the emulator gets the thread that is left", want: cpus.Want{VCPUs: 1, Emulator: true}, placement: &domainxml.CPUPlacement{VCPUs: []int{1}, Emulator: []int{9}}},
		{reason: "or a core of its own", want: cpus.Want{VCPUs: 2, Emulator: true}, placement: &domainxml.CPUPlacement{VCPUs: []int{1, 9}, Emulator: []int{2}}},
		{reason: "a core is never shared", want: cpus.Want{VCPUs: 1}, taken: []*domainxml.CPUPlacement{on(1)}, placement: on(2)},
		{reason: "not with an emulator either", want: cpus.Want{VCPUs: 1}, taken: []*domainxml.CPUPlacement{{VCPUs: []int{2}, Emulator: []int{9}}}, placement: on(3)},
		{reason: "a whole node", want: cpus.Want{VCPUs: 8, NUMA: true}, placement: &domainxml.CPUPlacement{VCPUs: []int{4, 12, 5, 13, 6, 14, 7, 15}, Nodes: []int{1, 1, 1, 1, 1, 1, 1, 1}}},
		{
			reason: "two nodes when one is too small", want: cpus.Want{VCPUs: 10, NUMA: true},
			placement: &domainxml.CPUPlacement{VCPUs: []int{4, 12, 5, 13, 6, 14, 7, 15, 1, 9}, Nodes: []int{1, 1, 1, 1, 1, 1, 1, 1, 0, 0}},
		},
		{reason: "everything but the host's core", want: cpus.Want{VCPUs: 14}, placement: on(4, 12, 5, 13, 6, 14, 7, 15, 1, 9, 2, 10, 3, 11)},
		{reason: "one more is too many", want: cpus.Want{VCPUs: 15}, problem: "needs 15 on whole cores, 14 on 7 free cores are left (CPUs 0,8 stay with the host)"},
		{reason: "the emulator may be the one too many", want: cpus.Want{VCPUs: 14, Emulator: true}, problem: "needs 14 and one for the emulator"},
		{reason: "a reserve", reserved: "0-2", want: cpus.Want{VCPUs: 1}, placement: on(3)},
		{reason: "a reserve in words", reserved: "0-6", want: cpus.Want{VCPUs: 3}, problem: "2 on 1 free cores are left (CPUs 0-6 are reserved)"},
		{reason: "isolated CPUs only", isolated: "6-7,14-15", want: cpus.Want{VCPUs: 1}, placement: on(6)},
		{reason: "isolated CPUs only, in words", isolated: "6-7,14-15", want: cpus.Want{VCPUs: 5}, problem: "only the isolated CPUs 6-7,14-15 are given away"},
		{reason: "a host without threads", single: true, want: cpus.Want{VCPUs: 4, Threads: 2}, placement: on(4, 5, 6, 7)},
		{reason: "what it has is kept", want: cpus.Want{VCPUs: 2}, before: on(5, 13), placement: on(5, 13)},
		{reason: "unless another VM has it", want: cpus.Want{VCPUs: 2}, before: on(1, 9), taken: []*domainxml.CPUPlacement{on(9)}, placement: on(2, 10)},
		{reason: "unless it is reserved now", reserved: "5", want: cpus.Want{VCPUs: 2}, before: on(5, 13), placement: on(4, 12)},
		{reason: "unless it wants more", want: cpus.Want{VCPUs: 3}, before: on(1, 9), placement: on(1, 9, 2)},
		{reason: "unless it wants to know its nodes", want: cpus.Want{VCPUs: 1, NUMA: true}, before: on(5), placement: &domainxml.CPUPlacement{VCPUs: []int{1}, Nodes: []int{0}}},
		{reason: "no vCPU", problem: "no vCPUs"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			host, err := cpus.Read(machine(t, test.isolated, test.single), test.reserved)
			if err != nil {
				t.Fatal(err)
			}
			got, err := host.Place(test.want, test.before, test.taken)
			if test.problem != "" {
				if !errors.Is(err, cpus.ErrTooFew) || !strings.Contains(err.Error(), test.problem) {
					t.Errorf("got %+v, %v, want %q", got, err, test.problem)
				}
				return
			}
			if err != nil || !cmp.Equal(got, test.placement) {
				t.Errorf("got %+v, %v, want %+v", got, err, test.placement)
			}
		})
	}
}

// TestNobodyShares fills a host with VMs of all sizes: no core has two, and the last one is refused.
func TestNobodyShares(t *testing.T) {
	host, err := cpus.Read(machine(t, "", false), "")
	if err != nil {
		t.Fatal(err)
	}
	var all []*domainxml.CPUPlacement
	cores := map[int]int{}
	for vm, want := range []cpus.Want{{VCPUs: 1}, {VCPUs: 3, Emulator: true}, {VCPUs: 2, Threads: 2}, {VCPUs: 1, Emulator: true}, {VCPUs: 4}} {
		placement, err := host.Place(want, nil, all)
		if err != nil {
			t.Fatalf("VM %d: %v", vm, err)
		}
		for _, cpu := range slices.Concat(placement.VCPUs, placement.Emulator) {
			if other, shared := cores[cpu%8]; shared && other != vm || cpu%8 == 0 {
				t.Errorf("VM %d has CPU %d, whose core is VM %d's or the host's", vm, cpu, other)
			}
			cores[cpu%8] = vm
		}
		all = append(all, placement)
	}
	if _, err := host.Place(cpus.Want{VCPUs: 1}, nil, all); !errors.Is(err, cpus.ErrTooFew) {
		t.Errorf("one more VM: %v", err)
	}
}

func TestParseList(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", ""},
		{"0", "0"},
		{"0-3,8", "0-3,8"},
		{"8, 0-3,2", "0-3,8"},
		{"3-1", "error"},
		{"-1", "error"},
		{"a", "error"},
		{"0-99999999999", "error"},
		{"1-", "error"},
	} {
		list, err := cpus.ParseList(test.text)
		if got := cpus.FormatList(list); (err != nil) != (test.want == "error") || err == nil && got != test.want {
			t.Errorf("%q: %q, %v", test.text, got, err)
		}
	}
}

func TestRealHost(t *testing.T) {
	if _, err := cpus.Read("/", ""); err != nil {
		t.Error(err)
	}
}
