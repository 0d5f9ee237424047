package git_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/signers"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
	"github.com/gitvirt/gitvirt/sources/trust"
)

// world is a repository with people who commit to it, and a source that trusts some of them.
type world struct {
	t                    *testing.T
	repo                 *gittest.Repo
	work                 *gittest.Work
	ann, bob, eve, noone *gittest.Person
	anchor               trust.Anchor
	dir                  string
	ahead                time.Duration // of the source's clock
	source               *git.Source
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, repo: gittest.NewRepo(t), dir: t.TempDir()}
	w.work = w.repo.Work()
	w.ann, w.bob, w.eve = gittest.NewSSHPerson(t, "ann"), gittest.NewSSHPerson(t, "bob"), gittest.NewSSHPerson(t, "eve")
	w.noone = gittest.Nobody(t)
	w.anchor = trust.Anchor{Signers: keysOf(t, w.ann)}
	return w
}

func keysOf(t *testing.T, people ...*gittest.Person) *signers.Set {
	t.Helper()
	text := ""
	for _, p := range people {
		text += p.Public + "\n"
	}
	set, err := signers.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// start opens the source anew, as a controller that is restarted does.
func (w *world) start() {
	w.t.Helper()
	now := func() time.Time { return time.Now().Add(w.ahead) }
	w.source = open(w.t, git.Config{URL: w.repo.URL(), Dir: w.dir}, git.WithParse(schemas.Parse), git.WithNow(now), git.WithTrust(trust.New(w.anchor, now)))
}

func (w *world) commit(p *gittest.Person, files map[string]string) string {
	w.t.Helper()
	hash := w.work.Commit(p, files)
	w.work.Push()
	return hash
}

// takes wants the head to be taken.
func (w *world) takes(head, why string) {
	w.t.Helper()
	snapshot, err := w.source.Poll(context.Background())
	if err != nil {
		w.t.Fatalf("%s: refused: %v", why, err)
	}
	if snapshot.Revision != head {
		w.t.Fatalf("%s: got %s, want %s", why, snapshot.Revision, head)
	}
}

// refuses wants the head to be refused with words, and last ("" for nothing) to stay what is known.
func (w *world) refuses(last, why string, words ...string) {
	w.t.Helper()
	_, err := w.source.Poll(context.Background())
	if !errors.Is(err, sources.ErrUntrusted) {
		w.t.Fatalf("%s: got %v, want ErrUntrusted", why, err)
	}
	var told *sources.Error
	if head := w.repo.Git("rev-parse", "main"); !errors.As(err, &told) || told.Revision != head || told.Reason == "" {
		w.t.Errorf("%s: %v is told to be about %q because %q, want %s", why, err, told.Revision, told.Reason, head)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			w.t.Errorf("%s: %q does not say %q", why, err, word)
		}
	}
	snapshot, err := w.source.Last(context.Background())
	switch {
	case last == "" && err == nil:
		w.t.Fatalf("%s: %s is known, and nothing should be", why, snapshot.Revision)
	case last != "" && err != nil:
		w.t.Fatalf("%s: nothing is known: %v", why, err)
	case last != "" && snapshot.Revision != last:
		w.t.Fatalf("%s: %s is known, not %s", why, snapshot.Revision, last)
	}
}

const trustFleet = `apiVersion: gitvirt.io/v1alpha1
kind: Fleet
metadata: {name: demo}
spec:
  trust:
    signatures: %s
    keys:
`

// trustingFleet is a gitvirt.yaml with the keys of people.
func trustingFleet(signatures string, people ...*gittest.Person) map[string]string {
	text := strings.Replace(trustFleet, "%s", signatures, 1)
	if len(people) == 0 {
		text = strings.Replace(text, "    keys:\n", "", 1)
	}
	for _, p := range people {
		text += "    - |\n      " + strings.ReplaceAll(strings.TrimSpace(p.Public), "\n", "\n      ") + "\n"
	}
	return map[string]string{"gitvirt.yaml": text}
}

func change(text string) map[string]string { return map[string]string{"a.yaml": "# " + text + "\n"} }

