package launchertest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Process is a process of the Pod, seen from outside.
type Process struct {
	PID, Parent int // as the Pod numbers them
	Outside     int
	Name, State string
}

// Processes lists what runs in the Pod, dead ones that were not reaped included.
func (p *Pod) Processes() []Process {
	p.t.Helper()
	inside, err := os.Readlink("/proc/" + strconv.Itoa(p.Cmd.Process.Pid) + "/ns/pid")
	if err != nil {
		p.t.Fatal(err)
	}
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		p.t.Fatal(err)
	}
	var all []Process
	for _, dir := range found {
		content, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue // gone
		}
		status := map[string][]string{}
		for line := range strings.Lines(string(content)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.Fields(value)
		}
		numbers := status["NSpid"]
		if len(numbers) < 2 {
			continue
		}
		one := Process{Name: status["Name"][0], State: status["State"][0]}
		one.Outside, _ = strconv.Atoi(filepath.Base(dir))
		one.PID, _ = strconv.Atoi(numbers[len(numbers)-1])
		one.Parent, _ = strconv.Atoi(status["PPid"][0])
		if link, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err == nil && link != inside || err != nil && one.State != "Z" {
			continue
		}
		all = append(all, one)
	}
	return all
}

// Find returns the one process of the Pod with a name, and waits until there is one.
func (p *Pod) Find(name string) Process {
	p.t.Helper()
	var found Process
	p.Await("process "+name, func() bool {
		for _, one := range p.Processes() {
			if one.Name == name && one.State != "Z" {
				found = one
				return true
			}
		}
		return false
	})
	return found
}

// Kill sends a process a signal.
func (p *Pod) Kill(one Process, signal syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(one.Outside, signal); err != nil {
		p.t.Fatalf("send %s to %s: %v", signal, one.Name, err)
	}
}

// QEMU is the name of QEMU's process.
const QEMU = "qemu-system-x86" // the kernel keeps 15 bytes of a name
