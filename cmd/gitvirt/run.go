package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/host"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/reconciler/statusbranch"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources/directory"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/several"
)

// runFlags configure the controller.
type runFlags struct {
	source sourceFlags
	agent  agentFlags
	// kubernetes says that the VMs are Pods of a cluster.
	kubernetes bool
	kube       kubeFlags
	leader     bool
	interval   time.Duration
	parallel   int
	listen     string
	noStatus   bool
	notify     notifyFlags
	forge      forgeFlags
	webhook    webhookFlags
	refs       gitRefFlags
	json       bool
	debug      bool
}

func (c *cli) runCommand() *cobra.Command {
	var f runFlags
	command := &cobra.Command{
		Use:   "run",
		Short: "Keep this host, or a cluster, as a git repository says",
		Long: `Poll the repository, plan, apply, and keep it so: changes of git, crashed guests and domains changed by hand are put
right. The status goes to the status branch. When no agent answers on the socket one is started as a child. With --kubernetes
the VMs are Pods of the cluster that gitvirt runs in, or that KUBECONFIG names; agents on its nodes make their guests.

http://127.0.0.1:9471 serves /healthz, /readyz, /metrics and a read-only API below /api/v1; get, describe and events
read it. VMs outlive the controller and the agent.

Exit codes: 0 stopped by a signal, 1 an error at the start.`,
		Example: `  gitvirt run --git https://git.example.com/team/fleet.git --git-token-file /etc/gitvirt/token
  gitvirt run --git ssh://git@git.example.com/team/fleet.git --ssh-key /etc/gitvirt/id_ed25519 --path hosts/one
  gitvirt run --dir ./fleet --no-status
  gitvirt run --kubernetes --git https://git.example.com/team/fleet.git --vm-namespace shop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.source.argument(nil); err != nil {
				return err
			}
			return c.leading(cmd.Context(), &f, func(ctx context.Context) error { return c.runController(ctx, &f) })
		},
	}
	f.source.add(command)
	f.source.trust.add(command)
	f.agent.add(command)
	f.kube.add(command)
	flags := command.Flags()
	flags.BoolVar(&f.kubernetes, "kubernetes", false, "look after the VMs of a cluster instead of those of this host")
	addLeaderFlag(flags, &f.leader)
	flags.DurationVar(&f.interval, "interval", 0, "time between two polls (default: the Fleet's spec.interval, or 15s)")
	flags.IntVar(&f.parallel, "parallel", 0, fmt.Sprintf("steps carried out at a time (default: %d, and %d for a cluster, whose nodes share them)", hostParallel, clusterParallel))
	flags.StringVar(&f.listen, "listen", httpapi.DefaultAddress, "address of the read-only API; keep it on loopback")
	flags.BoolVar(&f.noStatus, "no-status", false, "write no status branch")
	f.notify.add(flags)
	f.forge.add(flags)
	f.webhook.add(flags)
	f.refs.add(flags)
	flags.BoolVar(&f.json, "log-json", false, "log JSON lines")
	flags.BoolVar(&f.debug, "debug", false, "log more")
	return command
}

// A host has as many CPUs as it has; what a step of a cluster waits for is another node each time, and the controller only waits.
const (
	hostParallel    = 8
	clusterParallel = 100
)

// stepsAtATime is how many steps are carried out at a time.
func (f *runFlags) stepsAtATime() int {
	switch {
	case f.parallel != 0:
		return f.parallel
	case f.kubernetes:
		return clusterParallel
	}
	return hostParallel
}

func (c *cli) logger(f *runFlags) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if f.debug {
		options.Level = slog.LevelDebug
	}
	if f.json {
		return slog.New(slog.NewJSONHandler(c.stderr, options))
	}
	return slog.New(slog.NewTextHandler(c.stderr, options))
}

// gcPercent keeps the heap close to what is in use: the controller waits most of the time.
const gcPercent = 40

func (c *cli) runController(ctx context.Context, f *runFlags) error {
	if c.getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	logger := c.logger(f)
	endpoints, err := f.notify.endpoints()
	if err != nil {
		return err
	}
	forge, err := f.forge.open(&f.source)
	if err != nil {
		return err
	}
	if err := errors.Join(f.webhook.check(forge), f.refs.check(&f.source, forge)); err != nil {
		return err
	}
	source, err := c.openSource(f)
	if err != nil {
		return err
	}
	defer source.close()
	driven, err := c.driven(ctx, f, logger)
	if err != nil {
		return err
	}
	defer driven.close()
	loop, err := reconciler.New(source.Source, driven.platform, reconciler.Config{
		Parallel: f.stepsAtATime(), Interval: f.interval, Status: source.branches.status(), Log: logger, Ledger: f.agent.book(), Unmet: endpoints.Unmet,
	})
	if err != nil {
		return err
	}
	reporters, err := c.reporters(f, loop, endpoints, forge)
	if err != nil {
		return err
	}
	pulls, err := c.pullRequests(f, source.main, forge, loop, source.branches)
	if err != nil {
		return err
	}
	shown, hosts, err := f.serving(loop, pulls)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("serving the API: %w; another controller may be running, or choose another --listen", err)
	}
	if err := driven.check(); err != nil {
		_ = listener.Close()
		return err
	}
	webhooks, err := f.webhook.open(ctx, forge, loop, pulls.nudge(), logger)
	if err != nil {
		_ = listener.Close()
		return err
	}
	logger.Info("controller starts", "version", version, "source", fmt.Sprint(source.main), "api", listener.Addr().String())
	group, ctx := errgroup.WithContext(ctx)
	for _, work := range driven.work {
		group.Go(func() error { return work(ctx, loop) })
	}
	group.Go(func() error { return loop.Run(ctx) })
	for _, report := range append(reporters, webhooks...) {
		group.Go(func() error { return report(ctx) })
	}
	if pulls != nil {
		group.Go(func() error { return pulls.Run(ctx) })
	}
	group.Go(func() error { return httpapi.Serve(ctx, listener, shown, hosts...) })
	return group.Wait()
}

// driven is the platform of a controller, with what keeps it going.
type driven struct {
	platform reconciler.Platform
	// check says why the controller cannot start.
	check func() error
	// work is done as long as the controller runs.
	work  []func(ctx context.Context, loop *reconciler.Reconciler) error
	close func()
}

func (c *cli) driven(ctx context.Context, f *runFlags, logger *slog.Logger) (*driven, error) {
	if f.kubernetes {
		return c.drivenCluster(ctx, f, logger)
	}
	conn, err := api.Dial(f.agent.socketPath())
	if err != nil {
		return nil, err
	}
	platform := &controlled{Host: host.New(conn)}
	return &driven{
		platform: platform,
		check: func() error {
			if _, err := f.agent.findBinary(); err != nil && !f.agent.answers() {
				return err
			}
			return nil
		},
		work: []func(context.Context, *reconciler.Reconciler) error{
			func(ctx context.Context, _ *reconciler.Reconciler) error {
				f.agent.supervise(ctx, c.stderr, logger)
				return nil
			},
			func(ctx context.Context, _ *reconciler.Reconciler) error { platform.Follow(ctx); return nil },
		},
		close: func() { _ = conn.Close() },
	}, nil
}

// opened is where the manifests come from: the repository, or directory, of the Fleet with all that the Fleet names.
type opened struct {
	*several.Source
	main several.Main
	// branches returns a status branch; nil where there is none to be.
	branches statusBranches
	close    func()
}

// openSource opens where the manifests come from, and for a repository its status branch.
func (c *cli) openSource(f *runFlags) (*opened, error) {
	out, err := c.openMain(f)
	if err != nil {
		return nil, err
	}
	closeMain := out.close
	opener, err := f.source.opener(filepath.Join(f.agent.stateDir, "git"))
	if err == nil {
		out.Source, err = several.New(out.main, opener, several.Config{})
	}
	if err != nil {
		closeMain()
		return nil, err
	}
	out.close = func() { _ = out.Close(); closeMain() } // mirrors are caches
	return out, nil
}

func (c *cli) openMain(f *runFlags) (*opened, error) {
	if f.source.dir != "" {
		keys, err := f.source.sops.read()
		if err != nil {
			return nil, err
		}
		source, err := directory.Open(f.source.dir, f.source.config.Limits, directory.WithParse(keys.Parse))
		return &opened{main: source, close: func() {}}, err
	}
	judge, err := f.source.trust.judge()
	if err != nil {
		return nil, err
	}
	source, err := c.openGit(&f.source, filepath.Join(f.agent.stateDir, "git"), git.WithTrust(judge))
	if err != nil {
		return nil, err
	}
	if f.noStatus {
		return &opened{main: source, close: func() { _ = source.Close() }}, nil
	}
	publisher, err := git.NewPublisher(f.source.config, git.WithGetenv(c.getenv))
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	follows := f.source.config.Branch
	return &opened{
		main: source, branches: func(name string) statusbranch.Branch {
			return statusbranch.Branch{Publisher: publisher, Name: name, Follows: follows}
		},
		close: func() { _ = publisher.Close(); _ = source.Close() },
	}, nil
}

// controlled is the host with what only the controller asks for.
type controlled struct{ *host.Host }

// Execute has a step checked before a guest goes down for it.
func (h *controlled) Execute(ctx context.Context, target apply.Target, step plan.Step, progress func(string)) error {
	return apply.CheckedFirst{Executor: h.Host, Checker: h.Host}.Execute(ctx, target, step, progress)
}

// KeptDisks names the disks with data whose VM is gone.
func (h *controlled) KeptDisks(ctx context.Context) ([]status.KeptDisk, error) {
	found, err := h.Disks(ctx)
	if err != nil {
		return nil, err
	}
	var kept []status.KeptDisk
	for _, disk := range found {
		if disk.GetInUse() {
			continue
		}
		owner, err := schemas.ParseAddress(disk.GetAddress())
		if err != nil {
			return nil, fmt.Errorf("listing disks: %w", err)
		}
		kept = append(kept, status.KeptDisk{
			Owner: owner, Node: h.Observed().Node,
			Disk: status.Disk{Volume: disk.GetVolume(), Kind: disk.GetKind(), Path: disk.GetPath(), CapacityBytes: disk.GetCapacityBytes()},
		})
	}
	return kept, nil
}