func TestTrustHead(t *testing.T) {
	w := newWorld(t)
	w.commit(w.noone, change("0"))
	w.start()
	w.refuses("", "the first commit is not signed", "is not signed", "mallory", "git commit --amend -S")
	first := w.commit(w.ann, trustingFleet("head"))
	w.takes(first, "ann's key is the anchor's")
	w.commit(w.eve, change("1"))
	w.refuses(first, "nobody knows eve's key", "eve", "is not trusted")
	w.commit(w.noone, change("2"))
	w.refuses(first, "nobody signed", "is not signed")
	w.start()
	w.refuses(first, "nor after a restart", "is not signed")
	second := w.commit(w.ann, change("3"))
	w.takes(second, "what lies between need not be signed")
}

func TestTrustKeysOfTheFleet(t *testing.T) {
	w := newWorld(t)
	w.start()
	first := w.commit(w.ann, trustingFleet("head", w.bob))
	w.takes(first, "the anchor's key")
	second := w.commit(w.bob, change("1"))
	w.takes(second, "bob's key is the Fleet's")
	w.commit(w.eve, trustingFleet("head", w.bob, w.eve))
	w.refuses(second, "eve adds her own key", "eve")
	w.commit(w.eve, change("2"))
	w.refuses(second, "and it still does not count", "eve")
	third := w.commit(w.bob, trustingFleet("head", w.bob, w.eve))
	w.takes(third, "bob adds it")
	fourth := w.commit(w.eve, trustingFleet("head", w.eve))
	w.takes(fourth, "eve's key counts now, and she takes bob's away")
	w.commit(w.bob, change("3"))
	w.refuses(fourth, "bob's key does not count any more", "bob")
	w.start()
	w.refuses(fourth, "nor after a restart", "bob")
	fifth := w.commit(w.ann, change("4"))
	w.takes(fifth, "the anchor's key counts always")
	w.dir = w.t.TempDir() // the mirror is lost, and with it what was trusted last
	w.start()
	w.takes(fifth, "from the history alone")
	sixth := w.commit(w.eve, change("5"))
	w.takes(sixth, "with the keys that were added on the way")
	w.dir = w.t.TempDir()
	w.start()
	w.takes(sixth, "also as the head")
	w.commit(w.eve, trustingFleet("head", w.noone)) // an empty key is a mistake
	w.takes(w.work.Git(w.ann, "rev-parse", "HEAD"), "with a mistake in the keys")
	last := w.commit(w.eve, change("6"))
	w.takes(last, "those of before go on to count")
}

func TestTrustAll(t *testing.T) {
	w := newWorld(t)
	w.start()
	first := w.commit(w.ann, trustingFleet("all", w.bob))
	w.takes(first, "the anchor's key")
	w.work.Commit(w.noone, change("1"))
	w.commit(w.bob, change("2"))
	w.refuses(first, "one in between is not signed", "mallory", "stands on it", "signatures: all")
	w.dir = w.t.TempDir()
	w.start()
	w.refuses("", "nor when everything is forgotten", "mallory")
	w.work.Git(w.bob, "reset", "--quiet", "--hard", first)
	w.work.Commit(w.bob, change("3"))
	second := w.commit(w.bob, change("4"))
	w.takes(second, "all are signed")
	// A merge brings along what is not signed.
	w.work.Git(w.bob, "checkout", "--quiet", "-b", "topic", first)
	w.work.Commit(w.noone, map[string]string{"topic.yaml": "# 1\n"})
	w.work.Git(w.bob, "checkout", "--quiet", second)
	w.work.Git(w.bob, "merge", "--quiet", "--no-ff", "-S", "-m", "Merge", "topic")
	w.work.Push()
	w.refuses(second, "what is merged is not signed", "mallory")
	// And the other way round: the branch is merged into what is not signed.
	w.work.Git(w.bob, "checkout", "--quiet", "topic")
	w.work.Git(w.bob, "merge", "--quiet", "--no-ff", "-S", "-m", "Merge", second)
	w.work.Push()
	w.refuses(second, "the first parent is not signed", "mallory")
	w.work.Git(w.bob, "checkout", "--quiet", "-B", "topic", first)
	w.work.Commit(w.bob, map[string]string{"topic.yaml": "# 2\n"})
	w.work.Git(w.bob, "checkout", "--quiet", second)
	w.work.Git(w.bob, "merge", "--quiet", "--no-ff", "-S", "-m", "Merge", "topic")
	w.work.Push()
	w.takes(w.work.Git(w.bob, "rev-parse", "HEAD"), "all of the merge is signed")
}

