package several_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/several"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a repository in memory.
type fake struct {
	name string

	mu             sync.Mutex
	snapshot, last *sources.Snapshot
	err            error
	hangs          bool
	polls          int
	closed         bool
}

func newFake(name string) *fake {
	f := &fake{name: name}
	f.commit("a")
	return f
}

// commit makes a revision of one file. Its name is the revision.
func (f *fake) commit(revision string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshot = &sources.Snapshot{Revision: strings.Repeat(revision, 40)[:40], Subject: "commit " + revision, Files: []*schemas.File{schemas.ParseFrom(f.name, revision+".yaml", nil)}}
}

// fleet commits a Fleet that names sources, each with its URL.
func (f *fake) fleet(revision string, named ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := schemas.ParseFrom("", "gitvirt.yaml", nil)
	file.Fleet = schemas.DefaultFleet()
	for _, one := range named {
		name, url, _ := strings.Cut(one, "=")
		file.Fleet.Spec.Sources = append(file.Fleet.Spec.Sources, schemas.FleetSource{Name: name, Git: schemas.FleetSourceGit{URL: url}})
	}
	f.snapshot = &sources.Snapshot{Revision: strings.Repeat(revision, 40)[:40], Subject: "fleet " + revision, Files: []*schemas.File{file}}
}

func (f *fake) set(err error, hangs bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.hangs = err, hangs
}

func (f *fake) Poll(ctx context.Context) (*sources.Snapshot, error) {
	f.mu.Lock()
	f.polls++
	snapshot, err, hangs := f.snapshot, f.err, f.hangs
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, failure(sources.ErrUnreadable, "no complete answer")
	}
	if err == nil {
		f.mu.Lock()
		f.last = snapshot
		f.mu.Unlock()
		return snapshot, nil
	}
	return nil, err
}

func (f *fake) Last(context.Context) (*sources.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		return nil, failure(sources.ErrUnreadable, "nothing was fetched yet")
	}
	return f.last, nil
}

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *fake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.polls
}

func failure(kind error, text string) error {
	return &sources.Error{Kind: kind, Source: "https://git.example.com/x.git", Op: "polling main", Err: errors.New(text)}
}

// opener opens fakes by name.
type opener struct {
	mu    sync.Mutex
	fakes map[string]*fake
	opens []string
	state string
}

func (o *opener) State(*schemas.FleetSource) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state
}

func (o *opener) Open(source *schemas.FleetSource) (several.Repository, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opens = append(o.opens, source.Name)
	if found := o.fakes[source.Name]; found != nil {
		return found, nil
	}
	return nil, failure(sources.ErrAuth, "it may not be opened")
}

// world is a Fleet's repository with others.
type world struct {
	t      testing.TB
	main   *fake
	opener *opener
	source *several.Source
}

func newWorld(t testing.TB, config several.Config, names ...string) *world {
	t.Helper()
	w := &world{t: t, main: newFake(""), opener: &opener{fakes: map[string]*fake{}}}
	for _, name := range names {
		w.opener.fakes[name] = newFake(name)
	}
	w.main.fleet("f", names...)
	w.start(config)
	return w
}

