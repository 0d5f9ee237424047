package git_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

const plans = "refs/gitvirt/plans/"

// oddNames are what git allows a branch to be called.
var oddNames = []string{"x", "feature/ü", `q"'$(id);&|<>%#!{}@,=+`, "数据库/🚀", strings.Repeat("n", 200), "-dash", "refs/heads/x"}

func updateRefs(t testing.TB, p *git.Publisher, updates ...sources.RefUpdate) map[string]sources.RefResult {
	t.Helper()
	results, err := p.Update(t.Context(), updates, git.Author{Name: "gitvirt", Email: "gitvirt@example.org"})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func planOf(name, known, text string) sources.RefUpdate {
	return sources.RefUpdate{
		Ref: plans + name, Known: known, Message: "Plan of " + name,
		Files: map[string][]byte{"plan.md": []byte(text), "status.json": []byte("{}")},
	}
}

func everything(string) bool { return true }

func TestUpdateRefs(t *testing.T) {
	for name, config := range map[string]func(t *testing.T, r *gittest.Repo) git.Config{
		"path": func(_ *testing.T, r *gittest.Repo) git.Config { return git.Config{URL: r.Dir} },
		"http": func(t *testing.T, r *gittest.Repo) git.Config {
			return git.Config{URL: gittest.NewHTTPServer(t, r, gittest.HTTPOptions{}).RepoURL}
		},
		"git": func(t *testing.T, r *gittest.Repo) git.Config { return git.Config{URL: gittest.NewDaemon(t, r)} },
		"ssh": func(t *testing.T, r *gittest.Repo) git.Config {
			s := gittest.NewSSHServer(t)
			return git.Config{URL: s.URL(r), KnownHosts: s.KnownHosts, Auth: git.Auth{SSHKeyFile: s.KeyFile}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gittest.NewRepo(t)
			p := publisher(t, config(t, r))
			var updates, removals []sources.RefUpdate
			var refs []string
			for i, name := range oddNames {
				updates = append(updates, planOf(name, "", fmt.Sprint("plan ", i)))
				refs = append(refs, plans+name)
			}
			made := updateRefs(t, p, updates...)
			r.Commit(map[string]string{"a.yaml": "a"}) // it was empty
			read, err := p.ReadRefs(t.Context(), append(refs, plans+"nowhere"), func(path string) bool { return path == "plan.md" })
			if err != nil || len(read) != len(refs) {
				t.Fatalf("%d references, %v", len(read), err)
			}
			for i, ref := range refs {
				want := sources.RefContent{Commit: r.Git("rev-parse", ref), Files: map[string][]byte{"plan.md": fmt.Append(nil, "plan ", i)}}
				if diff := cmp.Diff(want, read[ref]); diff != "" || made[ref] != (sources.RefResult{Commit: want.Commit}) {
					t.Errorf("%s: %s, %+v", ref, diff, made[ref])
				}
				updates[i].Known = want.Commit
				updates[i].Files = map[string][]byte{"plan.md": []byte("same for all")}
			}
			again := updateRefs(t, p, updates...)
			for i, ref := range refs {
				if got := r.Git("rev-parse", ref+"^"); got != updates[i].Known {
					t.Errorf("%s stands on %s, want %s", ref, got, updates[i].Known)
				}
				if got := r.Git("ls-tree", "-r", "--name-only", ref); got != "plan.md" {
					t.Errorf("%s has %s", ref, got)
				}
				removals = append(removals, sources.RefUpdate{Ref: ref, Known: again[ref].Commit})
			}
			r.Git("fsck", "--strict")
			removed := updateRefs(t, p, append(removals, sources.RefUpdate{Ref: plans + "nowhere", Known: again[refs[0]].Commit})...)
			for ref, result := range removed {
				if result != (sources.RefResult{}) || r.Has(ref) {
					t.Errorf("%s was removed: %+v", ref, result)
				}
			}
			if got := r.Git("rev-parse", "main"); got == "" {
				t.Error("main is gone")
			}
		})
	}
}

// TestUpdateRefsMoved leaves alone what others have moved, and takes the place of what they have removed.
func TestUpdateRefsMoved(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	main := r.Commit(map[string]string{"a.yaml": "a"})
	p := publisher(t, git.Config{URL: r.Dir})
	first := updateRefs(t, p, planOf("a", "", "1"), planOf("b", "", "1"), planOf("c", "", "1"), planOf("d", "", "1"))
	r.Git("update-ref", plans+"a", main)
	r.Git("update-ref", "-d", plans+"b")
	r.Git("update-ref", plans+"d", main)
	got := updateRefs(
		t, p, planOf("a", first[plans+"a"].Commit, "2"), planOf("b", first[plans+"b"].Commit, "2"), planOf("c", first[plans+"c"].Commit, "2"),
		sources.RefUpdate{Ref: plans + "d", Known: first[plans+"d"].Commit}, planOf("e", "", "1"),
	)
	for _, name := range []string{"a", "d"} {
		if result := got[plans+name]; !errors.Is(result.Err, sources.ErrMoved) || result.Commit != main || r.Git("rev-parse", plans+name) != main {
			t.Errorf("what others have moved: %+v", result)
		}
	}
	for _, name := range []string{"b", "c", "e"} {
		if result := got[plans+name]; result.Err != nil || r.Git("rev-parse", plans+name) != result.Commit {
			t.Errorf("%s: %+v", name, result)
		}
	}
	if r.Has(plans + "b^") {
		t.Error("what was removed has a past")
	}
	// a branch "c" gives way to a branch "c/d", in one push
	got = updateRefs(t, p, planOf("c/d", "", "1"), sources.RefUpdate{Ref: plans + "c", Known: got[plans+"c"].Commit})
	if got[plans+"c/d"].Err != nil || got[plans+"c"].Err != nil || !r.Has(plans+"c/d") {
		t.Errorf("a folder in the place of a reference: %+v", got)
	}
	// what is no commit has no files
	r.Git("-c", "user.name=A", "-c", "user.email=a@example.org", "tag", "-a", "-m", "x", "v1", main)
	r.Git("update-ref", plans+"tag", r.Git("rev-parse", "v1"))
	read, err := p.ReadRefs(t.Context(), []string{plans + "tag", plans + "a"}, everything)
	if err != nil || len(read[plans+"tag"].Files) != 0 || string(read[plans+"a"].Files["a.yaml"]) != "a" {
		t.Errorf("got %+v, %v", read, err)
	}
}

// TestUpdateRefsRefused has servers that want nothing outside refs/heads: others than git's own say so by a hook, or hide what is there.
func TestUpdateRefsRefused(t *testing.T) {
	hook := func(name, script string) func(t *testing.T, r *gittest.Repo) {
		return func(t *testing.T, r *gittest.Repo) {
			file := filepath.Join(r.Dir, "hooks", name)
			write(t, file, "#!/bin/sh\n"+script)
			if err := os.Chmod(file, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name, words string
		set         func(t *testing.T, r *gittest.Repo)
		good        bool
	}{
		{"hidden", "deny updating a hidden ref", func(_ *testing.T, r *gittest.Repo) { r.Git("config", "receive.hideRefs", plans+"bad") }, true},
		{"hook", "only branches here", hook("update", "case $1 in */bad) echo only branches here >&2; exit 1;; esac\n"), true},
		{"everything", "pre-receive hook declined", hook("pre-receive", "exit 1\n"), false},
	} {
		for _, transport := range []string{"path", "http"} {
			t.Run(test.name+" "+transport, func(t *testing.T) {
				t.Parallel()
				r := gittest.NewRepo(t)
				test.set(t, r)
				url := r.Dir
				if transport == "http" {
					url = gittest.NewHTTPServer(t, r, gittest.HTTPOptions{}).RepoURL
				}
				got := updateRefs(t, publisher(t, git.Config{URL: url}), planOf("bad", "", "1"), planOf("good", "", "1"))
				bad := got[plans+"bad"]
				wantKind(t, bad.Err, sources.ErrAuth)
				wantText(t, bad.Err, test.words, plans+"bad", "allow gitvirt's user to push", "some servers take only branches")
				if !errors.Is(bad.Err, git.ErrRefused) || bad.Commit != "" {
					t.Errorf("got %+v", bad)
				}
				if good := got[plans+"good"]; (good.Err == nil) != test.good || r.Has(plans+"good") != test.good {
					t.Errorf("the other one: %+v", good)
				}
			})
		}
	}
	t.Run("read only", func(t *testing.T) {
		r := gittest.NewRepo(t)
		r.Git("config", "http.receivepack", "false")
		_, err := publisher(t, git.Config{URL: gittest.NewHTTPServer(t, r, gittest.HTTPOptions{}).RepoURL}).Update(t.Context(), []sources.RefUpdate{planOf("x", "", "1")}, git.Author{})
		wantKind(t, err, sources.ErrAuth)
	})
}

// requests counts them.
type requests struct{ atomic.Int64 }

func (c *requests) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c.Add(1)
		next.ServeHTTP(w, req)
	})
}

