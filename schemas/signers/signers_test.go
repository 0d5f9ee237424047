package signers_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/gitvirt/gitvirt/schemas/signers"
)

var made = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func sshSigner(t testing.TB, key crypto.Signer) ssh.Signer {
	t.Helper()
	signer, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func ed(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return sshSigner(t, key)
}

func line(signer ssh.Signer) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}

func signSSH(t testing.TB, signer ssh.Signer, namespace, text string) string {
	t.Helper()
	signature, err := sshsig.Sign(strings.NewReader(text), signer, sshsig.HashSHA512, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return string(sshsig.Armor(signature))
}

func TestSSH(t *testing.T) {
	ann, bob := ed(t), ed(t)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := signSSH(t, ann, "git", "text")
	ofRSA, ofECDSA := sshSigner(t, long), sshSigner(t, p256)
	later := made.Add(time.Hour)
	for _, test := range []struct {
		reason, keys, signature string
		now                     time.Time
		who, refusal            string
	}{
		{"a line of allowed_signers", "ann@example.org " + line(ann), good, later, "ann@example.org", ""},
		{"a line of authorized_keys", line(ann) + " ann's key", good, later, "ann's key", ""},
		{"for git among others", `ann namespaces="file,git" ` + line(ann), good, later, "ann", ""},
		{"for whatever begins with g", `ann namespaces="g*" ` + line(ann), good, later, "ann", ""},
		{"still valid", `ann valid-before="20260302" ` + line(ann), good, later, "ann", ""},
		{"valid since the morning", `ann valid-after="202603010800Z",valid-before="20270101" ` + line(ann), good, later, "ann", ""},
		{"two lines, one holds", `ann valid-before="20200101" ` + line(ann) + "\nann " + line(ann), good, later, "ann", ""},
		{"ECDSA", "pat " + line(ofECDSA), signSSH(t, ofECDSA, "git", "text"), later, "pat", ""},
		{"RSA with SHA-2", "pat " + line(ofRSA), signSSH(t, ofRSA, "git", "text"), later, "pat", ""},

		{"another key", line(bob), good, later, "", "which is not trusted"},
		{"no key at all", "", good, later, "", "which is not trusted"},
		{"no signature", line(ann), "", later, "", "is not signed"},
		{"only white space", line(ann), " \n", later, "", "is not signed"},
		{"another text", line(ann), signSSH(t, ann, "git", "Text"), later, "", "not of this commit"},
		{"for a file", line(ann), signSSH(t, ann, "file", "text"), later, "", `made for "file"`},
		{"cut off", line(ann), good[:len(good)/2], later, "", "cut off"},
		{"without its last bytes", line(ann), strings.Replace(good, "\n-----END", "AA\n-----END", 1), later, "", "cannot be read"},
		{"two", line(ann), good + good, later, "", "cut off"},
		{"made too early", `ann valid-after="20260302" ` + line(ann), good, later, "", "valid only after"},
		{"made too late", `ann valid-before="20260301" ` + line(ann), good, later, "", "was valid before"},
		{"pushed too late", `ann valid-before="20260302" ` + line(ann), good, made.AddDate(0, 0, 2), "", "was valid before"},
		{"X.509", line(ann), "-----BEGIN SIGNED MESSAGE-----\n", later, "", "neither PGP's nor SSH's"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			set, err := signers.Parse(test.keys)
			if err != nil {
				t.Fatal(err)
			}
			check(t, set, test.signature, signers.Times{Made: made, Now: test.now}, test.who, test.refusal)
		})
	}
}

func check(t *testing.T, set *signers.Set, signature string, times signers.Times, who, refusal string) {
	t.Helper()
	signer, err := set.Verify([]byte("text"), signature, times)
	var refused *signers.Refusal
	switch {
	case refusal == "" && err != nil:
		t.Errorf("refused: it %v", err)
	case refusal == "" && !strings.HasPrefix(signer.Name, who):
		t.Errorf("signed by %q, want %q", signer.Name, who)
	case refusal != "" && (!errors.As(err, &refused) || !strings.Contains(refused.Reason, refusal) || refused.Fix == ""):
		t.Errorf("got %v, want a refusal with %q", err, refusal)
	}
}

