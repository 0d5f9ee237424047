package git_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// heads fetches the branch and others.
func heads(t testing.TB, s *git.Source, names ...string) *sources.Heads {
	t.Helper()
	found, err := s.Heads(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// mergeOf merges a branch into main.
func mergeOf(t testing.TB, s *git.Source, branch string) (*sources.Snapshot, []sources.Conflict) {
	t.Helper()
	ref := "refs/heads/" + branch
	found := heads(t, s, ref)
	snapshot, conflicts, err := s.Merge(t.Context(), found.Base, found.Refs[ref])
	if err != nil {
		t.Fatal(err)
	}
	return snapshot, conflicts
}

func lines(words ...string) string { return strings.Join(words, "\n") + "\n" }

func TestMerge(t *testing.T) {
	base := map[string]string{
		"a.yaml": lines("a", "b", "c", "d"), "dir/b.yaml": "b", "gone.yaml": "gone", "link.txt": gittest.Link("a.yaml"), "bin": "\x00one",
	}
	tests := []struct {
		name, reason string
		main, topic  map[string]string
		want         map[string]string
		conflicts    []string
	}{
		{
			"one file, two places", "lines are merged, other files are taken",
			map[string]string{"a.yaml": lines("A", "b", "c", "d"), "main.yaml": "m"},
			map[string]string{"a.yaml": lines("a", "b", "c", "D"), "dir/c.yaml": "c", "gone.yaml": gittest.Delete},
			map[string]string{"a.yaml": lines("A", "b", "c", "D"), "dir/b.yaml": "b", "dir/c.yaml": "c", "main.yaml": "m"},
			nil,
		},
		{
			"fast-forward", "nothing happened on main",
			nil,
			map[string]string{"a.yaml": "x"},
			map[string]string{"a.yaml": "x", "dir/b.yaml": "b", "gone.yaml": "gone"},
			nil,
		},
		{
			"same line", "also of what is no manifest",
			map[string]string{"a.yaml": lines("A", "b", "c", "d"), "bin": "\x00two", "notes.md": "x"},
			map[string]string{"a.yaml": lines("X", "b", "c", "d"), "bin": "\x00three", "notes.md": "y"},
			nil,
			[]string{"a.yaml: both sides changed the same lines", "bin: both sides changed it, and it is no text", "notes.md: both sides added it, with different content"},
		},
		{
			"removed and changed", "nobody knows which counts",
			map[string]string{"gone.yaml": "other"},
			map[string]string{"gone.yaml": gittest.Delete},
			nil,
			[]string{"gone.yaml: one side removed it and the other changed it"},
		},
		{
			"file and folder", "one name cannot be both",
			map[string]string{"new": "file"},
			map[string]string{"new/x.yaml": "x"},
			nil,
			[]string{"new: it is a file on one side and a folder on the other"},
		},
		{
			"link", "links are not merged",
			map[string]string{"link.txt": gittest.Link("b")},
			map[string]string{"link.txt": gittest.Link("c")},
			nil,
			[]string{"link.txt: both sides changed it, and one of them made something else of it than a file"},
		},
		{
			"folder became a file", "where the other side left the folder",
			map[string]string{"dir/b.yaml": gittest.Delete, "dir": "file"},
			map[string]string{"a.yaml": "x"},
			map[string]string{"a.yaml": "x", "gone.yaml": "gone"},
			nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := gittest.NewRepo(t)
			r.Commit(base)
			r.Git("branch", "topic")
			if tt.main != nil {
				r.Commit(tt.main)
			}
			head := r.CommitTo("topic", tt.topic)
			before := r.Git("for-each-ref")
			snapshot, conflicts := mergeOf(t, open(t, git.Config{URL: r.Dir}), "topic")
			var told []string
			for _, conflict := range conflicts {
				told = append(told, conflict.String())
			}
			if diff := cmp.Diff(tt.conflicts, told); diff != "" {
				t.Errorf("%s: conflicts:\n%s", tt.reason, diff)
			}
			if tt.want == nil {
				if snapshot != nil {
					t.Error("a merge with conflicts has files")
				}
				return
			}
			got := contents(snapshot)
			delete(got, "link.txt") // which is told, and not read
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s:\n%s", tt.reason, diff)
			}
			if snapshot.Revision != head {
				t.Errorf("the revision is %s, not the head %s", snapshot.Revision, head)
			}
			if after := r.Git("for-each-ref"); after != before {
				t.Errorf("the remote was changed: %s", after)
			}
		})
	}
}

