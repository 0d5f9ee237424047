package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/schemastest"
)

// The rounds of a property: each draws a fleet and edits it several times.
const (
	fleetRounds     = 12
	realFleetRounds = 3
)

// fleetPatience bounds every wait: real guests that are told to let go of a device take their time.
const fleetPatience = 2 * time.Minute

// TestFleets holds what is true of every fleet and every edit of it, with the real agent on the fake hypervisor: after an
// apply the plan is empty, the order of files and domains decides nothing, twice equals once, and no rendering holds a
// byte of a secret.
func TestFleets(t *testing.T) {
	t.Parallel()
	eachRound(t, fleetRounds, func(rt *rapid.T) {
		s := newFleetStory(t, rt)
		defer s.stop()
		s.edits(schemastest.Draw(rt), 4)
	})
}

// TestInterruptedFleets kills the agent before a drawn call of the hypervisor in the middle of applying an edit, starts it
// again and goes on: the end is the same.
func TestInterruptedFleets(t *testing.T) {
	t.Parallel()
	eachRound(t, fleetRounds, func(rt *rapid.T) {
		s := newFleetStory(t, rt)
		defer func() { s.stop() }()
		fleet := schemastest.Draw(rt)
		s.becomes(assemble(rt, fleet))
		for range 2 {
			fleet = fleet.Edit(rt)
			want := assemble(rt, fleet)
			p := s.plan(want)
			s.killedBefore(rapid.IntRange(0, 30).Draw(rt, "call"))
			_ = s.apply(p) // it may have been killed
			for _, method := range changing {
				s.hypervisor.Fail(method, nil)
			}
			s.restart()
			s.becomes(want)
		}
	})
}

// eachRound is rapid.Check for a story that takes seconds: fewer rounds, or as many as GITVIRT_ROUNDS says.
func eachRound(t *testing.T, rounds int, story func(*rapid.T)) {
	t.Helper()
	if more, err := strconv.Atoi(os.Getenv("GITVIRT_ROUNDS")); err == nil {
		rounds = more
	}
	failed := false
	rapid.Check(t, func(rt *rapid.T) {
		if rounds--; rounds < 0 && !failed {
			return // what failed is tried again, to make it smaller
		}
		done := false
		defer func() { failed = failed || !done }()
		story(rt)
		done = true
	})
}

// TestFleetsOnLibvirt is TestFleets with guests that boot on a real libvirt.
func TestFleetsOnLibvirt(t *testing.T) {
	t.Parallel()
	image := libvirttest.PushGuest(t)
	daemon := libvirttest.Start(t)
	driver := libvirt.New(daemon.URI)
	defer func() { _ = driver.Close() }()
	eachRound(t, realFleetRounds, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "gitvirt-fleets-") // not t.TempDir: QEMU's user must reach it
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		s := &fleetStory{rig: &rig{t: t, driver: driver, dir: dir}, rt: rt}
		s.start()
		defer func() { s.stop() }()
		fleet := schemastest.Draw(rt)
		fleet.Image = image
		fleet = s.edits(fleet, 2)
		s.becomes(assemble(rt, fleet.Empty()))
	})
}

// edits applies a fleet and edits of it, so many in all, holds each time what is true of all, and returns the next edit.
func (s *fleetStory) edits(fleet schemastest.Fleet, count int) schemastest.Fleet {
	for range count {
		want := assemble(s.rt, fleet)
		p := s.orderDecidesNothing(want, fleet)
		s.showsNoSecret(p, fleet)
		s.applied(p, want)
		s.appliedAgain(p, want)
		fleet = fleet.Edit(s.rt)
	}
	return fleet
}

func assemble(t *rapid.T, fleet schemastest.Fleet) *schemas.Desired {
	want := schemas.Assemble(fleet.Files())
	if want.Diagnostics.Errors() > 0 {
		t.Fatal(want.Diagnostics)
	}
	return want
}

// fleetStory is a rig of one round.
type fleetStory struct {
	*rig
	rt *rapid.T
}

func newFleetStory(t *testing.T, rt *rapid.T) *fleetStory {
	t.Helper()
	return &fleetStory{rig: newFakeRig(t), rt: rt}
}

// known waits for a picture of the host that satisfies a condition.
func (s *fleetStory) known(what string, condition func(plan.Observed) bool) plan.Observed {
	for deadline := time.Now().Add(fleetPatience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if observed := s.host.Observed(); observed.Unknown == "" && condition(observed) {
			return observed
		}
	}
	s.rt.Fatalf("the host is never %s: %+v", what, s.host.Observed())
	return plan.Observed{}
}