// TestManyRefs: a hundred are one push and one fetch, and to look where they are is one request.
func TestManyRefs(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	base := r.Commit(map[string]string{"a.yaml": "a"})
	var count requests
	cfg := git.Config{URL: gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: count.wrap}).RepoURL}
	var updates []sources.RefUpdate
	var refs []string
	for i := range 100 {
		name := fmt.Sprint("topic", i)
		r.Git("update-ref", "refs/heads/"+name, base)
		updates = append(updates, planOf(name, "", name))
		refs = append(refs, plans+name)
	}
	head := r.CommitTo("topic7", map[string]string{"a.yaml": "7"})
	p, s := publisher(t, cfg), open(t, cfg)
	updateRefs(t, p, updates...)
	if n := count.Swap(0); n != 2 {
		t.Errorf("a push took %d requests", n)
	}
	if read, err := p.ReadRefs(t.Context(), refs, everything); err != nil || string(read[plans+"topic99"].Files["plan.md"]) != "topic99" {
		t.Errorf("got %+v, %v", read, err)
	}
	if n := count.Swap(0); n != 2 {
		t.Errorf("a fetch took %d requests", n)
	}
	isTopic := func(name string) bool { return strings.HasPrefix(name, "refs/heads/topic") }
	isPlan := func(name string) bool { return strings.HasPrefix(name, plans) }
	for round, want := range []int64{4, 1, 1} { // the branch and what is on others, and then nothing new
		found, err := s.Matching(t.Context(), isTopic, isPlan)
		if err != nil || len(found.Refs) != 100 || len(found.Seen) != 100 || found.Refs["refs/heads/topic7"] != head {
			t.Fatalf("found %+v, %v", found, err)
		}
		if n := count.Swap(0); n > want {
			t.Errorf("look %d took %d requests, want %d", round, n, want)
		}
	}
}

func TestContained(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	first := r.Commit(map[string]string{"a.yaml": "1"})
	r.Git("branch", "merged")
	merged := r.CommitTo("merged", map[string]string{"b.yaml": "1"})
	r.Git("branch", "open")
	topic := r.CommitTo("open", map[string]string{"c.yaml": "1"})
	other := r.CommitTo("alone", map[string]string{"d.yaml": "1"})
	second := r.Commit(map[string]string{"a.yaml": "2"})
	r.Git("update-ref", "refs/heads/main", r.Git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit-tree", "main^{tree}", "-p", "main", "-p", merged, "-m", "merge"))
	s := open(t, git.Config{URL: r.Dir})
	found := heads(t, s, "refs/heads/merged", "refs/heads/open", "refs/heads/alone")
	got, err := s.Contained(t.Context(), found.Base, []string{first, merged, topic, other, second, found.Base, strings.Repeat("ab", 20)})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{first: true, merged: true, second: true, found.Base: true}, got); diff != "" {
		t.Error(diff)
	}
}
