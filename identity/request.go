package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// nodeNameExtra is where the API server says on which node a Pod runs whose token somebody came with (Kubernetes, ServiceAccountTokenPodNodeInfo).
const nodeNameExtra = "authentication.kubernetes.io/node-name"

// AgentAccount is the ServiceAccount of the node agents.
const AgentAccount = "gitvirt-agent"

// Key is a private key without its certificate. It never leaves the process that made it.
type Key struct{ private *ecdsa.PrivateKey }

// NewKey makes one.
func NewKey() (*Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return &Key{private}, nil
}

// Public is the key's public half.
func (k *Key) Public() crypto.PublicKey { return k.private.Public() }

// Request is what the holder of the key asks a certificate with, in PEM.
func (k *Key) Request(peer Peer) ([]byte, error) {
	template := &x509.CertificateRequest{}
	switch peer.Role {
	case Node:
		template.Subject.CommonName, template.DNSNames = nodePrefix+peer.Name, []string{peer.Name + nodeDomain}
	case User:
		template.Subject = pkix.Name{CommonName: userPrefix + peer.Name, Organization: peer.Groups}
	default:
		return nil, fmt.Errorf("nobody asks for a certificate of the %s", peer)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, k.private)
	if err != nil {
		return nil, fmt.Errorf("asking for a certificate of the %s: %w", peer, err)
	}
	return encode(pemRequest, der), nil
}

// Certificate joins the key with what was signed for it.
func (k *Key) Certificate(chain []byte) (*tls.Certificate, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		return nil, fmt.Errorf("writing a key: %w", err)
	}
	pair, err := tls.X509KeyPair(chain, encode(pemPrivateKey, der))
	if err != nil {
		return nil, fmt.Errorf("the certificate that was signed for a key: %w", err)
	}
	return &pair, nil
}

// Usages are what a request of a role asks for.
func Usages(role Role) []certificatesv1.KeyUsage {
	if role == Node {
		return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	}
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
}

// Check decides about a request: what may be signed, or an error with ErrRefused that says why nothing may. It believes only what the API
// server says of who asks. Namespace is gitvirt's own.
func Check(request *certificatesv1.CertificateSigningRequest, namespace string) (Grant, error) {
	switch request.Spec.SignerName {
	case NodeSigner:
		return checkNode(&request.Spec, namespace)
	case ClientSigner:
		return checkUser(&request.Spec)
	}
	return Grant{}, fmt.Errorf("%w: %q is no signer of gitvirt's", ErrRefused, request.Spec.SignerName)
}

// checkNode lets the agent of a node have that node's certificate, and nobody any other.
func checkNode(spec *certificatesv1.CertificateSigningRequestSpec, namespace string) (Grant, error) {
	if want := "system:serviceaccount:" + namespace + ":" + AgentAccount; spec.Username != want {
		return Grant{}, fmt.Errorf("%w: %q asks, only %q may", ErrRefused, spec.Username, want)
	}
	nodes := spec.Extra[nodeNameExtra]
	if len(nodes) != 1 {
		return Grant{}, fmt.Errorf("%w: the requester's token is bound to %d nodes, want one; agents ask with the token of their Pod", ErrRefused, len(nodes))
	}
	if problems := validation.IsDNS1123Subdomain(nodes[0]); len(problems) > 0 {
		return Grant{}, fmt.Errorf("%w: the node %q: %s", ErrRefused, nodes[0], strings.Join(problems, "; "))
	}
	return check(spec, Peer{Role: Node, Name: nodes[0]}, nodeLife)
}

// checkUser lets people have a certificate of what the API server knows about them: it gives no rights, it only says who calls.
func checkUser(spec *certificatesv1.CertificateSigningRequestSpec) (Grant, error) {
	if spec.Username == "" {
		return Grant{}, fmt.Errorf("%w: nobody asks", ErrRefused)
	}
	return check(spec, Peer{Role: User, Name: spec.Username, Groups: slices.Sorted(slices.Values(spec.Groups))}, clientLife)
}

// check holds a request against the only one that this peer may make.
func check(spec *certificatesv1.CertificateSigningRequestSpec, peer Peer, life time.Duration) (Grant, error) {
	if want := Usages(peer.Role); !slices.Equal(slices.Sorted(slices.Values(spec.Usages)), slices.Sorted(slices.Values(want))) {
		return Grant{}, fmt.Errorf("%w: usages %q, want %q", ErrRefused, spec.Usages, want)
	}
	block, rest := pem.Decode(spec.Request)
	if block == nil || block.Type != pemRequest || len(rest) > 0 {
		return Grant{}, fmt.Errorf("%w: want one PEM block %s", ErrRefused, pemRequest)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return Grant{}, fmt.Errorf("%w: reading the request: %w", ErrRefused, err)
	}
	if err := request.CheckSignature(); err != nil {
		return Grant{}, fmt.Errorf("%w: who asks does not have the key: %w", ErrRefused, err)
	}
	if err := checkKey(request.PublicKey); err != nil {
		return Grant{}, err
	}
	if err := checkNames(request, peer); err != nil {
		return Grant{}, err
	}
	if spec.ExpirationSeconds != nil {
		life = min(life, time.Duration(*spec.ExpirationSeconds)*time.Second)
	}
	return Grant{Peer: peer, key: request.PublicKey, life: life}, nil
}

func checkKey(key crypto.PublicKey) error {
	switch key := key.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			return nil
		}
	}
	return fmt.Errorf("%w: want a key of Ed25519 or of ECDSA with P-256", ErrRefused)
}

// checkNames wants the names of the peer in a request, and no others.
func checkNames(request *x509.CertificateRequest, peer Peer) error {
	common, dns := userPrefix+peer.Name, []string(nil)
	if peer.Role == Node {
		common, dns = nodePrefix+peer.Name, []string{peer.Name + nodeDomain}
	}
	if request.Subject.CommonName != common {
		return fmt.Errorf("%w: it asks to be %q and is %q", ErrRefused, request.Subject.CommonName, common)
	}
	groups := slices.Sorted(slices.Values(request.Subject.Organization))
	for _, group := range groups {
		if !slices.Contains(peer.Groups, group) {
			return fmt.Errorf("%w: it asks to be in the group %q and is not", ErrRefused, group)
		}
	}
	if !slices.Equal(groups, peer.Groups) {
		return fmt.Errorf("%w: it leaves out groups that %s is in", ErrRefused, peer)
	}
	if len(request.Subject.Names) != 1+len(peer.Groups) {
		return fmt.Errorf("%w: its subject says more than the name and the groups", ErrRefused)
	}
	if !slices.Equal(request.DNSNames, dns) {
		return fmt.Errorf("%w: it asks for the names %q, want %q", ErrRefused, request.DNSNames, dns)
	}
	if len(request.IPAddresses)+len(request.EmailAddresses)+len(request.URIs) > 0 {
		return fmt.Errorf("%w: it asks for addresses besides names", ErrRefused)
	}
	alternativeNames := asn1.ObjectIdentifier{2, 5, 29, 17}
	for _, extension := range request.Extensions {
		if !extension.Id.Equal(alternativeNames) {
			return fmt.Errorf("%w: it asks for the extension %s", ErrRefused, extension.Id)
		}
	}
	return nil
}
