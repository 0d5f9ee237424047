package install

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// policies are what RBAC cannot say: whose Pods, whose Secrets, which node. The API server evaluates them itself; they need nothing that runs.
func policies(o *Options) []any {
	var out []any
	for _, policy := range []*admissionv1.ValidatingAdmissionPolicy{guestPods(o), controllersOwn(o), agentsOwnNode(o), usersAgents(o)} {
		out = append(out, policy, &admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: meta(policy.Name, ""),
			Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
		})
	}
	return out
}

// username is how the API server calls a ServiceAccount of gitvirt's.
func username(o *Options, account string) string {
	return "system:serviceaccount:" + o.Namespace + ":" + account
}

// on matches operations on resources of one group.
func on(group, version, resources string, operations ...admissionv1.OperationType) admissionv1.NamedRuleWithOperations {
	return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: operations, Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: fields(resources)},
	}}
}

// variable names a CEL expression.
func variable(name, expression string, args ...any) admissionv1.Variable {
	return admissionv1.Variable{Name: name, Expression: fmt.Sprintf(expression, args...)}
}

func must(expression, message string) admissionv1.Validation {
	forbidden := metav1.StatusReasonForbidden
	return admissionv1.Validation{Expression: expression, Message: message, Reason: &forbidden}
}

func policy(name string, rules []admissionv1.NamedRuleWithOperations, only admissionv1.MatchCondition, variables []admissionv1.Variable, validations ...admissionv1.Validation) *admissionv1.ValidatingAdmissionPolicy {
	fail := admissionv1.Fail
	return &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: meta(name, ""),
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail, MatchConstraints: &admissionv1.MatchResources{ResourceRules: rules},
			MatchConditions: []admissionv1.MatchCondition{only}, Variables: variables, Validations: validations,
		},
	}
}

// entries are variables with the name, the labels and the annotations of an object and of what it was.
func entries() []admissionv1.Variable {
	return []admissionv1.Variable{
		variable("name", "(object == null ? oldObject : object).metadata.name"),
		variable("labels", "object == null ? {} : object.metadata.?labels.orValue({})"),
		variable("oldLabels", "oldObject == null ? {} : oldObject.metadata.?labels.orValue({})"),
		variable("annotations", "object == null ? {} : object.metadata.?annotations.orValue({})"),
		variable("oldAnnotations", "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})"),
	}
}

// unchanged is an expression: of two maps the keys that fit a condition on k have the same values.
func unchanged(name, old, condition string) string {
	return fmt.Sprintf("variables.%[1]s.all(k, !(%[3]s) || (k in variables.%[2]s && variables.%[2]s[k] == variables.%[1]s[k])) && "+
		"variables.%[2]s.all(k, !(%[3]s) || k in variables.%[1]s)", name, old, condition)
}

// marked is an expression: a map has keys of gitvirt's.
const marked = "%s.exists(k, k.startsWith('gitvirt.io/') || (k == 'app.kubernetes.io/managed-by' && %s[k] == 'gitvirt'))"

// guestPods keeps what makes a Pod gitvirt's for the controller: an agent carries out what such a Pod says, and Services find VMs by it. Everybody else may still
// delete the Pod, and change what says nothing of gitvirt's, as the kubelet, the scheduler and the garbage collector do.
func guestPods(o *Options) *admissionv1.ValidatingAdmissionPolicy {
	const own = "k.startsWith('gitvirt.io/') || k == 'app.kubernetes.io/managed-by'"
	variables := append(entries(),
		variable("controller", "request.userInfo.username == '%s'", username(o, controller)),
		variable("agent", "request.userInfo.username == '%s'", username(o, agent)),
	)
	ours := func(object string) string {
		labels, annotations := object+".metadata.?labels.orValue({})", object+".metadata.?annotations.orValue({})"
		return fmt.Sprintf("(%s != null && (%s || %s.exists(k, k.startsWith('gitvirt.io/'))))", object, fmt.Sprintf(marked, labels, labels), annotations)
	}
	return policy("gitvirt-guest-pods",
		[]admissionv1.NamedRuleWithOperations{
			on("", "v1", "pods pods/status pods/resize pods/ephemeralcontainers", admissionv1.Create, admissionv1.Update),
		},
		admissionv1.MatchCondition{Name: "guest-pods", Expression: ours("object") + " || " + ours("oldObject")},
		variables,
		// A plan asks what the API server would say of a Pod; nothing comes of it.
		must("variables.controller || request.operation != 'CREATE' || request.?dryRun.orValue(false)",
			"only gitvirt's controller makes Pods with its labels and annotations (gitvirt.io/*, managed-by gitvirt)"),
		must("variables.controller || request.operation != 'UPDATE' || ("+unchanged("labels", "oldLabels", own)+")",
			"only gitvirt's controller changes labels of gitvirt's on Pods"),
		must("variables.controller || request.operation != 'UPDATE' || ("+
			unchanged("annotations", "oldAnnotations", "k.startsWith('gitvirt.io/') && !(variables.agent && k == 'gitvirt.io/observed')")+")",
			"only gitvirt's controller changes annotations of gitvirt's on Pods; agents change gitvirt.io/observed"),
		must("variables.controller || request.operation != 'UPDATE' || request.?subResource.orValue('') == 'status' || object.spec == oldObject.spec",
			"only gitvirt's controller changes the Pod of a VM; change the VM in git"),
	)
}

