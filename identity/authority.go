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
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// How long certificates are valid. They cannot be called back, so those that leave the controller are short.
const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	nodeLife       = 24 * time.Hour
	clientLife     = time.Hour
	controllerLife = 24 * time.Hour
	// clockSkew is how far the clocks of two machines may be apart.
	clockSkew = 5 * time.Minute
)

// The types of PEM blocks.
const (
	pemCertificate = "CERTIFICATE"
	pemRequest     = "CERTIFICATE REQUEST"
	pemPrivateKey  = "PRIVATE KEY"
	pemPublicKey   = "PUBLIC KEY"
)

// Authority signs certificates and steps. Whoever has it is the controller.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	steps       ed25519.PrivateKey
}

// Keys are an authority as it is kept, each in PEM. Certificate is public, the others are not.
type Keys struct {
	Certificate, Key, StepKey []byte
}

// NewAuthority makes one.
func NewAuthority(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	_, steps, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of steps: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "gitvirt:authority"},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the authority's certificate: %w", err)
	}
	return &Authority{certificate, key, steps}, nil
}

// ParseAuthority reads one.
func ParseAuthority(keys Keys) (*Authority, error) {
	pair, err := tls.X509KeyPair(keys.Certificate, keys.Key)
	if err != nil {
		return nil, fmt.Errorf("the authority's certificate and key: %w", err)
	}
	if !pair.Leaf.IsCA {
		return nil, errors.New("the authority's certificate is not that of an authority")
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("the authority's key does not sign")
	}
	block, _ := pem.Decode(keys.StepKey)
	if block == nil || block.Type != pemPrivateKey {
		return nil, errors.New("the key of steps is no PEM block PRIVATE KEY")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the key of steps: %w", err)
	}
	steps, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("the key of steps is not of Ed25519")
	}
	return &Authority{pair.Leaf, key, steps}, nil
}

// Keys writes the authority for keeping.
func (a *Authority) Keys() (Keys, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return Keys{}, fmt.Errorf("writing the authority's key: %w", err)
	}
	steps, err := x509.MarshalPKCS8PrivateKey(a.steps)
	if err != nil {
		return Keys{}, fmt.Errorf("writing the key of steps: %w", err)
	}
	return Keys{
		Certificate: encode(pemCertificate, a.certificate.Raw), Key: encode(pemPrivateKey, key), StepKey: encode(pemPrivateKey, steps),
	}, nil
}

// Trust is what others need to recognise the authority's work.
func (a *Authority) Trust() (*Trust, error) {
	public, err := x509.MarshalPKIXPublicKey(a.steps.Public())
	if err != nil {
		return nil, fmt.Errorf("writing the public key of steps: %w", err)
	}
	return ParseTrust(encode(pemCertificate, a.certificate.Raw), encode(pemPublicKey, public))
}

// stepContext keeps a signature under a step from being one under anything else that this key may sign one day.
const stepContext = "gitvirt.io/step"

// SignStep signs what a Pod's step says; Trust.VerifyStep checks it.
func (a *Authority) SignStep(payload []byte) ([]byte, error) {
	signature, err := a.steps.Sign(rand.Reader, payload, &ed25519.Options{Context: stepContext})
	if err != nil {
		return nil, fmt.Errorf("signing a step: %w", err)
	}
	return signature, nil
}

// Grant is a certificate that may be signed: the checks of this package give it, and nothing of a request but its key gets into it.
type Grant struct {
	Peer Peer
	key  crypto.PublicKey
	life time.Duration
}

// Issue signs a certificate, in PEM.
func (a *Authority) Issue(grant Grant, now time.Time) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(grant.life),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if template.NotAfter.After(a.certificate.NotAfter) {
		template.NotAfter = a.certificate.NotAfter
	}
	switch grant.Peer.Role {
	case Node:
		template.Subject.CommonName = nodePrefix + grant.Peer.Name
		template.DNSNames = []string{grant.Peer.Name + nodeDomain}
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	case User:
		template.Subject = pkix.Name{CommonName: userPrefix + grant.Peer.Name, Organization: grant.Peer.Groups}
	case Controller:
		template.Subject.CommonName = controllerName
	default:
		return nil, fmt.Errorf("%w: a certificate for nobody", ErrRefused)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, grant.key, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate for the %s: %w", grant.Peer, err)
	}
	return encode(pemCertificate, der), nil
}

// IssueController makes the certificate that the controller calls agents with.
func (a *Authority) IssueController(now time.Time) (*tls.Certificate, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	chain, err := a.Issue(Grant{Peer: Peer{Role: Controller}, key: key.Public(), life: controllerLife}, now)
	if err != nil {
		return nil, err
	}
	return key.Certificate(chain)
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("drawing a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
