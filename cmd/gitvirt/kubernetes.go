package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	kube "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/kubernetes"
	"github.com/gitvirt/gitvirt/identity"
	identities "github.com/gitvirt/gitvirt/identity/kubernetes"
	"github.com/gitvirt/gitvirt/install"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/schemas"
)

// clusterFlags say which cluster is meant, in kubectl's words.
type clusterFlags struct{ kubeconfig, context string }

func (f *clusterFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: KUBECONFIG, ~/.kube/config, or the cluster that gitvirt runs in)")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig")
}

// kubeFlags say which cluster, and what gitvirt is there.
type kubeFlags struct {
	clusterFlags
	// namespace is gitvirt's own.
	namespace string
	launcher  string
	// images is auto, always or never.
	images       string
	vmNamespaces []string
}

func (f *kubeFlags) add(command *cobra.Command) {
	f.clusterFlags.add(command)
	flags := command.Flags()
	flags.StringVar(&f.namespace, "namespace", install.DefaultNamespace, "namespace that gitvirt is installed in")
	flags.StringVar(&f.launcher, "launcher-image", "", "image of gitvirt-launcher (default: what was installed)")
	flags.StringVar(&f.images, "image-volumes", "", "whether container disks are image volumes, or else have containers: auto, always, never (default: what was installed)")
	flags.StringSliceVar(&f.vmNamespaces, "vm-namespace", nil, "namespace whose VMs are looked after (default: what was installed; none means all)")
}

// settingsName is the ConfigMap with what was installed.
const settingsName = "gitvirt"

// The requests per second of the controller: 5,000 machines are made in a few minutes, and the API server's own fairness does the rest.
const (
	kubeQPS   = 200
	kubeBurst = 400
)

// config is how the cluster is reached.
func (f *clusterFlags) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w; name a kubeconfig with --kubeconfig or KUBECONFIG", err)
	}
	config.QPS, config.Burst, config.UserAgent = kubeQPS, kubeBurst, "gitvirt/"+version
	return config, nil
}

// cluster reaches the cluster and reads what gitvirt is there.
func (f *kubeFlags) cluster(ctx context.Context) (*kubernetes.Platform, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	client, err := kube.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	emulation := ""
	if err := f.installed(ctx, client, &emulation); err != nil {
		return nil, err
	}
	trust, err := identities.ReadTrust(ctx, client, f.namespace)
	if err != nil {
		return nil, fmt.Errorf("%w; gitvirt run --kubernetes makes it when it runs first", err)
	}
	return f.platform(client, emulation, &stepKeys{trust: trust, open: sync.OnceValues(func() (*identity.Authority, error) {
		ctx, cancel := context.WithTimeout(context.Background(), keyPatience)
		defer cancel()
		return identities.OpenAuthority(ctx, client, f.namespace, time.Now())
	})}, nil)
}

func (f *kubeFlags) platform(client kube.Interface, emulation string, keys kubernetes.Keys, logger *slog.Logger) (*kubernetes.Platform, error) {
	volumes, err := f.imageVolumes(client.Discovery())
	if err != nil {
		return nil, err
	}
	return kubernetes.New(client, kubernetes.Config{
		Namespaces: f.vmNamespaces, Image: f.launcher, ImageContainers: !volumes, Emulation: kubernetes.Emulation(emulation), Logger: logger, Keys: keys,
	})
}

// imageVolumes tells whether container disks are image volumes.
func (f *kubeFlags) imageVolumes(client discovery.ServerVersionInterface) (bool, error) {
	switch f.images {
	case "", "auto":
		return kubernetes.HasImageVolumes(client)
	case "always", "never":
		return f.images == "always", nil
	}
	return false, fmt.Errorf("image volumes are %q; use auto, always or never", f.images)
}

// installed fills in what the command line does not say with what was installed.
func (f *kubeFlags) installed(ctx context.Context, client kube.Interface, emulation *string) error {
	settings, err := client.CoreV1().ConfigMaps(f.namespace).Get(ctx, settingsName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && f.launcher != "":
		settings = &corev1.ConfigMap{}
	case apierrors.IsNotFound(err):
		return fmt.Errorf("gitvirt is not installed in this cluster: there is no ConfigMap %s/%s; see \"gitvirt install --help\", or name its namespace with --namespace", f.namespace, settingsName)
	case err != nil:
		return fmt.Errorf("reading the ConfigMap %s/%s: %w", f.namespace, settingsName, err)
	}
	if f.launcher == "" {
		f.launcher = settings.Data["launcher-image"]
	}
	if f.images == "" {
		f.images = settings.Data["image-volumes"]
	}
	if *emulation == "" {
		*emulation = settings.Data["emulation"]
	}
	if names := settings.Data["vm-namespaces"]; len(f.vmNamespaces) == 0 && names != "" {
		f.vmNamespaces = strings.Split(names, ",")
	}
	return nil
}

