package schemas

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const (
	required  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferred = "preferredDuringSchedulingIgnoredDuringExecution"
)

// checkAffinity checks affinity as the API server of Kubernetes does for a Pod.
func (c *checker) checkAffinity(affinity *corev1.Affinity) {
	if node := affinity.NodeAffinity; node != nil {
		in := func(parts ...any) []any { return c.in(append(at("affinity", "nodeAffinity"), parts...)...) }
		if selector := node.RequiredDuringSchedulingIgnoredDuringExecution; selector != nil {
			if len(selector.NodeSelectorTerms) == 0 {
				c.fail(in(required, "nodeSelectorTerms"), "no terms", "add one, or remove it")
			}
			for i := range selector.NodeSelectorTerms {
				c.checkNodeTerm(&selector.NodeSelectorTerms[i], func(parts ...any) []any { return in(slices.Concat(at(required, "nodeSelectorTerms", i), parts)...) })
			}
		}
		for i := range node.PreferredDuringSchedulingIgnoredDuringExecution {
			term := &node.PreferredDuringSchedulingIgnoredDuringExecution[i]
			c.checkWeight(term.Weight, func() []any { return in(preferred, i, "weight") })
			c.checkNodeTerm(&term.Preference, func(parts ...any) []any { return in(slices.Concat(at(preferred, i, "preference"), parts)...) })
		}
	}
	if pod := affinity.PodAffinity; pod != nil {
		c.checkPodAffinity("podAffinity", pod.RequiredDuringSchedulingIgnoredDuringExecution, pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if pod := affinity.PodAntiAffinity; pod != nil {
		c.checkPodAffinity("podAntiAffinity", pod.RequiredDuringSchedulingIgnoredDuringExecution, pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (c *checker) checkWeight(weight int32, path func() []any) {
	if weight < 1 || weight > 100 {
		c.fail(path(), fmt.Sprintf("%d is not between 1 and 100", weight), "use a number from 1 to 100")
	}
}

func (c *checker) checkNodeTerm(term *corev1.NodeSelectorTerm, in func(...any) []any) {
	for i, expression := range term.MatchExpressions {
		if problem := labelKeyProblem(expression.Key); problem != "" {
			c.fail(in("matchExpressions", i, "key"), problem, "write it as kubernetes.io/hostname")
		}
		c.checkOperator(string(expression.Operator), len(expression.Values), func(field string) []any { return in("matchExpressions", i, field) }, "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
	}
	for i, field := range term.MatchFields {
		if field.Key != "metadata.name" {
			c.fail(in("matchFields", i, "key"), quoteValue(field.Key)+" is not a field of nodes that can be compared", "use metadata.name")
		}
		if field.Operator != corev1.NodeSelectorOpIn && field.Operator != corev1.NodeSelectorOpNotIn {
			c.fail(in("matchFields", i, "operator"), quoteValue(string(field.Operator))+" does not compare a field of nodes", "use In or NotIn")
		}
		if len(field.Values) != 1 {
			c.fail(in("matchFields", i, "values"), fmt.Sprintf("%d values", len(field.Values)), "list exactly one")
		}
	}
}

func (c *checker) checkPodAffinity(kind string, terms []corev1.PodAffinityTerm, weighted []corev1.WeightedPodAffinityTerm) {
	in := func(parts ...any) []any { return c.in(append(at("affinity", kind), parts...)...) }
	for i := range terms {
		c.checkPodTerm(&terms[i], func(parts ...any) []any { return in(slices.Concat(at(required, i), parts)...) })
	}
	for i := range weighted {
		c.checkWeight(weighted[i].Weight, func() []any { return in(preferred, i, "weight") })
		c.checkPodTerm(&weighted[i].PodAffinityTerm, func(parts ...any) []any { return in(slices.Concat(at(preferred, i, "podAffinityTerm"), parts)...) })
	}
}

func (c *checker) checkPodTerm(term *corev1.PodAffinityTerm, in func(...any) []any) {
	if term.TopologyKey == "" {
		c.fail(in("topologyKey"), "no topologyKey", "name a label of the nodes, such as kubernetes.io/hostname")
	} else if problem := labelKeyProblem(term.TopologyKey); problem != "" {
		c.fail(in("topologyKey"), problem, "write it as kubernetes.io/hostname")
	}
	for i, namespace := range term.Namespaces {
		if problem := nameProblem(namespace, 63, false); problem != "" {
			c.fail(in("namespaces", i), problem, "write the name of a namespace")
		}
	}
	c.checkLabelSelector(term.LabelSelector, func(parts ...any) []any { return in(slices.Concat(at("labelSelector"), parts)...) })
	c.checkLabelSelector(term.NamespaceSelector, func(parts ...any) []any { return in(slices.Concat(at("namespaceSelector"), parts)...) })
}

// labelKeyProblem says why s is not the key of a label or an annotation; "" when it is.
func labelKeyProblem(s string) string {
	name := s
	for i := range len(s) {
		if s[i] == '/' {
			if problem := nameProblem(s[:i], 253, true); problem != "" {
				return problem
			}
			name = s[i+1:]
			break
		}
	}
	if name == "" {
		return "the name of a label is empty"
	}
	return labelValueProblem(name)
}

// labelValueProblem says why s is not the value of a label; "" when it is.
func labelValueProblem(s string) string {
	if len(s) > 63 {
		return fmt.Sprintf("%d characters long, at most 63 are allowed in labels", len(s))
	}
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || i == len(s)-1 || c != '-' && c != '_' && c != '.') {
			return quoteValue(s) + " is not made of letters and digits with -, _ or . between them"
		}
	}
	return ""
}
