package schemas

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func (c *checker) checkPlacement(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	if spec.Hostname != "" {
		if problem := nameProblem(spec.Hostname, 63, false); problem != "" {
			c.fail(c.in("hostname"), problem, "use lower case letters, digits and dashes")
		}
	}
	if spec.Subdomain != "" {
		if problem := nameProblem(spec.Subdomain, 253, true); problem != "" {
			c.fail(c.in("subdomain"), problem, "use lower case letters, digits, dashes and dots")
		}
	}
	if seconds := spec.TerminationGracePeriodSeconds; seconds != nil {
		if *seconds < 0 {
			c.fail(c.in("terminationGracePeriodSeconds"), fmt.Sprintf("%d is negative", *seconds), "use 0 to switch the machine off at once")
		} else if *seconds > math.MaxInt32 {
			c.fail(c.in("terminationGracePeriodSeconds"), fmt.Sprintf("%d seconds are more than 68 years", *seconds), "use a smaller number")
		}
	}
	if spec.EvictionStrategy != nil {
		oneOf(c, func() []any { return c.in("evictionStrategy") }, *spec.EvictionStrategy, "None", "LiveMigrate", "LiveMigrateIfPossible", "External")
	}
	if start := spec.StartStrategy; start != nil {
		oneOf(c, func() []any { return c.in("startStrategy") }, *start, "Paused")
		if *start == kubevirtv1.StartStrategyPaused && spec.LivenessProbe != nil {
			c.fail(c.in("startStrategy"), "a machine that starts paused cannot have a liveness probe: it would be killed", "remove livenessProbe or startStrategy")
		}
	}
	switch spec.Architecture {
	case archAMD64, archARM64, archS390X:
	case "x86_64":
		c.fail(c.in("architecture"), `"x86_64" is not how KubeVirt says it`, "write amd64")
	case "aarch64":
		c.fail(c.in("architecture"), `"aarch64" is not how KubeVirt says it`, "write arm64")
	default:
		c.failOneOf(c.in("architecture"), spec.Architecture, archAMD64, archARM64, archS390X)
	}
	c.checkDNS(spec)
	c.checkPlacementNames(spec)
	for i := range spec.Tolerations {
		c.checkToleration(&spec.Tolerations[i], i)
	}
	c.checkSpread(spec.TopologySpreadConstraints)
	if spec.Affinity != nil {
		c.checkAffinity(spec.Affinity)
	}
}

// checkPlacementNames checks what names objects and labels of a cluster.
func (c *checker) checkPlacementNames(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	c.checkReference(func() []any { return c.in("priorityClassName") }, "priority class", spec.PriorityClassName)
	c.checkReference(func() []any { return c.in("schedulerName") }, "scheduler", spec.SchedulerName)
	c.checkReference(func() []any { return c.in("serviceAccountName") }, "service account", spec.ServiceAccountName)
	for _, name := range sortedKeys(spec.NodeSelector) {
		value := spec.NodeSelector[name]
		path := func() []any { return c.in("nodeSelector", key(name)) }
		if problem := labelKeyProblem(name); problem != "" {
			c.fail(path(), problem, "write it as kubernetes.io/hostname")
		} else if problem := labelValueProblem(value); problem != "" {
			c.fail(path(), problem, "use up to 63 letters, digits, dashes, dots and underscores")
		}
	}
}

// checkReference checks the name of another object; empty names none.
func (c *checker) checkReference(path func() []any, what, name string) {
	if name == "" {
		return
	}
	if problem := nameProblem(name, 253, true); problem != "" {
		c.fail(path(), problem, "write the name of the "+what)
	}
}

// The bounds of a resolver's configuration, as in Kubernetes.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