func TestTrustHistory(t *testing.T) {
	w := newWorld(t)
	w.start()
	first := w.commit(w.ann, change("1"))
	w.takes(first, "the first")
	second := w.commit(w.ann, change("2"))
	w.takes(second, "the second")
	w.work.Git(w.ann, "reset", "--quiet", "--hard", first)
	w.work.Push()
	w.refuses(second, "the branch goes back to what was signed once", "is older than", "git revert")
	w.start()
	w.refuses(second, "which a restart remembers", "is older than")
	third := w.commit(w.ann, change("3"))
	w.takes(third, "a signed commit beside it is a decision")
	w.work.Git(w.noone, "checkout", "--quiet", "--orphan", "new")
	w.commit(w.noone, change("4"))
	w.refuses(third, "another history, not signed", "is not signed")
	fourth := w.commit(w.ann, change("5"))
	w.takes(fourth, "another history, signed")
}

func TestTrustSince(t *testing.T) {
	w := newWorld(t)
	base := w.commit(w.noone, trustingFleet("all", w.bob))
	w.anchor.Since = base
	w.start()
	w.takes(base, "it is named")
	first := w.commit(w.bob, change("1"))
	w.takes(first, "by the keys that it has")
	w.commit(w.noone, change("2"))
	w.refuses(first, "and then all count", "is not signed")
	w.dir = w.t.TempDir()
	w.start()
	w.refuses("", "from there on", "is not signed")
	now := w.commit(w.noone, change("3"))
	w.anchor.Since = now
	w.start()
	w.takes(now, "a later one is named")
	w.work.Git(w.ann, "reset", "--quiet", "--hard", first)
	w.work.Push()
	w.refuses(now, "the branch goes back before it", "is older than")
	w.anchor.Since = strings.Repeat("0", 40)
	w.start()
	w.refuses("", "it is nowhere", "--trusted-since")
}

func TestTrustNeedsAnAnchor(t *testing.T) {
	w := newWorld(t)
	w.anchor = trust.Anchor{}
	plain := w.commit(w.noone, change("1"))
	w.start()
	w.takes(plain, "nobody wants signatures")
	w.commit(w.ann, trustingFleet("head", w.ann))
	w.refuses(plain, "the Fleet wants some", "--trusted-keys")
	w.start()
	w.refuses(plain, "after a restart as well", "--trusted-keys")
}

