// Package install says what gitvirt is made of on a Kubernetes cluster: accounts, rights, admission policies, the controller and the agents.
// `gitvirt install` applies these objects; the kustomize base and the Helm chart in deploy/ are written from them. It calls nobody.
package install

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The names of what is installed.
const (
	DefaultNamespace = "gitvirt-system"
	controller       = "gitvirt-controller"
	agent            = "gitvirt-agent"
	authority        = "gitvirt-ca"
	public           = "gitvirt-public"
	settings         = "gitvirt"
	repository       = "gitvirt-repository"
	optionFiles      = "gitvirt-files"
	webhooks         = "gitvirt-webhooks"
)

// The ports: the controller's health, metrics and read-only API, its webhooks, the agents' service, and their health and metrics.
const (
	controllerPort   = 9471
	webhookPort      = 9472
	agentPort        = 9473
	agentMetricsPort = 9474
)

// Credentials are how the controller shows the git server who it is.
type Credentials string

// The ways. Each names the keys of the Secret that it takes.
const (
	NoCredentials Credentials = "none"
	Token         Credentials = "token"    // token
	Password      Credentials = "password" // password; the user name is in the repository's URL or in GITVIRT_USERNAME of the ConfigMap
	SSH           Credentials = "ssh"      // ssh-privatekey, known_hosts
)

// Options are what differs between installations.
type Options struct {
	Namespace string
	// Images of the three programs.
	ControllerImage, AgentImage, LauncherImage string
	// Repository is the git repository's URL; Branch and Path may be empty.
	Repository, Branch, Path string
	// Credentials are in the Secret gitvirt-repository of the namespace, which is not installed: it is yours.
	Credentials Credentials
	// VMNamespaces are where VMs may be; ClusterWide lets them be in every namespace, and VMNamespaces does not count.
	VMNamespaces []string
	ClusterWide  bool
	// Emulation is whether guests may run without KVM: auto, always or never.
	Emulation string
	// ImageVolumes is whether container disks are image volumes, or else have containers: auto (by the version of Kubernetes), always or never.
	ImageVolumes string
	// Replicas of the controller; one of them works, the others wait.
	Replicas int32
	// Arguments are more of the controller's command line (gitvirt run), such as "--forge=gitea". The Secret gitvirt-files of the namespace, which is
	// yours too, is mounted at FilesDir, for those that name files.
	Arguments []string
	// Webhooks has the controller take a forge's webhooks, whose secret is webhook-secret in gitvirt-files, behind the Service gitvirt-webhooks.
	Webhooks bool
	// ServiceMonitor is for clusters that have the Prometheus operator.
	ServiceMonitor bool

	// chart has every choice stay open: Helm makes it.
	chart bool
}

// Defaults are the options that a program of some version has.
func Defaults(version string) Options {
	return Options{
		Namespace:       DefaultNamespace,
		ControllerImage: "gitvirt.io/gitvirt:" + version, AgentImage: "gitvirt.io/gitvirt-agent:" + version, LauncherImage: "gitvirt.io/gitvirt-launcher:" + version,
		Credentials: NoCredentials, VMNamespaces: []string{"default"}, Emulation: "never", ImageVolumes: "auto", Replicas: 2,
	}
}

// Check says what of the options cannot be.
func (o *Options) Check() error {
	var all []error
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	for _, name := range append([]string{o.Namespace}, o.VMNamespaces...) {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			fail("the namespace %q: %s", name, strings.Join(problems, "; "))
		}
	}
	if slices.Contains(o.VMNamespaces, o.Namespace) && !o.ClusterWide {
		fail("%s is gitvirt's own namespace: its keys are there; name another one for VMs", o.Namespace)
	}
	if len(o.VMNamespaces) == 0 && !o.ClusterWide {
		fail("VMs need a namespace: name one, or allow all")
	}
	if o.Repository == "" {
		fail("name the git repository that VMs come from")
	}
	for what, image := range map[string]string{"controller": o.ControllerImage, "agent": o.AgentImage, "launcher": o.LauncherImage} {
		if image == "" || strings.ContainsAny(image, " \t\n") {
			fail("the %s's image %q is none", what, image)
		}
	}
	if !slices.Contains([]Credentials{NoCredentials, Token, Password, SSH}, o.Credentials) {
		fail("credentials %q: want none, token, password or ssh", o.Credentials)
	}
	if !slices.Contains([]string{"auto", "always", "never"}, o.Emulation) {
		fail("emulation %q: want auto, always or never", o.Emulation)
	}
	if !slices.Contains([]string{"auto", "always", "never"}, o.ImageVolumes) {
		fail("image volumes %q: want auto, always or never", o.ImageVolumes)
	}
	for _, argument := range o.Arguments {
		if !strings.HasPrefix(argument, "--") || strings.ContainsAny(argument, "\x00\r\n") {
			fail("the controller's argument %q: want an option of gitvirt run with its value, such as --forge=gitea", argument)
		}
	}
	if o.Replicas < 1 {
		fail("%d replicas of the controller: want at least one", o.Replicas)
	}
	return errors.Join(all...)
}