// TestMergeUnrelated merges branches that have nothing in common.
func TestMergeUnrelated(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "a"})
	r.CommitTo("topic", map[string]string{"b.yaml": "b"})
	_, conflicts := mergeOf(t, open(t, git.Config{URL: r.Dir}), "topic")
	if want := []sources.Conflict{{Reason: "the branches have no commit in common"}}; !slices.Equal(conflicts, want) {
		t.Errorf("got %v", conflicts)
	}
}

// TestMergeKeepsOff holds the mirror against what merges leave in it: nothing.
func TestMergeKeepsOff(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": lines("a", "b", "c")})
	r.Git("branch", "topic")
	r.Commit(map[string]string{"a.yaml": lines("A", "b", "c")})
	r.CommitTo("topic", map[string]string{"a.yaml": lines("a", "b", "C")})
	dir := t.TempDir()
	s := open(t, git.Config{URL: r.Dir, Dir: dir})
	found := heads(t, s, "refs/heads/topic")
	list := func() string {
		out, err := exec.Command("find", dir, "-type", "f", "-printf", "%P %s\n").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	before := list()
	for range 3 {
		if _, _, err := s.Merge(t.Context(), found.Base, found.Refs["refs/heads/topic"]); err != nil {
			t.Fatal(err)
		}
	}
	if after := list(); after != before {
		t.Errorf("the mirror was changed:\n%s\n%s", before, after)
	}
	if _, _, err := s.Merge(t.Context(), found.Base, strings.Repeat("0", 40)); err == nil {
		t.Error("a commit that is not there was merged")
	} else {
		wantKind(t, err, sources.ErrUnreadable)
	}
}

// TestHeads fetches references of pull requests next to a source that polls.
func TestHeads(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "a", "b.yaml": "b"})
	server := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{})
	first := open(t, git.Config{URL: server.RepoURL, FetchBytes: 1 << 20})
	base := poll(t, first)
	s, err := first.Beside(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	r.Git("branch", "topic")
	head := r.CommitTo("topic", map[string]string{"b.yaml": "B"})
	r.Git("update-ref", "refs/pull/7/head", head)
	r.Git("branch", "-D", "topic") // as one of a fork, which only the reference names
	found := heads(t, s, "refs/pull/7/head", "refs/pull/9/head")
	want := &sources.Heads{Branch: "main", Base: base.Revision, Refs: map[string]string{"refs/pull/7/head": head}, Refused: map[string]error{}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
	snapshot, conflicts, err := s.Merge(t.Context(), found.Base, head)
	if err != nil || len(conflicts) > 0 {
		t.Fatal(err, conflicts)
	}
	if snapshot.Files[0] != base.Files[0] {
		t.Error("a file that did not change was parsed again")
	}
	if got := contents(snapshot); got["b.yaml"] != "B" {
		t.Errorf("got %v", got)
	}
}

// TestHeadTooLarge refuses a head that is too much and takes those beside it.
func TestHeadTooLarge(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "a"})
	s := open(t, git.Config{URL: r.Dir, FetchBytes: 8 << 10})
	heads(t, s)
	random, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		t.Fatal(err)
	}
	noise := strings.Builder{}
	for i := range 5000 {
		fmt.Fprintf(&noise, "%x", string(random[i%36])+fmt.Sprint(i*i*7919))
	}
	r.Git("branch", "small")
	r.Git("branch", "large")
	r.CommitTo("small", map[string]string{"a.yaml": "s"})
	r.CommitTo("large", map[string]string{"a.yaml": noise.String()})
	for range 2 {
		found := heads(t, s, "refs/heads/small", "refs/heads/large")
		if found.Refused["refs/heads/small"] != nil || found.Refused["refs/heads/large"] == nil {
			t.Fatalf("refused: %v", found.Refused)
		}
		wantKind(t, found.Refused["refs/heads/large"], sources.ErrLimit)
	}
	if snapshot, conflicts := mergeOf(t, s, "small"); len(conflicts) > 0 || contents(snapshot)["a.yaml"] != "s" {
		t.Errorf("got %v, %v", snapshot, conflicts)
	}
}

