package apply_test

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
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func machine() *kubevirtv1.VirtualMachine {
	return &kubevirtv1.VirtualMachine{Spec: kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{}}}
}

// site carries steps out by waiting: each takes a second, and its guest another.
type site struct {
	mu sync.Mutex
	// fails and sick say which machines fail, and which never become ready.
	fails, sick map[string]error
	log         []string
}

func (s *site) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *site) Execute(ctx context.Context, _ apply.Target, step plan.Step, progress func(string)) error {
	progress("working")
	select {
	case <-ctx.Done():
		return apply.ErrLeft
	case <-time.After(time.Second):
	}
	s.say("%s %s", step.Action, step.Address.Name)
	return s.fails[step.Address.Name]
}

func (s *site) Await(ctx context.Context, guest apply.Guest, timeout time.Duration) error {
	wait, err := time.Second, s.sick[guest.Address.Name]
	if err != nil {
		wait = timeout
	}
	select {
	case <-ctx.Done():
		return apply.ErrLeft
	case <-time.After(wait):
	}
	if err == nil {
		s.say("%s is ready", guest.Address.Name)
	}
	return err
}

func (s *site) Console(_ context.Context, guest apply.Guest, lines int) ([]string, error) {
	return []string{fmt.Sprintf("the last %d lines of %s", lines, guest.Address.Name)}, nil
}

// story runs steps at a site and returns what happened.
func story(t *testing.T, s *site, options apply.Options, during func(stop, leave func()), all ...plan.Step) (log []string, results []apply.Result, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		options.ConsoleLines = 7
		ends := map[schemas.Address]int{}
		options.Report = func(event apply.Event) {
			if event.Done {
				ends[event.Address]++
				for _, line := range event.Console {
					s.say("%s", line)
				}
			}
		}
		stop := make(chan struct{})
		options.Stop = stop
		if during != nil {
			go during(func() { close(stop) }, cancel)
		}
		began := time.Now()
		results = apply.Run(ctx, apply.Target{}, all, s, options)
		took = time.Since(began)
		synctest.Wait()
		for i := range all {
			if ends[all[i].Address] != 1 {
				t.Errorf("%s came to %d ends", all[i].Address, ends[all[i].Address])
			}
		}
	})
	return s.log, results, took
}

func outcomes(results []apply.Result) string {
	var out []string
	for _, result := range results {
		text := "done"
		if result.Err != nil {
			text = result.Err.Error()
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}

func TestRunWaitsForGuests(t *testing.T) {
	log, results, _ := story(t, &site{}, apply.Options{}, nil, steps("create web < db", "create db")...)
	if got := strings.Join(log, ", "); got != "create db, db is ready, create web, web is ready" {
		t.Errorf("got %s", got)
	}
	if got := outcomes(results); got != "done\ndone" {
		t.Errorf("got %s", got)
	}
}

func TestRunTellsWhyAGuestIsNotReady(t *testing.T) {
	s := &site{sick: map[string]error{"db": apply.NotReadyError{Reason: "the guest agent does not answer"}}}
	log, results, took := story(t, s, apply.Options{}, nil, steps("create web < db", "create db")...)
	want := "create VirtualMachine/default/web: not begun: waits for default/db, whose create failed\n" +
		"create VirtualMachine/default/db: the guest is not ready: the guest agent does not answer"
	if got := outcomes(results); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !errors.Is(results[0].Err, apply.ErrNotBegun) || !errors.Is(results[1].Err, apply.ErrNotReady) {
		t.Error("the errors are of other kinds")
	}
	if got := strings.Join(log, ", "); got != "create db, the last 7 lines of db" {
		t.Errorf("got %s", got)
	}
	if took != apply.DefaultReadyTimeout+time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestRunAsksForWhoHasNoStep(t *testing.T) {
	s := &site{sick: map[string]error{"dns": apply.NotReadyError{Reason: "port 53 is closed"}}}
	_, results, _ := story(t, s, apply.Options{Pace: apply.Pace{ReadyTimeout: time.Minute}}, nil, steps("start web < db", "start mail < dns")...)
	if got := outcomes(results); got != "done\nstart VirtualMachine/default/mail: not begun: waits for default/dns: port 53 is closed" {
		t.Errorf("got %s", got)
	}
}

// TestRunIsStopped: what is under way is waited for, and nothing else begins.
func TestRunIsStopped(t *testing.T) {
	interrupt := func(stop, _ func()) {
		time.Sleep(1500 * time.Millisecond)
		stop()
	}
	log, results, took := story(t, &site{}, apply.Options{Pace: apply.Pace{Parallel: 1}}, interrupt, steps("create a", "create b", "start c < other")...)
	want := "done\ncreate VirtualMachine/default/b: not begun: interrupted\nstart VirtualMachine/default/c: not begun: interrupted"
	if got := outcomes(results); got != want || took != 2*time.Second {
		t.Errorf("after %s got\n%s\nlog %v", took, got, log)
	}
}

// TestRunIsLeft: nobody waits for anything.
func TestRunIsLeft(t *testing.T) {
	leave := func(_, leave func()) {
		time.Sleep(500 * time.Millisecond)
		leave()
	}
	_, results, took := story(t, &site{}, apply.Options{Pace: apply.Pace{Parallel: 1}}, leave, steps("create a", "create b")...)
	want := "create VirtualMachine/default/a: left while it was under way\n" +
		"create VirtualMachine/default/b: not begun: interrupted"
	if got := outcomes(results); got != want || took != 500*time.Millisecond {
		t.Errorf("after %s got\n%s", took, got)
	}
}

// TestPausedGuestsAreNotAwaited: a guest that is started paused waits for somebody to resume it.
func TestPausedGuestsAreNotAwaited(t *testing.T) {
	paused := step("create a")
	strategy := kubevirtv1.StartStrategyPaused
	paused.VM.Object.Spec.Template.Spec.StartStrategy = &strategy
	log, _, _ := story(t, &site{}, apply.Options{}, nil, paused)
	if got := strings.Join(log, ", "); got != "create a" {
		t.Errorf("got %s", got)
	}
}
