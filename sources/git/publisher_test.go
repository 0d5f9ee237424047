package git_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

const status = "gitvirt/status"

func publisher(t testing.TB, cfg git.Config) *git.Publisher {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	p, err := git.NewPublisher(cfg, git.WithNow(func() time.Time { return time.Unix(1_700_000_000, 0).UTC() }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// own owns one top-level folder.
func own(folder string) func(string) bool {
	return func(path string) bool { return strings.HasPrefix(path, folder+"/") }
}

func publish(t testing.TB, p *git.Publisher, folder string, files map[string]string) git.Result {
	t.Helper()
	content := map[string][]byte{}
	for name, text := range files {
		content[folder+"/"+name] = []byte(text)
	}
	result, err := p.Publish(t.Context(), status, own(folder), content, "Status of "+folder, git.Author{Name: "gitvirt", Email: "gitvirt@example.org"})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestPublish(t *testing.T) {
	tests := []struct {
		name   string
		config func(t *testing.T, r *gittest.Repo) git.Config
	}{
		{"path", func(_ *testing.T, r *gittest.Repo) git.Config { return git.Config{URL: r.Dir} }},
		{"http", func(t *testing.T, r *gittest.Repo) git.Config {
			s := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{TLS: true, Username: "git", Password: "t0ken"})
			file := filepath.Join(t.TempDir(), "token")
			write(t, file, "t0ken\n")
			return git.Config{URL: s.RepoURL, CAFile: s.CAFile, Auth: git.Auth{TokenFile: file}}
		}},
		{"ssh", func(t *testing.T, r *gittest.Repo) git.Config {
			s := gittest.NewSSHServer(t)
			return git.Config{URL: s.URL(r), KnownHosts: s.KnownHosts, Auth: git.Auth{SSHKeyFile: s.KeyFile}}
		}},
		{"git", func(t *testing.T, r *gittest.Repo) git.Config { return git.Config{URL: gittest.NewDaemon(t, r)} }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := gittest.NewRepo(t)
			cfg := test.config(t, r)
			cfg.Dir = t.TempDir()
			p := publisher(t, cfg)
			if _, err := p.Read(t.Context(), status); !errors.Is(err, sources.ErrEmpty) {
				t.Errorf("reading a branch that does not exist: %v", err)
			}
			if got := publish(t, p, "me", nil); got.Changed || got.Commit != "" {
				t.Errorf("publishing nothing: %+v", got)
			}
			one := publish(t, p, "me", map[string]string{"a.yaml": "one", "x/y/b.yaml": "two"})
			if !one.Changed || one.Attempts != 1 || one.Commit != r.Git("rev-parse", status) {
				t.Errorf("first: %+v", one)
			}
			if got := publish(t, p, "me", map[string]string{"a.yaml": "one", "x/y/b.yaml": "two"}); got.Changed || got.Commit != one.Commit || got.Attempts != 0 {
				t.Errorf("the same again: %+v", got)
			}
			r.CommitTo(status, map[string]string{"other/c.yaml": "three", "README.md": "four", "me-too.yaml": "five", "me/stray.yaml": "six"})
			two := publish(t, p, "me", map[string]string{"a.yaml": "seven"})
			want := map[string]string{"me/a.yaml": "seven", "other/c.yaml": "three", "README.md": "four", "me-too.yaml": "five"}
			if diff := cmp.Diff(want, r.Files(status)); diff != "" {
				t.Error(diff)
			}
			if got := r.Git("log", "--format=%an <%ae> %ct %s", "-1", status); got != "gitvirt <gitvirt@example.org> 1700000000 Status of me" {
				t.Errorf("the commit is %q", got)
			}
			if got := r.Git("rev-list", "--count", status); got != "3" || two.Attempts != 1 {
				t.Errorf("%s commits, %+v", got, two)
			}
			// Another process, with no mirror and with ours.
			for _, dir := range []string{t.TempDir(), cfg.Dir} {
				cfg.Dir = dir
				files, err := publisher(t, cfg).Read(t.Context(), status)
				got := map[string]string{}
				for name, content := range files {
					got[name] = string(content)
				}
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Error(err, diff)
				}
			}
			r.Git("fsck", "--strict")
		})
	}
}

// TestPublishAround changes the branch behind the publisher's back.
func TestPublishAround(t *testing.T) {
	tests := []struct {
		name, reason string
		do           func(t *testing.T, r *gittest.Repo, dir string)
		want         map[string]string
	}{
		{
			"deleted", "somebody tidied up the branches", func(_ *testing.T, r *gittest.Repo, _ string) { r.Git("update-ref", "-d", "refs/heads/"+status) },
			map[string]string{"me/a.yaml": "new"},
		},
		{"force-pushed", "somebody squashed the history", func(_ *testing.T, r *gittest.Repo, _ string) {
			r.ForcePush(status, map[string]string{"x.md": "x", "me/old.yaml": "old"})
		}, map[string]string{"me/a.yaml": "new", "x.md": "x"}},
		{"mirror is gone", "it is only a cache", func(t *testing.T, _ *gittest.Repo, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, map[string]string{"me/a.yaml": "new", "keep.md": "keep"}},
		{"packs are garbage", "a bad disk", func(t *testing.T, _ *gittest.Repo, dir string) {
			for _, file := range mirrorFiles(t, dir, "*.pack", "*.idx") {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
				write(t, file, "garbage")
			}
		}, map[string]string{"me/a.yaml": "new", "keep.md": "keep"}},
		{"packs are gone", "a bad disk", func(t *testing.T, _ *gittest.Repo, dir string) {
			for _, file := range mirrorFiles(t, dir, "*.pack") {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
		}, map[string]string{"me/a.yaml": "new", "keep.md": "keep"}},
		{"a file where we have a directory", "only ours gives way", func(_ *testing.T, r *gittest.Repo, _ string) {
			r.ForcePush(status, map[string]string{"me/a.yaml/b": "old", "keep.md": "keep"})
		}, map[string]string{"me/a.yaml": "new", "keep.md": "keep"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r, dir := gittest.NewRepo(t), filepath.Join(t.TempDir(), "mirrors")
			r.CommitTo(status, map[string]string{"keep.md": "keep"})
			p := publisher(t, git.Config{URL: r.Dir, Dir: dir})
			publish(t, p, "me", map[string]string{"a.yaml": "one", "b.yaml": "two"})
			test.do(t, r, dir)
			if got := publish(t, p, "me", map[string]string{"a.yaml": "new"}); !got.Changed {
				t.Errorf("got %+v", got)
			}
			if diff := cmp.Diff(test.want, r.Files(status)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPublishIsSmall holds that the main branch and the status branch's history are never fetched.
func TestPublishIsSmall(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"main.bin": random(500_000)})
	for i := range 5 {
		r.CommitTo(status, map[string]string{"old.bin": random(50_000 + i*8000)[i*4000:]})
	}
	r.CommitTo(status, map[string]string{"old.bin": "small"})
	var sent counter
	s := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: sent.wrap})
	p := publisher(t, git.Config{URL: s.RepoURL})
	publish(t, p, "me", map[string]string{"a.yaml": "one"})
	if n := sent.take(); n > 8192 {
		t.Errorf("the first publish received %d bytes", n)
	}
	r.CommitTo(status, map[string]string{"b": "b"})
	publish(t, p, "me", map[string]string{"a.yaml": "two"})
	if n := sent.take(); n > 4096 {
		t.Errorf("the next publish received %d bytes", n)
	}
	publish(t, p, "me", map[string]string{"a.yaml": "three"})
	if n := sent.take(); n > 2048 {
		t.Errorf("a publish without others received %d bytes", n)
	}
	r.Git("fsck", "--strict")
}

// TestPublishRace lets a hundred others push while we do. Nothing of anybody may be lost.
func TestPublishRace(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	s := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{})
	work := filepath.Join(t.TempDir(), "others")
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main", work},
		{"-C", work, "remote", "add", "origin", r.Dir},
	} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	const others, rounds = 100, 10
	var group sync.WaitGroup
	group.Go(func() {
		// A hundred pushes by others, some at the same time, each on the newest tip it knows of.
		var inner sync.WaitGroup
		slots := make(chan struct{}, 4)
		for i := range others {
			slots <- struct{}{}
			inner.Go(func() {
				defer func() { <-slots }()
				for try := 0; try < 200; try++ {
					if pushOther(r, i) {
						return
					}
				}
				t.Errorf("other %d never got through", i)
			})
		}
		inner.Wait()
	})
	results := make([][]git.Result, 3)
	for n := range results {
		p := publisher(t, git.Config{URL: s.RepoURL})
		group.Go(func() {
			for round := range rounds {
				name := fmt.Sprintf("me%d", n)
				got, err := p.Publish(t.Context(), status, own(name), map[string][]byte{name + "/vm.yaml": fmt.Append(nil, round)}, "Status", git.Author{})
				if err != nil {
					t.Error(err)
					return
				}
				results[n] = append(results[n], got)
			}
		})
	}
	group.Wait()
	files := r.Files(status)
	for i := range others {
		if files[fmt.Sprintf("other-%d", i)] != "x" {
			t.Errorf("what other %d pushed is lost", i)
		}
	}
	attempts := 0
	for n := range results {
		if got := files[fmt.Sprintf("me%d/vm.yaml", n)]; got != fmt.Sprint(rounds-1) {
			t.Errorf("publisher %d ended at %q", n, got)
		}
		for _, result := range results[n] {
			attempts += result.Attempts
		}
	}
	if got, want := r.Git("rev-list", "--count", status), fmt.Sprint(others+len(results)*rounds); got != want {
		t.Errorf("%s commits, want %s", got, want)
	}
	t.Logf("%d publishes took %d pushes", len(results)*rounds, attempts)
	r.Git("fsck", "--strict")
}

// pushOther adds one file on the tip with plumbing and swaps the branch, as a push does.
func pushOther(r *gittest.Repo, i int) bool {
	script := `
set -e
tip=$(git rev-parse --verify --quiet refs/heads/$1 || true)
blob=$(printf x | git hash-object -w --stdin)
tree=$( { [ -z "$tip" ] || git ls-tree $tip; printf '100644 blob %s\tother-%s\n' $blob $2; } | git mktree)
commit=$(git -c user.name=o -c user.email=o@o commit-tree -m other ${tip:+-p $tip} $tree)
git update-ref refs/heads/$1 $commit ${tip:-0000000000000000000000000000000000000000}`
	cmd := exec.Command("sh", "-c", script, "sh", status, fmt.Sprint(i))
	cmd.Dir = r.Dir
	return cmd.Run() == nil
}

func TestPublishRefused(t *testing.T) {
	r := gittest.NewRepo(t)
	write(t, filepath.Join(r.Dir, "hooks", "pre-receive"), "#!/bin/sh\necho this branch is protected >&2\nexit 1\n")
	if err := os.Chmod(filepath.Join(r.Dir, "hooks", "pre-receive"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, url := range map[string]string{"path": r.Dir, "http": gittest.NewHTTPServer(t, r, gittest.HTTPOptions{}).RepoURL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := publisher(t, git.Config{URL: url}).Publish(t.Context(), status, own("me"), map[string][]byte{"me/a": nil}, "Status", git.Author{})
			wantKind(t, err, sources.ErrAuth)
			wantText(t, err, "this branch is protected", "allow gitvirt's user")
			if !errors.Is(err, git.ErrRefused) {
				t.Errorf("%v is not ErrRefused", err)
			}
		})
	}
}

func TestPublishFaults(t *testing.T) {
	r := gittest.NewRepo(t)
	r.CommitTo(status, map[string]string{"me": "a file"})
	web := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Username: "ann", Password: "right"})
	secret := strings.Replace(web.RepoURL, "//", "//ann:s3cret@", 1)
	file := map[string][]byte{"me/a.yaml": []byte("x")}
	tests := []struct {
		name, reason string
		config       git.Config
		files        map[string][]byte
		kind         error
		words        []string
	}{
		{"wrong password", "401", git.Config{URL: secret}, file, sources.ErrAuth, []string{"authentication required"}},
		{"down", "nobody listens", git.Config{URL: "http://127.0.0.1:1/x"}, file, sources.ErrUnreadable, []string{"refused"}},
		{"mute", "the server says nothing", git.Config{URL: "git://" + muteServer(t) + "/x", Timeout: 100 * time.Millisecond}, file, sources.ErrUnreadable, []string{"no complete answer"}},
		{"clash", "a file of others is where our directory is", git.Config{URL: r.Dir}, file, sources.ErrUnreadable, []string{`"me" is both a file and a directory`}},
		{"bad path", "git refuses it", git.Config{URL: r.Dir}, map[string][]byte{"me/../../x": nil}, sources.ErrUnreadable, []string{"not a path"}},
		{"git path", "it would be a repository's own file", git.Config{URL: r.Dir}, map[string][]byte{"me/.GIT/config": nil}, sources.ErrUnreadable, []string{"not a path"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			got, err := publisher(t, test.config).Publish(ctx, status, own("me"), test.files, "Status", git.Author{})
			if got.Changed {
				t.Errorf("got %+v", got)
			}
			wantKind(t, err, test.kind)
			wantText(t, err, test.words...)
			if strings.Contains(fmt.Sprint(err), "s3cret") {
				t.Errorf("the secret leaks: %v", err)
			}
		})
	}
}