// sha1 signs as an old ssh does.
type sha1 struct{ ssh.AlgorithmSigner }

func (s sha1) SignWithAlgorithm(random io.Reader, data []byte, _ string) (*ssh.Signature, error) {
	return s.AlgorithmSigner.SignWithAlgorithm(random, data, ssh.KeyAlgoRSA)
}

func TestSSHWithSHA1(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signer, ok := sshSigner(t, key).(ssh.AlgorithmSigner)
	if !ok {
		t.Fatal("an RSA key signs with one algorithm only")
	}
	set, err := signers.Parse(line(signer))
	if err != nil {
		t.Fatal(err)
	}
	check(t, set, signSSH(t, sha1{signer}, "git", "text"), signers.Times{Made: made}, "", "SHA-1")
}

// pgp makes a PGP key and the armored public half.
func pgp(t testing.TB, config *packet.Config) (*openpgp.Entity, string) {
	t.Helper()
	entity, err := openpgp.NewEntity("Pat", "", "pat@example.org", config)
	if err != nil {
		t.Fatal(err)
	}
	return entity, public(t, entity)
}

func public(t testing.TB, entity *openpgp.Entity) string {
	t.Helper()
	var b strings.Builder
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(entity.Serialize(w), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String() + "\n"
}

func signPGP(t testing.TB, entity *openpgp.Entity, text string, config *packet.Config) string {
	t.Helper()
	var b strings.Builder
	if err := openpgp.ArmoredDetachSign(&b, entity, strings.NewReader(text), config); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func at(when time.Time) func() time.Time { return func() time.Time { return when } }

func TestPGP(t *testing.T) {
	begun := &packet.Config{Time: at(made.Add(-time.Hour)), Algorithm: packet.PubKeyAlgoEdDSA}
	signing := &packet.Config{Time: at(made)}
	pat, key := pgp(t, begun)
	_, other := pgp(t, begun)
	short := *begun
	short.KeyLifetimeSecs = 2 * 60 * 60
	brief, briefKey := pgp(t, &short)
	gone, _ := pgp(t, begun)
	ofGone := signPGP(t, gone, "text", signing)
	if err := gone.RevokeKey(packet.KeyCompromised, "lost", &packet.Config{Time: at(made.Add(time.Hour))}); err != nil {
		t.Fatal(err)
	}
	good := signPGP(t, pat, "text", signing)
	now := made.Add(30 * time.Minute)
	for _, test := range []struct {
		reason, keys, signature string
		times                   signers.Times
		refusal                 string
	}{
		{"a key", key, good, signers.Times{Made: made, Now: now}, ""},
		{"one of two", other + key, good, signers.Times{Made: made, Now: now}, ""},
		{"indented, as in a manifest", "  " + strings.ReplaceAll(key, "\n", "\n  "), good, signers.Times{Made: made, Now: now}, ""},
		{"a key that expires later", briefKey, signPGP(t, brief, "text", signing), signers.Times{Made: made, Now: now}, ""},
		{"a key that has expired since, of the past", briefKey, signPGP(t, brief, "text", signing), signers.Times{Made: made}, ""},

		{"another key", other, good, signers.Times{Made: made, Now: now}, "which is not trusted"},
		{"another text", key, signPGP(t, pat, "Text", signing), signers.Times{Made: made, Now: now}, "not of this commit"},
		{"cut off", key, good[:len(good)/2], signers.Times{Made: made, Now: now}, "PGP signature that"},
		{"two", key, good + good, signers.Times{Made: made, Now: now}, "PGP signature that"},
		{"from the future", key, good, signers.Times{Made: made, Now: made.Add(-time.Minute)}, "from the future"},
		{"a key that has expired", briefKey, signPGP(t, brief, "text", signing), signers.Times{Made: made, Now: made.Add(2 * time.Hour)}, "has expired"},
		{"a key that was lost", public(t, gone), ofGone, signers.Times{Made: made, Now: made.Add(2 * time.Hour)}, "revoked"},
		{"a key that was lost, of the past", public(t, gone), ofGone, signers.Times{Made: made}, "revoked"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			set, err := signers.Parse(test.keys)
			if err != nil {
				t.Fatal(err)
			}
			check(t, set, test.signature, test.times, "Pat", test.refusal)
		})
	}
}

func TestParse(t *testing.T) {
	ann := line(ed(t))
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	_, key := pgp(t, &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	_, weakPGP := pgp(t, &packet.Config{RSABits: 1024})
	for _, test := range []struct {
		reason, text string
		keys, line   int
		mistake      string
	}{
		{"nothing", "", 0, 0, ""},
		{"comments", "# ann\n\n  # bob\n", 0, 0, ""},
		{"both kinds", ann + "\n" + key + "ann@example.org,*@example.com " + ann + "\r\n", 3, 0, ""},
		{"a PGP key without an end", "\n" + key[:100], 0, 2, "does not end"},
		{"a garbled PGP key", strings.Replace(key, "\n\n", "\n\nAAAA", 1), 0, 1, "cut off or garbled"},
		{"a private key", "-----BEGIN OPENSSH PRIVATE KEY-----", 0, 1, "private key"},
		{"words", ann + "\nhello there", 0, 2, "no SSH key"},
		{"half a key", ann[:len(ann)-10], 0, 1, "cut off or garbled"},
		{"a type without a key", "ann ssh-ed25519", 0, 1, "missing"},
		{"another type", strings.Replace(ann, "ssh-ed25519 ", "ssh-rsa ", 1), 0, 1, "cut off or garbled"},
		{"a short RSA key", line(sshSigner(t, weak)), 0, 1, "1024 bits is too weak"},
		{"a short PGP key", weakPGP, 0, 1, "1024 bits is too weak"},
		{"for files only", `ann namespaces="file" ` + ann, 0, 1, "not for git"},
		{"not for git", `ann namespaces="*,!git" ` + ann, 0, 1, "not for git"},
		{"no time", `ann valid-after="tomorrow" ` + ann, 0, 1, "not a time"},
		{"an authority", `ann cert-authority ` + ann, 0, 1, "authorities"},
		{"an option nobody knows", `ann no-pty=1 ` + ann, 0, 1, "not known"},
		{"a quote", `ann "x ` + ann, 0, 1, "quote"},
		{"too much", `ann bob carl ` + ann, 0, 1, "too much"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			set, err := signers.Parse(test.text)
			var at *signers.LineError
			switch {
			case test.mistake == "" && (err != nil || set.Len() != test.keys):
				t.Errorf("%d keys, %v; want %d", set.Len(), err, test.keys)
			case test.mistake != "" && (!errors.As(err, &at) || at.Line != test.line || !strings.Contains(at.Err.Error(), test.mistake) || at.Fix == ""):
				t.Errorf("got %v, want %q at line %d", err, test.mistake, test.line)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	a, b := line(ed(t)), line(ed(t))
	digest := func(text string) string {
		set, err := signers.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return set.Digest()
	}
	if digest(a+"\n"+b) != digest("# in another order\n"+b+"\n"+a) {
		t.Error("the order of keys counts")
	}
	if digest(a) == digest(b) || digest(a) == digest(`ann valid-before="20270101" `+a) || digest(a) == (*signers.Set)(nil).Digest() {
		t.Error("different keys have one digest")
	}
}

func FuzzVerify(f *testing.F) {
	ann := ed(f)
	pat, key := pgp(f, &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	set, err := signers.Parse(line(ann) + "\n" + key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("other", signSSH(f, ann, "git", "text"))
	f.Add("other", signPGP(f, pat, "text", nil))
	f.Add("text", "-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----")
	f.Add("text", "-----BEGIN PGP SIGNATURE-----\n\n-----END PGP SIGNATURE-----")
	f.Fuzz(func(t *testing.T, text, signature string) {
		_, err := set.Verify([]byte(text), signature, signers.Times{Made: made})
		var refused *signers.Refusal
		if err == nil && text != "text" {
			t.Fatalf("a signature was forged: %q", signature)
		}
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%T: %v", err, err)
		}
	})
}
