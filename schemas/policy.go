package schemas

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Gate is what a consequence needs before it is carried out.
type Gate string

// The gates.
const (
	GateAutomatic Gate = "automatic" // nothing
	GateWindow    Gate = "window"    // an open maintenance window, or an approval
	GateApproval  Gate = "approval"  // somebody's gitvirt approve
	GateNever     Gate = "never"     // it is only shown
)

// Policy is what a team allows to happen by itself (Fleet spec.policy).
type Policy struct {
	// Apply says per consequence what it needs. Create, live, next-boot and power default to automatic; restart and migrate to
	// window; replace, destroy and data to approval.
	Apply Gates `json:"apply,omitempty,omitzero"`
	// Windows are when steps with GateWindow may be carried out, and when no step may.
	Windows []Window `json:"windows,omitempty"`
	// PowerSchedules switch machines on and off.
	PowerSchedules []PowerSchedule `json:"powerSchedules,omitempty"`
	// Budgets bound how many machines are interrupted or removed.
	Budgets []Budget `json:"budgets,omitempty"`
	// RemovalGrace is how long the domain of a removed machine is kept, shut down, before it is destroyed; 0 for not at all.
	RemovalGrace Duration `json:"removalGrace,omitempty,omitzero"`
	// Rules are a team's own.
	Rules []Rule `json:"rules,omitempty"`
	// Rollout is the pace.
	Rollout Rollout `json:"rollout,omitempty,omitzero"`
	// Doubt says why the policy is not, or may not be, what the team means: then nothing is carried out by itself. Empty
	// when it could be read.
	Doubt string `json:"-"`
}

// Gates has the gate of each consequence.
type Gates struct {
	Create   Gate `json:"create,omitempty"`
	Live     Gate `json:"live,omitempty"`
	NextBoot Gate `json:"next-boot,omitempty"`
	Power    Gate `json:"power,omitempty"`
	Migrate  Gate `json:"migrate,omitempty"`
	Restart  Gate `json:"restart,omitempty"`
	Replace  Gate `json:"replace,omitempty"`
	Destroy  Gate `json:"destroy,omitempty"`
	Data     Gate `json:"data,omitempty"`
}

// WindowAction is what a window does.
type WindowAction string

// The actions of a window. What is denied is denied, whatever allows it.
const (
	WindowAllow WindowAction = "allow"
	WindowDeny  WindowAction = "deny"
)

// Selector selects machines: those of the namespaces that have the labels. The zero value selects all.
type Selector struct {
	Namespaces           []string `json:"namespaces,omitempty"`
	metav1.LabelSelector `json:",inline"`
}

// Window is a recurring span of time.
type Window struct {
	Name     string   `json:"name"`
	Selector Selector `json:"selector,omitempty,omitzero"`
	// Schedule is when it opens, as cron says it: "0 2 * * 6".
	Schedule string `json:"schedule"`
	// Duration is how long it stays open.
	Duration Duration `json:"duration"`
	// TimeZone is an IANA name; UTC by default.
	TimeZone string `json:"timeZone,omitempty"`
	// Action defaults to allow.
	Action WindowAction `json:"action,omitempty"`
}

// PowerSchedule switches machines on and off. Outside of what it says their run strategy holds.
type PowerSchedule struct {
	Name     string   `json:"name"`
	Selector Selector `json:"selector,omitempty,omitzero"`
	// Start and Stop are cron expressions; the machine is on from Start to Stop and off from Stop to Start.
	Start    string `json:"start"`
	Stop     string `json:"stop"`
	TimeZone string `json:"timeZone,omitempty"`
}

// Budget bounds a kind of step among the machines of a selector. Values are numbers, or percentages of these machines,
// rounded up.
type Budget struct {
	Name     string   `json:"name"`
	Selector Selector `json:"selector,omitempty,omitzero"`
	// DestroyPerRevision and RestartPerRevision bound one revision; more needs an approval.
	DestroyPerRevision *intstr.IntOrString `json:"destroyPerRevision,omitempty"`
	RestartPerRevision *intstr.IntOrString `json:"restartPerRevision,omitempty"`
	// RestartPerHost bounds how many machines of one host are interrupted at a time.
	RestartPerHost *intstr.IntOrString `json:"restartPerHost,omitempty"`
}

