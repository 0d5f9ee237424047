package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/host"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// diskVM is a VM with what a usual one has, but for an operating system: its BIOS finds nothing to boot.
func diskVM(name string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: %s
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 0
      domain:
        memory: {guest: 64Mi}
        devices:
          disks:
          - name: data
            disk: {bus: virtio}
          - name: init
            disk: {bus: virtio}
      volumes:
      - name: data
        emptyDisk: {capacity: 1Gi}
      - name: init
        cloudInitNoCloud: {userData: "#!/bin/sh"}
`, name)
}

// BenchmarkDesiredToRunning measures from "the desired state is known" to "the domains run", against virsh defining and
// starting the very same XML on the same libvirt. Goal: at most 1.10 times.
func BenchmarkDesiredToRunning(b *testing.B) {
	for _, n := range []int{1, 20} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) { benchmarkRunning(b, n) })
	}
}

func benchmarkRunning(b *testing.B, n int) {
	r := newRig(b)
	agent := exec.Command(program(b, "gitvirt-agent"), "--socket", filepath.Join(r.state, "agent.sock"), "--state-dir", filepath.Join(r.state, "agent"),
		"--libvirt-uri", r.daemon.URI, "--emulation", "always")
	agent.Stdout, agent.Stderr = r.log, r.log
	if err := agent.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = agent.Process.Kill(); _ = agent.Wait() }()
	conn, err := api.Dial(filepath.Join(r.state, "agent.sock"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	platform := host.New(conn)
	var files []*schemas.File
	for i := range n {
		name := fmt.Sprintf("vm-%d", i)
		files = append(files, schemas.Parse(name+".yaml", []byte(diskVM(name))))
	}
	want := schemas.Assemble(files)
	var ours, theirs time.Duration
	for b.Loop() {
		observed, err := platform.ReadOnce(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		p, err := plan.Build(want, observed, plan.Options{Revision: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		for _, result := range apply.Run(context.Background(), apply.Target{Fleet: p.Fleet}, p.Executable(), platform, apply.Options{Pace: apply.Pace{Parallel: n}}) {
			if result.Err != nil {
				b.Fatal(result.Err)
			}
		}
		ours += time.Since(began)
		theirs += r.virshStart(b, want)
	}
	b.ReportMetric(ours.Seconds()/float64(b.N), "gitvirt-s")
	b.ReportMetric(theirs.Seconds()/float64(b.N), "virsh-s")
	b.ReportMetric(ours.Seconds()/theirs.Seconds(), "ratio")
	b.ReportMetric(float64(residentKiB(agent.Process.Pid))/1024, "agent-MiB")
}

// virshStart takes the domains' XML, removes the domains, and measures virsh making and starting them again.
func (r *rig) virshStart(b *testing.B, want *schemas.Desired) time.Duration {
	b.Helper()
	paths := make([]string, len(want.VMs))
	for i, vm := range want.VMs {
		name := "default_" + vm.Address.Name
		paths[i] = filepath.Join(r.state, name+".xml")
		if err := os.WriteFile(paths[i], []byte(r.daemon.Virsh("dumpxml", "--inactive", name)), 0o600); err != nil {
			b.Fatal(err)
		}
		r.daemon.Virsh("destroy", name)
		r.daemon.Virsh("undefine", name)
	}
	time.Sleep(time.Second) // let QEMU's remains go
	began := time.Now()
	var all sync.WaitGroup
	for i, vm := range want.VMs {
		all.Go(func() {
			out, err := exec.Command("virsh", "-q", "-c", r.daemon.URI, "define "+paths[i]+"; start default_"+vm.Address.Name).CombinedOutput()
			if err != nil {
				b.Errorf("virsh: %v\n%s", err, out)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	for _, vm := range want.VMs {
		r.daemon.Virsh("destroy", "default_"+vm.Address.Name)
		r.daemon.Virsh("undefine", "default_"+vm.Address.Name)
		_ = os.Remove(filepath.Join(r.state, "agent/vms/default", vm.Address.Name, "record.xml"))
	}
	return took
}

// residentKiB reads how much memory a process has.
func residentKiB(pid int) int {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(content), "VmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, err := strconv.Atoi(fields[0])
	if err != nil {
		return 0
	}
	return kib
}

// smallVM is a manifest of the usual size.
func smallVM(name, memory string) string {
	return strings.Replace(strings.Replace(diskVM(name), "64Mi", memory, 1), "Always", "Halted", 1)
}

func fleetFiles(n int) map[string]string {
	files := map[string]string{"gitvirt.yaml": fleetManifest}
	for i := range n {
		name := fmt.Sprintf("vm-%05d", i)
		files[fmt.Sprintf("vms/%02d/%s.yaml", i%50, name)] = smallVM(name, "64Mi")
	}
	return files
}

// BenchmarkPlanColdFromGit reads 5,000 VMs from a mirror, parses, assembles and plans them in a process that knows
// nothing yet. Goal: 1 s.
func BenchmarkPlanColdFromGit(b *testing.B) {
	repo := gittest.NewRepo(b)
	repo.Commit(fleetFiles(5000))
	config := git.Config{URL: repo.Dir, Branch: "main", Dir: b.TempDir()}
	observed := plan.Observed{}
	for i := 0; b.Loop(); i++ {
		source, err := git.Open(config)
		if err != nil {
			b.Fatal(err)
		}
		snapshot, err := source.Poll(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		want := schemas.Assemble(snapshot.Files)
		if i == 0 {
			observed = plan.FromDesired(want, "before")
			observed.Domains[77].Hash = "changed"
		}
		p, err := plan.Build(want, observed, plan.Options{Revision: snapshot.Revision})
		if err != nil || len(p.Steps) != 1 {
			b.Fatalf("%v: %d steps", err, len(p.Steps))
		}
		if err := source.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommitToPlan changes one file of a repository of 20,000 and measures until the new plan is there, the fetch
// included. Goal without the fetch: 100 ms.
func BenchmarkCommitToPlan(b *testing.B) {
	repo := gittest.NewRepo(b)
	repo.Commit(fleetFiles(20000))
	source, err := git.Open(git.Config{URL: repo.Dir, Branch: "main", Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	snapshot, err := source.Poll(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	observed := plan.FromDesired(schemas.Assemble(snapshot.Files), "before")
	var fetched, planned time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		repo.Commit(map[string]string{"vms/07/vm-00007.yaml": smallVM("vm-00007", fmt.Sprintf("%dMi", 65+i))})
		b.StartTimer()
		began := time.Now()
		snapshot, err := source.Poll(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		fetched += time.Since(began)
		began = time.Now()
		p, err := plan.Build(schemas.Assemble(snapshot.Files), observed, plan.Options{Revision: snapshot.Revision})
		if err != nil || len(p.Steps) != 1 {
			b.Fatalf("%v: %d steps", err, len(p.Steps))
		}
		planned += time.Since(began)
	}
	b.ReportMetric(float64(fetched.Milliseconds())/float64(b.N), "poll-with-fetch-ms")
	b.ReportMetric(float64(planned.Milliseconds())/float64(b.N), "assemble-and-plan-ms")
}

// BenchmarkMemory5000 runs the programs as they are with 5,000 VMs defined on a real libvirt. Goals: the controller
// under 200 MiB, the agent under 60 MiB.
func BenchmarkMemory5000(b *testing.B) {
	n := 5000
	if testing.Short() {
		n = 200
	}
	for b.Loop() {
		r := newRig(b)
		r.repo.Commit(fleetFiles(n))
		r.start()
		r.eventuallyWithin(10*time.Minute, "all are defined", func() bool {
			vms := r.statuses()
			stopped := 0
			for _, vm := range vms {
				if vm.Phase == status.PhaseStopped {
					stopped++
				}
			}
			return stopped == n
		})
		time.Sleep(20 * time.Second) // a few rounds of re-reading
		b.ReportMetric(float64(residentKiB(r.controller.Process.Pid))/1024, "controller-MiB")
		b.ReportMetric(float64(residentKiB(r.agentPID()))/1024, "agent-MiB")
	}
}

// BenchmarkValidate10000 runs `gitvirt validate` on a folder of 10,000 manifests, as a new process each time. Goal: 2.5 s.
func BenchmarkValidate10000(b *testing.B) {
	dir := b.TempDir()
	for i := range 10000 {
		path := filepath.Join(dir, fmt.Sprintf("team-%02d", i%50), fmt.Sprintf("vm-%05d.yaml", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(diskVM(fmt.Sprintf("vm-%05d", i))), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	gitvirt := program(b, "gitvirt")
	var peak int64
	for b.Loop() {
		command := exec.Command(gitvirt, "validate", dir)
		if out, err := command.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		if usage, ok := command.ProcessState.SysUsage().(*syscall.Rusage); ok {
			peak = max(peak, usage.Maxrss)
		}
	}
	b.ReportMetric(float64(peak)/1024, "peak-MiB")
}