func TestTrustPGP(t *testing.T) {
	w := newWorld(t)
	pat := gittest.NewPGPPerson(t, "pat", "ed25519", "seconds=7200")
	rsa := gittest.NewPGPPerson(t, "rsa", "rsa3072", "never")
	w.anchor = trust.Anchor{Signers: keysOf(t, pat, rsa, w.ann)}
	w.start()
	first := w.commit(pat, change("1"))
	w.takes(first, "Ed25519")
	second := w.commit(rsa, change("2"))
	w.takes(second, "RSA")
	w.commit(pat, change("3"))
	w.ahead = 3 * time.Hour
	w.refuses(second, "the key has expired meanwhile", "pat", "has expired")
	fourth := w.commit(rsa, change("4"))
	w.takes(fourth, "a key that holds")
	w.ahead = 0
	w.dir = w.t.TempDir()
	w.start()
	w.takes(fourth, "the signatures of before still stand")

	if err := os.WriteFile(filepath.Join(rsa.Home, "gpg.conf"), []byte("digest-algo SHA1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.commit(rsa, change("5"))
	w.refuses(fourth, "the digest is a weak one", "SHA-1", "too weak")

	// The key is revoked: gpg makes a revocation with every key.
	revocation := strings.Replace(gittest.ReadFile(t, pat.Home, "openpgp-revocs.d", "*.rev"), ":-----BEGIN", "-----BEGIN", 1)
	pat.GPG("--batch", "--yes", "--import", gittest.WriteFile(t, revocation))
	pat.Export()
	w.anchor.Signers = keysOf(t, pat, rsa)
	w.work.Git(w.ann, "reset", "--quiet", "--hard", first)
	w.work.Push()
	w.dir = w.t.TempDir()
	w.start()
	w.refuses("", "the key was revoked", "pat", "revoked")
}

// TestTrustReuse puts signatures where they do not belong.
func TestTrustReuse(t *testing.T) {
	w := newWorld(t)
	pat := gittest.NewPGPPerson(t, "pat", "ed25519", "never")
	w.anchor = trust.Anchor{Signers: keysOf(t, pat, w.ann)}
	for _, p := range []*gittest.Person{pat, w.ann} {
		good := w.commit(p, change("good of "+p.Name))
		raw := w.repo.Raw(good)
		w.work.Git(p, "tag", "-s", "-m", "A tag", "v-"+p.Name)
		tag := w.work.Git(p, "cat-file", "tag", "v-"+p.Name)
		_, ofTag, _ := strings.Cut(tag, "\n-----BEGIN")
		ofTag = "-----BEGIN" + ofTag
		signature := raw[strings.Index(raw, "gpgsig "):strings.Index(raw, "\n\n")]
		header := func(armored string) string {
			return "gpgsig " + strings.ReplaceAll(strings.TrimSpace(armored), "\n", "\n ")
		}
		ofFile := w.repo.SignFile(w.ann, "file", raw)
		replace := func(with string) string { return strings.Replace(raw, signature, with, 1) }
		forged := map[string]string{
			"changed message":     strings.Replace(raw, "Change", "Chance", 1),
			"changed author":      strings.Replace(raw, "author "+p.Name, "author boss", 1),
			"changed tree":        strings.Replace(raw, raw[:45], "tree "+w.work.Git(p, "rev-parse", "HEAD^{tree}"), 1) + "more",
			"of a tag":            replace(header(ofTag)),
			"of another commit":   strings.Replace(raw, "\n\n", "\n\nanother ", 1),
			"namespace file":      replace(header(ofFile)),
			"cut off":             replace(header(signatureOf(signature, 0.6))),
			"garbled":             replace(strings.Replace(signature, "\n ", "\n A", 3)),
			"empty":               replace("gpgsig "),
			"twice":               replace(signature + "\n" + signature),
			"a line in between":   replace(strings.Replace(signature, "\n ", "\nx-note hidden\n ", 1)),
			"another's behind it": replace(signature+"\ngpgsig-sha256 x") + "tail",
			"smuggled parent":     strings.Replace(raw, "\nauthor", "\nparent "+good+"\nauthor", 1),
			"second tree":         strings.Replace(raw, "\nauthor", "\ntree "+raw[5:45]+"\nauthor", 1),
		}
		for name, text := range forged {
			t.Run(p.Name+"/"+name, func(t *testing.T) {
				if text == raw {
					t.Fatal("nothing was forged")
				}
				w.t, w.dir = t, t.TempDir()
				w.repo.Git("update-ref", "refs/heads/main", w.repo.Store(text))
				w.start()
				w.refuses("", "the signature is not of this commit", "commit ")
			})
		}
		w.t, w.dir = t, t.TempDir()
		w.repo.Git("update-ref", "refs/heads/main", w.repo.Store(raw))
		w.start()
		w.takes(good, "what was not forged")
	}
}

func signatureOf(header string, part float64) string {
	lines := strings.Split(strings.TrimPrefix(header, "gpgsig "), "\n")
	return strings.Join(lines[:int(part*float64(len(lines)))], "\n")
}

func TestVouch(t *testing.T) {
	w := newWorld(t)
	first := w.commit(w.ann, change("1"))
	second := w.commit(w.noone, change("2"))
	w.start()
	reader := open(t, git.Config{URL: w.repo.URL()})
	judge := trust.New(w.anchor, time.Now)
	for hash, trusted := range map[string]bool{first: true, second: false} {
		if _, err := reader.At(context.Background(), hash); err != nil {
			t.Fatal(err)
		}
		err := reader.Vouch(context.Background(), judge, hash)
		if trusted != (err == nil) || !trusted && !errors.Is(err, sources.ErrUntrusted) {
			t.Errorf("%s: %v", hash, err)
		}
	}
}

// TestTrustShallow has a server whose history is cut off.
func TestTrustShallow(t *testing.T) {
	w := newWorld(t)
	w.commit(w.ann, trustingFleet("all", w.bob))
	w.commit(w.bob, change("1"))
	head := w.commit(w.bob, change("2"))
	shallow := gittest.NewRepo(t)
	shallow.Git("fetch", "--quiet", "--depth=1", w.repo.URL(), "main:main")
	w.repo = shallow
	w.start()
	w.refuses("", "where it comes from cannot be seen", "--trusted-since")
	w.anchor.Since = head
	w.start()
	w.takes(head, "somebody says that it is right")
}
