package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/identity"
	"github.com/gitvirt/gitvirt/identity/kubernetes"
	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/capabilities"
	"github.com/gitvirt/gitvirt/nodeagent/deviceplugin"
	"github.com/gitvirt/gitvirt/nodeagent/emulation"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/podagent"
	"github.com/gitvirt/gitvirt/nodeagent/podguest"
	"github.com/gitvirt/gitvirt/schemas"
)

// podOptions are those of an agent on Kubernetes.
type podOptions struct {
	kubeconfig string
	namespace  string
	authority  string
	listen     string
	metrics    string
	kubeletDir string
	procDir    string
	devices    bool
}

func (o *podOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubernetes: how to reach the API server (default: as a Pod does)")
	flags.StringVar(&o.namespace, "namespace", "gitvirt-system", "Kubernetes: namespace of gitvirt")
	flags.StringVar(&o.authority, "authority", "/etc/gitvirt/ca", "Kubernetes: folder with what the ConfigMap gitvirt-ca holds; empty asks the API server for it")
	flags.StringVar(&o.listen, "listen", "", "Kubernetes: address for callers from other machines, with certificates (default: none)")
	flags.StringVar(&o.metrics, "metrics", ":9474", "Kubernetes: address of /metrics, /healthz and /readyz; empty for none")
	flags.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "Kubernetes: the kubelet's root folder")
	flags.BoolVar(&o.devices, "devices", true, "Kubernetes: offer /dev/kvm, /dev/net/tun and /dev/vhost-net to Pods")
	flags.StringVar(&o.procDir, "proc", "/proc", "Kubernetes: where the node's processes are seen")
}

// client returns a client of the API server. A node has hundreds of Pods at most, each of which is written rarely.
func (o *podOptions) client() (clientset.Interface, error) {
	config, err := rest.InClusterConfig()
	if o.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("reaching Kubernetes: %w; name a --kubeconfig", err)
	}
	config.QPS, config.Burst = 50, 200
	config.UserAgent = podagent.FieldManager + "/" + version
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching Kubernetes: %w", err)
	}
	return client, nil
}

// servePods looks after the Pods of a node until ctx ends.
func (o *options) servePods(ctx context.Context, socket net.Listener, domainType, why string, logger *slog.Logger) error {
	client, err := o.pods.client()
	if err != nil {
		return err
	}
	trust := kubernetes.TrustFolder(o.pods.authority)
	if o.pods.authority == "" {
		trust = func() (*identity.Trust, error) { return kubernetes.ReadTrust(ctx, client, o.pods.namespace) }
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	defer events.Shutdown()
	opener := &podguest.Opener{
		Node: o.node, DomainType: domainType, CapabilitiesDir: filepath.Join(o.stateDir, "capabilities"), ProcDir: o.pods.procDir, Logger: logger,
		Connect: func(name string, source func() (string, func(), error)) nodeagent.PodHypervisor {
			return libvirt.NewFrom(name, source)
		},
	}
	models, err := capabilities.CPUModels(ctx, "qemu-system-x86_64", domainType)
	if err != nil {
		logger.Warn("the node is not labelled with CPU models", "error", err)
	}
	agent, err := podagent.New(podagent.Config{
		Node: o.node, KubeletDir: o.pods.kubeletDir, StateDir: o.stateDir, ProcDir: o.pods.procDir, Client: client,
		Trust:  func() (podagent.Trust, error) { return trust() },
		Open:   opener.Open,
		Events: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: podagent.FieldManager, Host: o.node}),
		Logger: logger, DomainType: domainType, CPUModels: models,
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if o.pods.devices {
		group.Go(func() error {
			o.pods.plugin(domainType, logger).Run(ctx)
			return nil
		})
	}
	service := podagent.NewServer(agent, o.describeNode(why))
	group.Go(func() error { return agent.Run(ctx) })
	local := api.NewGRPCServer()
	api.RegisterAgentServer(local, service)
	group.Go(func() error { return serveGRPC(ctx, local, socket) })
	if o.pods.metrics != "" {
		group.Go(func() error { return serveHTTP(ctx, o.pods.metrics, agent) })
	}
	if o.pods.listen != "" {
		certificate := kubernetes.NewAgent(client, o.node, trust, clock.RealClock{}, logger)
		group.Go(func() error {
			certificate.Run(ctx)
			return nil
		})
		group.Go(func() error { return o.pods.serveOthers(ctx, client, certificate, service, agent.Registry(), logger) })
	}
	return group.Wait()
}

// plugin offers the node's devices. KVM is one of them when it was proved.
func (o *podOptions) plugin(domainType string, logger *slog.Logger) *deviceplugin.Plugin {
	out := &deviceplugin.Plugin{
		Dir: filepath.Join(o.kubeletDir, "device-plugins"), Logger: logger,
		Devices: []deviceplugin.Device{{Name: "tun", Path: "/dev/net/tun"}, {Name: "vhost-net", Path: "/dev/vhost-net"}},
	}
	if domainType == emulation.DomainKVM {
		out.Devices = append(out.Devices, deviceplugin.Device{Name: "kvm", Path: "/dev/kvm"})
	}
	return out
}

// describeNode returns what fills in GetNode.
func (o *options) describeNode(why string) func(context.Context, *api.Node) {
	return func(_ context.Context, node *api.Node) {
		node.AgentVersion, node.DomainTypeReason = version, why
		var fs unix.Statfs_t
		if err := unix.Statfs(o.stateDir, &fs); err == nil {
			node.DiskFreeBytes = fs.Bavail * uint64(fs.Bsize) //nolint:gosec // block sizes are positive
		}
	}
}

// serveGRPC serves until ctx ends.
func serveGRPC(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// serveOthers serves callers from other machines, who show certificates.
func (o *podOptions) serveOthers(ctx context.Context, client clientset.Interface, source identity.Source, service api.AgentServer, registry *prometheus.Registry, logger *slog.Logger) error {
	refusals := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gitvirt_agent_refused_calls_total", Help: "Connections and calls from other machines that were refused, by reason.",
	}, []string{"reason"})
	if err := registry.Register(refusals); err != nil {
		return fmt.Errorf("serving: %w", err)
	}
	authorize := func(ctx context.Context, peer identity.Peer, access api.Access) error {
		address, err := schemas.ParseAddress(access.Address)
		if err != nil {
			return fmt.Errorf("%w: %w", identity.ErrRefused, err)
		}
		return kubernetes.MayAccess(ctx, client, peer, access.Verb, access.Subresource, address.Namespace, pods.Name(address))
	}
	server := api.NewTLSServer(source, api.AuthorizerFunc(authorize), func(err error) {
		refusals.WithLabelValues(identity.Reason(err)).Inc()
		logger.Warn("a caller was refused", "error", err)
	})
	api.RegisterAgentServer(server, service)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("serving other machines: %w", err)
	}
	return serveGRPC(ctx, server, listener)
}

// serveHTTP serves the agent's health and metrics.
func serveHTTP(ctx context.Context, address string, agent *podagent.Agent) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := agent.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(agent.Registry(), promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serving metrics: %w; choose another address with --metrics", err)
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}
