package commitstatus_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/commitstatus"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forge keeps statuses, and what was written when.
type forge struct {
	mu       sync.Mutex
	statuses map[string]forges.Status
	writes   []string
	times    map[string][]time.Time
	reads    int
	fail     error
	// swallow makes writes arrive and fail all the same.
	swallow bool
}

func newForge() *forge {
	return &forge{statuses: map[string]forges.Status{}, times: map[string][]time.Time{}}
}

func (f *forge) Name() string { return "forge.test/shop/fleet" }

func (f *forge) SetStatus(_ context.Context, commit string, status forges.Status) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil && !f.swallow {
		return f.fail
	}
	f.statuses[commit] = status
	f.writes = append(f.writes, fmt.Sprintf("%s: %s", status.State, status.Description))
	f.times[commit] = append(f.times[commit], time.Now())
	return f.fail
}

func (f *forge) Statuses(_ context.Context, commit string) ([]forges.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.fail != nil {
		return nil, f.fail
	}
	out := []forges.Status{{Context: "ci", State: forges.Failure, Description: "somebody else's"}}
	if status, ok := f.statuses[commit]; ok {
		out = append(out, forges.Status{Context: status.Context, State: status.State, Description: status.Description})
	}
	return out, nil
}

func (f *forge) set(fail error, swallow bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.swallow = fail, swallow
}

func (f *forge) of(commit string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("%s: %s", f.statuses[commit].State, f.statuses[commit].Description)
}

// told returns what was written since the last call.
func (f *forge) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.writes
	f.writes = nil
	return out
}

// world is a controller with a forge.
type world struct {
	t     *testing.T
	repo  *reconcilertest.Repository
	host  *reconcilertest.Host
	forge *forge
	loop  *reconciler.Reconciler
	stop  func()
}

const gitvirtYAML = `apiVersion: gitvirt.io/v1alpha1
kind: Fleet
metadata: {name: demo}
spec:
  policy:
    windows: [{name: nights, schedule: "0 2 1 1 *", duration: 1h}]
`

func machine(name, memory string) string {
	return "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: " + name + "}\nspec:\n  runStrategy: Always\n" +
		"  template: {spec: {domain: {memory: {guest: " + memory + "}, devices: {}}}}\n"
}

func address(name string) schemas.Address {
	return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}
}

func newWorld(t *testing.T, starts time.Duration, names ...string) *world {
	files := map[string]string{"gitvirt.yaml": gitvirtYAML}
	for _, name := range names {
		files[name+".yaml"] = machine(name, "64Mi")
	}
	w := &world{t: t, repo: reconcilertest.NewRepository(files), host: reconcilertest.NewHost(), forge: newForge()}
	w.host.StartDelay = starts
	w.start()
	return w
}

func (w *world) start() {
	w.t.Helper()
	loop, err := reconciler.New(w.repo, w.host, reconciler.Config{Rand: func() float64 { return 0 }})
	if err != nil {
		w.t.Fatal(err)
	}
	reporter, err := commitstatus.New(loop, commitstatus.OnForge(w.forge), commitstatus.Config{Rand: func() float64 { return 0 }})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = loop.Run(ctx) })
	running.Go(func() { _ = reporter.Run(ctx) })
	w.loop, w.stop = loop, func() { cancel(); running.Wait() }
}

// play runs a story in virtual time, with machines that take so long to start.
func play(t *testing.T, starts time.Duration, names []string, story func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, starts, names...)
		defer func() { w.stop() }()
		story(w)
	})
}

func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) commit(files map[string]string) (revision string) {
	revision = w.repo.Commit("a commit", files)
	w.loop.Nudge()
	synctest.Wait()
	return revision
}

func (w *world) wants(commit, want string) {
	w.t.Helper()
	if have := w.forge.of(commit); have != want {
		w.t.Errorf("the forge shows %q, want %q; events: %v", have, want, w.loop.Events(0))
	}
}

