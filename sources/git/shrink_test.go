package git_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// openPulls makes commits on main, each the head of a pull request with a file of its own, and returns their references.
func openPulls(t *testing.T, r *gittest.Repo, first, count, size int, noise string) (refs []string) {
	t.Helper()
	var in strings.Builder
	for n := first; n < first+count; n++ {
		ref := fmt.Sprintf("refs/pull/%d/head", n)
		refs = append(refs, ref)
		content := noise[n*size : (n+1)*size]
		fmt.Fprintf(&in, "commit %s\ncommitter Ann <ann@example.org> 1700000000 +0000\ndata 1\nx\nfrom refs/heads/main^0\nM 100644 inline pull.yaml\ndata %d\n%s\n", ref, len(content), content)
	}
	cmd := exec.Command("git", "-C", r.Dir, "fast-import", "--quiet")
	cmd.Stdin = strings.NewReader(in.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return refs
}

// mirrorSize is how many bytes the packs below a folder have.
func mirrorSize(t *testing.T, dir string) (size int64) {
	t.Helper()
	for _, pack := range mirrorFiles(t, dir, "pack-*.pack") {
		info, err := os.Stat(pack)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}

// TestHeadsAreForgotten opens and closes hundreds of pull requests. Forges keep their references for ever; the mirror keeps what is open.
func TestHeadsAreForgotten(t *testing.T) {
	t.Parallel()
	const rounds, each, size, slack = 20, 20, 20_000, 256 << 10
	r, dir := gittest.NewRepo(t), t.TempDir()
	r.Commit(map[string]string{"a.yaml": "a"})
	s := open(t, git.Config{URL: r.Dir, Dir: dir})
	s.SetSlack(slack)
	noise := random((1 + rounds*each) * size)
	most, first := int64(0), ""
	for round := range rounds {
		refs := openPulls(t, r, 1+round*each, each, size, noise)
		found := heads(t, s, refs...)
		if first == "" {
			first = found.Refs[refs[0]]
		}
		snapshot, conflicts, err := s.Merge(t.Context(), found.Base, found.Refs[refs[each-1]])
		if err != nil || len(conflicts) > 0 || len(contents(snapshot)["pull.yaml"]) != size {
			t.Fatalf("round %d: %v, %v", round, err, conflicts)
		}
		if round%5 == 4 {
			r.Commit(map[string]string{"a.yaml": fmt.Sprint(round)})
		}
		most = max(most, mirrorSize(t, dir))
	}
	// What is open takes 200 kB (half of what random letters are), as does a round that was fetched just now.
	if most > 1<<20 {
		t.Errorf("the mirror grew to %d bytes; all heads together have %d", most, rounds*each*size/2)
	}
	if _, _, err := s.Merge(t.Context(), r.Git("rev-parse", "main~1"), first); err == nil {
		t.Error("what was closed first is still there")
	}
	// One that is opened again is fetched again.
	if _, conflicts := mergeRef(t, s, "refs/pull/1/head"); len(conflicts) > 0 {
		t.Error(conflicts)
	}
	if found := mirrorFiles(t, dir, "HEAD"); len(found) != 1 {
		t.Errorf("there are %v", found)
	}
}

// mergeRef merges what a reference names into main.
func mergeRef(t *testing.T, s *git.Source, ref string) (content map[string]string, conflicts []string) {
	t.Helper()
	found := heads(t, s, ref)
	snapshot, told, err := s.Merge(t.Context(), found.Base, found.Refs[ref])
	if err != nil {
		t.Fatal(err)
	}
	for _, conflict := range told {
		conflicts = append(conflicts, conflict.String())
	}
	if len(conflicts) > 0 {
		return nil, conflicts
	}
	return contents(snapshot), nil
}

// TestForgettingFails has a server that gives up when the mirror is to be made anew: it stays as it is, and works.
func TestForgettingFails(t *testing.T) {
	t.Parallel()
	const each, size = 20, 20_000
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "a"})
	var left, refused atomic.Int64
	left.Store(1 << 20)
	server := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/info/refs") && left.Add(-1) < 0 {
				refused.Add(1)
				http.Error(w, "too much", http.StatusInternalServerError)
				return
			}
			next.ServeHTTP(w, req)
		})
	}})
	s := open(t, git.Config{URL: server.RepoURL})
	s.SetSlack(100_000)
	heads(t, s)
	noise := random((1 + 2*each) * size)
	left.Store(1)
	if got, conflicts := mergeRef(t, s, openPulls(t, r, 1, each, size, noise)[0]); len(conflicts) > 0 || len(got["pull.yaml"]) != size {
		t.Errorf("got %v", conflicts)
	}
	left.Store(1)
	heads(t, s, openPulls(t, r, 1+each, each, size, noise)...)
	if refused.Load() != 1 {
		t.Errorf("a mirror that could not be made anew was tried %d times within a moment", refused.Load())
	}
}
