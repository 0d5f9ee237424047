package git_test

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
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

// mirrorFiles lists the mirror's files that match one of the patterns of names.
func mirrorFiles(t *testing.T, dir string, patterns ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		for _, pattern := range patterns {
			if ok, _ := filepath.Match(pattern, filepath.Base(p)); ok && err == nil && !d.IsDir() {
				found = append(found, p)
			}
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("no %v in the mirror (%v)", patterns, err)
	}
	return found
}

// TestDamagedMirror spoils a mirror as a killed process or a bad disk would; the next process must recover by itself.
func TestDamagedMirror(t *testing.T) {
	each := func(t *testing.T, dir string, f func(string) error, patterns ...string) {
		t.Helper()
		for _, file := range mirrorFiles(t, dir, patterns...) {
			if err := os.Chmod(file, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := f(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := func(file string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.Truncate(file, info.Size()/2)
	}
	garbage := func(file string) error { return os.WriteFile(file, []byte("\x00garbage"), 0o600) }
	tests := []struct {
		name, reason string
		damage       func(t *testing.T, dir string)
	}{
		{"pack cut short", "the disk was full", func(t *testing.T, dir string) { each(t, dir, cut, "*.pack") }},
		{"pack is garbage", "a bad disk", func(t *testing.T, dir string) { each(t, dir, garbage, "*.pack") }},
		{"pack is gone", "somebody tidied up", func(t *testing.T, dir string) { each(t, dir, os.Remove, "*.pack") }},
		{"index cut short", "killed while it was written", func(t *testing.T, dir string) { each(t, dir, cut, "*.idx") }},
		{"index is gone", "somebody tidied up", func(t *testing.T, dir string) { each(t, dir, os.Remove, "*.idx") }},
		{"index without pack, cut short", "killed between the two", func(t *testing.T, dir string) {
			each(t, dir, cut, "*.idx")
			each(t, dir, os.Remove, "*.pack")
		}},
		{"HEAD is garbage", "a bad disk", func(t *testing.T, dir string) { each(t, dir, garbage, "HEAD") }},
		{"HEAD is empty", "power was lost", func(t *testing.T, dir string) {
			each(t, dir, func(f string) error { return os.Truncate(f, 0) }, "HEAD")
		}},
		{"HEAD is gone", "killed while the mirror was made", func(t *testing.T, dir string) { each(t, dir, os.Remove, "HEAD") }},
		{"branch is garbage", "a bad disk", func(t *testing.T, dir string) { each(t, dir, garbage, "main") }},
		{"branch is empty", "power was lost", func(t *testing.T, dir string) {
			each(t, dir, func(f string) error { return os.Truncate(f, 0) }, "main")
		}},
		{"config is garbage", "a bad disk", func(t *testing.T, dir string) { each(t, dir, garbage, "config") }},
		{"half a fetch", "killed in the middle", func(t *testing.T, dir string) {
			write(t, filepath.Join(filepath.Dir(mirrorFiles(t, dir, "*.pack")[0]), "tmp_pack_123"), "PACK")
		}},
		{"half a new mirror", "killed while a damaged one was replaced", func(t *testing.T, dir string) {
			m := filepath.Dir(mirrorFiles(t, dir, "HEAD")[0])
			if err := os.Rename(m, m+".old"); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(m+".new/objects", 0o700); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, test := range tests {
		for _, moved := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, moved %t", test.name, moved), func(t *testing.T) {
				t.Parallel()
				r := gittest.NewRepo(t)
				r.Commit(map[string]string{"a.yaml": "one", "b/c.yaml": strings.Repeat("two\n", 100)})
				dir := t.TempDir()
				first := poll(t, open(t, git.Config{URL: r.Dir, Dir: dir}))
				want := contents(first)
				if moved {
					r.Commit(map[string]string{"a.yaml": "three"})
					want["a.yaml"] = "three"
				}
				test.damage(t, dir)
				s := open(t, git.Config{URL: r.Dir, Dir: dir})
				if last, err := s.Last(t.Context()); err == nil && cmp.Diff(contents(first), contents(last)) != "" {
					t.Errorf("Last returns half a snapshot: %v", contents(last))
				}
				if diff := cmp.Diff(want, contents(poll(t, s))); diff != "" {
					t.Error(diff)
				}
				// And it stays mended.
				if diff := cmp.Diff(want, contents(poll(t, open(t, git.Config{URL: r.Dir, Dir: dir})))); diff != "" {
					t.Error(diff)
				}
				for _, file := range mirrorFiles(t, dir, "*") {
					if strings.Contains(file, "tmp_") || strings.Contains(file, ".new/") || strings.Contains(file, ".old/") {
						t.Errorf("%s is left over", file)
					}
				}
			})
		}
	}
}

// TestKilled kills processes at all stages of a first and of a later poll, each time on the mirror that the last one
// left. Whatever Last finds meanwhile is a whole revision.
func TestKilled(t *testing.T) {
	t.Parallel()
	r, dir := gittest.NewRepo(t), t.TempDir()
	files := map[string]string{}
	for i := range 1500 {
		files[fmt.Sprintf("%d/%04d.yaml", i%30, i)] = fmt.Sprint("round 0 ", i)
	}
	want := map[string]map[string]string{r.Commit(files): files}
	check := func(s *sources.Snapshot) {
		t.Helper()
		if diff := cmp.Diff(want[s.Revision], contents(s)); diff != "" || want[s.Revision] == nil {
			t.Errorf("%s is not what was committed: %.300s", s.Revision, diff)
		}
	}
	for kill := range 16 {
		if kill == 8 {
			next := map[string]string{}
			for name := range files {
				next[name] = "round 1 " + name
			}
			want[r.Commit(next)] = next
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+kill%8*15)*time.Millisecond)
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), "GITVIRT_TEST_POLL="+r.Dir, "GITVIRT_TEST_DIR="+dir)
		if out, err := cmd.CombinedOutput(); err != nil && ctx.Err() == nil {
			t.Errorf("kill %d: %v: %s", kill, err, out)
		}
		cancel()
		if last, err := open(t, git.Config{URL: r.Dir, Dir: dir}).Last(t.Context()); err == nil {
			check(last)
		}
	}
	check(poll(t, open(t, git.Config{URL: r.Dir, Dir: dir})))
}

func TestLastWithoutNetwork(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one", "b.yaml": "two"})
	dir := t.TempDir()
	before := poll(t, open(t, git.Config{URL: r.Dir, Dir: dir}))
	if err := os.Rename(r.Dir, r.Dir+".away"); err != nil {
		t.Fatal(err)
	}
	s := open(t, git.Config{URL: r.Dir, Dir: dir})
	if snapshot, err := s.Poll(t.Context()); err == nil {
		t.Fatalf("Poll returns %v from a remote that is gone", snapshot)
	}
	last, err := s.Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if last.Revision != before.Revision || last.Changed != nil || cmp.Diff(contents(before), contents(last)) != "" {
		t.Errorf("Last is %+v, want %+v", last, before)
	}
	if err := os.Rename(r.Dir+".away", r.Dir); err != nil {
		t.Fatal(err)
	}
	if got := poll(t, s); got != last {
		t.Error("the remote has what Last returned, and Poll returns another snapshot")
	}
	if _, err := open(t, git.Config{URL: r.Dir}).Last(t.Context()); err == nil {
		t.Error("Last returns something from an empty mirror")
	}
}

// TestTwoProcesses shares one mirror between many sources, as a controller and the command line do.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	dir := t.TempDir()
	for round := range 4 {
		want := r.Commit(map[string]string{"a.yaml": fmt.Sprint(round)})
		var group sync.WaitGroup
		for range 6 {
			s := open(t, git.Config{URL: r.Dir, Dir: dir})
			group.Go(func() {
				if got, err := s.Poll(t.Context()); err != nil || got.Revision != want {
					t.Errorf("got %v, %v; want %s", got, err, want)
				}
			})
		}
		group.Wait()
	}
}

