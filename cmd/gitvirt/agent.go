package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/host"
	"github.com/gitvirt/gitvirt/apply/ledger"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/plan"
)

// defaultStateDir holds everything that gitvirt keeps on a host.
const defaultStateDir = "/var/lib/gitvirt"

// agentFlags say which agent to talk to, and how to start one.
type agentFlags struct {
	socket     string
	binary     string
	stateDir   string
	libvirtURI string
	emulation  string
	insecure   []string
	hostRoots  []string
	local      bool
	timeout    time.Duration
}

func (f *agentFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.socket, "socket", "", "the agent's unix socket (default: STATE-DIR/agent.sock)")
	flags.StringVar(&f.binary, "agent-binary", "", "gitvirt-agent to start when none answers (default: beside gitvirt, then PATH)")
	flags.StringVar(&f.stateDir, "state-dir", defaultStateDir, "folder for everything that gitvirt keeps on this host")
	flags.StringVar(&f.libvirtURI, "libvirt-uri", "qemu:///system", "libvirt of an agent that is started")
	flags.StringVar(&f.emulation, "emulation", "auto", "software emulation of an agent that is started: auto, always, never")
	flags.StringSliceVar(&f.insecure, "insecure-registry", nil, "registry host:port that may be spoken to without TLS")
	flags.StringSliceVar(&f.hostRoots, "host-disk-root", nil, "folder of host disks and shared directories of an agent that is started")
	flags.BoolVar(&f.local, "allow-local-imports", false, "let an agent that is started import from loopback and link-local addresses")
	flags.DurationVar(&f.timeout, "agent-timeout", 30*time.Second, "how long to wait for the agent")
}

func (f *agentFlags) socketPath() string {
	if f.socket != "" {
		return f.socket
	}
	return filepath.Join(f.stateDir, "agent.sock")
}

// book is what was begun at each revision of this host; whoever speaks to the same agent goes by the same.
func (f *agentFlags) book() *ledger.Book {
	return ledger.NewBook(filepath.Join(filepath.Dir(f.socketPath()), "rollouts"))
}

// arguments are the command line of an agent that is started.
func (f *agentFlags) arguments() []string {
	args := []string{
		"--socket", f.socketPath(), "--state-dir", filepath.Join(f.stateDir, "agent"),
		"--libvirt-uri", f.libvirtURI, "--emulation", f.emulation,
	}
	if len(f.insecure) > 0 {
		args = append(args, "--insecure-registry", strings.Join(f.insecure, ","))
	}
	if len(f.hostRoots) > 0 {
		args = append(args, "--host-disk-root", strings.Join(f.hostRoots, ","))
	}
	if f.local {
		args = append(args, "--allow-local-imports")
	}
	return args
}

// findBinary returns the agent's program: the one named, the one beside gitvirt, or the one in PATH.
func (f *agentFlags) findBinary() (string, error) {
	if f.binary != "" {
		return f.binary, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "gitvirt-agent")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath("gitvirt-agent")
	if err != nil {
		return "", errors.New("no agent answers and gitvirt-agent is neither beside gitvirt nor in PATH; install it or name it with --agent-binary")
	}
	return found, nil
}

// answers reports whether somebody listens on the agent's socket.
func (f *agentFlags) answers() bool {
	conn, err := net.DialTimeout("unix", f.socketPath(), time.Second) //nolint:noctx // local, and bounded
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// start runs the agent as a child in a process group of its own, so that an interrupt reaches it through us.
func (f *agentFlags) start(output io.Writer) (*exec.Cmd, error) {
	binary, err := f.findBinary()
	if err != nil {
		return nil, err
	}
	child := exec.Command(binary, f.arguments()...) //nolint:gosec,noctx // the operator's own program; stopped in order
	child.Stdout, child.Stderr = output, output
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("starting the agent: %w", err)
	}
	return child, nil
}

// stopAgent ends a child in good order, and after a while in any.
func stopAgent(child *exec.Cmd, ended <-chan error) {
	_ = child.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		_ = child.Process.Kill()
		<-ended
	}
}

// driver is what a platform is for plans and their steps.
type driver interface {
	apply.Executor
	apply.ConsoleReader
	apply.Checker
	ReadOnce(ctx context.Context) (plan.Observed, error)
}

// platform is where one command works.
type platform struct {
	driver driver
	// host is the driver of a libvirt host; nil for a cluster.
	host *host.Host
	// pods say how machines become Pods; nil for a host.
	pods    plan.Pods
	conn    *grpc.ClientConn
	timeout time.Duration
	stop    func()
}

func (p *platform) close() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.stop()
}

// read waits for a complete picture of the host.
func (p *platform) read(ctx context.Context) (plan.Observed, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("no answer within %s", p.timeout))
	defer cancel()
	observed, err := p.driver.ReadOnce(ctx)
	if err != nil && ctx.Err() != nil && observed.Unknown != "" {
		return observed, nil // the plan says that the host is unknown, and why
	}
	return observed, err
}

// connect reaches the agent of this host; when none answers one is started for as long as the command runs.
func (c *cli) connect(_ context.Context, f *agentFlags) (*platform, error) {
	p := &platform{timeout: f.timeout, stop: func() {}}
	if !f.answers() {
		var said strings.Builder
		child, err := f.start(&said)
		if err != nil {
			return nil, err
		}
		ended := make(chan error, 1)
		go func() { ended <- child.Wait(); close(ended) }()
		p.stop = func() { stopAgent(child, ended) }
		if err := f.await(child, ended, &said); err != nil {
			return nil, err
		}
	}
	conn, err := api.Dial(f.socketPath())
	if err != nil {
		p.stop()
		return nil, err
	}
	p.conn, p.host = conn, host.New(conn)
	p.driver = p.host
	return p, nil
}

// await waits until a child listens.
func (f *agentFlags) await(child *exec.Cmd, ended <-chan error, said fmt.Stringer) error {
	deadline := time.After(f.timeout)
	for {
		select {
		case err := <-ended:
			if f.answers() {
				return nil // another agent was faster
			}
			return fmt.Errorf("the agent ended at once (%w): %s", err, strings.TrimSpace(said.String()))
		case <-deadline:
			stopAgent(child, ended)
			return fmt.Errorf("the agent does not listen after %s", f.timeout)
		case <-time.After(20 * time.Millisecond):
			if f.answers() {
				return nil
			}
		}
	}
}