// TestRevision: what the forge shows from the first step to the last, and of what waits.
func TestRevision(t *testing.T) {
	play(t, 8*time.Second, []string{"a", "b", "c", "d", "e", "f", "g"}, func(w *world) {
		w.wait(time.Millisecond)
		first := w.repo.Revision()
		w.wants(first, "pending: applied 0 of 7")
		w.wait(time.Minute)
		w.wants(first, "success: applied 7 of 7")
		second := w.commit(map[string]string{"a.yaml": machine("a", "128Mi"), "b.yaml": machine("b", "128Mi"), "c.yaml": "", "h.yaml": machine("h", "64Mi")})
		w.wait(time.Minute)
		w.wants(second, "pending: applied 5 of 8, 2 wait for a window, 1 for an approval")
		w.wants(first, "success: applied 7 of 7")
		for commit, times := range w.forge.times {
			for i := 1; i < len(times); i++ {
				if times[i].Sub(times[i-1]) < 5*time.Second {
					t.Errorf("%s is told at %v", commit, times)
				}
			}
		}
	})
}

// TestFailures: what failed is told with its reason, mistakes at their lines, and what was mended is told, too.
func TestFailures(t *testing.T) {
	play(t, 0, nil, func(w *world) {
		w.host.SetFault(address("a"), func(plan.Step) error { return fmt.Errorf("%w: no space left\n in the pool", apply.ErrRetry) })
		commit := w.commit(map[string]string{"a.yaml": machine("a", "64Mi"), "b.yaml": machine("b", "64Mi")})
		w.wait(time.Minute)
		w.wants(commit, "failure: 1 of 2 failed: default/a: create VirtualMachine/default/a: the host cannot do it now: no space left in the pool")
		w.host.SetFault(address("a"), nil)
		w.wait(10 * time.Minute)
		w.wants(commit, "success: applied 2 of 2")
		commit = w.commit(map[string]string{"b.yaml": strings.Replace(machine("b", "64Mi"), "runStrategy", "runStratgy", 1)})
		w.wait(time.Minute)
		if have := w.forge.of(commit); !strings.HasPrefix(have, "failure: 1 of 2 failed: default/b: b.yaml:5:3: spec.runStratgy: unknown field") {
			t.Errorf("the forge shows %q", have)
		}
		if told := w.forge.statuses[commit].Annotations; len(told) == 0 || told[0].Path != "b.yaml" || told[0].Line != 5 || !strings.HasPrefix(told[0].Message, "spec.runStratgy: unknown field") {
			t.Errorf("annotations %+v", told)
		}
	})
}

