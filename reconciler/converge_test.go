package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
)

// action is one thing that happens to a fleet.
type action struct {
	what, name, strategy, memory string
	pause                        time.Duration
}

func drawActions(t *rapid.T) []action {
	one := rapid.Custom(func(t *rapid.T) action {
		return action{
			what: rapid.SampledFrom([]string{
				"commit", "commit", "commit", "remove", "break", "opaque", "crash", "pull", "off", "edit", "vanish", "unknown", "known",
				"git down", "git up", "retry", "stale", "mend", "restart", "silence", "tell",
			}).Draw(t, "what"),
			name:     rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
			strategy: rapid.SampledFrom([]string{"Always", "RerunOnFailure", "Halted", "Manual", "Once"}).Draw(t, "strategy"),
			memory:   rapid.SampledFrom([]string{"64Mi", "128Mi"}).Draw(t, "memory"),
			pause:    time.Duration(rapid.SampledFrom([]int{0, 1, 100, 3000, 60_000}).Draw(t, "pause")) * time.Millisecond,
		}
	})
	return rapid.SliceOfN(one, 1, 25).Draw(t, "actions")
}

// TestConverges: whatever happens, once it stops happening and everything works again the plan is empty, the host is as
// git wants it, and no disk was lost on the way: nothing was destroyed that git had not removed.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		actions := drawActions(r)
		var problem error
		synctest.Test(t, func(t *testing.T) { problem = converge(t, actions) })
		if problem != nil {
			r.Fatal(problem)
		}
	})
}

func converge(t *testing.T, actions []action) error {
	s := newStory(t, &txtar.Archive{})
	s.host.DefineDelay, s.host.StartDelay, s.host.ShutdownDelay = 20*time.Millisecond, 300*time.Millisecond, 2*time.Second
	w := &witness{removable: map[string]bool{}}
	for _, name := range []string{"a", "b", "c"} {
		s.host.SetFault(vm(name), w.fault(nil))
	}
	if err := s.start(nil); err != nil {
		return err
	}
	defer func() { _ = s.stop(nil) }()
	for _, a := range actions {
		time.Sleep(a.pause)
		s.do(a, w)
	}
	// Everything works again.
	for _, name := range []string{"a", "b", "c"} {
		s.host.SetFault(vm(name), w.fault(nil))
	}
	s.host.Silence(false)
	s.host.SetUnknown("")
	s.repo.Fail(nil)
	s.branch.Fail(nil)
	w.removed("c")
	s.repo.Commit("mend", map[string]string{
		"opaque.yaml": "", "a.yaml": manifest("a", "Always", "256Mi"), "b.yaml": manifest("b", "Halted", "256Mi"), "c.yaml": "",
	})
	s.r.Nudge()
	time.Sleep(15 * time.Minute)
	synctest.Wait()
	switch view := s.r.View(); {
	case w.problem() != nil:
		return w.problem()
	case view.Plan == nil || !view.Plan.Empty() || len(view.Plan.Steps) > 0 || view.Plan.Revision != s.repo.Revision():
		return fmt.Errorf("not converged: %+v\n%s", view.Plan, s.log.String())
	}
	return errors.Join(s.state([]string{"a", "running"}), s.state([]string{"b", "stopped"}), s.state([]string{"c", "absent"}),
		s.status([]string{"vms/default/a.yaml", "phase: Running"}), s.status([]string{"vms/default/b.yaml", "phase: Stopped"}))
}

// witness notes when a machine is destroyed that git has.
type witness struct {
	mu        sync.Mutex
	removable map[string]bool
	destroyed string
}

func (w *witness) removed(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removable[name] = true
}

func (w *witness) problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.destroyed == "" {
		return nil
	}
	return errors.New(w.destroyed + " was destroyed, and git never removed it")
}

// fault makes steps fail with err, and watches them.
func (w *witness) fault(err error) reconcilertest.Fault {
	return func(step plan.Step) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if step.Action == plan.ActionDestroy && !w.removable[step.Address.Name] {
			w.destroyed = step.Address.Name
		}
		return err
	}
}

