package schemas

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Platform is where the machines of a repository run.
type Platform string

// The platforms.
const (
	// PlatformHost runs machines as domains of a host's libvirt.
	PlatformHost Platform = "host"
	// PlatformKubernetes runs machines as Pods of a cluster.
	PlatformKubernetes Platform = "kubernetes"
)

// DriftPolicy says what happens when what runs was changed by hand.
type DriftPolicy string

// The drift policies.
const (
	// DriftCorrect puts it right again.
	DriftCorrect DriftPolicy = "correct"
	// DriftReport tells it and leaves it.
	DriftReport DriftPolicy = "report"
)

// DefaultStatusBranch is the branch that holds the status unless the Fleet names another.
const DefaultStatusBranch = "gitvirt/status"

// Fleet holds the settings of a repository (kind Fleet, apiVersion gitvirt.io/v1alpha1).
type Fleet struct {
	Name     string    `json:"name"`
	Position Position  `json:"position,omitzero"`
	Spec     FleetSpec `json:"spec"`
}

// FleetSpec is the spec of a Fleet; all fields are set after Parse but Interval, which may be zero.
type FleetSpec struct {
	// Platform defaults to host.
	Platform Platform `json:"platform,omitempty"`
	// Drift defaults to correct.
	Drift DriftPolicy `json:"drift,omitempty"`
	// Status says where the state of the machines is written.
	Status FleetStatus `json:"status,omitempty,omitzero"`
	// Interval is the time between two polls of the repository, at least a second; zero leaves it to the controller.
	Interval Duration `json:"interval,omitempty,omitzero"`
	// PermittedHostDevices says which devices of the host a GPU, a host device or an SR-IOV interface may get. It is the
	// structure of KubeVirt's configuration.
	PermittedHostDevices *kubevirtv1.PermittedHostDevices `json:"permittedHostDevices,omitempty"`
	// Kubernetes is what machines may have on that platform; nil is the least.
	Kubernetes *FleetKubernetes `json:"kubernetes,omitempty"`
	// Trust is whose commits are applied; nil leaves it to the controller.
	Trust *FleetTrust `json:"trust,omitempty"`
	// Policy is what happens by itself, and when.
	Policy Policy `json:"policy,omitempty,omitzero"`
	// PullRequests says for which pull requests plans are made, and whether comments on them are heard.
	PullRequests FleetPullRequests `json:"pullRequests,omitempty,omitzero"`
	// Notifications are who is told of events.
	Notifications []Receiver `json:"notifications,omitempty"`
	// Sources are other repositories whose manifests count, each with what they may ask for.
	Sources []FleetSource `json:"sources,omitempty"`
	// SourcesDoubt says that Sources may not be all that are meant: then nothing is removed that was made from another one.
	SourcesDoubt bool `json:"-"`
}

// FleetPullRequests says for which pull requests plans are made, and whether comments on them are heard. That of the branch that they are
// to be merged into counts.
type FleetPullRequests struct {
	// Forks lets pull requests from other repositories be planned: anybody may open one.
	Forks bool `json:"forks,omitempty"`
	// Commands lets people who may write to the repository command by comments: plan and approve.
	Commands bool `json:"commands,omitempty"`
}

// TakesCommands reports whether comments on pull requests are heard. A Fleet that nobody can rely on lets nobody command.
func (f *Fleet) TakesCommands() bool {
	return f.Spec.PullRequests.Commands && f.Spec.Policy.Doubt == ""
}

// FleetKubernetes is what the machines of a repository may have in a cluster. Who may change the Fleet decides about all who may
// change machines.
type FleetKubernetes struct {
	// ServiceAccounts are those that machines may name for their Pods, as NAMESPACE/NAME; without any it is the namespace's default.
	ServiceAccounts []string `json:"serviceAccounts,omitempty"`
	// Emulation is whether guests may run without KVM: as gitvirt was installed, or never.
	Emulation FleetEmulation `json:"emulation,omitempty"`
}

// FleetEmulation is whether guests may be emulated in software.
type FleetEmulation string

