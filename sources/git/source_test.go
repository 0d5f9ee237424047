package git_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// TestMain is also the process that TestKilled kills.
func TestMain(m *testing.M) {
	if url := os.Getenv("GITVIRT_TEST_POLL"); url != "" {
		s, err := git.Open(git.Config{URL: url, Dir: os.Getenv("GITVIRT_TEST_DIR")}, git.WithParse(parse))
		if err == nil {
			_, err = s.Poll(context.Background())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// parse is a parser that only remembers what it read.
func parse(path string, content []byte) *schemas.File {
	return &schemas.File{Path: path, Diagnostics: schemas.Diagnostics{{Message: string(content)}}}
}

func open(t testing.TB, cfg git.Config, opts ...git.Option) *git.Source {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	s, err := git.Open(cfg, append([]git.Option{git.WithParse(parse)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func poll(t testing.TB, s *git.Source) *sources.Snapshot {
	t.Helper()
	snapshot, err := s.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// contents maps the paths of a snapshot to what was read.
func contents(s *sources.Snapshot) map[string]string {
	files := map[string]string{}
	for _, f := range s.Files {
		text := ""
		for _, d := range f.Diagnostics {
			text += d.Message
		}
		files[f.Path] = text
	}
	return files
}

func paths(s *sources.Snapshot) []string {
	list := []string{}
	for _, f := range s.Files {
		list = append(list, f.Path)
	}
	return list
}

func wantKind(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got error %v, want %v", err, kind)
	}
	for _, other := range []error{sources.ErrUnreadable, sources.ErrEmpty, sources.ErrAuth, sources.ErrLimit} {
		if !errors.Is(other, kind) && errors.Is(err, other) {
			t.Errorf("%v is also %v", err, other)
		}
	}
}

func wantText(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// TestTransports polls, follows a commit and polls again over every transport.
func TestTransports(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		config func(t *testing.T, r *gittest.Repo) git.Config
	}{
		{"file", "a file URL is served by the installed git", func(_ *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: r.URL()}
		}},
		{"path", "a bare repository's path", func(_ *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: r.Dir}
		}},
		{"http", "anonymous http", func(t *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: gittest.NewHTTPServer(t, r, gittest.HTTPOptions{}).RepoURL}
		}},
		{"https", "https with an authority of its own, and a token from the environment", func(t *testing.T, r *gittest.Repo) git.Config {
			s := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{TLS: true, Username: "git", Password: "t0ken"})
			return git.Config{URL: s.RepoURL, CAFile: s.CAFile, Auth: git.Auth{TokenEnv: "TOKEN"}}
		}},
		{"basic", "http with user and password from a file", func(t *testing.T, r *gittest.Repo) git.Config {
			s := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Username: "ann", Password: "s3cret"})
			file := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return git.Config{URL: s.RepoURL, Auth: git.Auth{Username: "ann", PasswordFile: file}}
		}},
		{"basic in the URL", "not recommended, and works", func(t *testing.T, r *gittest.Repo) git.Config {
			s := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Username: "ann", Password: "s3cret"})
			return git.Config{URL: strings.Replace(s.RepoURL, "http://", "http://ann:s3cret@", 1)}
		}},
		{"ssh", "ssh with a key file and a known host", func(t *testing.T, r *gittest.Repo) git.Config {
			s := gittest.NewSSHServer(t)
			return git.Config{URL: s.URL(r), KnownHosts: s.KnownHosts, Auth: git.Auth{SSHKeyFile: s.KeyFile}}
		}},
		{"git", "a git daemon", func(t *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: gittest.NewDaemon(t, r)}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := gittest.NewRepo(t)
			first := r.Commit(map[string]string{"a.yaml": "one", "b/c.json": "two", "README.md": "no"})
			s := open(t, test.config(t, r), git.WithGetenv(func(string) string { return "t0ken" }))
			one := poll(t, s)
			if one.Revision != first || one.Changed != nil || one.Rewritten != "" {
				t.Errorf("first snapshot is %+v, want revision %s", one, first)
			}
			if one.Subject != "Change README.md, a.yaml, b/c.json" || one.Author != "Ann <ann@example.org>" || one.Time.Unix() != 1_700_000_000 {
				t.Errorf("commit is %q by %q at %s", one.Subject, one.Author, one.Time)
			}
			if again := poll(t, s); again != one {
				t.Error("an unchanged poll returns another snapshot")
			}
			second := r.Commit(map[string]string{"a.yaml": "three", "b/d.yml": "four"})
			two := poll(t, s)
			if two.Revision != second || two.Rewritten != "" {
				t.Errorf("second snapshot is %s (rewritten %q), want %s", two.Revision, two.Rewritten, second)
			}
			if diff := cmp.Diff([]string{"a.yaml", "b/d.yml"}, two.Changed); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(map[string]string{"a.yaml": "three", "b/c.json": "two", "b/d.yml": "four"}, contents(two)); diff != "" {
				t.Error(diff)
			}
			if two.Files[1] != one.Files[1] {
				t.Error("b/c.json did not change and was read again")
			}
		})
	}
}