func (c *checker) checkDNS(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	oneOf(c, func() []any { return c.in("dnsPolicy") }, spec.DNSPolicy, "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
	config := spec.DNSConfig
	if spec.DNSPolicy == corev1.DNSNone && (config == nil || len(config.Nameservers) == 0) {
		c.fail(c.in("dnsConfig"), "dnsPolicy None without a name server", "add dnsConfig.nameservers")
	}
	if config == nil {
		return
	}
	if len(config.Nameservers) > maxNameservers {
		c.fail(c.in("dnsConfig", "nameservers"), fmt.Sprintf("%d name servers, at most %d are asked", len(config.Nameservers), maxNameservers), "remove some")
	}
	for i, server := range config.Nameservers {
		if _, err := netip.ParseAddr(server); err != nil {
			c.fail(c.in("dnsConfig", "nameservers", i), quoteValue(server)+" is not an IP address", "write it as 192.0.2.53")
		}
	}
	if len(config.Searches) > maxSearches {
		c.fail(c.in("dnsConfig", "searches"), fmt.Sprintf("%d search domains, at most %d are used", len(config.Searches), maxSearches), "remove some")
	}
	chars := len(config.Searches) - 1
	for i, search := range config.Searches {
		chars += len(search)
		if problem := nameProblem(strings.TrimSuffix(search, "."), 253, true); problem != "" && search != "." {
			c.fail(c.in("dnsConfig", "searches", i), problem, "write it as example.com")
		}
	}
	if chars > maxSearchChars {
		c.fail(c.in("dnsConfig", "searches"), fmt.Sprintf("%d characters, at most %d fit", chars, maxSearchChars), "remove some")
	}
	for i, option := range config.Options {
		if option.Name == "" {
			c.fail(c.in("dnsConfig", "options", i, "name"), "no name", "name the option, such as ndots")
		}
	}
}

func (c *checker) checkToleration(toleration *corev1.Toleration, i int) {
	in := func(field string) []any { return c.in("tolerations", i, field) }
	oneOf(c, func() []any { return in("operator") }, toleration.Operator, "Exists", "Equal", "Lt", "Gt")
	oneOf(c, func() []any { return in("effect") }, toleration.Effect, "NoSchedule", "PreferNoSchedule", "NoExecute")
	switch {
	case toleration.Key == "" && toleration.Operator != corev1.TolerationOpExists:
		c.fail(in("operator"), "a toleration without a key tolerates everything", "write operator: Exists, or a key")
	case toleration.Operator == corev1.TolerationOpExists && toleration.Value != "":
		c.fail(in("value"), "Exists looks at no value", "remove it")
	}
	if toleration.Key != "" {
		if problem := labelKeyProblem(toleration.Key); problem != "" {
			c.fail(in("key"), problem, "write it as example.com/name")
		}
	}
	if toleration.TolerationSeconds != nil && toleration.Effect != corev1.TaintEffectNoExecute {
		c.fail(in("tolerationSeconds"), "only NoExecute waits", "write effect: NoExecute")
	}
}

func (c *checker) checkSpread(constraints []corev1.TopologySpreadConstraint) {
	for i := range constraints {
		constraint := &constraints[i]
		in := func(field string) []any { return c.in("topologySpreadConstraints", i, field) }
		if constraint.MaxSkew <= 0 {
			c.fail(in("maxSkew"), fmt.Sprintf("%d is not more than 0", constraint.MaxSkew), "use 1")
		}
		if constraint.TopologyKey == "" {
			c.fail(in("topologyKey"), "no topologyKey", "name a label of the nodes, such as kubernetes.io/hostname")
		} else if problem := labelKeyProblem(constraint.TopologyKey); problem != "" {
			c.fail(in("topologyKey"), problem, "write it as kubernetes.io/hostname")
		}
		if constraint.WhenUnsatisfiable == "" {
			c.fail(in("whenUnsatisfiable"), "nothing given", "write DoNotSchedule or ScheduleAnyway")
		}
		oneOf(c, func() []any { return in("whenUnsatisfiable") }, constraint.WhenUnsatisfiable, "DoNotSchedule", "ScheduleAnyway")
		if least := constraint.MinDomains; least != nil {
			switch {
			case *least <= 0:
				c.fail(in("minDomains"), fmt.Sprintf("%d is not more than 0", *least), "use a number from 1 on, or remove it")
			case constraint.WhenUnsatisfiable != corev1.DoNotSchedule:
				c.fail(in("minDomains"), "only DoNotSchedule counts domains", "write whenUnsatisfiable: DoNotSchedule, or remove it")
			}
		}
		for _, policy := range []struct {
			field string
			value *corev1.NodeInclusionPolicy
		}{{"nodeAffinityPolicy", constraint.NodeAffinityPolicy}, {"nodeTaintsPolicy", constraint.NodeTaintsPolicy}} {
			if policy.value != nil {
				oneOf(c, func() []any { return in(policy.field) }, *policy.value, "Honor", "Ignore")
			}
		}
		for j := range i {
			if constraints[j].TopologyKey == constraint.TopologyKey && constraints[j].WhenUnsatisfiable == constraint.WhenUnsatisfiable && constraint.TopologyKey != "" {
				c.fail(in("topologyKey"), fmt.Sprintf("%s is spread over twice in the same way", quoteValue(constraint.TopologyKey)), "remove one of them")
				break
			}
		}
		c.checkLabelSelector(constraint.LabelSelector, func(parts ...any) []any { return append(in("labelSelector"), parts...) })
	}
}

func (c *checker) checkLabelSelector(selector *metav1.LabelSelector, in func(...any) []any) {
	if selector == nil {
		return
	}
	for i, expression := range selector.MatchExpressions {
		if problem := labelKeyProblem(expression.Key); problem != "" {
			c.fail(in("matchExpressions", i, "key"), problem, "write it as example.com/name")
		}
		c.checkOperator(string(expression.Operator), len(expression.Values), func(field string) []any { return in("matchExpressions", i, field) }, "In", "NotIn", "Exists", "DoesNotExist")
	}
	for _, name := range sortedKeys(selector.MatchLabels) {
		value := selector.MatchLabels[name]
		problem := labelKeyProblem(name)
		if problem == "" {
			problem = labelValueProblem(value)
		}
		if problem != "" {
			c.fail(in("matchLabels", key(name)), problem, "use letters, digits, dashes, dots and underscores")
		}
	}
}

// checkOperator checks that an expression about labels has the values that its operator compares with.
func (c *checker) checkOperator(operator string, values int, in func(string) []any, allowed ...string) {
	if operator == "" {
		c.fail(in("operator"), "no operator", "use "+strings.Join(allowed, ", "))
		return
	}
	oneOf(c, func() []any { return in("operator") }, operator, allowed...)
	switch operator {
	case "In", "NotIn":
		if values == 0 {
			c.fail(in("values"), operator+" without values", "list at least one")
		}
	case "Exists", "DoesNotExist":
		if values > 0 {
			c.fail(in("values"), operator+" looks at no values", "remove them")
		}
	case "Gt", "Lt":
		if values != 1 {
			c.fail(in("values"), operator+" compares with one number", "list exactly one")
		}
	}
}