// TestFetchIsIncremental counts what the server sends.
func TestFetchIsIncremental(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	var sent counter
	server := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: sent.wrap})
	files := map[string]string{}
	for i := range 300 {
		files[fmt.Sprintf("team-%d/vm-%03d.yaml", i%30, i)] = strings.Repeat(fmt.Sprintf("%x", i*7919), 200)
	}
	r.Commit(files)
	s := open(t, git.Config{URL: server.RepoURL})
	poll(t, s)
	all := sent.take()
	r.Commit(map[string]string{"team-1/vm-001.yaml": "changed"})
	poll(t, s)
	if one := sent.take(); one > 4096 || one*4 > all {
		t.Errorf("a commit of one file costs %d bytes, everything costs %d", one, all)
	}
	poll(t, s)
	if none := sent.take(); none > 1024 {
		t.Errorf("an unchanged poll costs %d bytes", none)
	}
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) take() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = 0
	return n
}

func (c *counter) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { next.ServeHTTP(&countWriter{w, c}, req) })
}

type countWriter struct {
	http.ResponseWriter
	c *counter
}

func (w *countWriter) Write(p []byte) (int, error) {
	w.c.mu.Lock()
	w.c.n += len(p)
	w.c.mu.Unlock()
	return w.ResponseWriter.Write(p)
}

// TestManyFetches holds that the packs of many fetches become few, and that nothing is lost by it.
func TestManyFetches(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	dir := t.TempDir()
	r.Commit(map[string]string{"a.yaml": "0", "b.yaml": "b"})
	s := open(t, git.Config{URL: r.Dir, Dir: dir})
	first := poll(t, s).Revision
	for i := range 70 {
		r.Commit(map[string]string{"a.yaml": fmt.Sprint(i + 1)})
		if got := contents(poll(t, s))["a.yaml"]; got != fmt.Sprint(i+1) {
			t.Fatalf("round %d: a.yaml is %q", i, got)
		}
	}
	if n := len(mirrorFiles(t, dir, "*.pack")); n > 20 {
		t.Errorf("the mirror has %d packs", n)
	}
	again := open(t, git.Config{URL: r.Dir, Dir: dir})
	if diff := cmp.Diff(map[string]string{"a.yaml": "70", "b.yaml": "b"}, contents(poll(t, again))); diff != "" {
		t.Error(diff)
	}
	old, err := again.At(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(old)["a.yaml"]; got != "0" {
		t.Errorf("a.yaml was %q at first", got)
	}
}

func TestFetchLimit(t *testing.T) {
	t.Parallel()
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one", "big.bin": random(200_000)})
	dir := t.TempDir()
	_, err := open(t, git.Config{URL: r.Dir, Dir: dir, FetchBytes: 100_000}).Poll(t.Context())
	wantKind(t, err, sources.ErrUnreadable)
	wantText(t, err, "limit for one fetch")
	poll(t, open(t, git.Config{URL: r.Dir, Dir: dir}))
}

// random is text that does not compress.
func random(n int) string {
	var b strings.Builder
	x := uint64(88172645463325252)
	for b.Len() < n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		fmt.Fprintf(&b, "%016x", x)
	}
	return b.String()[:n]
}

// TestCancelled holds that a shutdown ends a poll at once and is told as what it is.
func TestCancelled(t *testing.T) {
	s := open(t, git.Config{URL: "git://" + muteServer(t) + "/x.git"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Poll(ctx)
	wantKind(t, err, sources.ErrUnreadable)
	wantText(t, err, "context canceled")
}