func TestWorkTreePath(t *testing.T) {
	r := gittest.NewRepo(t)
	want := r.Commit(map[string]string{"a.yaml": "one"})
	if got := poll(t, open(t, git.Config{URL: r.WorkTree()})); got.Revision != want {
		t.Errorf("got %s, want %s", got.Revision, want)
	}
}

func TestBranchAndHead(t *testing.T) {
	r := gittest.NewRepo(t)
	main := r.Commit(map[string]string{"a.yaml": "main"})
	prod := r.CommitTo("prod/eu", map[string]string{"a.yaml": "prod"})
	dir := t.TempDir()
	head, branch := open(t, git.Config{URL: r.Dir, Dir: dir}), open(t, git.Config{URL: r.Dir, Dir: dir, Branch: "prod/eu"})
	if got := poll(t, head).Revision; got != main {
		t.Errorf("HEAD is %s, want %s", got, main)
	}
	if got := poll(t, branch).Revision; got != prod {
		t.Errorf("prod/eu is %s, want %s", got, prod)
	}
	r.Git("symbolic-ref", "HEAD", "refs/heads/prod/eu")
	got := poll(t, head)
	if got.Revision != prod || got.Rewritten != main {
		t.Errorf("after HEAD moved: %s (rewritten %q), want %s (%s)", got.Revision, got.Rewritten, prod, main)
	}
}

func TestForcePush(t *testing.T) {
	r := gittest.NewRepo(t)
	first := r.Commit(map[string]string{"a.yaml": "one", "b.yaml": "two"})
	dir := t.TempDir()
	s := open(t, git.Config{URL: r.Dir, Dir: dir})
	poll(t, s)
	second := r.ForcePush("main", map[string]string{"a.yaml": "other", "c.yaml": "new"})
	got := poll(t, s)
	if got.Revision != second || got.Rewritten != first {
		t.Errorf("got %s rewritten from %q, want %s from %s", got.Revision, got.Rewritten, second, first)
	}
	if diff := cmp.Diff([]string{"a.yaml", "b.yaml", "c.yaml"}, got.Changed); diff != "" {
		t.Error(diff)
	}
	if poll(t, s) != got {
		t.Error("an unchanged poll returns another snapshot")
	}
	// A controller that was down meanwhile learns it from its mirror.
	r.ForcePush("main", map[string]string{"a.yaml": "third"})
	if got := poll(t, open(t, git.Config{URL: r.Dir, Dir: dir})); got.Rewritten != second {
		t.Errorf("after a restart: rewritten from %q, want %s", got.Rewritten, second)
	}
	// Moving on is no rewriting.
	r.Commit(map[string]string{"a.yaml": "fourth"})
	if got := poll(t, open(t, git.Config{URL: r.Dir, Dir: dir})); got.Rewritten != "" {
		t.Errorf("after a restart and a plain commit: rewritten from %q", got.Rewritten)
	}
	// Going back to an old commit is.
	tip := r.Commit(map[string]string{"a.yaml": "fifth"})
	s = open(t, git.Config{URL: r.Dir, Dir: dir})
	poll(t, s)
	r.Git("update-ref", "refs/heads/main", "refs/heads/main~1")
	if got := poll(t, s); got.Rewritten != tip {
		t.Errorf("after going back: rewritten from %q, want %s", got.Rewritten, tip)
	}
}