// controllersOwn keeps the controller to what is its own among the Pods and Secrets of a namespace of VMs. Who may patch a Secret is shown it in the answer.
func controllersOwn(o *Options) *admissionv1.ValidatingAdmissionPolicy {
	return policy(controller,
		[]admissionv1.NamedRuleWithOperations{
			on("", "v1", "pods pods/resize secrets", admissionv1.Create, admissionv1.Update, admissionv1.Delete),
		},
		admissionv1.MatchCondition{Name: "controller", Expression: fmt.Sprintf("request.userInfo.username == '%s'", username(o, controller))},
		append(entries(),
			variable("authority", "request.resource.resource == 'secrets' && request.namespace == '%s' && variables.name == '%s'", o.Namespace, authority)),
		must("variables.authority || variables.name.startsWith('virt-launcher-')", "gitvirt's controller has to do with Pods and Secrets named virt-launcher-* only"),
		must("variables.authority || ((object == null || variables.labels[?'app.kubernetes.io/managed-by'].orValue('') == 'gitvirt') && "+
			"(oldObject == null || variables.oldLabels[?'app.kubernetes.io/managed-by'].orValue('') == 'gitvirt'))",
			"this is not gitvirt's: it has no label app.kubernetes.io/managed-by=gitvirt"),
	)
}

// agentsOwnNode keeps an agent to its node: to the Pods that run there, to the Node itself, and to the Leases that its guests hold.
func agentsOwnNode(o *Options) *admissionv1.ValidatingAdmissionPolicy {
	const foreign = "!k.split('/')[0].endsWith('gitvirt.io')"
	return policy(agent,
		[]admissionv1.NamedRuleWithOperations{
			on("", "v1", "pods pods/status nodes", admissionv1.Create, admissionv1.Update),
			on("coordination.k8s.io", "v1", "leases", admissionv1.Create, admissionv1.Update, admissionv1.Delete),
		},
		admissionv1.MatchCondition{Name: "agent", Expression: fmt.Sprintf("request.userInfo.username == '%s'", username(o, agent))},
		append(entries(),
			variable("node", "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')"),
			variable("resource", "request.resource.resource"),
			variable("holder", "object == null ? '' : object.?spec.?holderIdentity.orValue('')"),
			variable("oldHolder", "oldObject == null ? '' : oldObject.?spec.?holderIdentity.orValue('')"),
		),
		must("variables.node != ''", "an agent of gitvirt's comes with the token of its Pod, which names its node"),
		must("variables.resource != 'pods' || (request.operation == 'UPDATE' && request.?subResource.orValue('') == 'status' && object.spec.?nodeName.orValue('') == variables.node)",
			"an agent of gitvirt's tells of Pods on its own node only"),
		must("variables.resource != 'pods' || variables.oldLabels[?'app.kubernetes.io/managed-by'].orValue('') == 'gitvirt'",
			"an agent of gitvirt's tells of gitvirt's Pods only"),
		must("variables.resource != 'pods' || (("+unchanged("labels", "oldLabels", "true")+") && ("+unchanged("annotations", "oldAnnotations", "k != 'gitvirt.io/observed'")+"))",
			"an agent of gitvirt's changes no label, and of annotations only gitvirt.io/observed"),
		must("variables.resource != 'nodes' || (request.operation == 'UPDATE' && request.?subResource.orValue('') == '' && variables.name == variables.node)",
			"an agent of gitvirt's changes its own Node only"),
		must("variables.resource != 'nodes' || (object.spec == oldObject.spec && ("+unchanged("labels", "oldLabels", foreign)+") && ("+
			unchanged("annotations", "oldAnnotations", foreign)+"))",
			"an agent of gitvirt's changes labels and annotations of gitvirt.io on its Node, and nothing else"),
		must("variables.resource != 'leases' || variables.name.startsWith('virt-launcher-')", "an agent of gitvirt's has to do with Leases named virt-launcher-* only"),
		must("variables.resource != 'leases' || request.operation == 'DELETE' || variables.holder.startsWith(variables.node + '/')",
			"an agent of gitvirt's takes Leases for its own node only"),
		must("variables.resource != 'leases' || request.operation != 'DELETE' || variables.oldHolder.startsWith(variables.node + '/')",
			"an agent of gitvirt's gives up Leases of its own node only"),
	)
}

// usersAgents keeps who may forward ports in gitvirt's namespace to the agents, which ask for certificates: the controller tells everybody who reaches it of all
// VMs. Who may run programs in the controller's Pod may reach it as well.
func usersAgents(o *Options) *admissionv1.ValidatingAdmissionPolicy {
	return policy(user,
		[]admissionv1.NamedRuleWithOperations{on("", "v1", "pods/portforward", admissionv1.Connect)},
		admissionv1.MatchCondition{Name: "gitvirts-namespace", Expression: fmt.Sprintf("request.namespace == '%s'", o.Namespace)},
		nil,
		must("request.name.startsWith('"+agent+"-') || "+
			"authorizer.group('').resource('pods').subresource('exec').namespace(request.namespace).name(request.name).check('create').allowed()",
			"ports are forwarded to gitvirt's agents only; to others for who may exec in them"),
	)
}
