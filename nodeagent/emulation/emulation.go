// Package emulation decides whether guests run under KVM or under QEMU's software emulation. It proves KVM by running a
// guest in long mode, because a /dev/kvm that opens, and a QEMU that accepts it, prove nothing: on nested and filtered
// hosts the guest then hangs for ever. It knows nothing of libvirt; the answer is the type attribute of a domain.
package emulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// DefaultPatience is how long the test guest may take. It needs about 0.1 s even under software emulation.
const DefaultPatience = 2 * time.Second

// Options configure a Probe. The zero value is usable.
type Options struct {
	// QEMU is the emulator to run, "qemu-system-x86_64" by default.
	QEMU string
	// Device is the KVM device, "/dev/kvm" by default.
	Device string
	// Patience is how long the guest may take, DefaultPatience by default.
	Patience time.Duration
	// Credential runs the probe as another user, the one that libvirt runs QEMU as; nil is the user of this process.
	Credential *syscall.Credential
	// accelerator is "kvm"; tests prove the image itself with "tcg".
	accelerator string
}

// Result is what a Probe found.
type Result struct {
	// KVM says that a 64-bit guest ran under KVM.
	KVM bool `json:"kvm"`
	// Reason says in one sentence why KVM is usable or not.
	Reason string `json:"reason"`
	// Fix says what to do about a KVM that is not usable; empty when it is.
	Fix string `json:"fix,omitempty"`
	// Took is how long the probe took.
	Took time.Duration `json:"took"`
}

// Probe runs a guest of 160 bytes that enters long mode and exits with a status of its own. Only that status proves KVM.
func Probe(ctx context.Context, opts Options) Result {
	opts = opts.withDefaults()
	start := time.Now()
	result := probe(ctx, opts)
	result.Took = time.Since(start)
	return result
}

func (o Options) withDefaults() Options {
	if o.QEMU == "" {
		o.QEMU = "qemu-system-x86_64"
	}
	if o.Device == "" {
		o.Device = "/dev/kvm"
	}
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	if o.accelerator == "" {
		o.accelerator = "kvm"
	}
	return o
}

func probe(ctx context.Context, opts Options) Result {
	if opts.accelerator == "kvm" {
		if result, ok := checkDevice(opts.Device); !ok {
			return result
		}
	}
	dir, err := os.MkdirTemp("", "gitvirt-kvm-probe-")
	if err != nil {
		return Result{Reason: fmt.Sprintf("the KVM probe cannot write its guest: %v", err), Fix: "free space in the temporary directory"}
	}
	defer func() { _ = os.RemoveAll(dir) }() // a probe's answer does not change when its 160 bytes stay behind
	kernel := filepath.Join(dir, "longmode")
	if err := writeGuest(dir, kernel); err != nil {
		return Result{Reason: fmt.Sprintf("the KVM probe cannot write its guest: %v", err), Fix: "free space in the temporary directory"}
	}
	return runGuest(ctx, opts, kernel)
}

// writeGuest makes the image readable to whoever Credential names.
func writeGuest(dir, kernel string) error {
	if err := os.WriteFile(kernel, guestImage(), 0o644); err != nil { //nolint:gosec // it holds no secret and QEMU runs as another user
		return err
	}
	return os.Chmod(dir, 0o755) //nolint:gosec // as above
}

// checkDevice tells a device that is absent or closed apart from one that is broken.
func checkDevice(device string) (Result, bool) {
	file, err := os.OpenFile(device, os.O_RDWR, 0)
	switch {
	case err == nil:
		return Result{}, file.Close() == nil
	case errors.Is(err, fs.ErrNotExist):
		return Result{
			Reason: fmt.Sprintf("%s does not exist", device),
			Fix:    "switch on virtualisation in the firmware (VT-x or AMD-V), or nested virtualisation when this is a virtual machine, and load kvm_intel or kvm_amd",
		}, false
	case errors.Is(err, fs.ErrPermission):
		return Result{
			Reason: fmt.Sprintf("no permission to open %s", device),
			Fix:    "add the user that runs QEMU to the group kvm, and make the device root:kvm with mode 0660",
		}, false
	}
	return Result{
		Reason: fmt.Sprintf("%s does not open: %v", device, err),
		Fix:    "load kvm_intel or kvm_amd and look into the kernel's log (dmesg | grep -i kvm)",
	}, false
}

func runGuest(ctx context.Context, opts Options, kernel string) Result {
	limited, cancel := context.WithTimeout(ctx, opts.Patience)
	defer cancel()
	cmd := exec.CommandContext(limited, opts.QEMU, qemuArguments(opts.accelerator, kernel)...) //nolint:gosec // the operator chooses the emulator
	cmd.WaitDelay = time.Second
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: opts.Credential}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr

	start := time.Now()
	err := cmd.Run()
	took := time.Since(start).Round(time.Millisecond)

	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == exitStatus:
		return Result{KVM: true, Reason: fmt.Sprintf("a 64-bit guest ran in %v", took)}
	case ctx.Err() != nil:
		return Result{Reason: fmt.Sprintf("the probe was cancelled: %v", context.Cause(ctx))}
	case limited.Err() != nil:
		return Result{
			Reason: fmt.Sprintf("a guest entering 64-bit mode hung: no answer within %v, though %s opens", opts.Patience, opts.Device),
			Fix:    "switch on nested virtualisation on the outer host, or run without KVM (--emulation always)",
		}
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return Result{Reason: fmt.Sprintf("%s is not installed", opts.QEMU), Fix: "apt-get install qemu-system-x86"}
	}
	return failure(err, stderr.String(), opts)
}

// failure explains a QEMU that ended by itself with any other status.
func failure(err error, stderr string, opts Options) Result {
	said := firstLine(stderr)
	switch {
	case said != "":
		said = ": " + said
	case err == nil:
		said = ": it reset the machine instead of answering"
	}
	status := "exit status 0"
	if err != nil {
		status = err.Error()
	}
	return Result{
		Reason: fmt.Sprintf("the test guest did not answer (%s ended with %s)%s", filepath.Base(opts.QEMU), status, said),
		Fix:    fmt.Sprintf("check that the user that runs QEMU may open %s and that no other hypervisor holds the CPU", opts.Device),
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

// qemuArguments describe the smallest machine that has an ISA bus. With -no-reboot a triple fault ends QEMU instead of looping.
func qemuArguments(accelerator, kernel string) []string {
	return []string{
		"-accel", accelerator, "-machine", "pc", "-m", "16M", "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-serial", "none", "-monitor", "none", "-sandbox", "on",
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=4", exitPort),
		"-kernel", kernel,
	}
}
