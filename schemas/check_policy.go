package schemas

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gitvirt/gitvirt/schemas/rules"
	"github.com/gitvirt/gitvirt/schemas/windows"
)

// The bounds of policies: what a plan has to look at for every step.
const (
	maxPolicyItems = 100
	// maxWindow is the longest duration of a window; a longer one is a mistake for a window of the opposite action.
	maxWindow = 31 * 24 * time.Hour
)

// policy checks a Fleet's spec.policy.
func (c *checker) policy(p *Policy) {
	in := func(parts ...any) []any { return append(at("spec", "policy"), parts...) }
	for _, gate := range p.Apply.each() {
		oneOf(c, func() []any { return in("apply", gate.name) }, *gate.value, GateAutomatic, GateWindow, GateApproval, GateNever)
	}
	c.policyItems(in("windows"), len(p.Windows), func(i int) string { return p.Windows[i].Name })
	for i := range p.Windows {
		c.window(in("windows", i), &p.Windows[i])
	}
	c.policyItems(in("powerSchedules"), len(p.PowerSchedules), func(i int) string { return p.PowerSchedules[i].Name })
	for i := range p.PowerSchedules {
		c.powerSchedule(in("powerSchedules", i), &p.PowerSchedules[i])
	}
	c.policyItems(in("budgets"), len(p.Budgets), func(i int) string { return p.Budgets[i].Name })
	for i := range p.Budgets {
		c.budgetOf(in("budgets", i), &p.Budgets[i])
	}
	c.policyItems(in("rules"), len(p.Rules), func(i int) string { return p.Rules[i].Name })
	for i := range p.Rules {
		c.rule(in("rules", i), &p.Rules[i])
	}
	if grace := time.Duration(p.RemovalGrace); grace < 0 {
		c.fail(in("removalGrace"), fmt.Sprintf("%s is negative", grace), "write how long removed machines are kept, such as 168h")
	}
	c.rollout(in("rollout"), &p.Rollout)
}

// policyItems wants a name for each item of a list, because that is what people are told about.
func (c *checker) policyItems(list []any, n int, name func(i int) string) {
	if n > maxPolicyItems {
		c.fail(list, fmt.Sprintf("%d entries, at most %d are allowed", n, maxPolicyItems), "remove some")
		return
	}
	seen := make(map[string]bool, n)
	for i := range n {
		path := slices.Concat(list, at(i, "name"))
		switch this := name(i); {
		case this == "":
			c.fail(path, "no name", "write one, such as name: nights")
		case seen[this]:
			c.fail(path, quoteValue(this)+" is the name of another one already", "rename one")
		case nameProblem(this, 63, false) != "":
			c.fail(path, nameProblem(this, 63, false), "use lower case letters, digits and dashes, such as sunday-night")
		default:
			seen[this] = true
		}
	}
}

func (c *checker) window(path []any, w *Window) {
	field := func(name string) []any { return append(path[:len(path):len(path)], name) }
	c.policySelector(field("selector"), &w.Selector)
	c.schedule(field("schedule"), w.Schedule, w.TimeZone)
	c.zone(field("timeZone"), w.TimeZone)
	oneOf(c, func() []any { return field("action") }, w.Action, WindowAllow, WindowDeny)
	switch d := time.Duration(w.Duration); {
	case !c.wasGiven(field("duration")):
		c.fail(field("duration"), "no duration", "write how long the window stays open, such as 2h")
	case d <= 0:
		c.fail(field("duration"), fmt.Sprintf("a window of %s is never open", d), "write how long it stays open, such as 2h")
	case d > maxWindow:
		c.fail(field("duration"), fmt.Sprintf("%s is longer than a month", d), "write at most 744h")
	}
}

func (c *checker) powerSchedule(path []any, s *PowerSchedule) {
	field := func(name string) []any { return append(path[:len(path):len(path)], name) }
	c.policySelector(field("selector"), &s.Selector)
	c.schedule(field("start"), s.Start, s.TimeZone)
	c.schedule(field("stop"), s.Stop, s.TimeZone)
	c.zone(field("timeZone"), s.TimeZone)
	if s.Start != "" && s.Start == s.Stop {
		c.fail(field("stop"), "the machines are started and stopped at the same time", "write when they are to stop")
	}
}

// schedule checks a cron expression; what is wrong with its zone is told elsewhere.
func (c *checker) schedule(path []any, expression, zone string) {
	if expression == "" {
		c.fail(path, "no schedule", `write one as cron has it, such as "0 2 * * 6" (Saturdays at 02:00)`)
		return
	}
	if _, err := windows.LoadZone(zone); err != nil {
		zone = ""
	}
	if _, err := windows.ParseSchedule(expression, zone); err != nil {
		fix := `write it as cron has it, such as "0 2 * * 6" (Saturdays at 02:00)`
		if strings.Contains(expression, "TZ=") {
			fix = "write the zone as timeZone"
		}
		c.fail(path, fmt.Sprintf("%s is no schedule: %s", quoteValue(expression), printable(err.Error())), fix)
	}
}

