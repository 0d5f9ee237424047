package git_test

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

func TestWhichFiles(t *testing.T) {
	tests := []struct {
		name, reason string
		files        map[string]string
		want         []string
	}{
		{
			"extensions", "only manifests are read",
			map[string]string{"a.yaml": "", "b.yml": "", "c.json": "", "d.YAML": "", "e.txt": "", "yaml": ""},
			[]string{"a.yaml", "b.yml", "c.json"},
		},
		{"dots", "hidden names are skipped", map[string]string{"a.yaml": "", ".b.yaml": "", ".github/c.yaml": "", "d/.e/f.yaml": ""}, []string{"a.yaml"}},
		{
			"ignore file", "gitignore syntax",
			map[string]string{".gitvirtignore": "# comment\n\n*.json\n/drafts/\n!keep.json\r\n", "a.yaml": "", "b.json": "", "keep.json": "", "drafts/c.yaml": "", "x/drafts/d.yaml": ""},
			[]string{"a.yaml", "keep.json", "x/drafts/d.yaml"},
		},
		{
			"nested ignore file", "it holds for its directory and below",
			map[string]string{"x/.gitvirtignore": "*.json\n", "a.json": "", "x/b.json": "", "x/y/c.json": "", "x/d.yaml": ""},
			[]string{"a.json", "x/d.yaml"},
		},
		{
			"nested ignore file takes back", "the inner one wins",
			map[string]string{".gitvirtignore": "*.json\n", "x/.gitvirtignore": "!*.json\n", "a.json": "", "x/b.json": "", "c.yaml": ""},
			[]string{"c.yaml", "x/b.json"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := gittest.NewRepo(t)
			r.Commit(test.files)
			if diff := cmp.Diff(test.want, paths(poll(t, open(t, git.Config{URL: r.Dir})))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestIgnoreFileChanges holds that directories whose own tree did not change are looked at again.
func TestIgnoreFileChanges(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "", "x/b.yaml": "", "x/y/c.yaml": ""})
	s := open(t, git.Config{URL: r.Dir})
	poll(t, s)
	for _, step := range []struct {
		ignore        string
		want, changed []string
	}{
		{"y/\n", []string{"a.yaml", "x/b.yaml"}, []string{"x/y/c.yaml"}},
		{"b.yaml\n", []string{"a.yaml", "x/y/c.yaml"}, []string{"x/b.yaml", "x/y/c.yaml"}},
		{"# all\n", []string{"a.yaml", "x/b.yaml", "x/y/c.yaml"}, []string{"x/b.yaml"}},
	} {
		r.Commit(map[string]string{".gitvirtignore": step.ignore})
		got := poll(t, s)
		if diff := cmp.Diff(step.want, paths(got)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(step.changed, got.Changed); diff != "" {
			t.Error(diff)
		}
	}
}

func TestWhatIsNotFollowed(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{
		"a.yaml":       "one",
		"out.yaml":     gittest.Link("../../etc/passwd"),
		"same.yaml":    gittest.Link("a.yaml"),
		"folder":       gittest.Link("elsewhere"),
		"x/ignored.md": gittest.Link("a.yaml"), "x/.gitvirtignore": "*.md\n",
	})
	tree := r.Git("ls-tree", "main") + "\n160000 commit " + strings.Repeat("1", 40) + "\tmodule"
	cmd := exec.Command("git", "-C", r.Dir, "mktree", "--missing")
	cmd.Stdin = strings.NewReader(tree + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	r.Git("-c", "user.name=A", "-c", "user.email=a@b", "update-ref", "refs/heads/main",
		r.Git("-c", "user.name=A", "-c", "user.email=a@b", "commit-tree", "-m", "module", "-p", "main", strings.TrimSpace(string(out))))
	s := open(t, git.Config{URL: r.Dir})
	got := poll(t, s)
	type verdict struct {
		Opaque   bool
		Severity schemas.Severity
	}
	verdicts := map[string]verdict{}
	for _, f := range got.Files {
		if len(f.Diagnostics) != 1 || f.Diagnostics[0].Position.File != "" && f.Diagnostics[0].Position.File != f.Path {
			t.Errorf("%s: %v", f.Path, f.Diagnostics)
		}
		verdicts[f.Path] = verdict{f.Opaque, f.Diagnostics[0].Severity}
	}
	want := map[string]verdict{
		"a.yaml":    {},
		"out.yaml":  {true, schemas.SeverityError},
		"same.yaml": {true, schemas.SeverityError},
		"folder":    {false, schemas.SeverityWarning},
		"module":    {false, schemas.SeverityWarning},
	}
	if diff := cmp.Diff(want, verdicts); diff != "" {
		t.Error(diff)
	}
	r.Commit(map[string]string{"a.yaml": "two"})
	if diff := cmp.Diff([]string{"a.yaml"}, poll(t, s).Changed); diff != "" {
		t.Errorf("links that did not change are told as changed: %s", diff)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range 11 {
		many[fmt.Sprintf("%02d.yaml", i)] = "x"
	}
	dull := map[string]string{"a.yaml": "x"}
	for i := range 250 {
		dull[fmt.Sprintf("docs/%03d.md", i)] = "x"
	}
	tests := []struct {
		name, reason string
		files        map[string]string
		limits       sources.Limits
		words        []string
	}{
		{"files", "too many manifests", many, sources.Limits{Files: 10}, []string{"more than 10 manifests"}},
		{"names", "too many of anything", dull, sources.Limits{Files: 10}, []string{"more than 200 names"}},
		{"depth", "too deep", map[string]string{"a/b/c/d.yaml": "x"}, sources.Limits{Depth: 2}, []string{`"a/b/c"`, "2 directories"}},
		{"ignore file", "nobody can tell what to leave out", map[string]string{".gitvirtignore": strings.Repeat("x\n", 100), "a.yaml": ""}, sources.Limits{FileBytes: 100}, []string{".gitvirtignore"}},
		{"ignore link", "links are not followed", map[string]string{".gitvirtignore": gittest.Link("x"), "a.yaml": ""}, sources.Limits{}, []string{".gitvirtignore", "plain file"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := gittest.NewRepo(t)
			good := r.Commit(map[string]string{"a.yaml": "good"})
			s := open(t, git.Config{URL: r.Dir, Limits: test.limits})
			poll(t, s)
			r.Commit(test.files)
			for range 2 {
				_, err := s.Poll(t.Context())
				wantKind(t, err, sources.ErrLimit)
				wantText(t, err, append(test.words, r.Dir)...)
			}
			if last, err := s.Last(t.Context()); err != nil || last.Revision != good {
				t.Errorf("Last is %v, %v; want %s", last, err, good)
			}
			remove := map[string]string{"a.yaml": "mended"}
			for name := range test.files {
				if name != "a.yaml" {
					remove[name] = gittest.Delete
				}
			}
			r.Commit(remove)
			if got := contents(poll(t, s))["a.yaml"]; got != "mended" {
				t.Errorf("a.yaml is %q", got)
			}
		})
	}
}

// TestFileTooLarge holds that a huge file is told, costs little memory, and does not stop the others.
func TestFileTooLarge(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one", "huge.yaml": strings.Repeat("0123456789abcdef", 100<<20/16), "limit.yaml": strings.Repeat("x", 1<<20)})
	s := open(t, git.Config{URL: r.Dir})
	var read []string
	got := poll(t, s)
	for _, f := range got.Files {
		if f.Opaque {
			read = append(read, f.Path+": "+f.Diagnostics[0].Message)
		}
	}
	if diff := cmp.Diff([]string{"huge.yaml: the file has 104857600 bytes and the limit is 1048576, so it was not read"}, read); diff != "" {
		t.Error(diff)
	}
	if n := len(contents(got)["limit.yaml"]); n != 1<<20 {
		t.Errorf("a file of exactly the limit has %d bytes", n)
	}
	r.Commit(map[string]string{"huge.yaml": "small"})
	if diff := cmp.Diff([]string{"huge.yaml"}, poll(t, s).Changed); diff != "" {
		t.Error(diff)
	}
}

// TestTreeBomb reads ten directories in each of ten directories and so on: few objects, 10^12 names.
func TestTreeBomb(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"x.md": "x"})
	hash, kind := r.Git("rev-parse", "main:x.md"), "100644 blob"
	for range 12 {
		var in strings.Builder
		for i := range 10 {
			fmt.Fprintf(&in, "%s %s\td%d\n", kind, hash, i)
		}
		cmd := exec.Command("git", "-C", r.Dir, "mktree")
		cmd.Stdin = strings.NewReader(in.String())
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		hash, kind = strings.TrimSpace(string(out)), "040000 tree"
	}
	r.Git("update-ref", "refs/heads/main", r.Git("-c", "user.name=A", "-c", "user.email=a@b", "commit-tree", "-m", "bomb", hash))
	_, err := open(t, git.Config{URL: r.Dir, Limits: sources.Limits{Files: 1000}}).Poll(t.Context())
	wantKind(t, err, sources.ErrLimit)
}

// TestParserPanics holds that a defect in the parser costs one file.
func TestParserPanics(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one", "b.yaml": "boom"})
	s, err := git.Open(git.Config{URL: r.Dir, Dir: t.TempDir()}, git.WithParse(func(path string, content []byte) *schemas.File {
		if string(content) == "boom" {
			panic("index out of range")
		}
		return parse(path, content)
	}))
	if err != nil {
		t.Fatal(err)
	}
	files := poll(t, s).Files
	if len(files) != 2 || files[0].Opaque || !files[1].Opaque {
		t.Errorf("got %+v", files)
	}
}

func TestAt(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	first := r.Commit(map[string]string{"a.yaml": "one"})
	r.Git("tag", "v1", first)
	r.Git("-c", "user.name=A", "-c", "user.email=a@b", "tag", "-a", "-m", "two", "v1-annotated", first)
	second := r.Commit(map[string]string{"a.yaml": "two"})
	third := r.Commit(map[string]string{"a.yaml": "three"})
	side := r.CommitTo("side", map[string]string{"a.yaml": "side"})
	r.Git("update-ref", "refs/pull/7/head", r.CommitTo("tmp", map[string]string{"a.yaml": "pull"}))
	r.Git("update-ref", "-d", "refs/heads/tmp")
	want := map[string]string{
		"": third, "HEAD": third, "main": third, "HEAD~1": second, "HEAD~2": first, "main^": second, "v1": first, "v1-annotated": first,
		"side": side, first: first, second[:9]: second, "refs/heads/side": side, "refs/tags/v1": first, "refs/pull/7/head": r.Git("rev-parse", "refs/pull/7/head"),
	}
	text := map[string]string{first: "one", second: "two", third: "three", side: "side", want["refs/pull/7/head"]: "pull"}
	shared := open(t, git.Config{URL: r.Dir})
	current := poll(t, shared)
	for _, rev := range slices.Sorted(maps.Keys(want)) {
		t.Run("rev="+rev, func(t *testing.T) {
			for name, s := range map[string]*git.Source{"fresh": open(t, git.Config{URL: r.Dir}), "shared": shared} {
				got, err := s.At(t.Context(), rev)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got.Revision != want[rev] || contents(got)["a.yaml"] != text[want[rev]] || got.Changed != nil {
					t.Errorf("%s: got %s with %v", name, got.Revision, contents(got))
				}
			}
		})
	}
	if poll(t, shared) != current {
		t.Error("At changed what Poll returns")
	}
	for _, rev := range []string{"nope", "HEAD~9", strings.Repeat("1", 40), "deadbeef", "-x", "HEAD^{/", "@{", "~", "HEAD~-1", "\x00"} {
		_, err := shared.At(t.Context(), rev)
		if err == nil {
			t.Errorf("%q is something", rev)
			continue
		}
		wantKind(t, err, sources.ErrEmpty)
	}
	fourth := r.Commit(map[string]string{"a.yaml": "four"})
	if got, err := shared.At(t.Context(), "main"); err != nil || got.Revision != fourth {
		t.Errorf("main is %v (%v) after a push, want %s", got, err, fourth)
	}
	if got := poll(t, shared); got.Revision != fourth || !slices.Equal(got.Changed, []string{"a.yaml"}) || got.Rewritten != "" {
		t.Errorf("Poll after At: %+v", got)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, cfg := range map[string]git.Config{
		"no URL":          {Dir: "x"},
		"no Dir":          {URL: "https://example.org/x"},
		"scheme":          {URL: "ftp://ann:s3cret@example.org/x", Dir: "x"},
		"malformed":       {URL: "https://ann:s3cret@exa mple.org:port/x", Dir: "x"},
		"no host":         {URL: "https:///x", Dir: "x"},
		"sub-path leaves": {URL: "/x", Dir: "x", Path: "a/../../b"},
		"branch":          {URL: "/x", Dir: "x", Branch: "a..b"},
		"CA file":         {URL: "https://example.org/x", Dir: "x", CAFile: "/dev/null"},
	} {
		_, err := git.Open(cfg)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestRedact(t *testing.T) {
	for raw, want := range map[string]string{
		"https://ann:s3cret@example.org/x.git": "https://example.org/x.git",
		"https://s3cret@example.org/x.git":     "https://example.org/x.git",
		"https://example.org/x.git":            "https://example.org/x.git",
		"ssh://git:s3cret@example.org/x.git":   "ssh://git@example.org/x.git",
		"git@example.org:x.git":                "git@example.org:x.git",
		"https://ann:s3cr%et@exa mple.org/x":   "https://exa mple.org/x",
		"https://ann:s3@cret@example.org:y/x":  "https://example.org:y/x",
		"/srv/git/x.git":                       "/srv/git/x.git",
	} {
		if got := git.Redact(raw); got != want {
			t.Errorf("Redact(%q) = %q, want %q", raw, got, want)
		}
	}
}

// TestHostileCommit holds that what a commit says cannot act on a terminal.
func TestHostileCommit(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one"})
	r.Git("update-ref", "refs/heads/main", r.Git("-c", "user.name=Ann\x1b[2J", "-c", "user.email=a@b", "commit-tree", "-m", "\x1b]0;title\x07 up\tand down", "main^{tree}"))
	got := poll(t, open(t, git.Config{URL: r.Dir}))
	if got.Subject != "]0;title up and down" || got.Author != "Ann [2J <a@b>" {
		t.Errorf("got %q by %q", got.Subject, got.Author)
	}
}
