package schemas

import (
	"cmp"
	"fmt"
	"strings"
)

// The kinds of objects that become a domain.
const (
	KindVirtualMachine         = "VirtualMachine"
	KindVirtualMachineInstance = "VirtualMachineInstance"
)

// DefaultNamespace is where an object lives that names no namespace.
const DefaultNamespace = "default"

// Address names one object of the fleet: KIND/NAMESPACE/NAME.
type Address struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns "KIND/NAMESPACE/NAME".
func (a Address) String() string {
	return a.Kind + "/" + a.Namespace + "/" + a.Name
}

// IsZero reports whether the address names nothing.
func (a Address) IsZero() bool { return a == Address{} }

// MarshalText makes an Address a plain string in JSON and YAML.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (a *Address) UnmarshalText(text []byte) error {
	parsed, err := ParseAddress(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}

// Compare orders addresses by namespace, name and kind.
func (a Address) Compare(b Address) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
		strings.Compare(a.Kind, b.Kind),
	)
}

// ParseAddress reads KIND/NAMESPACE/NAME.
func ParseAddress(s string) (Address, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return Address{}, fmt.Errorf("address %q: want KIND/NAMESPACE/NAME, such as VirtualMachine/default/web-1", s)
	}
	return Address{Kind: parts[0], Namespace: parts[1], Name: parts[2]}, nil
}