// The choices about emulation.
const (
	// EmulationInstalled leaves it to how gitvirt was installed.
	EmulationInstalled FleetEmulation = "installed"
	// EmulationNever wants KVM for every guest.
	EmulationNever FleetEmulation = "never"
)

// defaultServiceAccount is that of a Pod which names none.
const defaultServiceAccount = "default"

// AllowsServiceAccount reports whether machines in a namespace may name a ServiceAccount for their Pods.
func (f *FleetKubernetes) AllowsServiceAccount(namespace, name string) bool {
	return name == "" || name == defaultServiceAccount || f != nil && slices.Contains(f.ServiceAccounts, namespace+"/"+name)
}

// AllowsEmulation reports whether guests may run without KVM where gitvirt was installed so.
func (f *FleetKubernetes) AllowsEmulation() bool { return f == nil || f.Emulation != EmulationNever }

// FleetStatus says where the state of the machines is written.
type FleetStatus struct {
	// Branch defaults to gitvirt/status.
	Branch string `json:"branch,omitempty"`
	// Enabled defaults to true.
	Enabled *bool `json:"enabled,omitempty"`
}

// IsEnabled reports whether status is written back to git.
func (s FleetStatus) IsEnabled() bool { return s.Enabled == nil || *s.Enabled }

// Duration is a time.Duration written like "30s" or "5m".
type Duration time.Duration

// MarshalJSON writes the duration as Go does, such as "1m30s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads what time.ParseDuration accepts.
func (d *Duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return errors.New("wanted a duration such as 30s")
	}
	parsed, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 30s", s)
	}
	*d = Duration(parsed)
	return nil
}

// DefaultFleet is the Fleet of a repository that has none.
func DefaultFleet() *Fleet {
	fleet := &Fleet{Name: "fleet"}
	fleet.setDefaults()
	return fleet
}

// defaultFleet is DefaultFleet, the same each time.
var defaultFleet = sync.OnceValue(DefaultFleet)

func (f *Fleet) setDefaults() {
	if f.Spec.Platform == "" {
		f.Spec.Platform = PlatformHost
	}
	if f.Spec.Drift == "" {
		f.Spec.Drift = DriftCorrect
	}
	if f.Spec.Status.Branch == "" {
		f.Spec.Status.Branch = DefaultStatusBranch
	}
	if f.Spec.Status.Enabled == nil {
		enabled := true
		f.Spec.Status.Enabled = &enabled
	}
	if f.Spec.Trust != nil && f.Spec.Trust.Signatures == "" {
		f.Spec.Trust.Signatures = SignaturesHead
	}
	for i := range f.Spec.Sources {
		if trust := f.Spec.Sources[i].Trust; trust != nil && trust.Signatures == "" {
			trust.Signatures = SignaturesHead
		}
	}
	f.Spec.Policy.setDefaults()
	setReceiverDefaults(f.Spec.Notifications)
}

// doubtful returns a Fleet like f on which nobody can rely, for the reason.
func (f *Fleet) doubtful(why string) *Fleet {
	out := *f
	out.Spec.Policy.Doubt, out.Spec.SourcesDoubt = why, true
	return &out
}

// twoFleets is why a policy is in doubt where there are two.
const twoFleets = "the repository has two Fleets, and nobody can tell which one counts"

// fleetManifest is a Fleet as it is written.
type fleetManifest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              FleetSpec `json:"spec"`
}