// Rule is a CEL expression over object, before and step that must be true.
type Rule struct {
	Name string `json:"name"`
	// Expression is what must be true: "step.consequence != 'restart' || object.metadata.labels.tier != 'prod'".
	Expression string `json:"expression"`
	// Message says what is wrong when it is not.
	Message string `json:"message"`
	// Action is what a violation does; block by default.
	Action RuleAction `json:"action,omitempty"`
}

// RuleAction is what happens to a step for which a rule is not true.
type RuleAction string

// The actions of a rule.
const (
	RuleBlock    RuleAction = "block"    // it is not carried out
	RuleApproval RuleAction = "approval" // it waits for an approval
	RuleWarn     RuleAction = "warn"     // it is told, and carried out
)

// OnFailure is what happens to the rest of a revision's steps when one has failed.
type OnFailure string

// What happens after a failure.
const (
	FailureContinue OnFailure = "continue"
	FailureStop     OnFailure = "stop"
)

// Rollout is the pace of an apply.
type Rollout struct {
	// Parallel is how many steps are carried out at a time; 0 leaves it to the controller.
	Parallel int `json:"parallel,omitempty"`
	// Canary is the part of a revision's steps that has to be ready before the others begin; a number or a percentage.
	Canary *intstr.IntOrString `json:"canary,omitempty"`
	// OnFailure says whether anything new begins after a step has failed; continue by default.
	OnFailure OnFailure `json:"onFailure,omitempty"`
	// ReadyTimeout is how long a guest may take to become ready; 5 minutes by default.
	ReadyTimeout Duration `json:"readyTimeout,omitempty,omitzero"`
}

// DefaultReadyTimeout is how long a guest may take to become ready unless the policy says otherwise.
const DefaultReadyTimeout = 5 * time.Minute

// setDefaults fills in what was not said.
func (p *Policy) setDefaults() {
	for _, gate := range p.Apply.each() {
		if *gate.value == "" {
			*gate.value = gate.fallback
		}
	}
	for i := range p.Windows {
		if p.Windows[i].Action == "" {
			p.Windows[i].Action = WindowAllow
		}
	}
	for i := range p.Rules {
		if p.Rules[i].Action == "" {
			p.Rules[i].Action = RuleBlock
		}
	}
	if p.Rollout.OnFailure == "" {
		p.Rollout.OnFailure = FailureContinue
	}
	if p.Rollout.ReadyTimeout == 0 {
		p.Rollout.ReadyTimeout = Duration(DefaultReadyTimeout)
	}
}

// gateField is one field of Gates.
type gateField struct {
	name     string
	value    *Gate
	fallback Gate
}

// each lists the gates by their names, those of the smallest consequence first.
func (g *Gates) each() []gateField {
	return []gateField{
		{"create", &g.Create, GateAutomatic},
		{"live", &g.Live, GateAutomatic},
		{"next-boot", &g.NextBoot, GateAutomatic},
		{"power", &g.Power, GateAutomatic},
		{"migrate", &g.Migrate, GateWindow},
		{"restart", &g.Restart, GateWindow},
		{"replace", &g.Replace, GateApproval},
		{"destroy", &g.Destroy, GateApproval},
		{"data", &g.Data, GateApproval},
	}
}

// Matches reports whether the selector selects a machine of the namespace and labels. One that cannot be read selects all.
func (s *Selector) Matches(namespace string, machineLabels map[string]string) bool {
	if len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, namespace) {
		return false
	}
	if len(s.MatchExpressions) == 0 { // without making a selector of it, because plans ask for every machine
		for name, value := range s.MatchLabels {
			if had, ok := machineLabels[name]; !ok || had != value {
				return false
			}
		}
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(&s.LabelSelector)
	return err != nil || selector.Matches(labels.Set(machineLabels))
}
