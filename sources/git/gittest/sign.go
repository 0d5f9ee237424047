package gittest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Person is somebody who signs commits, by ssh-keygen or by gpg.
type Person struct {
	// Name and Email are those of the commits.
	Name, Email string
	// Public is the public key: a line of allowed_signers, or an armored PGP key.
	Public string
	// Home is the GNUPGHOME of a person with a PGP key, else "".
	Home string
	key  string
	t    testing.TB
}

// NewSSHPerson makes somebody with an SSH key; options are ssh-keygen's, by default an Ed25519 key.
func NewSSHPerson(t testing.TB, name string, options ...string) *Person {
	t.Helper()
	p := &Person{Name: name, Email: name + "@example.org", key: filepath.Join(t.TempDir(), "id"), t: t}
	if len(options) == 0 {
		options = []string{"-t", "ed25519"}
	}
	run(t, "", nil, "ssh-keygen", append([]string{"-q", "-N", "", "-C", p.Email, "-f", p.key}, options...)...)
	public, err := os.ReadFile(p.key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	p.Public = p.Email + " " + strings.TrimSpace(string(public))
	return p
}

// NewPGPPerson makes somebody with a PGP key; algorithm and expiry are those of gpg --quick-generate-key, such as "ed25519"
// and "never".
func NewPGPPerson(t testing.TB, name, algorithm, expiry string) *Person {
	t.Helper()
	p := &Person{Name: name, Email: name + "@example.org", t: t}
	home, err := os.MkdirTemp("", "gpg") //nolint:usetesting // the path of the agent's socket must be short
	if err != nil {
		t.Fatal(err)
	}
	p.Home = home
	t.Cleanup(func() {
		stop := exec.Command("gpgconf", "--kill", "all")
		stop.Env = append(os.Environ(), "GNUPGHOME="+p.Home)
		if out, err := stop.CombinedOutput(); err != nil {
			t.Errorf("stopping gpg's agent: %v\n%s", err, out)
		}
		if err := os.RemoveAll(p.Home); err != nil {
			t.Error(err)
		}
	})
	p.GPG("--batch", "--passphrase", "", "--quick-generate-key", fmt.Sprintf("%s <%s>", p.Name, p.Email), algorithm, "sign", expiry)
	p.key = p.Email
	p.Export()
	return p
}

// GPG runs gpg as the person and returns what it prints.
func (p *Person) GPG(args ...string) string {
	p.t.Helper()
	return run(p.t, "", []string{"GNUPGHOME=" + p.Home}, "gpg", append([]string{"--quiet", "--no-tty"}, args...)...)
}

// Export reads the person's PGP key again, as after it was revoked.
func (p *Person) Export() { p.t.Helper(); p.Public = p.GPG("--armor", "--export", p.Email) + "\n" }

// Config are the options of git with which the person signs.
func (p *Person) Config() []string {
	config := []string{"-c", "user.name=" + p.Name, "-c", "user.email=" + p.Email}
	if p.key == "" {
		return config
	}
	if p.Home == "" {
		config = append(config, "-c", "gpg.format=ssh")
	}
	return append(config, "-c", "user.signingkey="+p.key)
}

// Nobody is somebody without a key.
func Nobody(t testing.TB) *Person {
	return &Person{Name: "mallory", Email: "mallory@example.org", t: t}
}

// Work is a clone with a work tree, in which people commit with git itself.
type Work struct {
	// Dir is the clone's folder.
	Dir string
	t   testing.TB
}

// Work clones the repository.
func (r *Repo) Work() *Work { r.t.Helper(); return Clone(r.t, r.Dir) }

// Clone clones a repository anywhere.
func Clone(t testing.TB, url string) *Work {
	t.Helper()
	w := &Work{Dir: filepath.Join(t.TempDir(), "work"), t: t}
	run(t, "", nil, "git", "clone", "--quiet", url, w.Dir)
	return w
}

// Git runs git in the clone as somebody.
func (w *Work) Git(p *Person, args ...string) string {
	w.t.Helper()
	var env []string
	if p.Home != "" {
		env = []string{"GNUPGHOME=" + p.Home}
	}
	return run(w.t, "", env, "git", append(append([]string{"-C", w.Dir}, p.Config()...), args...)...)
}

// Commit writes files and commits them, signed if the person has a key, and returns the commit's hash. It does not push.
func (w *Work) Commit(p *Person, files map[string]string) string {
	w.t.Helper()
	for _, name := range sortedNames(files) {
		path := filepath.Join(w.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	w.Git(p, "add", "-A")
	args := []string{"commit", "--quiet", "--allow-empty", "-m", "Change " + strings.Join(firstNames(files), ", ")}
	if p.key != "" {
		args = append(args, "-S")
	}
	w.Git(p, args...)
	return w.Git(p, "rev-parse", "HEAD")
}

// Push pushes what is checked out to main; a history that does not go on from there too.
func (w *Work) Push() {
	w.t.Helper()
	run(w.t, "", nil, "git", "-C", w.Dir, "push", "--quiet", "--force", "origin", "HEAD:refs/heads/main")
}

// SignFile signs a text with ssh-keygen for a namespace and returns the armored signature.
func (r *Repo) SignFile(p *Person, namespace, text string) string {
	r.t.Helper()
	return run(r.t, text, nil, "ssh-keygen", "-Y", "sign", "-n", namespace, "-f", p.key)
}

// Raw returns the bytes of a commit.
func (r *Repo) Raw(hash string) string {
	r.t.Helper()
	out, err := exec.Command("git", "-C", r.Dir, "cat-file", "commit", hash).Output()
	if err != nil {
		r.t.Fatal(err)
	}
	return string(out)
}

// Store puts a commit into the repository as it is, whatever git would say of it, and returns its hash.
func (r *Repo) Store(raw string) string {
	r.t.Helper()
	return run(r.t, raw, nil, "git", "-C", r.Dir, "hash-object", "-t", "commit", "-w", "--literally", "--stdin")
}

// ReadFile returns the one file that a pattern below a folder matches.
func ReadFile(t testing.TB, pattern ...string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v: %v files, %v", pattern, len(found), err)
	}
	content, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// WriteFile writes a file that ends with the test and returns its path.
func WriteFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