// readFleet reads a Fleet. One with mistakes still counts, with the careful choice for what could not be read:
// nothing is corrected by a policy that nobody can be sure of.
func readFleet(d *document, h *header) {
	if d.file.Source != "" {
		d.report(h.kindNode, d.prefix+"kind", SeverityError, "only the repository of the Fleet has one: what a source may ask for is not for the source to say",
			"remove it, or ask those who keep the Fleet")
		return
	}
	var manifest fleetManifest
	d.decodeInto(&manifest, KindFleet)
	fleet := &Fleet{Name: h.name, Position: d.position(h.nameNode), Spec: manifest.Spec}
	c := newChecker(d, h.address(), nil)
	spec := &fleet.Spec
	switch spec.Platform {
	case "", PlatformHost, PlatformKubernetes:
	default:
		c.failOneOf(at("spec", "platform"), string(spec.Platform), string(PlatformHost), string(PlatformKubernetes))
	}
	switch spec.Drift {
	case "", DriftCorrect, DriftReport:
	default:
		c.failOneOf(at("spec", "drift"), string(spec.Drift), string(DriftCorrect), string(DriftReport))
	}
	if problem := branchProblem(spec.Status.Branch); problem != "" {
		c.fail(at("spec", "status", "branch"), problem, "use a name such as "+DefaultStatusBranch)
	}
	if interval := time.Duration(spec.Interval); interval < time.Second && c.wasGiven(at("spec", "interval")) {
		c.fail(at("spec", "interval"), fmt.Sprintf("%s is shorter than a second", interval), "use 1s or more")
	}
	c.permittedDevices(spec.PermittedHostDevices)
	c.kubernetes(spec.Kubernetes)
	c.trust(at("spec", "trust"), spec.Trust)
	c.sources(spec.Sources)
	c.policy(&spec.Policy)
	spec.Notifications = c.notifications(spec.Notifications)
	if d.broke { // what is wrong counts as not said
		for _, wrong := range []struct {
			path  []any
			reset func()
		}{
			{at("spec", "platform"), func() { spec.Platform = "" }},
			{at("spec", "status", "branch"), func() { spec.Status.Branch = "" }},
			{at("spec", "interval"), func() { spec.Interval = 0 }},
		} {
			if c.reported(wrong.path) {
				wrong.reset()
			}
		}
		if spec.Kubernetes != nil && c.reported(at("spec", "kubernetes", "emulation")) {
			spec.Kubernetes.Emulation = EmulationNever // the careful choice
		}
		spec.Drift = DriftReport
		if c.trustInDoubt() {
			spec.Trust = &FleetTrust{Doubt: true}
		}
		spec.SourcesDoubt = c.sourcesInDoubt()
		if c.policyInDoubt() {
			spec.Policy.Doubt = fmt.Sprintf("the Fleet at %s has mistakes", fleet.Position.Short())
		}
	}
	if d.file.Fleet != nil {
		d.report(h.kindNode, d.prefix+"kind", SeverityError, fmt.Sprintf("a second Fleet; the first is at %s", d.file.Fleet.Position), "keep one")
		d.file.Fleet = d.file.Fleet.doubtful(twoFleets)
		return
	}
	fleet.setDefaults()
	d.file.Fleet = fleet
}

// kubernetes checks what machines may have in a cluster.
func (c *checker) kubernetes(settings *FleetKubernetes) {
	if settings == nil {
		return
	}
	for i, account := range settings.ServiceAccounts {
		namespace, name, two := strings.Cut(account, "/")
		if !two || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			c.fail(at("spec", "kubernetes", "serviceAccounts", i), quoteValue(account)+" names no ServiceAccount", "use NAMESPACE/NAME, such as team-a/registry")
		}
	}
	switch settings.Emulation {
	case "", EmulationInstalled, EmulationNever:
	default:
		c.failOneOf(at("spec", "kubernetes", "emulation"), string(settings.Emulation), string(EmulationInstalled), string(EmulationNever))
	}
}

// branchProblem says why s cannot be the name of a branch (git check-ref-format); "" when it can, or is empty.
func branchProblem(s string) string {
	bad := strings.ContainsAny(s, " ~^:?*[\\\x7f") || strings.Contains(s, "..") || strings.Contains(s, "@{") || strings.Contains(s, "//") ||
		strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/") || strings.HasPrefix(s, "-") || strings.HasSuffix(s, ".") || s == "@"
	for part := range strings.SplitSeq(s, "/") {
		bad = bad || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock")
	}
	for _, r := range s {
		bad = bad || r < 0x20
	}
	if bad {
		return quoteValue(s) + " cannot be the name of a git branch"
	}
	return ""
}
