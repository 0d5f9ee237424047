package schemas

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gitvirt/gitvirt/schemas/signers"
)

// Signatures says which commits have to be signed.
type Signatures string

// Which commits have to be signed.
const (
	// SignaturesHead is the commit that is to be applied.
	SignaturesHead Signatures = "head"
	// SignaturesAll is every commit since the last one that was trusted.
	SignaturesAll Signatures = "all"
)

// FleetTrust says whose commits are applied. It is judged by the keys that held before it: those of the revision that was
// trusted last, and those that the controller was given.
type FleetTrust struct {
	// Signatures defaults to head.
	Signatures Signatures `json:"signatures,omitempty"`
	// Keys are armored PGP public keys, and lines of OpenSSH's allowed_signers or authorized_keys.
	Keys []string `json:"keys,omitempty"`
	// Doubt says that it may not be what the team means; then what held before goes on to hold.
	Doubt bool `json:"-"`
}

// Signers are the keys. What cannot be read is not among them; it was told.
func (t *FleetTrust) Signers() *signers.Set {
	sets := make([]*signers.Set, 0, len(t.Keys))
	for _, text := range t.Keys {
		if set, err := signers.Parse(text); err == nil {
			sets = append(sets, set)
		}
	}
	return signers.Join(sets...)
}

// TrustOf returns what the Fleet among the files says of trust, nil when it says nothing. With a Fleet that cannot be
// read, or with two, that is in doubt.
func TrustOf(files []*File) *FleetTrust {
	var fleet *Fleet
	for _, file := range files {
		switch {
		case file.mayHoldFleet, file.Fleet != nil && fleet != nil:
			return &FleetTrust{Doubt: true}
		case file.Fleet != nil:
			fleet = file.Fleet
		}
	}
	if fleet == nil {
		return nil
	}
	if fleet.Spec.Policy.Doubt == twoFleets {
		return &FleetTrust{Doubt: true}
	}
	return fleet.Spec.Trust
}

// maxTrustKeys bounds what has to be looked through for each signature.
const maxTrustKeys = 1000

// trust checks a Fleet's spec.trust, or that of one of its sources, at path.
func (c *checker) trust(path []any, t *FleetTrust) {
	if t == nil {
		return
	}
	in := func(parts ...any) []any { return slices.Concat(path, parts) }
	oneOf(c, func() []any { return in("signatures") }, t.Signatures, SignaturesHead, SignaturesAll)
	if len(t.Keys) > maxTrustKeys {
		c.fail(in("keys"), fmt.Sprintf("%d keys, at most %d are allowed", len(t.Keys), maxTrustKeys), "remove some")
		return
	}
	for i, text := range t.Keys {
		set, err := signers.Parse(text)
		var mistake *signers.LineError
		switch {
		case errors.As(err, &mistake):
			c.fail(in("keys", i), mistake.Err.Error(), mistake.Fix)
		case set.Len() == 0:
			c.fail(in("keys", i), "there is no key in it", "write an armored PGP key, or a line such as: ann@example.org ssh-ed25519 AAAA...")
		}
	}
}

// trustInDoubt reports whether a mistake was told that may be one of the trust.
func (c *checker) trustInDoubt() bool {
	return c.inDoubt("spec.policy", "spec.kubernetes", "spec.pullRequests", "spec.sources")
}
