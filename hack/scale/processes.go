package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program that was started.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
	done chan error
}

// start starts a program, with its output in a file of its name.
func start(dir, name, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...) //nolint:gosec,noctx // the programs that the command line names; close ends them
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to answer: the API server goes last
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", name, err), log.Close())
	}
	p := &process{name: name, cmd: cmd, log: log, done: make(chan error, 1)}
	go func() { p.done <- cmd.Wait() }()
	return p, nil
}

// stop ends a program, and kills it when it takes long.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return p.log.Close()
}

// ended says why a program does not run any more; nil while it does.
func (p *process) ended() error {
	select {
	case err := <-p.done:
		p.done <- err
		tail, _ := os.ReadFile(p.log.Name()) // an empty tail says as much
		lines := strings.Split(strings.TrimSpace(string(tail)), "\n")
		return fmt.Errorf("%s has ended (%w): %s", p.name, err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
	default:
		return nil
	}
}

// usage is what a program has taken so far.
type usage struct {
	cpu                time.Duration
	residentMiB        float64
	highestResidentMiB float64
}

// clockTick is the unit of CPU time in /proc: a hundredth of a second on every Linux.
const clockTick = 10 * time.Millisecond

func (p *process) usage() (usage, error) {
	dir := filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return usage{}, fmt.Errorf("reading what %s takes: %w", p.name, err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return usage{}, fmt.Errorf("reading what %s takes: %q", p.name, stat)
	}
	var out usage
	for _, field := range fields[11:13] { // utime, stime
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return usage{}, fmt.Errorf("reading what %s takes: %w", p.name, err)
		}
		out.cpu += time.Duration(ticks) * clockTick
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return usage{}, fmt.Errorf("reading what %s takes: %w", p.name, err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		switch {
		case err != nil:
		case name == "VmRSS":
			out.residentMiB = kib / 1024
		case name == "VmHWM":
			out.highestResidentMiB = kib / 1024
		}
	}
	return out, nil
}
