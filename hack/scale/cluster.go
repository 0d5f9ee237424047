package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is the control plane, of which there is as much as the numbers need: nobody makes replicas or removes nodes.
type cluster struct {
	dir      string
	programs string
	kwok     string
	running  []*process
	url      string
	ca       []byte
	tokens   map[string]string
	client   kubernetes.Interface
}

// The users of the API server. In the audit log they are told apart.
const (
	userAdmin     = "scale-admin"
	userScheduler = "scale-scheduler"
	userKwok      = "scale-kwok"
	userAgents    = "scale-agents"
)

// auditPolicy has every request of the controller in the log, and what others write.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["` + controllerUser + `"]
- level: None
  verbs: [get, list, watch]
- level: Metadata
  users: ["` + userScheduler + `", "` + userKwok + `", "` + userAgents + `"]
- level: None
`

// freePort returns the address of a port of the loopback that nobody listens on.
func freePort(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func (c *cluster) daemon(name, program string, args ...string) error {
	started, err := start(c.dir, name, program, args...)
	if err != nil {
		return err
	}
	c.running = append(c.running, started)
	return nil
}

// up starts the control plane.
func (c *cluster) up(ctx context.Context) error {
	etcd, err := freePort(ctx)
	if err != nil {
		return err
	}
	peers, err := freePort(ctx)
	if err != nil {
		return err
	}
	if err := c.daemon("etcd", "etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", "http://"+etcd, "--advertise-client-urls", "http://"+etcd,
		"--listen-peer-urls", "http://"+peers, "--initial-advertise-peer-urls", "http://"+peers, "--initial-cluster", "default=http://"+peers,
		"--quota-backend-bytes", "4294967296"); err != nil {
		return err
	}
	if err := c.startServer(ctx, etcd); err != nil {
		return err
	}
	scheduler, err := c.kubeconfig(userScheduler)
	if err != nil {
		return err
	}
	if err := c.daemon("kube-scheduler", filepath.Join(c.programs, "kube-scheduler"), "--kubeconfig", scheduler, "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000"); err != nil {
		return err
	}
	stages := filepath.Join(c.dir, "stages.yaml")
	if err := os.WriteFile(stages, kwokStages, 0o600); err != nil {
		return err
	}
	kwok, err := c.kubeconfig(userKwok)
	if err != nil {
		return err
	}
	return c.daemon("kwok", c.kwok, "--kubeconfig", kwok, "--manage-all-nodes", "--config", stages, "--cidr", "10.0.0.1/16")
}

// startServer starts the API server, and waits until it answers.
func (c *cluster) startServer(ctx context.Context, etcd string) error {
	address, err := freePort(ctx)
	if err != nil {
		return err
	}
	_, port, _ := strings.Cut(address, ":")
	c.url, c.tokens = "https://"+address, map[string]string{}
	var tokens strings.Builder
	for _, user := range []string{userAdmin, userScheduler, userKwok, userAgents} {
		c.tokens[user] = rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%s,system:masters\n", c.tokens[user], user, user)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(c.dir, name) }
	for name, content := range map[string]string{
		"tokens.csv": tokens.String(), "audit-policy.yaml": auditPolicy, "accounts.key": string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})),
	} {
		if err := os.WriteFile(file(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	// With an etcd before 3.4.25 there are no lists as watches, which the API server would take kwok's watches for.
	if err := c.daemon("kube-apiserver", filepath.Join(c.programs, "kube-apiserver"), "--etcd-servers", "http://"+etcd, "--bind-address", "127.0.0.1", "--secure-port", port,
		"--cert-dir", file("certificates"), "--endpoint-reconciler-type", "none", "--token-auth-file", file("tokens.csv"), "--authorization-mode", "RBAC", "--allow-privileged", "--feature-gates", "WatchList=false", "--disable-admission-plugins", "TaintNodesByCondition", // there is nobody to take a taint away
		"--service-cluster-ip-range", "10.1.0.0/16", "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-signing-key-file", file("accounts.key"),
		"--service-account-key-file", file("accounts.key"), "--audit-policy-file", file("audit-policy.yaml"), "--audit-log-path", file("audit.log"),
		"--audit-log-maxsize", "10000"); err != nil {
		return err
	}
	return c.eventually(ctx, "the API server is ready", func() error {
		// The API server makes its certificate, with the authority's behind it, when it starts.
		if c.ca, err = os.ReadFile(file("certificates/apiserver.crt")); err != nil {
			return err
		}
		config, err := c.config(userAdmin)
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		c.client = client
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// kubeconfig writes who a user is, and returns the file's path.
func (c *cluster) kubeconfig(user string) (string, error) {
	path := filepath.Join(c.dir, user+".kubeconfig")
	return path, os.WriteFile(path, []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: scale, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: me, user: {token: %s}}]
contexts: [{name: scale, context: {cluster: scale, user: me}}]
current-context: scale
`, c.url, base64.StdEncoding.EncodeToString(c.ca), c.tokens[user])), 0o600)
}

func (c *cluster) config(user string) (*rest.Config, error) {
	path, err := c.kubeconfig(user)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // not bounded: agents are many, and each writes little
	return config, nil
}

// account makes a token of a ServiceAccount, and returns the kubeconfig with it.
func (c *cluster) account(ctx context.Context, namespace, name string) (string, error) {
	expires := int64(6 * 60 * 60)
	request, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &expires}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	c.tokens[name] = request.Status.Token
	return c.kubeconfig(name)
}

// nodes makes Nodes with room for so many Pods each.
func (c *cluster) nodes(ctx context.Context, count, each int) error {
	for i := range count {
		room := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourceEphemeralStorage: resource.MustParse("10Ti"),
			corev1.ResourcePods:            *resource.NewQuantity(int64(each), resource.DecimalSI),
			"devices.gitvirt.io/kvm":       resource.MustParse("1k"),
			"devices.gitvirt.io/tun":       resource.MustParse("1k"),
			"devices.gitvirt.io/vhost-net": resource.MustParse("1k"),
		}
		name := "node-" + strconv.Itoa(i)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", corev1.LabelHostname: name}},
			Status:     corev1.NodeStatus{Allocatable: room, Capacity: room},
		}
		if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("making the node %s: %w", name, err)
		}
	}
	return nil
}

// namespace makes a namespace, with the account that Pods have.
func (c *cluster) namespace(ctx context.Context, name string) error {
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the namespace %s: %w", name, err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := c.client.CoreV1().ServiceAccounts(name).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the account of %s: %w", name, err)
	}
	return nil
}

// patience bounds each wait but that for all VMs.
const patience = 2 * time.Minute

// eventually tries until it succeeds.
func (c *cluster) eventually(ctx context.Context, what string, try func() error) error {
	return within(ctx, patience, 100*time.Millisecond, what, func() error {
		for _, p := range c.running {
			if err := p.ended(); err != nil {
				return errors.Join(errGivenUp, err)
			}
		}
		return try()
	})
}

// errGivenUp ends a wait.
var errGivenUp = errors.New("waiting is of no use")

// within tries every so often until it succeeds, or time is up.
func within(ctx context.Context, limit, pause time.Duration, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if errors.Is(err, errGivenUp) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w; at last: %w", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// down ends what was started, the last first.
func (c *cluster) down() error {
	var failed error
	for len(c.running) > 0 {
		last := len(c.running) - 1
		failed = errors.Join(failed, c.running[last].stop())
		c.running = c.running[:last]
	}
	return failed
}