func (s *story) do(a action, w *witness) {
	file := a.name + ".yaml"
	switch a.what {
	case "commit":
		s.repo.Commit("commit", map[string]string{file: manifest(a.name, a.strategy, a.memory)})
	case "remove":
		w.removed(a.name)
		s.repo.Commit("remove", map[string]string{file: ""})
	case "break":
		s.repo.Commit("break", map[string]string{file: manifest(a.name, "Nonsense", a.memory)})
	case "opaque":
		s.repo.Commit("opaque", map[string]string{"opaque.yaml": "a: [1\nb: }\n"})
	case "crash":
		s.host.Crash(vm(a.name))
	case "pull":
		s.host.PullPlug(vm(a.name))
	case "off":
		s.host.PowerOff(vm(a.name))
	case "edit":
		s.host.Edit(vm(a.name))
	case "vanish":
		s.host.Vanish(vm(a.name))
	case "unknown":
		s.host.SetUnknown("away")
	case "known":
		s.host.SetUnknown("")
	case "git down":
		_ = s.git([]string{"down"})
	case "git up":
		_ = s.git([]string{"up"})
	case "retry":
		s.host.SetFault(vm(a.name), w.fault(fmt.Errorf("%w: injected", apply.ErrRetry)))
	case "stale":
		s.host.SetFault(vm(a.name), w.fault(fmt.Errorf("%w: injected", apply.ErrStale)))
	case "mend":
		s.host.SetFault(vm(a.name), w.fault(nil))
	case "silence":
		s.host.Silence(true)
	case "tell":
		s.host.Silence(false)
	case "restart":
		_ = s.stop(nil)
		_ = s.start(nil)
	}
	if a.pause > 0 {
		s.r.Nudge()
	}
}

// TestManyAtOnce: a fleet larger than every bound arrives, whatever comes in between.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t, &txtar.Archive{})
		s.config.Parallel = 4
		s.host.DefineDelay, s.host.StartDelay = 100*time.Millisecond, time.Second
		files := map[string]string{}
		for i := range 100 {
			name := fmt.Sprintf("vm-%03d", i)
			files[name+".yaml"] = manifest(name, "Always", "64Mi")
		}
		s.repo.Commit("many", files)
		if err := s.start(nil); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.stop(nil) }()
		time.Sleep(5 * time.Second)
		s.host.Crash(vm("vm-000"))
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if err := s.state([]string{"vm-000", "running"}); err != nil {
			t.Errorf("a crashed guest waits for those that are made: %v", err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if err := s.synced(nil); err != nil {
			t.Error(err)
		}
		if most := s.host.MostAtOnce(); most != 5 { // 4 are made, and the crashed one is started
			t.Errorf("%d steps at once, want 5", most)
		}
		if n := len(s.host.Executions()); n != 101 {
			t.Errorf("%d steps were carried out, want 101", n)
		}
	})
}

// TestRunEnds: a controller that is asked to end does so at once, whatever it is waiting for.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t, &txtar.Archive{})
		s.host.ShutdownDelay, s.branch.Delay = time.Hour, time.Hour
		s.repo.Commit("x", map[string]string{"a.yaml": manifest("a", "Always", "64Mi")})
		if err := s.start(nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		s.repo.Commit("x", map[string]string{"a.yaml": manifest("a", "Halted", "64Mi")})
		s.repo.Hang(true)
		s.r.Nudge()
		time.Sleep(10 * time.Second)
		before := time.Now()
		if err := s.stop(nil); err != nil || time.Since(before) > time.Second {
			t.Errorf("%v after %s", err, time.Since(before))
		}
	})
}

// hanging is a host that does not answer, against its promise.
type hanging struct {
	*reconcilertest.Host
	release chan struct{}
}

func (h hanging) Observed() plan.Observed {
	<-h.release
	return h.Host.Observed()
}

// TestHealthy: a loop that has nothing to do is healthy, one that hangs is not.
func TestHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t, &txtar.Archive{})
		if err := s.start(nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if err := s.r.Healthy(); err != nil {
			t.Errorf("idle: %v", err)
		}
		if err := s.stop(nil); err != nil {
			t.Fatal(err)
		}
		host := hanging{s.host, make(chan struct{})}
		r, err := reconciler.New(s.repo, host, s.config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		time.Sleep(time.Minute)
		if r.Healthy() == nil {
			t.Error("a loop that hangs is called healthy")
		}
		close(host.release)
		synctest.Wait()
		if err := r.Healthy(); err != nil {
			t.Errorf("going on again: %v", err)
		}
		cancel()
		<-ended
	})
}