// TestMergeLikeGit makes histories by chance, crossing ones too, and holds Merge against git merge-tree.
func TestMergeLikeGit(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			mergeLikeGit(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func mergeLikeGit(t *testing.T, chance *rand.Rand) {
	r := gittest.NewRepo(t)
	r.Git("config", "merge.renames", "false")
	r.Commit(map[string]string{"a.yaml": lines("1", "2", "3", "4", "5", "6", "7"), "b/c.yaml": lines("x", "y", "z"), "d.yaml": "kind"})
	r.Git("branch", "topic")
	branches := []string{"main", "topic"}
	for i := range 2 + chance.IntN(8) {
		branch, other := branches[i%2], branches[1-i%2]
		if chance.IntN(3) == 0 {
			tree, err := exec.Command("git", "-C", r.Dir, "merge-tree", "--write-tree", branch, other).Output()
			if err == nil {
				commit := r.Git("-c", "user.name=Ann", "-c", "user.email=ann@example.org",
					"commit-tree", strings.TrimSpace(string(tree)), "-p", branch, "-p", other, "-m", fmt.Sprint(i))
				r.Git("update-ref", "refs/heads/"+branch, commit)
				continue
			}
		}
		r.CommitTo(branch, changeByChance(chance, r.Files(branch)))
	}
	out, err := exec.Command("git", "-C", r.Dir, "merge-tree", "--write-tree", "--no-messages", "main", "topic").Output()
	clean := err == nil
	snapshot, conflicts := mergeOf(t, open(t, git.Config{URL: r.Dir}), "topic")
	if clean != (len(conflicts) == 0) {
		t.Fatalf("git says clean: %v (%s); conflicts %v\n%s", clean, out, conflicts, r.Git("log", "--graph", "--oneline", "--all", "-p"))
	}
	if !clean {
		return
	}
	r.Git("branch", "merged", "main")
	r.Git("update-ref", "refs/heads/merged", r.Git("-c", "user.name=Ann", "-c", "user.email=ann@example.org",
		"commit-tree", strings.TrimSpace(string(out)), "-m", "merged"))
	want := contents(poll(t, open(t, git.Config{URL: r.Dir, Branch: "merged"})))
	if diff := cmp.Diff(want, contents(snapshot)); diff != "" {
		t.Fatal(diff)
	}
}

// changeByChance changes a file or two. d.yaml stays in every tree, so that each has a manifest.
func changeByChance(chance *rand.Rand, have map[string]string) map[string]string {
	changed := map[string]string{}
	for range 1 + chance.IntN(2) {
		name := []string{"a.yaml", "b/c.yaml", "e.yaml"}[chance.IntN(3)]
		list := strings.Split(strings.TrimSuffix(have[name], "\n"), "\n")
		list[chance.IntN(len(list))] = []string{"left", "right"}[chance.IntN(2)]
		changed[name] = lines(list...)
		if chance.IntN(10) == 0 && have[name] != "" {
			changed[name] = gittest.Delete
		}
	}
	return changed
}
