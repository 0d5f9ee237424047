package identity

import (
	"crypto/tls"
	"sync"
	"time"
)

// ControllerSource is the Source of whoever has the authority: it gives itself a certificate, and another one in time.
type ControllerSource struct {
	authority *Authority
	trust     *Trust
	now       func() time.Time

	mu          sync.Mutex
	certificate *tls.Certificate
}

// NewControllerSource returns the Source of the controller; now is the clock.
func NewControllerSource(authority *Authority, now func() time.Time) (*ControllerSource, error) {
	trust, err := authority.Trust()
	if err != nil {
		return nil, err
	}
	return &ControllerSource{authority: authority, trust: trust, now: now}, nil
}

// Certificate implements Source.
func (s *ControllerSource) Certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.certificate != nil && Fresh(s.certificate, s.trust, s.now()) {
		return s.certificate, nil
	}
	certificate, err := s.authority.IssueController(s.now())
	if err != nil {
		return nil, err
	}
	s.certificate = certificate
	return certificate, nil
}

// Trust implements Source.
func (s *ControllerSource) Trust() (*Trust, error) { return s.trust, nil }
