package signers

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

const (
	sshBegin = "-----BEGIN SSH SIGNATURE-----"
	sshEnd   = "-----END SSH SIGNATURE-----"
)

// sshKey is one line of allowed_signers.
type sshKey struct {
	key  ssh.PublicKey
	name string
	// namespaces are patterns of what the key may sign for; none is anything.
	namespaces []string
	// after and before bound when a signature was made; zero for no bound.
	after, before time.Time
}

func (k *sshKey) id() string {
	return fmt.Sprintf("%s %q %s %s", ssh.FingerprintSHA256(k.key), k.namespaces, k.after.UTC(), k.before.UTC())
}

// parseSSH reads a line of allowed_signers (PRINCIPALS [OPTIONS] TYPE KEY [COMMENT]) or of authorized_keys
// ([OPTIONS] TYPE KEY [COMMENT]); ssh-keygen(1), ALLOWED SIGNERS.
func parseSSH(line string) (sshKey, error) {
	fields, err := splitFields(line)
	if err != nil {
		return sshKey{}, err
	}
	at := slices.IndexFunc(fields, isKeyType)
	switch {
	case at < 0:
		return sshKey{}, errors.New("there is no SSH key in it")
	case at > 2:
		return sshKey{}, errors.New("there is too much before the type of the SSH key")
	case at+1 >= len(fields):
		return sshKey{}, errors.New("the SSH key is missing after its type")
	}
	blob, err := base64.StdEncoding.DecodeString(fields[at+1])
	if err != nil {
		return sshKey{}, errors.New("the SSH key is cut off or garbled")
	}
	public, err := ssh.ParsePublicKey(blob)
	if err != nil || public.Type() != fields[at] {
		return sshKey{}, errors.New("the SSH key is cut off or garbled")
	}
	if err := strongSSH(public); err != nil {
		return sshKey{}, err
	}
	k := sshKey{key: public, name: printable(strings.Join(fields[at+2:], " "))}
	for i, field := range fields[:at] {
		if isOptions(field) {
			if i != at-1 {
				return sshKey{}, errors.New("the options stand right before the type of the key")
			}
			if err := k.options(field); err != nil {
				return sshKey{}, err
			}
			continue
		}
		if i != 0 {
			return sshKey{}, fmt.Errorf("%.40q is no option", field)
		}
		k.name = printable(strings.Trim(field, `"`))
	}
	return k, nil
}

func isKeyType(field string) bool {
	switch field {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoSKECDSA256, ssh.KeyAlgoRSA, ssh.InsecureKeyAlgoDSA: //nolint:staticcheck // named in order to be refused
		return true
	}
	return strings.HasSuffix(field, "-cert-v01@openssh.com")
}

// strongSSH refuses keys that are too weak to say anything.
func strongSSH(key ssh.PublicKey) error {
	switch kind := key.Type(); {
	case strings.HasSuffix(kind, "-cert-v01@openssh.com"):
		return errors.New("this is a certificate; name the key itself")
	case kind == ssh.InsecureKeyAlgoDSA: //nolint:staticcheck // named in order to be refused
		return errors.New("DSA keys are too weak")
	case kind == ssh.KeyAlgoRSA:
		if bits := rsaBits(key); bits < minRSABits {
			return fmt.Errorf("an RSA key of %d bits is too weak, at least %d are needed", bits, minRSABits)
		}
	}
	return nil
}