func (w *world) start(config several.Config) {
	w.t.Helper()
	source, err := several.New(w.main, w.opener, config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.source = source
}

func (w *world) of(name string) *fake { return w.opener.fakes[name] }

func (w *world) close() {
	w.t.Helper()
	if err := w.source.Close(); err != nil {
		w.t.Error(err)
	}
}

func (w *world) poll() *sources.Snapshot {
	w.t.Helper()
	snapshot, err := w.source.Poll(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return snapshot
}

// shows wants parts: "name@revision" with a revision's letter, "name@" for what was never read, "!" behind it for a problem.
func (w *world) shows(snapshot *sources.Snapshot, want ...string) {
	w.t.Helper()
	var have []string
	for _, part := range snapshot.Parts {
		text := part.Name + "@"
		if part.Revision != "" {
			text += part.Revision[:1]
		}
		if part.Problem != "" {
			text += "!"
		}
		have = append(have, text)
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		w.t.Fatalf("the parts are %v, want %v: %+v", have, want, snapshot.Parts)
	}
}

func paths(snapshot *sources.Snapshot) string {
	var out []string
	for _, file := range snapshot.Files {
		path := file.Source + ":" + file.Path
		if file.Opaque {
			path += "?"
		}
		out = append(out, path)
	}
	return strings.Join(out, " ")
}

func TestWithoutOthers(t *testing.T) {
	w := newWorld(t, several.Config{})
	defer w.close()
	if snapshot := w.poll(); snapshot != w.main.snapshot {
		t.Errorf("got %+v", snapshot)
	}
	if last, err := w.source.Last(t.Context()); err != nil || last != w.main.snapshot {
		t.Errorf("got %+v, %v", last, err)
	}
	w.main.set(failure(sources.ErrUnreadable, "down"), false)
	if _, err := w.source.Poll(t.Context()); !errors.Is(err, sources.ErrUnreadable) {
		t.Errorf("got %v", err)
	}
	if len(w.opener.opens) > 0 {
		t.Errorf("opened %v", w.opener.opens)
	}
}

func TestTogether(t *testing.T) {
	w := newWorld(t, several.Config{}, "shop", "wiki")
	defer w.close()
	first := w.poll()
	w.shows(first, "@f", "shop@a", "wiki@a")
	if got := paths(first); got != ":gitvirt.yaml shop:a.yaml wiki:a.yaml" {
		t.Errorf("the files are %s", got)
	}
	if first.Commit() != w.main.snapshot.Revision || first.Revision == first.Commit() || first.Subject != "fleet f" {
		t.Errorf("got %+v", first)
	}
	if again := w.poll(); again != first {
		t.Error("nothing moved, and it is another snapshot")
	}
	w.of("wiki").commit("b")
	second := w.poll()
	w.shows(second, "@f", "shop@a", "wiki@b")
	if second.Files[1] != first.Files[1] || second.Files[0] != first.Files[0] {
		t.Error("files that did not change are others")
	}
	if second.Revision == first.Revision || second.Commit() != first.Commit() {
		t.Errorf("the revision went from %s to %s", first.Revision, second.Revision)
	}
	w.main.fleet("g", "shop", "wiki")
	w.main.snapshot.Rewritten = first.Commit()
	third := w.poll()
	w.shows(third, "@g", "shop@a", "wiki@b")
	if third.Rewritten != first.Commit() {
		t.Error("nobody tells that the history was rewritten")
	}
	w.of("shop").commit("c")
	if fourth := w.poll(); fourth.Rewritten != "" || fourth.Parts[0].Rewritten == "" {
		t.Errorf("it is told again that the history was rewritten: %+v", fourth)
	}
}

// TestOneFails lets one of two fail in every way, before it was read and after: the other one and the Fleet go on.
func TestOneFails(t *testing.T) {
	for _, kind := range []error{sources.ErrUnreadable, sources.ErrEmpty, sources.ErrAuth, sources.ErrLimit, sources.ErrUntrusted} {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, before the first read %v", kind, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, several.Config{}, "shop", "wiki")
					defer w.close()
					shop, known := "shop@!", "shop:?"
					if !early {
						w.poll()
						shop, known = "shop@a!", "shop:a.yaml"
					}
					w.of("shop").set(failure(kind, "port 12 is down"), false)
					w.of("wiki").commit("b")
					w.main.fleet("g", "shop", "wiki")
					failed := w.poll()
					w.shows(failed, "@g", shop, "wiki@b")
					if got := paths(failed); got != ":gitvirt.yaml "+known+" wiki:b.yaml" {
						t.Errorf("the files are %s", got)
					}
					if early && !strings.Contains(failed.Files[1].Diagnostics[0].Message, "is down") {
						t.Errorf("it says %v", failed.Files[1].Diagnostics)
					}
					w.of("shop").set(failure(kind, "port 34 is down"), false)
					time.Sleep(time.Hour)
					if again := w.poll(); again != failed {
						t.Error("it fails as before, and that is another snapshot")
					}
					w.of("shop").set(nil, false)
					time.Sleep(time.Hour)
					w.shows(w.poll(), "@g", "shop@a", "wiki@b")
				})
			})
		}
	}
}

func TestFailingIsAskedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, several.Config{}, "shop")
		defer w.close()
		w.of("shop").set(failure(sources.ErrAuth, "denied"), false)
		for range 240 { // an hour
			w.poll()
			time.Sleep(15 * time.Second)
		}
		if polls := w.of("shop").asked(); polls < 25 || polls > 60 {
			t.Errorf("a source that denies was asked %d times in an hour", polls)
		}
		w.opener.mu.Lock()
		w.opener.state = "another token"
		w.opener.mu.Unlock()
		w.of("shop").set(nil, false)
		w.shows(w.poll(), "@f", "shop@a") // at once
	})
}

// TestSlow lets one hang: the first Poll waits for a moment, those after it not at all.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, several.Config{Patience: 3 * time.Second}, "shop", "wiki")
		defer w.close()
		w.of("shop").set(nil, true)
		took := func() time.Duration {
			began := time.Now()
			w.poll()
			return time.Since(began)
		}
		if waited := took(); waited != 3*time.Second {
			t.Errorf("the first poll waited %v", waited)
		}
		w.shows(w.poll(), "@f", "shop@!", "wiki@a")
		for range 100 {
			time.Sleep(15 * time.Second)
			w.of("wiki").commit("b")
			if waited := took(); waited != 0 {
				t.Fatalf("a poll waited %v", waited)
			}
		}
		w.shows(w.poll(), "@f", "shop@!", "wiki@b")
		w.of("shop").set(nil, false)
		time.Sleep(time.Hour) // what hangs is over by then, and so is the wait after it
		w.poll()
		synctest.Wait()
		w.shows(w.poll(), "@f", "shop@a", "wiki@b")
		if waited := took(); waited != 0 {
			t.Errorf("a poll waited %v", waited)
		}
	})
}

