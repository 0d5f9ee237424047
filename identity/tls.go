package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Source is what a process shows of itself and by what it knows others. Both change while it runs: each connection asks again.
type Source interface {
	// Certificate is the process's own.
	Certificate() (*tls.Certificate, error)
	// Trust is the authority.
	Trust() (*Trust, error)
}

// errNoCertificate says that a caller showed nothing.
var errNoCertificate = fmt.Errorf("%w: no certificate", ErrRefused)

// ServerTLS is the configuration of an agent for one connection: whoever calls shows a certificate of the controller or of a user.
func ServerTLS(source Source) (*tls.Config, error) {
	config, trust, err := mutual(source)
	if err != nil {
		return nil, err
	}
	// None is refused below, where the refusal can be told apart from others.
	config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, trust.pool
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errNoCertificate
		}
		peer, err := PeerOf(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		if peer.Role != Controller && peer.Role != User {
			return fmt.Errorf("%w: the %s may not call an agent", ErrRefused, peer)
		}
		return nil
	}
	return config, nil
}

// ClientTLS is the configuration of whoever calls an agent, for one connection: the server shows the certificate of exactly the node that is meant.
func ClientTLS(source Source, node string) (*tls.Config, error) {
	config, trust, err := mutual(source)
	if err != nil {
		return nil, err
	}
	config.RootCAs, config.ServerName = trust.pool, node+nodeDomain
	config.VerifyConnection = func(state tls.ConnectionState) error {
		peer, err := PeerOf(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		if peer.Role != Node || peer.Name != node {
			return fmt.Errorf("%w: the %s answers in place of the node %q", ErrRefused, peer, node)
		}
		return nil
	}
	return config, nil
}

func mutual(source Source) (*tls.Config, *Trust, error) {
	certificate, err := source.Certificate()
	if err != nil {
		return nil, nil, err
	}
	trust, err := source.Trust()
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*certificate},
		// Whoever was let in once is looked at again the next time.
		SessionTicketsDisabled: true,
	}, trust, nil
}

// Reason says in a word or two why a connection or a call was refused, for counting.
func Reason(err error) string {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var hostname x509.HostnameError
	var connection *net.OpError
	switch {
	case errors.Is(err, errNoCertificate):
		return "no certificate"
	case errors.As(err, &hostname):
		return "another node"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "expired"
	case errors.As(err, &unknown):
		return "unknown authority"
	case errors.As(err, &invalid), errors.Is(err, ErrRefused):
		return "not allowed"
	case errors.As(err, &connection) && connection.Op == "remote error":
		return "refused by the other side"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "gone"
	}
	return "other"
}

// Fresh tells whether a certificate is still one to show: it comes from the authority, and less than two thirds of its life are over.
func Fresh(certificate *tls.Certificate, trust *Trust, now time.Time) bool {
	return now.Before(RenewAt(certificate)) &&
		trust.recognises(certificate.Leaf, now)
}

// RenewAt is when two thirds of a certificate's life are over.
func RenewAt(certificate *tls.Certificate) time.Time {
	life := certificate.Leaf.NotAfter.Sub(certificate.Leaf.NotBefore)
	return certificate.Leaf.NotBefore.Add(life * 2 / 3)
}