// options reads cert-authority, namespaces="...", valid-after="..." and valid-before="...", with commas between them.
func (k *sshKey) options(text string) error {
	for _, option := range splitQuoted(text, ',') {
		name, value, _ := strings.Cut(option, "=")
		value = strings.Trim(value, `"`)
		var err error
		switch strings.ToLower(name) {
		case "namespaces":
			k.namespaces = strings.Split(value, ",")
			if !matches(k.namespaces, Namespace) {
				return fmt.Errorf("the key is for %s and not for %s", printable(value), Namespace)
			}
		case "valid-after":
			k.after, err = parseTime(value)
		case "valid-before":
			k.before, err = parseTime(value)
		case "cert-authority":
			return errors.New("authorities of certificates are not supported; name the keys themselves")
		default:
			return fmt.Errorf("the option %.40q is not known", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isOptions tells options from principals, which have no names of options in them.
func isOptions(field string) bool {
	name, _, _ := strings.Cut(splitQuoted(field, ',')[0], "=")
	switch strings.ToLower(name) {
	case "namespaces", "valid-after", "valid-before", "cert-authority":
		return true
	}
	return strings.Contains(field, "=") && !strings.Contains(field, "@")
}

// matches reports whether the last word of a list of patterns is for name; "!" before one excludes (ssh_config(5), PATTERNS).
func matches(patterns []string, name string) bool {
	found := false
	for _, pattern := range patterns {
		pattern, not := strings.CutPrefix(strings.TrimSpace(pattern), "!")
		if ok, err := path.Match(pattern, name); err == nil && ok {
			if not {
				return false
			}
			found = true
		}
	}
	return found
}

// parseTime reads YYYYMMDD[HHMM[SS]][Z]. Without the Z it is taken for UTC as well: what counts must not depend on where
// the controller runs.
func parseTime(text string) (time.Time, error) {
	digits := strings.TrimSuffix(text, "Z")
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(digits) == len(layout) {
			if t, err := time.Parse(layout, digits); err == nil {
				return t, nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("%.40q is not a time such as 20260131 or 20260131235959Z", text)
}

// splitFields cuts a line at white space that is not between quotes.
func splitFields(line string) ([]string, error) {
	if strings.Count(line, `"`)%2 != 0 {
		return nil, errors.New("a quote is not closed")
	}
	var fields []string
	for _, field := range splitQuoted(strings.ReplaceAll(line, "\t", " "), ' ') {
		if field != "" {
			fields = append(fields, field)
		}
	}
	return fields, nil
}

func splitQuoted(text string, separator rune) []string {
	quoted := false
	var parts []string
	start := 0
	for i, r := range text {
		switch {
		case r == '"':
			quoted = !quoted
		case r == separator && !quoted:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}

func rsaBits(key ssh.PublicKey) int {
	var wire struct {
		Type string
		E    []byte
		N    []byte
	}
	if err := ssh.Unmarshal(key.Marshal(), &wire); err != nil {
		return 0
	}
	return len(bytes.TrimLeft(wire.N, "\x00")) * 8
}

func (s *Set) verifySSH(message []byte, text string, times Times) (Signer, error) {
	if !strings.HasSuffix(text, sshEnd) || strings.Count(text, sshBegin) != 1 {
		return Signer{}, refuse(fixBroken, "has an SSH signature that is cut off")
	}
	signature, err := sshsig.Unarmor([]byte(text))
	if err != nil {
		return Signer{}, refuse(fixBroken, "has an SSH signature that cannot be read, or one of an RSA key with SHA-1")
	}
	print := ssh.FingerprintSHA256(signature.PublicKey)
	if signature.Namespace != Namespace {
		return Signer{}, refuse(fixBroken, "has an SSH signature that was made for %q and not for %s", printable(signature.Namespace), Namespace)
	}
	if err := strongSSH(signature.PublicKey); err != nil {
		return Signer{}, refuse(fixKey, "is signed with a key that does not count: %v", err)
	}
	var listed []*sshKey
	for i := range s.ssh {
		if bytes.Equal(s.ssh[i].key.Marshal(), signature.PublicKey.Marshal()) {
			listed = append(listed, &s.ssh[i])
		}
	}
	if len(listed) == 0 {
		return Signer{}, refuse(fixUnknown, "is signed with the SSH key %s, which is not trusted", print)
	}
	if err := sshsig.Verify(bytes.NewReader(message), signature, listed[0].key, signature.HashAlgorithm, Namespace); err != nil {
		return Signer{}, refuse(fixBroken, "has an SSH signature of %s that is not of this commit: one of them was changed", print)
	}
	for _, key := range listed {
		if err = key.holds(times); err == nil {
			return Signer{Name: key.name, Key: print}, nil
		}
	}
	return Signer{}, err
}

// holds checks the bounds of a key for when the commit was made, and for now.
func (k *sshKey) holds(times Times) error {
	who := Signer{Name: k.name, Key: ssh.FingerprintSHA256(k.key)}
	for _, at := range []time.Time{times.Made, times.Now} {
		switch {
		case at.IsZero():
		case !k.after.IsZero() && at.Before(k.after):
			return refuse(fixKey, "is signed by %s, whose key is valid only after %s", who, k.after.UTC().Format(time.DateTime))
		case !k.before.IsZero() && !at.Before(k.before):
			return refuse(fixKey, "is signed by %s, whose key was valid before %s", who, k.before.UTC().Format(time.DateTime))
		}
	}
	return nil
}
