package signers

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// pgpKey is a PGP key with its subkeys.
type pgpKey struct {
	entity *openpgp.Entity
	// digest is of the armored key, with its expiry and revocations.
	digest string
}

func (k *pgpKey) signer() Signer {
	name := ""
	if identity := k.entity.PrimaryIdentity(); identity != nil {
		name = printable(identity.Name)
	}
	return Signer{Name: name, Key: fingerprint(k.entity.PrimaryKey)}
}

func fingerprint(key *packet.PublicKey) string {
	return strings.ToUpper(hex.EncodeToString(key.Fingerprint))
}

// parsePGP reads an armored block, which may hold several keys. White space before its lines is passed over.
func parsePGP(lines []string) ([]pgpKey, error) {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(strings.TrimSpace(line))
		b.WriteByte('\n')
	}
	entities, err := openpgp.ReadArmoredKeyRing(strings.NewReader(b.String()))
	if err != nil || len(entities) == 0 {
		return nil, errors.New("the PGP key is cut off or garbled")
	}
	sum := sha256.Sum256([]byte(b.String()))
	keys := make([]pgpKey, len(entities))
	for i, entity := range entities {
		if err := strongPGP(entity.PrimaryKey); err != nil {
			return nil, err
		}
		keys[i] = pgpKey{entity: entity, digest: hex.EncodeToString(sum[:])}
	}
	return keys, nil
}

func strongPGP(key *packet.PublicKey) error {
	switch key.PubKeyAlgo {
	case packet.PubKeyAlgoDSA, packet.PubKeyAlgoElGamal:
		return errors.New("DSA and ElGamal keys are too weak")
	case packet.PubKeyAlgoRSA, packet.PubKeyAlgoRSASignOnly, packet.PubKeyAlgoRSAEncryptOnly:
		if bits, err := key.BitLength(); err != nil || bits < minRSABits {
			return fmt.Errorf("an RSA key of %d bits is too weak, at least %d are needed", bits, minRSABits)
		}
	}
	return nil
}

func (s *Set) verifyPGP(message []byte, text string, times Times) (Signer, error) {
	signature, raw, err := readPGP(text)
	if err != nil {
		return Signer{}, refuse(fixBroken, "has a PGP signature that %v", err)
	}
	switch signature.Hash {
	case crypto.SHA256, crypto.SHA384, crypto.SHA512, crypto.SHA3_256, crypto.SHA3_512:
	default:
		return Signer{}, refuse(fixKey, "is signed with %v, which is too weak", signature.Hash)
	}
	issuer := fmt.Sprintf("%016X", *signature.IssuerKeyId)
	for i := range s.pgp {
		key := &s.pgp[i]
		usable := openpgp.EntityList{key.entity}.KeysByIdUsage(*signature.IssuerKeyId, packet.KeyFlagSign)
		if len(usable) == 0 {
			continue
		}
		if err := strongPGP(usable[0].PublicKey); err != nil {
			return Signer{}, refuse(fixKey, "is signed by %s with a key that does not count: %v", key.signer(), err)
		}
		for _, at := range []time.Time{signature.CreationTime, times.Now} {
			if err := checkPGP(key, message, raw, at); err != nil {
				return Signer{}, err
			}
		}
		return key.signer(), nil
	}
	return Signer{}, refuse(fixUnknown, "is signed with the PGP key %s, which is not trusted", issuer)
}

// readPGP reads the one signature of an armored block.
func readPGP(text string) (*packet.Signature, []byte, error) {
	block, err := armor.Decode(strings.NewReader(text))
	switch {
	case err != nil:
		return nil, nil, errors.New("cannot be read")
	case strings.Count(text, "-----BEGIN ") != 1:
		return nil, nil, errors.New("is followed by another one")
	}
	raw, err := io.ReadAll(io.LimitReader(block.Body, maxSignature))
	if err != nil {
		return nil, nil, errors.New("is cut off or garbled")
	}
	packets := packet.NewReader(bytes.NewReader(raw))
	first, err := packets.Next()
	signature, ok := first.(*packet.Signature)
	switch {
	case err != nil || !ok || signature.IssuerKeyId == nil:
		return nil, nil, errors.New("cannot be read")
	case signature.SigType != packet.SigTypeBinary && signature.SigType != packet.SigTypeText:
		return nil, nil, errors.New("is not of a document")
	}
	if _, err := packets.Next(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("is followed by something else")
	}
	return signature, raw, nil
}

// maxSignature is the most that is read of a signature, in bytes.
const maxSignature = 64 << 10

// checkPGP checks a signature as at a time; zero is passed over.
func checkPGP(key *pgpKey, message, signature []byte, at time.Time) error {
	if at.IsZero() {
		return nil
	}
	config := &packet.Config{Time: func() time.Time { return at }}
	_, _, err := openpgp.VerifyDetachedSignature(openpgp.EntityList{key.entity}, bytes.NewReader(message), bytes.NewReader(signature), config)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgperrors.ErrKeyExpired):
		return refuse(fixKey, "is signed by %s, whose key has expired", key.signer())
	case errors.Is(err, pgperrors.ErrSignatureExpired):
		return refuse(fixKey, "is signed by %s, and the signature has expired or is from the future", key.signer())
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		return refuse(fixKey, "is signed by %s, whose key is revoked", key.signer())
	}
	return refuse(fixBroken, "has a PGP signature of %s that is not of this commit: one of them was changed", key.signer())
}
