// Package signers says whose signatures count: a Set of PGP and SSH public keys, read from the text that gpg, ssh-keygen
// and git use, and the check of a detached signature against it.
//
// It is pure: keys, signatures and times in, verdicts out. It fetches no keys, and it knows nothing of git; which text a
// signature of a commit is about says package sources/trust.
package signers

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Namespace is what SSH signatures have to be made for: git's, so that one made for a file or a mail is none of a commit.
const Namespace = "git"

// minRSABits is the shortest RSA key that counts.
const minRSABits = 2048

// Set is a set of keys. The zero value and nil trust nobody. It is immutable.
type Set struct {
	ssh []sshKey
	pgp []pgpKey
}

// Signer is who made a signature.
type Signer struct {
	// Name is the principal, the comment or the user ID of the key; it may be empty.
	Name string
	// Key names the key: "SHA256:..." for SSH, the fingerprint in hexadecimal digits for PGP.
	Key string
}

// String returns the name and the key.
func (s Signer) String() string {
	if s.Name == "" {
		return s.Key
	}
	return s.Name + " (" + s.Key + ")"
}

// LineError is a mistake in the text of keys.
type LineError struct {
	// Line counts from 1.
	Line int
	// Err is what is wrong, Fix what to do about it.
	Err error
	Fix string
}

// Error returns "line N: what; fix".
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v; %s", e.Line, e.Err, e.Fix) }

// Unwrap returns what is wrong.
func (e *LineError) Unwrap() error { return e.Err }

const (
	pgpBegin = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	pgpEnd   = "-----END PGP PUBLIC KEY BLOCK-----"
)

// Parse reads keys: armored PGP public keys, and lines of OpenSSH's allowed_signers or authorized_keys, in any mixture.
// Empty lines and lines that begin with # are passed over. Errors are *LineError.
func Parse(text string) (*Set, error) {
	set := &Set{}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == pgpBegin:
			end := slices.IndexFunc(lines[i:], func(l string) bool { return strings.TrimSpace(l) == pgpEnd })
			if end < 0 {
				return nil, &LineError{i + 1, errors.New("the PGP key does not end"), "copy the whole block, up to " + pgpEnd}
			}
			found, err := parsePGP(lines[i : i+end+1])
			if err != nil {
				return nil, &LineError{i + 1, err, "export it with: gpg --armor --export KEY"}
			}
			set.pgp = append(set.pgp, found...)
			i += end
		case strings.Contains(line, "PRIVATE KEY"):
			return nil, &LineError{i + 1, errors.New("this is a private key"), "take it away, it is not secret any more, and give the public half of a new one"}
		default:
			key, err := parseSSH(line)
			if err != nil {
				return nil, &LineError{i + 1, err, "write an armored PGP key, or a line such as: ann@example.org ssh-ed25519 AAAA..."}
			}
			set.ssh = append(set.ssh, key)
		}
	}
	return set, nil
}

// Join returns a set with the keys of all sets, any of which may be nil.
func Join(sets ...*Set) *Set {
	out := &Set{}
	for _, set := range sets {
		if set != nil {
			out.ssh, out.pgp = append(out.ssh, set.ssh...), append(out.pgp, set.pgp...)
		}
	}
	return out
}

// Len is the number of keys.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.ssh) + len(s.pgp)
}

// Digest is equal for sets of the same keys with the same limits, in hexadecimal digits.
func (s *Set) Digest() string {
	var parts []string
	if s != nil {
		for i := range s.ssh {
			parts = append(parts, s.ssh[i].id())
		}
		for i := range s.pgp {
			parts = append(parts, s.pgp[i].digest)
		}
	}
	slices.Sort(parts)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return hex.EncodeToString(sum[:])
}

// Refusal is why a signature does not count.
type Refusal struct {
	// Reason completes "the commit ...": "is not signed".
	Reason string
	// Fix says what to do about it.
	Fix string
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Reason }

func refuse(fix, format string, args ...any) error {
	return &Refusal{Reason: fmt.Sprintf(format, args...), Fix: fix}
}

// Fixes that several refusals share.
const (
	fixUnsigned = "sign it (git commit --amend -S) and push it again"
	fixUnknown  = "sign it with a trusted key; or have somebody who has one add this key to spec.trust.keys of the Fleet, in a signed commit"
	fixKey      = "sign it with a key that holds"
	fixBroken   = "make the commit anew with a signature (git commit --amend -S); if nobody changed it by hand, ask who did"
)

// Times say when a signature has to hold.
type Times struct {
	// Made is when the commit says that it was made.
	Made time.Time
	// Now is when the signature is looked at first: a key that has expired since it was made does not count then. Zero
	// for a commit of the past, whose key may have expired since.
	Now time.Time
}

// Verify checks a detached signature of a message: an armored PGP or SSH signature. Errors are *Refusal.
func (s *Set) Verify(message []byte, signature string, times Times) (Signer, error) {
	if s == nil {
		s = &Set{}
	}
	switch text := strings.TrimSpace(signature); {
	case text == "":
		return Signer{}, refuse(fixUnsigned, "is not signed")
	case strings.HasPrefix(text, sshBegin):
		return s.verifySSH(message, text, times)
	case strings.HasPrefix(text, "-----BEGIN PGP SIGNATURE-----"), strings.HasPrefix(text, "-----BEGIN PGP MESSAGE-----"):
		return s.verifyPGP(message, text, times)
	}
	return Signer{}, refuse(fixUnknown, "has a signature that is neither PGP's nor SSH's; X.509 is not supported")
}

// printable is a name that others wrote, on one line and not long.
func printable(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2060 && r <= 0x206f || r == 0xfeff {
			return -1
		}
		return r
	}, strings.ToValidUTF8(name, "?"))
	if runes := []rune(clean); len(runes) > 100 {
		clean = string(runes[:100]) + "..."
	}
	return strings.TrimSpace(clean)
}
