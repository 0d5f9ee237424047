package emulation

import (
	"context"
	"fmt"
)

// Policy says when guests run under software emulation: the value of --emulation.
type Policy string

const (
	// Auto uses KVM when a probe proves it, and software emulation otherwise.
	Auto Policy = "auto"
	// Always uses software emulation and probes nothing.
	Always Policy = "always"
	// Never uses KVM; a KVM that does not work is an error.
	Never Policy = "never"
)

// The domain types of libvirt (https://libvirt.org/formatdomain.html#element-and-attribute-overview).
const (
	DomainKVM  = "kvm"
	DomainQEMU = "qemu"
)

// ParsePolicy reads a policy; the empty string is Auto.
func ParsePolicy(s string) (Policy, error) {
	switch policy := Policy(s); policy {
	case "":
		return Auto, nil
	case Auto, Always, Never:
		return policy, nil
	}
	return "", fmt.Errorf("emulation %q: want %q, %q or %q", s, Auto, Always, Never)
}

// UnusableError says that the policy demands KVM and that KVM does not work here.
type UnusableError struct{ Result Result }

// Error says what is wrong and how to fix it.
func (e *UnusableError) Error() string {
	s := fmt.Sprintf("emulation is %q, but KVM does not work: %s", Never, e.Result.Reason)
	if e.Result.Fix != "" {
		s += "; to fix it, " + e.Result.Fix
	}
	return s + "; or allow software emulation (--emulation auto)"
}

// Decide returns the libvirt domain type that the policy leads to on this host, "kvm" or "qemu", and why. It probes
// KVM with probe unless the policy is Always; the answer holds until the host changes, so callers ask once.
func Decide(ctx context.Context, policy Policy, probe func(context.Context) Result) (domainType, reason string, err error) {
	if policy == Always {
		return DomainQEMU, "software emulation was asked for", nil
	}
	if _, err := ParsePolicy(string(policy)); err != nil {
		return "", "", err
	}
	result := probe(ctx)
	if err := ctx.Err(); err != nil {
		return "", "", fmt.Errorf("probing KVM: %w", err)
	}
	switch {
	case result.KVM:
		return DomainKVM, "KVM works: " + result.Reason, nil
	case policy == Never:
		return "", "", &UnusableError{Result: result}
	}
	return DomainQEMU, "KVM does not work: " + result.Reason, nil
}