// keyPatience is how long reading the controller's key may take.
const keyPatience = 10 * time.Second

// stepKeys are those of the controller. The private half is read when a step is signed: whoever only plans needs no right to it.
type stepKeys struct {
	trust *identity.Trust
	open  func() (*identity.Authority, error)
}

// Sign implements kubernetes.Keys.
func (k *stepKeys) Sign(payload []byte) ([]byte, error) {
	authority, err := k.open()
	if err != nil {
		return nil, err
	}
	return authority.SignStep(payload)
}

// Verify implements kubernetes.Keys.
func (k *stepKeys) Verify(payload, signature []byte) bool {
	return k.trust.VerifyStep(payload, signature) == nil
}

// connectTo reaches the platform of a Fleet.
func (c *cli) connectTo(ctx context.Context, f *planFlags, fleet *schemas.Fleet) (*platform, error) {
	if fleet.Spec.Platform != schemas.PlatformKubernetes {
		return c.connect(ctx, &f.agent)
	}
	limited, cancel := context.WithTimeoutCause(ctx, f.agent.timeout, errors.New("the API server does not answer"))
	defer cancel()
	cluster, err := f.kube.cluster(limited)
	if err != nil {
		return nil, err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var following sync.WaitGroup
	following.Go(func() { cluster.Follow(working) })
	return &platform{
		driver: cluster, pods: cluster.Pods(), timeout: f.agent.timeout,
		stop: func() { stop(); following.Wait() },
	}, nil
}

// controlledCluster is the cluster with what only the controller asks for.
type controlledCluster struct{ *kubernetes.Platform }

// Execute has a step checked before a guest goes down for it.
func (p *controlledCluster) Execute(ctx context.Context, target apply.Target, step plan.Step, progress func(string)) error {
	return apply.CheckedFirst{Executor: p.Platform, Checker: p.Platform}.Execute(ctx, target, step, progress)
}

// countForged tells Prometheus of Pods that are not the controller's.
func countForged(registry prometheus.Registerer, platform *kubernetes.Platform) error {
	err := registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "gitvirt_forged_pods_total", Help: "Pods that have gitvirt's labels, and not what the controller signed.",
	}, func() float64 { return float64(platform.Forged()) }))
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

// drivenCluster is a cluster for a controller, which is also who keeps the keys and gives the agents their certificates.
func (c *cli) drivenCluster(ctx context.Context, f *runFlags, logger *slog.Logger) (*driven, error) {
	config, err := f.kube.config()
	if err != nil {
		return nil, err
	}
	client, err := kube.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	authority, err := identities.OpenAuthority(ctx, client, f.kube.namespace, time.Now())
	if err != nil {
		return nil, err
	}
	trust, err := authority.Trust()
	if err != nil {
		return nil, err
	}
	emulation := f.agent.emulation
	if err := f.kube.installed(ctx, client, &emulation); err != nil {
		return nil, err
	}
	platform, err := f.kube.platform(client, emulation, &stepKeys{trust: trust, open: func() (*identity.Authority, error) { return authority, nil }}, logger)
	if err != nil {
		return nil, err
	}
	return &driven{
		platform: &controlledCluster{platform},
		check:    func() error { return nil },
		work: []func(context.Context, *reconciler.Reconciler) error{
			func(ctx context.Context, _ *reconciler.Reconciler) error { platform.Follow(ctx); return nil },
			func(ctx context.Context, loop *reconciler.Reconciler) error {
				if err := countForged(loop.Registry(), platform); err != nil {
					return err
				}
				signer, err := identities.NewSigner(client, f.kube.namespace, authority, time.Now, logger, loop.Registry())
				if err != nil {
					return err
				}
				return signer.Run(ctx)
			},
		},
		close: func() {},
	}, nil
}