// TestWhatHappensLater: a guest that crashes, or is changed by hand, does not make its revision less applied.
func TestWhatHappensLater(t *testing.T) {
	play(t, 0, []string{"a", "b"}, func(w *world) {
		w.wait(time.Minute)
		w.forge.told()
		for range 6 {
			w.host.Crash(address("a"))
			w.wait(7 * time.Second)
			w.host.Edit(address("b"))
			w.wait(time.Second)
		}
		w.host.SetUnknown("libvirtd does not answer")
		w.wait(time.Minute)
		if told := w.forge.told(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
		w.wants(w.repo.Revision(), "success: applied 2 of 2")
	})
}

// TestRestart: after a start nothing is written that is right already.
func TestRestart(t *testing.T) {
	play(t, 0, []string{"a"}, func(w *world) {
		w.wait(time.Minute)
		w.forge.told()
		for range 3 {
			w.stop()
			w.start()
			w.wait(time.Minute)
		}
		if told := w.forge.told(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
		if w.forge.reads > 4 {
			t.Errorf("asked %d times", w.forge.reads)
		}
	})
}

// TestSuperseded: a revision that another one takes the place of comes to its end, also when nobody was there to see it; one that had ended stays.
func TestSuperseded(t *testing.T) {
	play(t, 0, []string{"a", "b"}, func(w *world) {
		w.wait(time.Minute)
		first := w.repo.Revision()
		second := w.commit(map[string]string{"a.yaml": machine("a", "128Mi")})
		w.wait(time.Minute)
		w.wants(second, "pending: applied 1 of 2, 1 waits for a window")
		third := w.commit(map[string]string{"b.yaml": machine("b", "128Mi")})
		w.wait(time.Minute)
		w.wants(first, "success: applied 2 of 2")
		w.wants(second, "failure: superseded by "+third[:7]+" (applied 1 of 2, 1 waits for a window)")
		w.wants(third, "pending: applied 0 of 2, 2 wait for a window")
		w.stop()
		w.repo.Fetched()
		fourth := w.repo.Commit("while nobody looked", map[string]string{"a.yaml": machine("a", "64Mi"), "b.yaml": machine("b", "64Mi")})
		w.start()
		w.wait(time.Minute)
		w.wants(third, "failure: superseded by "+fourth[:7])
		w.wants(fourth, "success: applied 2 of 2")
		w.wants(first, "success: applied 2 of 2")
	})
}

// TestForgeDown: a forge that is down, or says no although it has written, loses nothing and is asked less and less.
func TestForgeDown(t *testing.T) {
	play(t, 20*time.Second, []string{"a", "b"}, func(w *world) {
		w.forge.set(fmt.Errorf("502 Bad Gateway: %w", forges.ErrUnavailable), false)
		w.wait(time.Minute)
		first := w.repo.Revision()
		second := w.commit(map[string]string{"c.yaml": machine("c", "64Mi")})
		w.wait(time.Hour)
		if told := w.forge.told(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
		if w.forge.reads > 40 {
			t.Errorf("asked %d times within an hour", w.forge.reads)
		}
		w.forge.set(nil, false)
		w.wait(10 * time.Minute)
		w.wants(second, "success: applied 3 of 3")
		w.wants(first, "success: applied 2 of 2") // the last that is known of it
		failed := 0
		for _, event := range w.loop.Events(0) {
			if event.Reason == reconciler.CommitStatusFailed {
				failed += event.Count
			}
		}
		if failed != 1 {
			t.Errorf("told of %d failures", failed)
		}

		w.forge.set(fmt.Errorf("garbage: %w", forges.ErrUnavailable), true)
		third := w.commit(map[string]string{"c.yaml": ""})
		w.wait(time.Minute)
		w.forge.set(nil, false)
		w.wait(10 * time.Minute)
		w.forge.told()
		w.wants(third, "pending: applied 2 of 3, 1 waits for an approval")

		w.forge.set(&forges.RateLimitedError{Until: time.Now().Add(time.Hour)}, false)
		w.commit(map[string]string{"c.yaml": machine("c", "64Mi")})
		w.wait(time.Minute)
		reads := w.forge.reads
		w.wait(58 * time.Minute)
		if w.forge.reads != reads {
			t.Errorf("asked %d times while the forge wants nothing", w.forge.reads-reads)
		}
		w.forge.set(nil, false)
		w.wait(10 * time.Minute)
		w.wants(w.repo.Revision(), "success: applied 3 of 3")
		w.wants(third, "failure: superseded by "+w.repo.Revision()[:7]+" (applied 2 of 3, 1 waits for an approval)")
	})
}

// TestForcePush: a revision that is wanted again is told of again.
func TestForcePush(t *testing.T) {
	play(t, 0, []string{"a"}, func(w *world) {
		w.wait(time.Minute)
		first := w.repo.Revision()
		second := w.commit(map[string]string{"a.yaml": machine("a", "128Mi")})
		w.wait(time.Minute)
		third := w.commit(map[string]string{"a.yaml": machine("a", "64Mi")})
		w.wait(time.Minute)
		w.wants(third, "success: applied 1 of 1")
		w.wants(second, "failure: superseded by "+third[:7]+" (applied 0 of 1, 1 waits for a window)")
		if states := slices.Collect(maps.Values(w.forge.statuses)); len(states) != 3 {
			t.Errorf("%v, %s", states, first)
		}
	})
}

// refuse commits what nobody trusts and returns its revision.
func (w *world) refuse(reason string, files map[string]string) (revision string) {
	revision = w.repo.Commit("a commit of a stranger", files)
	w.repo.Fail(&sources.Error{
		Kind: sources.ErrUntrusted, Source: "fake", Op: "judging main", Err: errors.New("commit " + revision[:12] + " " + reason), Fix: "sign it",
		Revision: revision, Reason: "it " + reason,
	})
	w.loop.Nudge()
	synctest.Wait()
	return revision
}

// TestRefused: a revision that nobody trusts is told of once, restarts included, and put right when its signature counts after all.
func TestRefused(t *testing.T) {
	play(t, 0, []string{"a"}, func(w *world) {
		w.wait(time.Minute)
		first := w.repo.Revision()
		w.forge.told()
		head := w.refuse("is not signed", map[string]string{"a.yaml": "", "b.yaml": machine("b", "64Mi")})
		w.wait(time.Minute)
		w.wants(head, "failure: not applied: it is not signed")
		for range 2 {
			w.stop()
			w.start()
			w.wait(time.Minute)
		}
		if told := w.forge.told(); len(told) != 1 {
			t.Errorf("told %q", told)
		}
		w.repo.Fail(nil) // somebody has named the key
		w.loop.Nudge()
		w.wait(time.Minute)
		w.wants(head, "pending: applied 1 of 2, 1 waits for an approval")
		w.wants(first, "success: applied 1 of 1")
	})
}

// TestRefusedMeanwhile: while the forge is down another head takes its place, and what was refused is told all the same.
func TestRefusedMeanwhile(t *testing.T) {
	play(t, 0, []string{"a"}, func(w *world) {
		w.wait(time.Minute)
		w.forge.set(fmt.Errorf("502 Bad Gateway: %w", forges.ErrUnavailable), false)
		one := w.refuse("is not signed", map[string]string{"b.yaml": machine("b", "64Mi")})
		w.wait(time.Minute)
		two := w.refuse("is signed with the SSH key SHA256:x, which is not trusted", map[string]string{"c.yaml": machine("c", "64Mi")})
		w.wait(time.Minute)
		w.repo.Fail(nil)
		three := w.commit(map[string]string{"d.yaml": machine("d", "64Mi")})
		w.wait(time.Minute)
		w.forge.set(nil, false)
		w.wait(10 * time.Minute)
		w.wants(one, "failure: not applied: it is not signed")
		w.wants(two, "failure: not applied: it is signed with the SSH key SHA256:x, which is not trusted")
		w.wants(three, "success: applied 4 of 4")
	})
}

// TestNothingTrusted: where no revision was ever trusted the head is told of as well.
func TestNothingTrusted(t *testing.T) {
	play(t, 0, nil, func(w *world) {
		w.wait(time.Second)
		w.stop()
		w.repo = reconcilertest.NewRepository(map[string]string{"gitvirt.yaml": gitvirtYAML})
		head := w.refuse("is not signed", map[string]string{"a.yaml": machine("a", "64Mi")})
		w.start()
		w.wait(time.Minute)
		w.wants(head, "failure: not applied: it is not signed")
		if len(w.host.Observed().Domains) > 0 {
			t.Error("it was applied")
		}
	})
}

// notes are git's, in memory.
type notes struct {
	text map[string]string
	fail error
}

func (n *notes) Name() string { return "refs/notes/gitvirt of the test" }

func (n *notes) Show(_ context.Context, commit string) (string, bool, error) {
	text, found := n.text[commit]
	return text, found, n.fail
}

func (n *notes) Write(_ context.Context, commit, text string) error {
	n.text[commit] = text
	return n.fail
}

// TestInNotes: what is told is read back as it was, and a note that says something else is one that is to be replaced.
func TestInNotes(t *testing.T) {
	kept := &notes{text: map[string]string{"c": "looks good\n"}}
	board := commitstatus.InNotes(kept)
	if _, has, err := board.Told(t.Context(), "a"); has || err != nil {
		t.Errorf("without a note: %v, %v", has, err)
	}
	want := forges.Status{Context: commitstatus.Context, State: forges.Failure, Description: "1 of 2 failed: default/a: no space: left"}
	if err := board.Tell(t.Context(), "a", want); err != nil || kept.text["a"] != "gitvirt/apply: failure: 1 of 2 failed: default/a: no space: left\n" {
		t.Errorf("it is %q, %v", kept.text["a"], err)
	}
	if got, has, err := board.Told(t.Context(), "a"); !has || err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("it is read as %+v, %v, %v", got, has, err)
	}
	if got, has, err := board.Told(t.Context(), "c"); !has || err != nil || got.State != forges.Pending || got.Description != "" {
		t.Errorf("somebody's note is read as %+v, %v, %v", got, has, err)
	}
	kept.fail = errors.New("no network")
	if _, _, err := board.Told(t.Context(), "a"); err == nil {
		t.Error("a note that cannot be read is none")
	}
}

func TestNew(t *testing.T) {
	loop, err := reconciler.New(reconcilertest.NewRepository(nil), reconcilertest.NewHost(), reconciler.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := commitstatus.New(loop, nil, commitstatus.Config{}); err == nil {
		t.Error("no board")
	}
	if _, err := commitstatus.New(loop, commitstatus.OnForge(newForge()), commitstatus.Config{Interval: -1}); err == nil {
		t.Error("a negative interval")
	}
}
