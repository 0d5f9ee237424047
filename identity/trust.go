package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Trust is the public side of an authority. It may hold several, while one follows another.
type Trust struct {
	certificates, stepKeys []byte
	pool                   *x509.CertPool
	steps                  []ed25519.PublicKey
}

// ParseTrust reads authorities' certificates and public keys of steps, in PEM.
func ParseTrust(certificates, stepKeys []byte) (*Trust, error) {
	t := &Trust{certificates: certificates, stepKeys: stepKeys, pool: x509.NewCertPool()}
	count := 0
	err := eachBlock(certificates, pemCertificate, func(der []byte) error {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		if !certificate.IsCA {
			return errors.New("it is not that of an authority")
		}
		t.pool.AddCert(certificate)
		count++
		return nil
	})
	if err == nil && count == 0 {
		err = errors.New("there is none")
	}
	if err != nil {
		return nil, fmt.Errorf("the authority's certificate: %w", err)
	}
	err = eachBlock(stepKeys, pemPublicKey, func(der []byte) error {
		parsed, err := x509.ParsePKIXPublicKey(der)
		if err != nil {
			return err
		}
		key, ok := parsed.(ed25519.PublicKey)
		if !ok {
			return errors.New("it is not of Ed25519")
		}
		t.steps = append(t.steps, key)
		return nil
	})
	if err == nil && len(t.steps) == 0 {
		err = errors.New("there is none")
	}
	if err != nil {
		return nil, fmt.Errorf("the public key of steps: %w", err)
	}
	return t, nil
}

// eachBlock hands over the PEM blocks of a text, which must all be of one kind.
func eachBlock(text []byte, kind string, take func(der []byte) error) error {
	for text = bytes.TrimSpace(text); len(text) > 0; text = bytes.TrimSpace(text) {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			return errors.New("it is not PEM")
		}
		if block.Type != kind {
			return fmt.Errorf("a PEM block %s, want %s", block.Type, kind)
		}
		if err := take(block.Bytes); err != nil {
			return err
		}
	}
	return nil
}

// Certificates are the authorities' certificates, in PEM.
func (t *Trust) Certificates() []byte { return slices.Clone(t.certificates) }

// StepKeys are the public keys of steps, in PEM.
func (t *Trust) StepKeys() []byte { return slices.Clone(t.stepKeys) }

// VerifyStep checks the signature under a step.
func (t *Trust) VerifyStep(payload, signature []byte) error {
	for _, key := range t.steps {
		if ed25519.VerifyWithOptions(key, payload, signature, &ed25519.Options{Context: stepContext}) == nil {
			return nil
		}
	}
	return fmt.Errorf("%w: the signature is not the controller's", ErrRefused)
}

// recognises tells whether a certificate comes from the authority and is valid at a time, for whatever it is used.
func (t *Trust) recognises(certificate *x509.Certificate, now time.Time) bool {
	_, err := certificate.Verify(x509.VerifyOptions{Roots: t.pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}
