package install

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The ClusterRoles. Those that end in -vms are bound in the namespaces of VMs only, unless VMs may be everywhere.
const (
	controllerVMs = "gitvirt-controller-vms"
	agentVMs      = "gitvirt-agent-vms"
	user          = "gitvirt-user"
)

func rule(group, resources, verbs string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: fields(resources), Verbs: fields(verbs), ResourceNames: names}
}

// clusterRoles are the rights that are not of one namespace, and those that are bound in several.
func clusterRoles() []rbacv1.ClusterRole {
	const certificates = "certificates.k8s.io"
	return []rbacv1.ClusterRole{
		{ObjectMeta: meta(controller, ""), Rules: []rbacv1.PolicyRule{
			// It signs for agents and for people, and for nobody else's signers.
			rule(certificates, "certificatesigningrequests", "get list watch"),
			rule(certificates, "certificatesigningrequests/approval certificatesigningrequests/status", "update"),
			rule(certificates, "signers", "approve sign", "gitvirt.io/agent", "gitvirt.io/client"),
			// Whether a node is gone decides what becomes of its VMs.
			rule("", "nodes", "get list watch"),
		}},
		{ObjectMeta: meta(controllerVMs, ""), Rules: []rbacv1.PolicyRule{
			rule("", "pods", "get list watch create patch delete"),
			rule("", "pods/resize", "patch"),
			rule("", "pods/log", "get"), // why a launcher failed, and consoles
			// Written blindly: nothing of gitvirt reads a Secret through the API. The admission policy of this name keeps to its own ones.
			rule("", "secrets", "create patch delete"),
			rule("", "services", "get list watch create patch delete"),
			// A claim holds data: it is made and grown, never deleted.
			rule("", "persistentvolumeclaims", "get list watch create patch"),
			rule("", "events", "create patch"),
		}},
		{ObjectMeta: meta(agent, ""), Rules: []rbacv1.PolicyRule{
			// RBAC knows no nodes: the agent asks for those of its own only.
			rule("", "pods", "get list watch"),
			// Labels and annotations of its own; the admission policy of this name refuses other nodes.
			rule("", "nodes", "get patch"),
			rule(certificates, "certificatesigningrequests", "create get watch"),
			// Whether somebody may have a console is for the API server to say.
			rule("authorization.k8s.io", "subjectaccessreviews", "create"),
		}},
		{ObjectMeta: meta(agentVMs, ""), Rules: []rbacv1.PolicyRule{
			rule("", "pods/status", "patch"),
			rule("coordination.k8s.io", "leases", "get create update delete"),
			rule("", "events", "create patch"),
		}},
		{ObjectMeta: meta(user, ""), Rules: []rbacv1.PolicyRule{
			rule(certificates, "certificatesigningrequests", "create get watch"),
		}},
	}
}

// roles are the rights in gitvirt's own namespace.
func roles(o *Options) []rbacv1.Role {
	return []rbacv1.Role{
		{ObjectMeta: meta(controller, o.Namespace), Rules: []rbacv1.PolicyRule{
			// What is made has no name yet for RBAC.
			rule("", "secrets configmaps", "create"),
			rule("", "secrets", "get", authority),
			rule("", "configmaps", "get patch", authority),
			rule("coordination.k8s.io", "leases", "create"),
			rule("coordination.k8s.io", "leases", "get update", controller),
			rule("", "events", "create patch"),
		}},
		// Agents are in the cluster's network: who may call them, and is not, comes through the API server. Bind it to whom it is for.
		{ObjectMeta: meta(user, o.Namespace), Rules: []rbacv1.PolicyRule{rule("", "pods", "list"), rule("", "pods/portforward", "create")}},
		// The authority's certificate is public, as the API server's own is, and so is what was installed: plans depend on it.
		{ObjectMeta: meta(public, o.Namespace), Rules: []rbacv1.PolicyRule{rule("", "configmaps", "get", authority, settings)}},
	}
}

func account(o *Options, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: o.Namespace}
}

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

func clusterRoleBinding(o *Options, role, subject string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta(role, ""), RoleRef: roleRef("ClusterRole", role), Subjects: []rbacv1.Subject{account(o, subject)},
	}
}

func roleBinding(o *Options, namespace, kind, role, subject string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: meta(role, namespace), RoleRef: roleRef(kind, role), Subjects: []rbacv1.Subject{account(o, subject)},
	}
}

// rights are accounts, roles, and the bindings that every installation has.
func rights(o *Options) []any {
	no := false
	out := []any{
		&corev1.ServiceAccount{ObjectMeta: meta(controller, o.Namespace), AutomountServiceAccountToken: &no},
		&corev1.ServiceAccount{ObjectMeta: meta(agent, o.Namespace), AutomountServiceAccountToken: &no},
	}
	for _, role := range clusterRoles() {
		out = append(out, &role)
	}
	for _, role := range roles(o) {
		out = append(out, &role)
	}
	everybody := roleBinding(o, o.Namespace, "Role", public, "")
	everybody.Subjects = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}}
	return append(out,
		clusterRoleBinding(o, controller, controller), clusterRoleBinding(o, agent, agent),
		roleBinding(o, o.Namespace, "Role", controller, controller), everybody,
	)
}

// namespaceRights let VMs be in a namespace.
func namespaceRights(o *Options, namespace string) []any {
	return []any{
		roleBinding(o, namespace, "ClusterRole", controllerVMs, controller),
		roleBinding(o, namespace, "ClusterRole", agentVMs, agent),
	}
}

// clusterWideRights let VMs be in every namespace.
func clusterWideRights(o *Options) []any {
	return []any{clusterRoleBinding(o, controllerVMs, controller), clusterRoleBinding(o, agentVMs, agent)}
}
