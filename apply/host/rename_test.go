package host_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// ending is a hypervisor whose caller ends in the middle of the call that is to be its last: before the call has done
// anything, or when it has done all.
type ending struct {
	hypervisor.Hypervisor

	mu    sync.Mutex
	calls []string // that change something
	last  int      // counted from 1; 0 is none
	after bool
	end   func()
}

func (e *ending) call(ctx context.Context, name string, do func() error) error {
	e.mu.Lock()
	e.calls = append(e.calls, name)
	last := len(e.calls) == e.last
	e.mu.Unlock()
	if !last {
		return do()
	}
	if e.after {
		if err := do(); err != nil {
			return err
		}
	}
	e.end()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (e *ending) Define(ctx context.Context, definition string) error {
	return e.call(ctx, "Define", func() error { return e.Hypervisor.Define(ctx, definition) })
}

func (e *ending) SetMetadata(ctx context.Context, name, prefix, uri, element string) error {
	return e.call(ctx, "SetMetadata", func() error { return e.Hypervisor.SetMetadata(ctx, name, prefix, uri, element) })
}

func (e *ending) SetPower(ctx context.Context, name string, power hypervisor.Power) error {
	return e.call(ctx, "SetPower", func() error { return e.Hypervisor.SetPower(ctx, name, power) })
}

func (e *ending) Undefine(ctx context.Context, name string) error {
	return e.call(ctx, "Undefine", func() error { return e.Hypervisor.Undefine(ctx, name) })
}

// interruptedRenames renames a machine to and fro, and ends the agent before and after each call of the rename that changes something;
// the agent starts again and comes to the same end. world is what must stay as it is.
func interruptedRenames(r *rig, wants [2]*schemas.Desired, world func() string) {
	r.t.Helper()
	e := &ending{Hypervisor: r.driver, end: func() { r.end() }}
	r.driver = e
	r.restart()
	was := world()
	turn, calls := 0, 1 // how many there are is known after the first
	for at := 0; at <= calls; at++ {
		for _, after := range []bool{false, true} {
			turn = 1 - turn
			what := fmt.Sprintf("call %d of %d, after it %v", at, calls, after)
			p := r.eventually(wants[turn], "a rename: "+what, func(p *plan.Plan) bool { return len(p.Executable()) == 1 })
			if p.Executable()[0].Action != plan.ActionRename {
				r.t.Fatalf("%s: %+v", what, p.Executable()[0])
			}
			e.mu.Lock()
			e.calls, e.last, e.after = nil, at, after
			e.mu.Unlock()
			if err := r.apply(p); (err == nil) != (at == 0) {
				r.t.Fatalf("%s: %v", what, err)
			}
			r.restart()
			r.converge(wants[turn])
			e.mu.Lock()
			if at == 0 {
				calls = len(e.calls)
			}
			for _, call := range e.calls {
				if call == "Undefine" || call == "SetPower" {
					r.t.Errorf("%s: %s was called", what, call)
				}
			}
			e.mu.Unlock()
			if now := world(); now != was {
				r.t.Errorf("%s: changed to\n%s\nfrom\n%s", what, now, was)
			}
		}
	}
}

// renamed are two wishes for one machine, each of which says that it was the other.
func renamed(t *testing.T, manifest func(name, annotations string) string) [2]*schemas.Desired {
	t.Helper()
	var out [2]*schemas.Desired
	for i, names := range [][2]string{{"web-1", "web-2"}, {"web-2", "web-1"}} {
		out[i] = desired(t, manifest(names[0], "gitvirt.io/previous-name: "+names[1]))
	}
	return out
}

// TestInterruptedRename: wherever the agent ends in a rename, it comes to its end, and nothing is stopped, undefined or made anew.
func TestInterruptedRename(t *testing.T) {
	r := newRig(t)
	r.converge(desired(t, manifest("web-1", "Always", "128Mi")))
	interruptedRenames(r, renamed(t, func(name, annotations string) string {
		return strings.Replace(manifest(name, "Always", "128Mi"), "  name: "+name+"\n", "  name: "+name+"\n  annotations: {"+annotations+"}\n", 1)
	}), func() string {
		domain, err := r.hypervisor.Domain(context.Background(), "default_web-1")
		if err != nil {
			t.Fatal(err)
		}
		out := domain.UUID + " " + string(domain.State) + withoutMetadata(domain.Config) + withoutMetadata(domain.Live)
		disk := filepath.Join(r.dir, "agent", "disks", "default", "web-1", "data.qcow2")
		info, err := os.Stat(disk)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s\ndisk %d", out, info.Sys().(*syscall.Stat_t).Ino)
	})
}
