package directory_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/directory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reader is a parser that counts.
type reader struct {
	mu     sync.Mutex
	parsed []string
}

func (r *reader) parse(path string, content []byte) *schemas.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parsed = append(r.parsed, path)
	return &schemas.File{Path: path, Diagnostics: schemas.Diagnostics{{Message: string(content)}}}
}

func open(t *testing.T, dir string, limits sources.Limits, opts ...directory.Option) *directory.Source {
	t.Helper()
	opts = append([]directory.Option{directory.WithParse(func(path string, content []byte) *schemas.File {
		return &schemas.File{Path: path, Diagnostics: schemas.Diagnostics{{Message: string(content)}}}
	})}, opts...)
	s, err := directory.Open(dir, limits, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func poll(t *testing.T, s *directory.Source) *sources.Snapshot {
	t.Helper()
	snapshot, err := s.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func contents(s *sources.Snapshot) map[string]string {
	files := map[string]string{}
	for _, f := range s.Files {
		files[f.Path] = f.Diagnostics[0].Message
	}
	return files
}

func TestPoll(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{
		"a.yaml": "one", "b/c.json": "two", "b/x.txt": "", ".git/config.yaml": "", ".gitvirtignore": "drafts/\n", "drafts/d.yaml": "",
	})
	s := open(t, dir, sources.Limits{})
	one := poll(t, s)
	if !strings.HasPrefix(one.Revision, "sha256:") || one.Changed != nil {
		t.Errorf("got %+v", one)
	}
	if diff := cmp.Diff(map[string]string{"a.yaml": "one", "b/c.json": "two"}, contents(one)); diff != "" {
		t.Error(diff)
	}
	if poll(t, s) != one {
		t.Error("an unchanged poll returns another snapshot")
	}
	fill(t, dir, map[string]string{"a.yaml": "new", "b/e.yml": "three", ".gitvirtignore": "none\n"})
	two := poll(t, s)
	if diff := cmp.Diff([]string{"a.yaml", "b/e.yml", "drafts/d.yaml"}, two.Changed); diff != "" || two.Revision == one.Revision {
		t.Error(two.Revision, diff)
	}
	if two.Files[1] != one.Files[1] {
		t.Error("b/c.json did not change and is another pointer")
	}
	// The revision is the content's: the same files elsewhere, and written anew, have the same.
	other := t.TempDir()
	fill(t, other, map[string]string{"a.yaml": "one", "b/c.json": "two"})
	if got := poll(t, open(t, other, sources.Limits{})); got.Revision != one.Revision {
		t.Errorf("the same content has revision %s and %s", one.Revision, got.Revision)
	}
	if last, err := s.Last(t.Context()); err != nil || last != two {
		t.Errorf("Last is %v, %v", last, err)
	}
}

// TestUnchangedFilesAreNotRead pretends that the files are old.
func TestUnchangedFilesAreNotRead(t *testing.T) {
	dir, r := t.TempDir(), &reader{}
	fill(t, dir, map[string]string{"a.yaml": "one", "b.yaml": "two"})
	later := func() time.Time { return time.Now().Add(time.Hour) }
	s := open(t, dir, sources.Limits{}, directory.WithParse(r.parse), directory.WithNow(later))
	poll(t, s)
	r.parsed = nil
	fill(t, dir, map[string]string{"a.yaml": "uno"})
	if got := contents(poll(t, s)); got["a.yaml"] != "uno" {
		t.Errorf("got %v", got)
	}
	if diff := cmp.Diff([]string{"a.yaml"}, r.parsed); diff != "" {
		t.Error(diff)
	}
}

func TestSpecialFiles(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	fill(t, dir, map[string]string{"a.yaml": "one", "big.yaml": strings.Repeat("x", 101)})
	fill(t, outside, map[string]string{"secret.yaml": "secret"})
	for name, target := range map[string]string{"link.yaml": filepath.Join(outside, "secret.yaml"), "folder": outside, "inner.yaml": "a.yaml"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "socket.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	got := map[string]string{}
	s := open(t, dir, sources.Limits{FileBytes: 100})
	first := poll(t, s)
	for _, f := range first.Files {
		got[f.Path] = fmt.Sprint(f.Opaque, " ", f.Diagnostics[0].Severity)
	}
	want := map[string]string{"a.yaml": "false ", "big.yaml": "true error", "link.yaml": "true error", "inner.yaml": "true error", "folder": "false warning"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if poll(t, s) != first {
		t.Error("an unchanged poll returns another snapshot")
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name, reason string
		prepare      func(t *testing.T, dir string)
		limits       sources.Limits
		want         error
		words        string
	}{
		{"gone", "it may not be mounted yet", func(t *testing.T, dir string) {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
		}, sources.Limits{}, sources.ErrEmpty, "correct the path"},
		{"empty", "perhaps by mistake", func(*testing.T, string) {}, sources.Limits{}, sources.ErrEmpty, "no manifest"},
		{"a file", "not a directory", func(t *testing.T, dir string) {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			fill(t, filepath.Dir(dir), map[string]string{filepath.Base(dir): "x"})
		}, sources.Limits{}, sources.ErrUnreadable, "not a directory"},
		{"files", "too many", func(t *testing.T, dir string) { fill(t, dir, map[string]string{"a.yaml": "", "b.yaml": ""}) }, sources.Limits{Files: 1}, sources.ErrLimit, "more than 1 manifests"},
		{"depth", "too deep", func(t *testing.T, dir string) { fill(t, dir, map[string]string{"a/b/c.yaml": ""}) }, sources.Limits{Depth: 1}, sources.ErrLimit, `"a/b"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "fleet")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			test.prepare(t, dir)
			snapshot, err := open(t, dir, test.limits).Poll(t.Context())
			if snapshot != nil || !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.words) || !strings.HasPrefix(err.Error(), dir) {
				t.Errorf("got %v, %v; want %v", snapshot, err, test.want)
			}
		})
	}
	if _, err := directory.Open("", sources.Limits{}); err == nil {
		t.Error("no directory is accepted")
	}
}

// TestKinds holds how an Error is told and found.
func TestKinds(t *testing.T) {
	err := error(&sources.Error{Kind: sources.ErrEmpty, Source: "/x", Op: "reading", Err: fs.ErrNotExist, Fix: "make it"})
	if got := err.Error(); got != "/x: reading: file does not exist; make it" {
		t.Error(got)
	}
	if !errors.Is(err, sources.ErrEmpty) || !errors.Is(err, fs.ErrNotExist) || errors.Is(err, sources.ErrAuth) {
		t.Error("the kind or the cause is not found")
	}
	if got := (&sources.Error{Kind: sources.ErrAuth}).Error(); got != "source denies access" {
		t.Error(got)
	}
}
