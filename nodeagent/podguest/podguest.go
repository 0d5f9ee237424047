// Package podguest opens the agent of a Pod's guest (nodeagent.NewInPod) for package podagent: with the Pod's libvirt, and with the
// guest's network, which is made in the Pod's network namespace before the guest and served as long as the agent is open.
package podguest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/networks"
	"github.com/gitvirt/gitvirt/nodeagent/podagent"
)

// Opener opens the agents of a node's Pods.
type Opener struct {
	// Node is the node's name, DomainType "kvm" or "qemu".
	Node, DomainType string
	// CapabilitiesDir keeps what libvirt found out about QEMU, for all Pods.
	CapabilitiesDir string
	// ProcDir is where the node's processes are seen.
	ProcDir string
	// Connect returns the libvirt of a Pod.
	Connect func(name string, source func() (uri string, release func(), err error)) nodeagent.PodHypervisor
	Logger  *slog.Logger

	live nodeagent.PodLive
}

// guest is the agent of a Pod with its network.
type guest struct {
	*nodeagent.PodAgent
	libvirt nodeagent.PodHypervisor
	network *network // nil for a guest without one
	name    string
}

// Open implements podagent.Config.Open.
func (o *Opener) Open(ctx context.Context, pod podagent.Pod) (podagent.Guest, func(), error) {
	log := o.Logger.With("pod", pod.Namespace+"/"+pod.Name)
	g := &guest{name: domainxml.DomainName(pod.Address)}
	config := nodeagent.PodConfig{
		Config:  nodeagent.Config{Node: o.Node, StateDir: pod.StateDir, DomainType: o.DomainType, Logger: log},
		Address: pod.Address, Dir: pod.Dir, CapabilitiesDir: o.CapabilitiesDir, Live: &o.live,
		PodIP: func() string { return pod.IP },
		Connect: func(name string, source func() (string, func(), error)) nodeagent.PodHypervisor {
			g.libvirt = o.Connect(name, source)
			return g.libvirt
		},
	}
	if len(pod.Object.Spec.Template.Spec.Domain.Devices.Interfaces) > 0 {
		var err error
		if g.network, err = o.connect(ctx, &pod, log); err != nil {
			return nil, nil, fmt.Errorf("the guest's network: %w", err)
		}
		taps := g.network.wanted.Taps()
		config.Facts = func(host *domainxml.Host) { host.Assignment.Taps = taps }
	}
	var err error
	if g.PodAgent, err = nodeagent.NewInPod(config); err != nil {
		g.network.close()
		return nil, nil, err
	}
	return g, func() {
		if err := g.Close(); err != nil {
			log.Debug("closing the Pod's libvirt", "error", err)
		}
		g.network.close()
	}, nil
}

// Run follows the Pod's libvirt and answers what the guest asks its network, until ctx ends.
func (g *guest) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	if g.network != nil {
		work.Go(func() { g.network.serve(ctx) })
	}
	g.PodAgent.Run(ctx)
}

// Strangers returns the domains of the Pod's libvirt that are not the Pod's.
func (g *guest) Strangers(ctx context.Context) ([]string, error) {
	names, err := g.libvirt.Names(ctx)
	var out []string
	for _, name := range names {
		if name != g.name {
			out = append(out, name)
		}
	}
	return out, err
}

// network is a guest's network in its Pod.
type network struct {
	pod    *networks.Pod
	wanted networks.Wanted
	log    *slog.Logger
}

// connect makes the network of a guest, or finds it made.
func (o *Opener) connect(ctx context.Context, pod *podagent.Pod, log *slog.Logger) (*network, error) {
	process := filepath.Join(o.ProcDir, strconv.Itoa(pod.PID))
	opened, err := networks.Open(filepath.Join(process, "ns/net"), pod.StateDir)
	if err != nil {
		return nil, err
	}
	n := &network{pod: opened, log: log}
	if err := n.ensure(ctx, pod, process); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *network) ensure(ctx context.Context, pod *podagent.Pod, process string) error {
	facts, err := n.pod.Read(ctx)
	if err != nil {
		return err
	}
	resolv, err := readInRoot(filepath.Join(process, "root"), "etc/resolv.conf")
	if err != nil {
		return err
	}
	spec := &pod.Object.Spec.Template.Spec
	links, err := networks.AttachedLinks(spec, pod.Namespace, pod.Networks)
	if err != nil {
		return err
	}
	n.wanted, err = networks.Plan(networks.Machine{
		Address: pod.Address, Spec: spec, DNS: networks.ParseResolvConf(resolv), Links: links, VHost: pod.VHost,
	}, facts)
	if err != nil {
		return err
	}
	return n.pod.Ensure(ctx, n.wanted)
}

// The waits before a guest's network is served again after a failure.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// serve answers the guest until ctx ends.
func (n *network) serve(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := n.pod.Serve(ctx, n.wanted)
		if ctx.Err() != nil {
			return
		}
		n.log.Warn("the guest's network is not served", "error", err, "again_in", pause)
		if backoff.Wait(ctx, nil, pause) != nil {
			return
		}
	}
}

func (n *network) close() {
	if n == nil {
		return
	}
	if err := n.pod.Close(); err != nil {
		n.log.Debug("closing the Pod's network", "error", err)
	}
}

// maxResolvConf bounds what is read of a Pod's resolv.conf, in bytes.
const maxResolvConf = 64 << 10

// readInRoot reads a file of a Pod's root file system. Links in it lead nowhere else; a file that is not there is empty.
func readInRoot(root, path string) (string, error) {
	folder, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(folder) //nolint:errcheck // nothing was written
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(folder, path, &how)
	if err == unix.ENOENT { //nolint:errorlint // a bare errno
		return "", nil
	}
	if err != nil {
		return "", &os.PathError{Op: "open", Path: filepath.Join(root, path), Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxResolvConf))
	return string(content), err
}