// TestReadFolder reads only what it is asked for, and nothing when the branch has not moved.
func TestReadFolder(t *testing.T) {
	r := gittest.NewRepo(t)
	p := publisher(t, git.Config{URL: r.Dir})
	publish(t, p, "vms", map[string]string{"a.yaml": "a"})
	first := publish(t, p, "approvals", map[string]string{"1.yaml": "one"})
	reader := publisher(t, git.Config{URL: r.Dir})
	files, commit, err := reader.ReadFolder(t.Context(), status, "approvals/", "")
	if err != nil || commit != first.Commit {
		t.Fatalf("commit %s, error %v; wanted %s", commit, err, first.Commit)
	}
	if diff := cmp.Diff(map[string][]byte{"approvals/1.yaml": []byte("one")}, files); diff != "" {
		t.Error(diff)
	}
	if files, commit, err := reader.ReadFolder(t.Context(), status, "approvals/", commit); err != nil || files != nil || commit != first.Commit {
		t.Errorf("of a branch that has not moved: %v, %s, %v", files, commit, err)
	}
	second := publish(t, p, "approvals", map[string]string{"1.yaml": "one", "2.yaml": "two"})
	if files, commit, err := reader.ReadFolder(t.Context(), status, "approvals/", commit); err != nil || len(files) != 2 || commit != second.Commit {
		t.Errorf("of a branch that has moved: %v, %s, %v", files, commit, err)
	}
}
