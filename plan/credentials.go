package plan

import "strings"

// credentialsArrive corrects the consequence of changed access credentials: while all of a machine go through the guest
// agent, the running guest gets them without interruption. What goes through cloud-init is read when a guest boots.
func credentialsArrive(changes []Change, before, after map[string]any) {
	const list = "spec.template.spec.accessCredentials"
	if !throughAgent(before) || !throughAgent(after) {
		return
	}
	for i, change := range changes {
		if within(change.Path, list) || strings.HasPrefix(change.Path, "secrets[accessCredentials/") {
			changes[i].Consequence = ConsequenceLive
		}
	}
}

// throughAgent reports whether no access credential of a machine goes another way than through the guest agent.
func throughAgent(machine map[string]any) bool {
	credentials, _ := field(machine, "spec", "template", "spec", "accessCredentials").([]any)
	for _, credential := range credentials {
		for _, kind := range []string{"sshPublicKey", "userPassword"} {
			if field(credential, kind) != nil && field(credential, kind, "propagationMethod", "qemuGuestAgent") == nil {
				return false
			}
		}
	}
	return true
}

// field walks down generic JSON; nil when something on the way is not there.
func field(value any, path ...string) any {
	for _, name := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[name]
	}
	return value
}