// orderDecidesNothing plans twice, with everything in another order, and returns the plan.
func (s *fleetStory) orderDecidesNothing(want *schemas.Desired, fleet schemastest.Fleet) *plan.Plan {
	s.known("known", func(plan.Observed) bool { return true })
	p := s.build(want)
	files := fleet.Files()
	random := rand.New(rand.NewSource(rapid.Int64().Draw(s.rt, "order")))
	random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	if other := s.build(schemas.Assemble(files)); other.ID != p.ID {
		s.rt.Fatalf("the order of the files makes another plan: %s and %s", s.text(p), s.text(other))
	}
	return p
}

func (s *fleetStory) build(want *schemas.Desired) *plan.Plan {
	p, err := plan.Build(want, s.host.Observed(), plan.Options{Revision: "rev"})
	if err != nil {
		s.rt.Fatal(err)
	}
	return p
}

func (s *fleetStory) text(p *plan.Plan) string {
	var out bytes.Buffer
	if err := p.Text(&out, plan.TextOptions{}); err != nil {
		s.rt.Fatal(err)
	}
	return out.String()
}

func (s *fleetStory) showsNoSecret(p *plan.Plan, fleet schemastest.Fleet) {
	encoded, err := json.Marshal(p)
	if err != nil {
		s.rt.Fatal(err)
	}
	for _, secret := range fleet.Secrets() {
		for name, rendering := range map[string]string{"text": s.text(p), "JSON": string(encoded), "Markdown": p.Markdown(plan.MarkdownOptions{})} {
			if strings.Contains(rendering, secret) {
				s.rt.Fatalf("the %s holds %q:\n%s", name, secret, rendering)
			}
		}
	}
}

// applied carries the plan out; then nothing is left to do.
func (s *fleetStory) applied(p *plan.Plan, want *schemas.Desired) {
	if err := s.apply(p); err != nil {
		s.rt.Fatalf("%v\nof\n%s", err, s.text(p))
	}
	s.known("as wanted after\n"+s.text(p), func(plan.Observed) bool { return settled(s.build(want)) })
}

// settled reports whether nothing is left to do but what waits for people: a guest that only they restart.
func settled(p *plan.Plan) bool {
	for i := range p.Steps {
		if p.Steps[i].Reason != plan.ReasonPendingRestart || p.Steps[i].Blocked == "" {
			return false
		}
	}
	return p.Unknown == ""
}

// becomes plans and applies until nothing is left to do.
func (s *fleetStory) becomes(want *schemas.Desired) {
	var last error
	for deadline := time.Now().Add(fleetPatience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p := s.build(want)
		if settled(p) {
			return
		}
		last = s.apply(p)
	}
	s.rt.Fatalf("does not become what is wanted: %v\n%s", last, s.text(s.build(want)))
}

// appliedAgain carries the plan out once more: whatever the agent says, nothing happens.
func (s *fleetStory) appliedAgain(p *plan.Plan, want *schemas.Desired) {
	runs := map[string]string{}
	for _, domain := range s.host.Observed().Domains {
		runs[domain.Name] = s.live(domain.Name)
	}
	results := apply.Run(context.Background(), apply.Target{Fleet: p.Fleet, Revision: p.Revision}, p.Executable(), s.host, apply.Options{})
	for _, result := range results {
		if result.Err == nil && result.Step.Action != plan.ActionDestroy {
			s.rt.Logf("%s of %s was carried out twice", result.Step.Action, result.Step.Address)
		}
	}
	for name, run := range runs {
		if now := s.live(name); now != run {
			s.rt.Fatalf("the second apply restarted %s", name)
		}
	}
	if again := s.build(want); !settled(again) {
		s.rt.Fatalf("the second apply left something to do:\n%s", s.text(again))
	}
}

// changing are the hypervisor's methods that change something.
var changing = []fake.Method{
	fake.Define, fake.SetPower, fake.SetMetadata, fake.Undefine,
	fake.AttachDevice, fake.DetachDevice, fake.UpdateDevice, fake.SetVCPUs, fake.SetMemory, fake.ResizeDisk,
}

// killedBefore ends the agent in the middle of the n-th call of the hypervisor that changes something.
func (s *fleetStory) killedBefore(n int) {
	var calls atomic.Int64
	for _, method := range changing {
		s.hypervisor.Fail(method, func(ctx context.Context, _ string) error {
			if calls.Add(1) <= int64(n) {
				return nil
			}
			s.end()
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}
}
