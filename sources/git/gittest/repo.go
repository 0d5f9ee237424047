// Package gittest makes real git repositories and servers for tests: repositories by the installed git, http by
// git-http-backend, ssh by sshd. It needs git and, for SSHServer, openssh-server.
package gittest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Repo is a bare repository on disk with the branch main.
type Repo struct {
	// Dir is the repository's folder.
	Dir string
	t   testing.TB
}

// NewRepo makes an empty repository, which ends with the test.
func NewRepo(t testing.TB) *Repo {
	t.Helper()
	r := &Repo{Dir: filepath.Join(t.TempDir(), "fleet.git"), t: t}
	run(t, "", nil, "git", "init", "--quiet", "--bare", "--initial-branch=main", r.Dir)
	r.Git("config", "http.receivepack", "true")
	r.Git("config", "gc.auto", "0")
	return r
}

// URL is the repository's file:// URL.
func (r *Repo) URL() string { return "file://" + r.Dir }

// Git runs git in the repository and returns what it prints, without the white space around it.
func (r *Repo) Git(args ...string) string {
	r.t.Helper()
	return run(r.t, "", nil, "git", append([]string{"-C", r.Dir}, args...)...)
}

// Commit puts files on main on top of what is there and returns the commit's hash. The content of a file may also be
// Delete or a Link.
func (r *Repo) Commit(files map[string]string) string {
	r.t.Helper()
	return r.CommitTo("main", files)
}

// Delete is the content that makes Commit remove a file.
const Delete = "\x00delete"

// CommitTo is Commit on another branch, which begins without history if it does not exist.
func (r *Repo) CommitTo(branch string, files map[string]string) string {
	r.t.Helper()
	return r.commit(branch, files, true)
}

// ForcePush replaces a branch by one commit without history that holds exactly files.
func (r *Repo) ForcePush(branch string, files map[string]string) string {
	r.t.Helper()
	return r.commit(branch, files, false)
}

// commit feeds git fast-import, which is quick for many files.
func (r *Repo) commit(branch string, files map[string]string, keep bool) string {
	r.t.Helper()
	keep = keep && r.Has("refs/heads/"+branch)
	var in strings.Builder
	message := "Change " + strings.Join(firstNames(files), ", ")
	fmt.Fprintf(&in, "commit refs/heads/%s\nauthor Ann <ann@example.org> %d +0000\ncommitter Ann <ann@example.org> %d +0000\n", branch, stamp, stamp)
	fmt.Fprintf(&in, "data %d\n%s\n", len(message), message)
	if keep {
		fmt.Fprintf(&in, "from refs/heads/%s^0\n", branch)
	}
	for _, name := range sortedNames(files) {
		if files[name] == Delete {
			fmt.Fprintf(&in, "D %s\n", name)
			continue
		}
		fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", mode(files[name]), name, len(content(files[name])), content(files[name]))
	}
	run(r.t, in.String(), nil, "git", "-C", r.Dir, "fast-import", "--quiet", "--force")
	return r.Git("rev-parse", "refs/heads/"+branch)
}

// stamp is when every commit was made, in seconds of Unix time.
const stamp = 1_700_000_000

const linkPrefix = "\x00link:"

// Link is the content that makes Commit store a symbolic link to target.
func Link(target string) string { return linkPrefix + target }

func mode(text string) string {
	if strings.HasPrefix(text, linkPrefix) {
		return "120000"
	}
	return "100644"
}

func content(text string) string { return strings.TrimPrefix(text, linkPrefix) }

// Has reports whether a reference exists.
func (r *Repo) Has(ref string) bool {
	return exec.Command("git", "-C", r.Dir, "rev-parse", "--verify", "--quiet", ref).Run() == nil
}

// File returns a file of a branch, "" where there is none. It asks git once: what waits for a file asks often.
func (r *Repo) File(branch, path string) string {
	out, err := exec.Command("git", "-C", r.Dir, "cat-file", "blob", "refs/heads/"+branch+":"+path).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// Files returns a branch's files by path.
func (r *Repo) Files(branch string) map[string]string {
	r.t.Helper()
	files := map[string]string{}
	commit := strings.TrimSpace(r.Git("rev-parse", branch)) // the branch may move while it is read
	for _, name := range strings.Split(r.Git("ls-tree", "-r", "--name-only", "-z", commit), "\x00") {
		if name != "" {
			files[name] = run(r.t, "", nil, "git", "-C", r.Dir, "cat-file", "blob", commit+":"+name)
		}
	}
	return files
}

// WorkTree clones the repository into a folder with a work tree and returns the folder.
func (r *Repo) WorkTree() string {
	r.t.Helper()
	return Clone(r.t, r.Dir).Dir
}

func sortedNames(files map[string]string) []string {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func firstNames(files map[string]string) []string {
	names := sortedNames(files)
	return names[:min(3, len(names))]
}

// run runs a program to its end and fails the test if it fails.
func run(t testing.TB, stdin string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}