// TestNothingThere holds that whatever is missing is an error and never an empty snapshot.
func TestNothingThere(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		config func(t *testing.T, r *gittest.Repo) git.Config
		words  []string
	}{
		{"no repository", "the path may be mistyped", func(_ *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: r.Dir + ".no"}
		}, []string{"repository not found", "check the URL"}},
		{"no repository over http", "servers answer 404", func(t *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: gittest.NewHTTPServer(t, r, gittest.HTTPOptions{}).URL + "/none.git"}
		}, []string{"repository not found"}},
		{"no repository over ssh", "git says so on its standard error", func(t *testing.T, r *gittest.Repo) git.Config {
			s := gittest.NewSSHServer(t)
			return git.Config{URL: s.URL(r) + ".no", KnownHosts: s.KnownHosts, Auth: git.Auth{SSHKeyFile: s.KeyFile}}
		}, []string{"repository not found"}},
		{"no repository over git", "the daemon sends an ERR line", func(t *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: gittest.NewDaemon(t, r) + ".no"}
		}, []string{"repository not found"}},
		{"a folder that is no repository", "git says so on its standard error", func(t *testing.T, _ *gittest.Repo) git.Config {
			return git.Config{URL: t.TempDir()}
		}, []string{"repository not found"}},
		{"no commit", "a repository that is being set up", func(_ *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: r.Dir}
		}, []string{"empty", "push a first commit"}},
		{"no commit over http", "the same over http", func(t *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: gittest.NewHTTPServer(t, r, gittest.HTTPOptions{}).RepoURL}
		}, []string{"empty"}},
		{"no branch", "it may have been deleted by mistake", func(_ *testing.T, r *gittest.Repo) git.Config {
			r.Commit(map[string]string{"a.yaml": "one"})
			return git.Config{URL: r.Dir, Branch: "prod"}
		}, []string{`no branch "prod"`}},
		{"dangling HEAD", "HEAD names a branch that does not exist", func(_ *testing.T, r *gittest.Repo) git.Config {
			r.CommitTo("other", map[string]string{"a.yaml": "one"})
			return git.Config{URL: r.Dir}
		}, []string{"HEAD"}},
		{"no sub-path", "it may have been renamed", func(_ *testing.T, r *gittest.Repo) git.Config {
			r.Commit(map[string]string{"vms/a.yaml": "one"})
			return git.Config{URL: r.Dir, Path: "fleet/vms"}
		}, []string{`no directory "fleet/vms"`, "sub-path"}},
		{"a sub-path that is a file", "it holds no manifests", func(_ *testing.T, r *gittest.Repo) git.Config {
			r.Commit(map[string]string{"vms.yaml": "one"})
			return git.Config{URL: r.Dir, Path: "vms.yaml"}
		}, []string{`no directory "vms.yaml"`}},
		{"no manifest", "everything was removed, perhaps by mistake", func(_ *testing.T, r *gittest.Repo) git.Config {
			r.Commit(map[string]string{"README.md": "one"})
			return git.Config{URL: r.Dir}
		}, []string{"no manifest", "gitvirt.yaml"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := gittest.NewRepo(t)
			snapshot, err := open(t, test.config(t, r)).Poll(t.Context())
			if snapshot != nil {
				t.Errorf("got a snapshot: %+v", snapshot)
			}
			wantKind(t, err, sources.ErrEmpty)
			wantText(t, err, test.words...)
		})
	}
}

func TestBranchDeletedWhileFollowed(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one"})
	r.CommitTo("keep", map[string]string{"a.yaml": "one"})
	s := open(t, git.Config{URL: r.Dir, Branch: "main"})
	before := poll(t, s)
	r.Git("update-ref", "-d", "refs/heads/main")
	_, err := s.Poll(t.Context())
	wantKind(t, err, sources.ErrEmpty)
	if last, err := s.Last(t.Context()); err != nil || last != before {
		t.Errorf("Last returns %v, %v; want the snapshot before", last, err)
	}
	again := r.Commit(map[string]string{"a.yaml": "two"})
	if got := poll(t, s); got.Revision != again {
		t.Errorf("got %s, want %s", got.Revision, again)
	}
}

// TestSubPath also holds that a snapshot is ordered by path, whatever git's order of trees is.
func TestSubPath(t *testing.T) {
	r := gittest.NewRepo(t)
	files := map[string]string{"other/x.yaml": "no"}
	for _, name := range []string{"a.yaml", "a/z.yaml", "a-b.yaml", "a0.yaml", "b/c/d.yaml", ".hidden/x.yaml", ".x.yaml"} {
		files["fleet/vms/"+name] = name
	}
	r.Commit(files)
	got := paths(poll(t, open(t, git.Config{URL: r.Dir, Path: "/fleet/vms/"})))
	want := slices.DeleteFunc(slices.Sorted(maps.Keys(files)), func(p string) bool {
		return strings.Contains(p, "/.") || strings.HasPrefix(p, "other")
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