func (c *checker) zone(path []any, zone string) {
	if _, err := windows.LoadZone(zone); err != nil {
		c.fail(path, printable(err.Error()), "write one such as Europe/Berlin")
	}
}

func (c *checker) policySelector(path []any, s *Selector) {
	for i, namespace := range s.Namespaces {
		if problem := nameProblem(namespace, 63, false); problem != "" {
			c.fail(append(path[:len(path):len(path)], "namespaces", i), problem, "write the name of a namespace")
		}
	}
	if _, err := metav1.LabelSelectorAsSelector(&s.LabelSelector); err != nil {
		c.fail(path, "the selector cannot be used: "+printable(err.Error()), "write matchLabels with labels of machines")
	}
}

func (c *checker) budgetOf(path []any, b *Budget) {
	field := func(name string) []any { return append(path[:len(path):len(path)], name) }
	c.policySelector(field("selector"), &b.Selector)
	given := false
	for _, bound := range []struct {
		name  string
		value *intstr.IntOrString
	}{
		{"destroyPerRevision", b.DestroyPerRevision},
		{"restartPerRevision", b.RestartPerRevision},
		{"restartPerHost", b.RestartPerHost},
	} {
		given = given || c.wasGiven(field(bound.name))
		if bound.value != nil {
			c.amount(field(bound.name), *bound.value)
		}
	}
	if !given && !c.misread(path) {
		c.fail(path, "the budget bounds nothing", "write destroyPerRevision, restartPerRevision or restartPerHost")
	}
	if b.RestartPerHost != nil && (*b.RestartPerHost == intstr.FromInt32(0) || *b.RestartPerHost == intstr.FromString("0%")) {
		c.fail(field("restartPerHost"), "with 0 nothing is ever restarted", "write 1 or more, or apply: {restart: never}")
	}
}

// amount checks a number or a percentage.
func (c *checker) amount(path []any, value intstr.IntOrString) {
	if value.Type == intstr.Int {
		if value.IntVal < 0 {
			c.fail(path, fmt.Sprintf("%d is negative", value.IntVal), "write a number from 0 on, or a percentage such as 10%")
		}
		return
	}
	digits, percent := strings.CutSuffix(value.StrVal, "%")
	n, err := strconv.Atoi(digits)
	switch {
	case !percent || err != nil || strings.Trim(digits, "0123456789") != "":
		c.fail(path, quoteValue(value.StrVal)+" is neither a number nor a percentage", "write 3 or 10%")
	case n > 100:
		c.fail(path, quoteValue(value.StrVal)+" is more than all", "write at most 100%")
	}
}

func (c *checker) rule(path []any, r *Rule) {
	field := func(name string) []any { return append(path[:len(path):len(path)], name) }
	oneOf(c, func() []any { return field("action") }, r.Action, RuleBlock, RuleApproval, RuleWarn)
	if r.Message == "" {
		c.fail(field("message"), "no message", "write what is wrong when the rule is not true, for whoever reads the plan")
	}
	if r.Expression == "" {
		c.fail(field("expression"), "no expression", "write what must be true, such as step.consequence != 'destroy'")
		return
	}
	if c.misread(field("expression")) {
		return
	}
	if _, problem := rules.Compile(r.Expression); problem != nil {
		c.fail(field("expression"), oneLine(problem.Error()), "object, before and step are what it can speak of: see gitvirt explain fleet.spec.policy.rules.expression")
	}
}

// oneLine returns a message of CEL's on one line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (c *checker) rollout(path []any, r *Rollout) {
	field := func(name string) []any { return append(path[:len(path):len(path)], name) }
	if r.Parallel < 0 {
		c.fail(field("parallel"), fmt.Sprintf("%d is negative", r.Parallel), "write how many steps are carried out at a time")
	}
	if r.Canary != nil {
		c.amount(field("canary"), *r.Canary)
	}
	oneOf(c, func() []any { return field("onFailure") }, r.OnFailure, FailureContinue, FailureStop)
	if timeout := time.Duration(r.ReadyTimeout); timeout < 0 || timeout < time.Second && c.wasGiven(field("readyTimeout")) {
		c.fail(field("readyTimeout"), fmt.Sprintf("%s is shorter than a second", timeout), "write how long a guest may take to become ready, such as 5m")
	}
}

// policyInDoubt reports whether a mistake was told that may be one of the policy: of anything but the other known fields.
func (c *checker) policyInDoubt() bool { return c.inDoubt("spec.trust", "spec.sources") }

// inDoubt reports whether a mistake was told of anything but the known fields of a Fleet, to which others are added.
func (c *checker) inDoubt(others ...string) bool {
	for this := range c.told {
		path := strings.TrimPrefix(this.path, c.prefix)
		known := false
		for _, other := range append(others, "metadata", "kind", "spec.platform", "spec.drift", "spec.status", "spec.interval", "spec.permittedHostDevices", "spec.notifications") {
			known = known || isWithin(path, other)
		}
		if !known {
			return true
		}
	}
	return len(c.told) == 0 // there are too many to remember
}
