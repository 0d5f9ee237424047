package podagent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// processes are those of the node, seen through its /proc.
type processes struct{ dir string }

// process is one that lives; zombies hold nothing and are left out.
type process struct {
	pid int
	// pod is the UID of the Pod that it runs in by its cgroup, "" for none.
	pod types.UID
	// program is the base name of its executable, arguments its command line. Either may be empty.
	program   string
	arguments []string
}

// podCgroup finds the Pod's UID in the path of a cgroup: kubelet names it pod<UID>, with underscores where systemd makes the slice.
var podCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?:\.slice)?(?:/|$)`) //nolint:gochecknoglobals // a constant

// list returns every process of the node. What ends meanwhile is left out.
func (p processes) list() ([]process, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("listing the node's processes: %w", err)
	}
	var out []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		found, err := p.read(pid)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH):
		case err != nil:
			return nil, fmt.Errorf("looking at process %d: %w", pid, err)
		case found != nil:
			out = append(out, *found)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s shows no process", p.dir)
	}
	return out, nil
}

// read returns one process; nil for a zombie.
func (p processes) read(pid int) (*process, error) {
	dir := filepath.Join(p.dir, strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return nil, err
	}
	// The state follows the name, which is in parentheses and may have some of its own. A process whose first thread has ended looks like
	// a zombie while others go on.
	if end := bytes.LastIndexByte(stat, ')'); end < 0 || end+2 >= len(stat) || stat[end+2] == 'Z' || stat[end+2] == 'X' {
		if threads, err := os.ReadDir(filepath.Join(dir, "task")); err != nil || len(threads) <= 1 {
			return nil, err
		}
	}
	cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return nil, err
	}
	out := &process{pid: pid}
	for line := range strings.SplitSeq(string(cgroup), "\n") {
		if match := podCgroup.FindStringSubmatch(line); match != nil {
			out.pod = types.UID(strings.ReplaceAll(match[1], "_", "-"))
			break
		}
	}
	if program, err := os.Readlink(filepath.Join(dir, "exe")); err == nil { // the kernel's own threads have none
		out.program = filepath.Base(strings.TrimSuffix(program, " (deleted)"))
	}
	arguments, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return nil, err
	}
	out.arguments = strings.Split(strings.TrimRight(string(arguments), "\x00"), "\x00")
	return out, nil
}

// of returns how many processes of a Pod live. All of them count, whatever they call themselves: a guest that broke out of QEMU may
// be any of them, and have its disks open.
func (p processes) of(uid types.UID) (int, error) {
	all, err := p.list()
	if err != nil {
		return 0, err
	}
	count := 0
	for i := range all {
		if all[i].pod == uid {
			count++
		}
	}
	return count, nil
}

// launcher returns the PID of a Pod's launcher.
func (p processes) launcher(uid types.UID) (int, error) {
	all, err := p.list()
	if err != nil {
		return 0, err
	}
	for i := range all {
		if all[i].pod == uid && all[i].program == launcherProgram {
			return all[i].pid, nil
		}
	}
	return 0, fmt.Errorf("%s shows no %s of the Pod; the agent's own Pod needs hostPID: true", p.dir, launcherProgram)
}

// isQEMU tells whether a process is a guest.
func (p *process) isQEMU() bool { return strings.HasPrefix(p.program, "qemu-system-") }

// guestName is the name of the guest that a QEMU of libvirt's runs, "" when it does not say.
func (p *process) guestName() string {
	for i, argument := range p.arguments {
		if argument == "-name" && i+1 < len(p.arguments) {
			_, name, _ := strings.Cut(p.arguments[i+1], "guest=")
			name, _, _ = strings.Cut(name, ",")
			return name
		}
	}
	return ""
}

// names tells whether the command line has a path below a folder.
func (p *process) names(folder string) bool {
	for _, argument := range p.arguments {
		if strings.Contains(argument, folder+"/") {
			return true
		}
	}
	return false
}
