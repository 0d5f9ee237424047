// Command gitvirt-agent runs on each host: it tells the controller which domains live there and carries out the steps
// of plans through libvirt. It is the one program that needs libvirt; domains outlive it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/emulation"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
)

// version is set by the build.
var version = "devel" //nolint:gochecknoglobals // the linker sets it

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	command := newCommand()
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "Error:", err)
		return 1
	}
	return 0
}

type options struct {
	socket     string
	stateDir   string
	libvirtURI string
	emulation  string
	node       string
	insecure   []string
	hostRoots  []string
	reserved   string
	local      bool
	debug      bool
	kubernetes bool
	pods       podOptions
}

func newCommand() *cobra.Command {
	o := options{}
	command := &cobra.Command{
		Use:   "gitvirt-agent",
		Short: "Carry out plans on this host through libvirt",
		Long: `gitvirt-agent tells the controller which domains live on this host and carries out the steps of plans.
"gitvirt run" starts one by itself when none answers; run it as a service of its own to keep it apart.

With --kubernetes it is the agent of a node: it looks after the launcher Pods there, each with a libvirt of its own, and needs to be
root with the node's processes in sight (hostPID).

Exit codes: 0 stopped by a signal, 1 an error.`,
		Example: `  gitvirt-agent
  gitvirt-agent --kubernetes --node node-1
  gitvirt-agent --libvirt-uri qemu:///system --state-dir /var/lib/gitvirt --emulation never`,
		Args:          cobra.NoArgs,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.serve(cmd.Context(), cmd.ErrOrStderr()) },
	}
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "localhost"
	}
	flags := command.Flags()
	flags.StringVar(&o.socket, "socket", api.DefaultSocket, "unix socket to listen on")
	flags.StringVar(&o.stateDir, "state-dir", "/var/lib/gitvirt/agent", "folder for disks, images and console logs")
	flags.StringVar(&o.libvirtURI, "libvirt-uri", "qemu:///system", "libvirt to drive")
	flags.StringVar(&o.emulation, "emulation", "auto", "software emulation: auto (when KVM does not really work), always, never")
	flags.StringVar(&o.node, "node", hostname, "name of this host")
	flags.StringSliceVar(&o.insecure, "insecure-registry", nil, "registry host:port that may be spoken to without TLS (loopback always may)")
	flags.StringSliceVar(&o.hostRoots, "host-disk-root", nil, "folder below which hostDisk files, and directories shared with guests, may lie; repeat for several (default: files anywhere, no directories)")
	flags.StringVar(&o.reserved, "reserved-cpus", "", "CPUs of the host, such as 0-1, that no VM has for itself (default: the first core)")
	flags.BoolVar(&o.local, "allow-local-imports", false, "let imports fetch from loopback and link-local addresses")
	flags.BoolVar(&o.debug, "debug", false, "log more")
	flags.BoolVar(&o.kubernetes, "kubernetes", false, "look after the launcher Pods of a Kubernetes node")
	o.pods.addFlags(flags)
	return command
}

// gcPercent keeps the heap close to what is in use: the agent waits most of the time, and its memory belongs to guests.
const gcPercent = 40

func (o *options) serve(ctx context.Context, stderr io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	level := slog.LevelInfo
	if o.debug {
		level = slog.LevelDebug
	}
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	policy, err := emulation.ParsePolicy(o.emulation)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.stateDir, 0o711); err != nil { //nolint:gosec // QEMU's user must reach the disks below
		return fmt.Errorf("making the state directory: %w", err)
	}
	unlock, err := lockState(o.stateDir)
	if err != nil {
		return err
	}
	defer unlock()
	listener, err := api.Listen(o.socket)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	domainType, why, err := emulation.Decide(ctx, policy, func(ctx context.Context) emulation.Result {
		return emulation.ProbeOnce(ctx, emulation.Options{}, filepath.Join(o.stateDir, "kvm.json"))
	})
	if err != nil {
		return err
	}
	if o.kubernetes {
		logger.Info("agent starts", "version", version, "node", o.node, "state", o.stateDir, "domain_type", domainType, "because", why)
		return o.servePods(ctx, listener, domainType, why, logger)
	}
	logger.Info("agent starts", "version", version, "libvirt", o.libvirtURI, "state", o.stateDir, "domain_type", domainType, "because", why)
	hypervisor := libvirt.New(o.libvirtURI)
	defer func() { _ = hypervisor.Close() }()
	agent, err := nodeagent.New(nodeagent.Config{
		Node: o.node, StateDir: o.stateDir, DomainType: domainType, Logger: logger,
		Describe: o.describe(hypervisor, why),
	}, hypervisor, nodeagent.WithInsecureRegistries(o.insecure...), nodeagent.WithHostDiskRoots(o.hostRoots...), nodeagent.WithReservedCPUs(o.reserved),
		nodeagent.WithLocalImports(o.local))
	if err != nil {
		return err
	}
	return serve(ctx, listener, agent)
}

// lockState makes sure that one agent at a time works in a state directory; the kernel gives the lock back when it dies.
func lockState(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("another agent works in %s", dir)
	}
	return func() { _ = file.Close() }, nil
}

// serve runs the agent and its service until ctx ends; steps that are on their way get a moment to finish.
func serve(ctx context.Context, listener net.Listener, agent *nodeagent.Agent) error {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	server := api.NewGRPCServer()
	api.RegisterAgentServer(server, nodeagent.NewServer(life, agent))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		agent.Run(life)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		end(errors.New("the agent stops"))
		forced := time.AfterFunc(5*time.Second, server.Stop)
		defer forced.Stop()
		server.GracefulStop()
		return nil
	})
	group.Go(func() error {
		if err := server.Serve(listener); err != nil {
			return fmt.Errorf("serving: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// describe returns what fills in the host's part of GetNode.
func (o *options) describe(hypervisor *libvirt.Hypervisor, why string) func(context.Context, *api.Node) {
	return func(ctx context.Context, node *api.Node) {
		node.AgentVersion, node.LibvirtUri, node.DomainTypeReason = version, o.libvirtURI, why
		var fs unix.Statfs_t
		if err := unix.Statfs(o.stateDir, &fs); err == nil {
			node.DiskFreeBytes = fs.Bavail * uint64(fs.Bsize) //nolint:gosec // block sizes are positive
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		lib, qemu, err := hypervisor.Version(ctx)
		if err != nil {
			node.Problem = err.Error()
			return
		}
		node.LibvirtVersion, node.HypervisorVersion = lib, qemu
		info, err := hypervisor.NodeInfo(ctx)
		if err != nil {
			node.Problem = err.Error()
			return
		}
		node.Cpus, node.MemoryBytes = uint32(info.CPUs), info.MemoryKiB<<10 //nolint:gosec // a handful of CPUs
	}
}