// TestSlowTakeNoPlaces has more that hang than there are places.
func TestSlowTakeNoPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"well"}
		for i := range 20 {
			names = append(names, fmt.Sprintf("slow%d", i))
		}
		w := newWorld(t, several.Config{Parallel: 2, Timeout: time.Minute}, names...)
		defer w.close()
		for _, name := range names[1:] {
			w.of(name).set(nil, true)
		}
		for range 80 { // twenty minutes, in which each has hung once
			w.poll()
			time.Sleep(15 * time.Second)
		}
		for _, revision := range []string{"b", "c", "d"} {
			w.of("well").commit(revision)
			if part := w.poll().Parts[1]; part.Revision[:1] != revision {
				t.Errorf("%s did not arrive at once: %+v", revision, part)
			}
			time.Sleep(15 * time.Second)
		}
	})
}

func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, several.Config{}, "shop", "wiki")
		w.of("wiki").set(failure(sources.ErrUnreadable, "down"), false)
		before := w.poll()
		w.close()
		w.start(several.Config{})
		w.of("shop").set(nil, true)
		asked := w.of("shop").asked()
		last, err := w.source.Last(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.shows(last, "@f", "shop@a", "wiki@!")
		if last.Revision != before.Revision || w.of("shop").asked() != asked {
			t.Errorf("got %s, want %s without asking", last.Revision, before.Revision)
		}
		w.shows(w.poll(), "@f", "shop@a", "wiki@!")
		w.close()
		w.start(several.Config{})
		defer w.close()
		w.shows(w.poll(), "@f", "shop@a", "wiki@!") // also without Last, of one that hangs
	})
}

func TestFleetChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, several.Config{}, "shop", "wiki")
		defer w.close()
		w.poll()
		w.main.fleet("g", "wiki")
		w.shows(w.poll(), "@g", "wiki@a")
		if !w.of("shop").closed || w.of("wiki").closed {
			t.Error("the one that was taken out is not closed, or the other one is")
		}
		w.of("wiki").last = nil
		w.of("wiki").set(failure(sources.ErrUnreadable, "down"), false)
		w.main.fleet("h", "wiki=https://elsewhere.example.com/wiki.git")
		w.shows(w.poll(), "@h", "wiki@!") // what is at another place was never read
		w.of("wiki").set(nil, false)
		time.Sleep(time.Hour)
		known := w.poll()
		w.shows(known, "@h", "wiki@a")
		w.main.mu.Lock()
		w.main.snapshot = &sources.Snapshot{Revision: strings.Repeat("i", 40), Files: []*schemas.File{schemas.Parse("gitvirt.yaml", []byte("kind: Fleet\nspec: {"))}}
		w.main.mu.Unlock()
		w.shows(w.poll(), "@i", "wiki@a") // nobody knows what the Fleet names
		w.main.fleet("j")
		if snapshot := w.poll(); snapshot != w.main.snapshot {
			t.Errorf("got %+v", snapshot)
		}
	})
}

// TestMainFails asks nobody whose rights may have changed.
func TestMainFails(t *testing.T) {
	w := newWorld(t, several.Config{}, "shop")
	defer w.close()
	w.poll()
	asked := w.of("shop").asked()
	w.main.set(failure(sources.ErrUntrusted, "not signed"), false)
	w.of("shop").commit("b")
	if _, err := w.source.Poll(t.Context()); !errors.Is(err, sources.ErrUntrusted) {
		t.Errorf("got %v", err)
	}
	if w.of("shop").asked() != asked {
		t.Error("another repository was asked")
	}
}

// TestCloseWhileAsking ends what hangs.
func TestCloseWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, several.Config{Timeout: 24 * time.Hour}, "shop", "gone")
		w.of("shop").set(nil, true)
		w.of("gone").set(nil, true)
		w.poll()
		w.main.fleet("g", "shop")
		w.poll()
		synctest.Wait()
		if !w.of("gone").closed {
			t.Error("the one that was taken out is not closed")
		}
		began := time.Now()
		w.close()
		if !w.of("shop").closed || time.Since(began) != 0 {
			t.Error("closing has waited, or did not close")
		}
	})
}

func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, several.Config{}, "shop", "wiki", "none")
		w.close()
		w.of("wiki").set(nil, true)
		delete(w.opener.fakes, "none")
		snapshot, err := several.Read(t.Context(), w.main.snapshot, w.opener, several.Config{})
		if err != nil {
			t.Fatal(err)
		}
		w.shows(snapshot, "@f", "shop@a", "wiki@!", "none@!")
		if problem := snapshot.Parts[2].Problem; !strings.Contains(problem, "no complete answer") {
			t.Errorf("it says %q", problem)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := several.Read(impatient, w.main.snapshot, w.opener, several.Config{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
