package git_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

const notesRef = "refs/notes/gitvirt"

// gitNotes runs git notes in the repository, as people do in their clones.
func gitNotes(r *gittest.Repo, args ...string) string {
	return r.Git(append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.org", "notes", "--ref=gitvirt"}, args...)...)
}

// history makes commits with a note of somebody else on all but the first ones, as git lays out so many.
func history(t *testing.T, r *gittest.Repo, commits, bare int) {
	t.Helper()
	var in strings.Builder
	who := "Ann <ann@example.org> 1700000000 +0000"
	for i := 1; i <= commits; i++ {
		fmt.Fprintf(&in, "commit refs/heads/main\nmark :%d\ncommitter %s\ndata 1\nx\nM 100644 inline a.yaml\ndata <<E\n%d\nE\n\n", i, who, i)
	}
	fmt.Fprintf(&in, "commit %s\ncommitter %s\ndata 1\nx\n", notesRef, who)
	for i := bare + 1; i <= commits; i++ {
		fmt.Fprintf(&in, "N inline :%d\ndata <<E\ntheirs %d\nE\n\n", i, i)
	}
	cmd := exec.Command("git", "-C", r.Dir, "fast-import", "--quiet")
	cmd.Stdin = strings.NewReader(in.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestNotes holds what is written against git notes itself, among a thousand notes of others.
func TestNotes(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	history(t, r, 1000, 3)
	commits := strings.Fields(r.Git("rev-list", "--reverse", "main"))
	cfg := git.Config{URL: gittest.NewHTTPServer(t, r, gittest.HTTPOptions{}).RepoURL}
	notes := publisher(t, cfg).Notes(notesRef, git.Author{Name: "gitvirt", Email: "gitvirt@example.org"})
	set := func(commit, text string) {
		t.Helper()
		if err := notes.Write(t.Context(), commit, text); err != nil {
			t.Fatal(err)
		}
		if got := gitNotes(r, "show", commit); got != strings.TrimSpace(text) {
			t.Errorf("git notes shows %q, want %q", got, text)
		}
		if got, found, err := notes.Show(t.Context(), commit); got != text || !found || err != nil {
			t.Errorf("it is %q, %v, %v", got, found, err)
		}
	}
	if got, found, err := notes.Show(t.Context(), commits[0]); got != "" || found || err != nil {
		t.Errorf("without a note it is %q, %v, %v", got, found, err)
	}
	set(commits[0], "applied 1 of 2\n")
	set(commits[0], "applied 2 of 2\n")
	set(commits[1], "failed\n")
	set(commits[10], "over somebody else's\n")
	if got, found, err := notes.Show(t.Context(), commits[500]); got != "theirs 501\n" || !found || err != nil {
		t.Errorf("somebody else's is %q, %v, %v", got, found, err)
	}
	// Others go on to use git notes.
	gitNotes(r, "append", "-m", "and theirs", commits[0])
	gitNotes(r, "add", "-m", "theirs", commits[2])
	set(commits[1], "applied\n")
	if got := gitNotes(r, "show", commits[0]); got != "applied 2 of 2\n\nand theirs" {
		t.Errorf("it is %q", got)
	}
	if got := len(strings.Split(gitNotes(r, "list"), "\n")); got != 1000 {
		t.Errorf("%d notes, want 1000", got)
	}
	r.Git("fsck", "--strict")
	// In a clone they are seen after a fetch.
	work := r.Work()
	work.Git(gittest.Nobody(t), "fetch", "--quiet", "origin", notesRef+":"+notesRef)
	if got := work.Git(gittest.Nobody(t), "log", "-1", "--notes=gitvirt", "--format=%N", commits[1]); strings.TrimSpace(got) != "applied" {
		t.Errorf("git log shows %q", got)
	}
}

// TestNotesRace lets somebody else write a note just before ours arrives, and the repository begin without any.
func TestNotesRace(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	one, two := r.Commit(map[string]string{"a.yaml": "1"}), r.Commit(map[string]string{"a.yaml": "2"})
	var before sync.Once
	server := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/git-receive-pack") {
				before.Do(func() { gitNotes(r, "add", "-m", "theirs", two) })
			}
			next.ServeHTTP(w, req)
		})
	}})
	notes := publisher(t, git.Config{URL: server.RepoURL}).Notes(notesRef, git.Author{})
	if err := notes.Write(t.Context(), one, "ours\n"); err != nil {
		t.Fatal(err)
	}
	if got := gitNotes(r, "show", one) + ", " + gitNotes(r, "show", two); got != "ours, theirs" {
		t.Errorf("the notes are %s", got)
	}
	if got := r.Git("rev-list", "--count", notesRef); got != "2" {
		t.Errorf("%s commits, want 2", got)
	}
}

func TestNotesRefused(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	commit := r.Commit(map[string]string{"a.yaml": "1"})
	r.Git("config", "receive.hideRefs", "refs/notes")
	notes := publisher(t, git.Config{URL: r.Dir}).Notes(notesRef, git.Author{})
	err := notes.Write(t.Context(), commit, "ours\n")
	wantKind(t, err, sources.ErrAuth)
	wantText(t, err, "hidden ref", "allow gitvirt's user to push to refs/notes/gitvirt")
	if name := notes.Name(); name != notesRef+" of "+r.Dir {
		t.Errorf("the name is %s", name)
	}
}
