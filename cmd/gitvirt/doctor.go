package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/capabilities"
	"github.com/gitvirt/gitvirt/nodeagent/emulation"
)

// verdict is what a check finds.
type verdict string

const (
	verdictOK   verdict = "ok"
	verdictInfo verdict = "info" // something is not there that most VMs do without
	verdictWarn verdict = "warning"
	verdictFail verdict = "fail"
)

// finding is one line of the doctor.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Message string  `json:"message"`
	Fix     string  `json:"fix,omitempty"`
}

func (c *cli) doctorCommand() *cobra.Command {
	var agent agentFlags
	var output string
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check this host and say how to mend what is wrong",
		Long: `Check what gitvirt needs of this host: KVM (by running a few instructions in it), QEMU, libvirt, disk space and
permissions, and what only some VMs need (UEFI, TPM, shared folders, devices of the host, memory encryption). Nothing is
changed.

Exit codes: 0 VMs can run here (warnings may remain), 1 something has to be mended first.`,
		Example: `  gitvirt doctor
  gitvirt doctor -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.doctor(cmd.Context(), &agent, output)
		},
	}
	agent.add(command)
	addOutput(command, &output, "text", "json", "yaml")
	return command
}

func (c *cli) doctor(ctx context.Context, agent *agentFlags, output string) error {
	findings := []finding{checkUser(), checkProgram("qemu-system-x86_64", "qemu-system-x86"), checkProgram("qemu-img", "qemu-utils")}
	findings = append(findings, checkKVM(ctx))
	findings = append(findings, checkFolder(agent.stateDir)...)
	findings = append(findings, checkSocket("virtlogd", "/run/libvirt/virtlogd-sock", "VMs write their console logs through it; start it with: systemctl start virtlogd (or: virtlogd -d)"))
	findings = append(findings, c.checkAgent(ctx, agent)...)
	findings = append(findings, checkCapabilities(capabilities.New("/"))...)
	failed := false
	for _, found := range findings {
		failed = failed || found.Verdict == verdictFail
	}
	if output != "text" {
		if err := c.print(findings, output); err != nil {
			return err
		}
	} else {
		c.showFindings(findings)
	}
	if failed {
		return errSilent
	}
	return nil
}

func (c *cli) showFindings(findings []finding) {
	colors := map[verdict]string{verdictOK: "32", verdictInfo: "36", verdictWarn: "33", verdictFail: "31"}
	for _, found := range findings {
		mark := fmt.Sprintf("%-8s", found.Verdict)
		if c.color() {
			mark = "\x1b[" + colors[found.Verdict] + "m" + mark + "\x1b[0m"
		}
		c.printf("%s %s: %s\n", mark, found.Check, found.Message)
		if found.Fix != "" {
			c.printf("         fix: %s\n", found.Fix)
		}
	}
}

func checkUser() finding {
	if os.Geteuid() == 0 {
		return finding{Check: "user", Verdict: verdictOK, Message: "root"}
	}
	return finding{
		Check: "user", Verdict: verdictWarn, Message: fmt.Sprintf("user id %d: disks and qemu:///system need root or the group libvirt", os.Geteuid()),
		Fix: "run gitvirt-agent as root, or name a folder of your own with --state-dir and --libvirt-uri qemu:///session",
	}
}

func checkProgram(name, debian string) finding {
	path, err := exec.LookPath(name)
	if err != nil {
		return finding{Check: name, Verdict: verdictFail, Message: "not found", Fix: "apt-get install " + debian}
	}
	return finding{Check: name, Verdict: verdictOK, Message: path}
}

func checkKVM(ctx context.Context) finding {
	result := emulation.Probe(ctx, emulation.Options{})
	if !result.KVM {
		return finding{
			Check: "kvm", Verdict: verdictWarn, Message: "does not work: " + result.Reason + "; VMs run in software emulation, about ten times slower",
			Fix: "enable virtualisation in the firmware or nested virtualisation on the hypervisor below, and load kvm_intel or kvm_amd",
		}
	}
	info, err := os.Stat("/dev/kvm")
	if err == nil && info.Mode().Perm()&0o006 == 0 {
		return finding{
			Check: "kvm", Verdict: verdictWarn, Message: fmt.Sprintf("works, but /dev/kvm has mode %04o and libvirt's QEMU user cannot open it", info.Mode().Perm()),
			Fix: "chmod 666 /dev/kvm, as udev does on a complete system",
		}
	}
	return finding{Check: "kvm", Verdict: verdictOK, Message: result.Reason}
}

// lowSpace is when the doctor warns: a few container disks fit no more.
const lowSpace = 5 << 30

// checkFolder looks at the state directory, or the folder that it will be made in.
func checkFolder(dir string) []finding {
	existing := dir
	for {
		if _, err := os.Stat(existing); !errors.Is(err, fs.ErrNotExist) || existing == "/" {
			break
		}
		existing = filepath.Dir(existing)
	}
	var findings []finding
	var stat unix.Statfs_t
	if err := unix.Statfs(existing, &stat); err != nil {
		findings = append(findings, finding{Check: "disk space", Verdict: verdictFail, Message: err.Error(), Fix: "name another folder with --state-dir"})
	} else {
		free := stat.Bavail * uint64(stat.Bsize) //nolint:gosec // block sizes are positive
		found := finding{Check: "disk space", Verdict: verdictOK, Message: fmt.Sprintf("%.1f GiB free for %s", float64(free)/(1<<30), dir)}
		if free < lowSpace {
			found.Verdict, found.Fix = verdictWarn, "free some space, or name a folder on a larger disk with --state-dir"
		}
		findings = append(findings, found)
	}
	return append(findings, checkPath(existing))
}

// checkPath finds the folder on the way that QEMU's user cannot pass.
func checkPath(dir string) finding {
	for path := dir; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil {
			return finding{Check: "permissions", Verdict: verdictFail, Message: err.Error()}
		}
		if info.Mode().Perm()&0o001 == 0 {
			return finding{
				Check: "permissions", Verdict: verdictFail,
				Message: fmt.Sprintf("%s has mode %04o: QEMU's user cannot reach the disks below", path, info.Mode().Perm()),
				Fix:     "chmod o+x " + path + ", or name another folder with --state-dir",
			}
		}
		if path == "/" || path == "." {
			return finding{Check: "permissions", Verdict: verdictOK, Message: "QEMU's user can reach " + dir}
		}
	}
}

// checkCapabilities looks for what only some VMs need: a host without it runs all others.
func checkCapabilities(host capabilities.Host) []finding {
	var findings []finding
	for _, capability := range host.List() {
		found := finding{Check: capability.Name, Verdict: verdictOK, Message: "there, for " + capability.Field}
		if capability.Problem != "" {
			found.Verdict, found.Fix = verdictInfo, capability.Fix
			found.Message = capability.Problem + "; VMs with " + capability.Field + " cannot run here"
		}
		findings = append(findings, found)
	}
	return findings
}

func checkSocket(name, path, fix string) finding {
	if info, err := os.Stat(path); err != nil || info.Mode()&fs.ModeSocket == 0 {
		return finding{Check: name, Verdict: verdictFail, Message: path + " is not there", Fix: fix}
	}
	return finding{Check: name, Verdict: verdictOK, Message: path}
}

// checkAgent asks the agent, started for the moment when none runs, about libvirt.
func (c *cli) checkAgent(ctx context.Context, agent *agentFlags) []finding {
	platform, err := c.connect(ctx, agent)
	if err != nil {
		return []finding{{Check: "agent", Verdict: verdictFail, Message: err.Error(), Fix: "see the message"}}
	}
	defer platform.close()
	node, err := platform.host.Node(ctx)
	if err != nil {
		return []finding{{Check: "agent", Verdict: verdictFail, Message: err.Error(), Fix: "look at the agent's log"}}
	}
	findings := []finding{{Check: "agent", Verdict: verdictOK, Message: fmt.Sprintf("%s on %s, domains of type %s", node.GetAgentVersion(), node.GetName(), node.GetDomainType())}}
	return append(findings, checkLibvirt(node))
}

func checkLibvirt(node *api.Node) finding {
	if problem := node.GetProblem(); problem != "" {
		return finding{
			Check: "libvirt", Verdict: verdictFail, Message: node.GetLibvirtUri() + ": " + strings.TrimSpace(problem),
			Fix: "apt-get install libvirt-daemon-system, then: systemctl start libvirtd (or: virtlogd -d; libvirtd -d)",
		}
	}
	return finding{
		Check: "libvirt", Verdict: verdictOK,
		Message: fmt.Sprintf("%s with QEMU %s at %s, %d CPUs, %d MiB", node.GetLibvirtVersion(), node.GetHypervisorVersion(), node.GetLibvirtUri(), node.GetCpus(), node.GetMemoryBytes()>>20),
	}
}
