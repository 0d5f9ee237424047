// Package identity says who is who between gitvirt's programs on different machines: an authority of gitvirt's own, the certificates that it
// gives to node agents, to the controller and to people, how each side of a connection looks at the other's, and the signature under the
// steps that travel with Pods. It reads no files and calls nobody; how certificates are asked for on Kubernetes is in identity/kubernetes.
package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The signers of certificates, as CertificateSigningRequests name them.
const (
	// NodeSigner signs the certificates of node agents.
	NodeSigner = "gitvirt.io/agent"
	// ClientSigner signs the certificates by which people show an agent who they are.
	ClientSigner = "gitvirt.io/client"
)

// Role is what the holder of a certificate is.
type Role string

// The roles.
const (
	Node       Role = "node"       // the agent of one node; it serves and never calls
	Controller Role = "controller" // the controller; it may call everything
	User       Role = "user"       // somebody whom the API server knows by name and groups
)

// The common names of certificates say the role first, so that nobody's name can be taken for another role.
const (
	nodePrefix     = "gitvirt:node:"
	userPrefix     = "gitvirt:user:"
	controllerName = "gitvirt:controller"
)

// nodeDomain makes of a node's name one that TLS can verify: it may look like an IP address otherwise. .internal is nobody's (ICANN 2024).
const nodeDomain = ".node.gitvirt.internal"

// ErrRefused is behind every error that says that somebody is not who they have to be.
var ErrRefused = errors.New("refused")

// Peer is who holds a certificate.
type Peer struct {
	Role Role
	// Name is that of the node or of the user; the controller has none.
	Name string
	// Groups are those of the user, sorted.
	Groups []string
}

func (p Peer) String() string {
	if p.Name == "" {
		return string(p.Role)
	}
	return fmt.Sprintf("%s %q", p.Role, p.Name)
}

// PeerOf tells whom a certificate is of. That it comes from the authority has to be known already.
func PeerOf(certificate *x509.Certificate) (Peer, error) {
	name := certificate.Subject.CommonName
	if node, ok := strings.CutPrefix(name, nodePrefix); ok && slices.Equal(certificate.DNSNames, []string{node + nodeDomain}) {
		return Peer{Role: Node, Name: node}, nil
	}
	if user, ok := strings.CutPrefix(name, userPrefix); ok && user != "" {
		return Peer{Role: User, Name: user, Groups: slices.Sorted(slices.Values(certificate.Subject.Organization))}, nil
	}
	if name == controllerName {
		return Peer{Role: Controller}, nil
	}
	return Peer{}, fmt.Errorf("%w: a certificate of %q, which is no name of gitvirt's", ErrRefused, name)
}
