// Package sops reads manifests that were encrypted with SOPS (https://getsops.io), for age and PGP. A file is decrypted in
// memory, by keys that were given as files: no program is started, no server and no agent is asked, and no variable of
// the environment is looked at. SOPS' own library brings the SDKs of five clouds with it; this package reads its format
// with the libraries of age and PGP (docs/adr/0051), and is tested against files that SOPS has written.
//
// What is decrypted stays where it was: line and column of a diagnostic are those of the encrypted file.
package sops

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"filippo.io/age"
	agearmor "filippo.io/age/armor"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
)

// Keys are private keys. The zero value and nil decrypt nothing.
type Keys struct {
	age []age.Identity
	pgp openpgp.EntityList
}

// ReadKeys reads files of age keys (as age-keygen writes them) and armored PGP private keys without a passphrase. No
// error quotes what is in a file.
func ReadKeys(ageFiles, pgpFiles []string) (*Keys, error) {
	k := &Keys{}
	for _, name := range ageFiles {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading a key for SOPS: %w", err)
		}
		found, err := age.ParseIdentities(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("reading a key for SOPS: %s holds no age key (AGE-SECRET-KEY-1...); age-keygen makes one", name)
		}
		k.age = append(k.age, found...)
	}
	for _, name := range pgpFiles {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading a key for SOPS: %w", err)
		}
		found, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("reading a key for SOPS: %s holds no armored PGP key; export it with: gpg --armor --export-secret-keys KEY", name)
		}
		for _, entity := range found {
			if !usable(entity) {
				return nil, fmt.Errorf("reading a key for SOPS: the PGP key %X in %s has a passphrase, or is no private key; give one without, in a file that nobody else can read", entity.PrimaryKey.Fingerprint, name)
			}
		}
		k.pgp = append(k.pgp, found...)
	}
	return k, nil
}

// usable reports whether a key or one of its subkeys can decrypt.
func usable(entity *openpgp.Entity) bool {
	if entity.PrivateKey != nil && !entity.PrivateKey.Encrypted && !entity.PrivateKey.Dummy() {
		return true
	}
	for _, subkey := range entity.Subkeys {
		if subkey.PrivateKey != nil && !subkey.PrivateKey.Encrypted && !subkey.PrivateKey.Dummy() {
			return true
		}
	}
	return false
}

// empty reports whether there is no key at all.
func (k *Keys) empty() bool { return k == nil || len(k.age)+len(k.pgp) == 0 }

// dataKeyBytes is how long the key is that the values of a file are encrypted with: AES-256.
const dataKeyBytes = 32

// dataKey decrypts a file's data key with whichever key can; nil when none can.
func (k *Keys) dataKey(m *metadata) []byte {
	for _, recipient := range m.Age {
		if r, err := age.Decrypt(agearmor.NewReader(strings.NewReader(recipient.Enc)), k.age...); err == nil {
			if key := readKey(r); key != nil {
				return key
			}
		}
	}
	for _, recipient := range m.PGP {
		block, err := armor.Decode(strings.NewReader(recipient.Enc))
		if err != nil {
			continue
		}
		if message, err := openpgp.ReadMessage(block.Body, k.pgp, nil, nil); err == nil {
			if key := readKey(message.UnverifiedBody); key != nil {
				return key
			}
		}
	}
	return nil
}

func readKey(r io.Reader) []byte {
	key, err := io.ReadAll(io.LimitReader(r, dataKeyBytes+1))
	if err != nil || len(key) != dataKeyBytes {
		return nil
	}
	return key
}
