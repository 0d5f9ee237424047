package apply

import (
	"container/heap"
	"fmt"
	"slices"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// Pacer says which steps of a plan may begin, given what has been told of the others. It knows no clock, no host and no
// goroutine, and is not safe for concurrent use. Its rules:
//
//   - Of one domain there is one step at a time, its destroy first.
//   - A guest is started or restarted after those that its machine depends on are ready, whether a step of this plan makes
//     them so or they were before; who has no such step has to be asked (Outside, Found).
//   - A guest is stopped or destroyed after those of this plan's steps that stop or destroy what depends on it.
//   - What waits for a step that failed never begins, nor what a Rollout holds.
//   - At most so many are under way as the pace says, and so many guests interrupted as the budgets say.
//
// Steps that wait for each other never begin either: no cycle keeps a Pacer from coming to an end.
type Pacer struct {
	steps   []plan.Step
	rollout *Rollout
	limit   int
	running int

	states []stepState
	// open counts what a step waits for; next are the steps that wait for a step.
	open []int
	next [][]edge
	// before are the steps that a step waits for.
	before [][]edge
	// outside are the dependencies that are asked for, and asks the ones of each step.
	outside []outside
	asks    [][]int
	// roll and repair are the steps that wait for nothing but the pace.
	roll, repair indexHeap
}

type stepState int

const (
	stepWaits stepState = iota
	stepRuns
	stepDone
	stepFailed
)

// edge is that one step waits for another, and why.
type edge struct {
	step int
	why  edgeKind
}

type edgeKind int

const (
	sameDomain edgeKind = iota // the domain is that of the other step as well
	needsReady                 // the machine depends on the other
	stopsFirst                 // the other depends on the machine
)

// outside is a dependency that no step settles.
type outside struct {
	dependency plan.Dependency
	// after is the step that comes before it is asked for; -1 for none.
	after int
	state outsideState
	why   string
	steps []int
}

type outsideState int

const (
	outsideUnknown outsideState = iota
	outsideAsked
	outsideReady
	outsideFailed
)

// NewPacer returns the order of some steps, within the account of their revision.
func NewPacer(steps []plan.Step, rollout *Rollout) *Pacer {
	p := &Pacer{
		steps: steps, rollout: rollout, limit: rollout.pace.Parallel,
		states: make([]stepState, len(steps)), open: make([]int, len(steps)),
		next: make([][]edge, len(steps)), before: make([][]edge, len(steps)), asks: make([][]int, len(steps)),
	}
	if p.limit <= 0 {
		p.limit = 8
	}
	for _, chain := range chains(steps) {
		for i := 1; i < len(chain); i++ {
			p.order(chain[i-1], chain[i], sameDomain)
		}
	}
	p.dependencies()
	for i := range steps {
		p.offer(i)
	}
	return p
}

// chains returns the steps by domain: what is one domain goes one after the other, its destroy first. Two steps are one
// domain when a VirtualMachine becomes a VirtualMachineInstance of the same name.
func chains(steps []plan.Step) [][]int {
	var out [][]int
	of := make(map[string]int, len(steps))
	for i := range steps {
		at, known := of[steps[i].Domain]
		switch {
		case !known:
			of[steps[i].Domain] = len(out)
			out = append(out, []int{i})
		case steps[i].Action == plan.ActionDestroy:
			out[at] = slices.Insert(out[at], 0, i)
		default:
			out[at] = append(out[at], i)
		}
	}
	return out
}

func (p *Pacer) order(first, then int, why edgeKind) {
	p.next[first] = append(p.next[first], edge{then, why})
	p.before[then] = append(p.before[then], edge{first, why})
	p.open[then]++
}

// dependencies orders the steps by what their machines depend on.
func (p *Pacer) dependencies() {
	starts, stopping := map[schemas.Address]int{}, map[schemas.Address]int{}
	for i := range p.steps {
		switch step := &p.steps[i]; {
		case step.StopsGuest():
			stopping[step.Address] = i
		case step.StartsGuest():
			starts[step.Address] = i
		}
	}
	known := map[plan.Dependency]int{}
	for i := range p.steps {
		step := &p.steps[i]
		for _, dependency := range step.DependsOn {
			switch {
			case step.StopsGuest():
				if j, ok := stopping[dependency.Address]; ok && j != i {
					p.order(i, j, stopsFirst)
				}
			case step.StartsGuest():
				p.needs(i, dependency, starts, stopping, known)
			}
		}
	}
}

// needs lets a step wait for a dependency: for the step that makes it ready, and where there is none, or where that step
// is done when something else is ready, until it was asked.
func (p *Pacer) needs(i int, dependency plan.Dependency, starts, stopping map[schemas.Address]int, known map[plan.Dependency]int) {
	after := -1
	if j, ok := starts[dependency.Address]; ok {
		p.order(j, i, needsReady)
		if p.steps[j].Ready == dependency.Ready || dependency.Ready == (schemas.Ready{}) {
			return
		}
		after = j
	} else if j, ok := stopping[dependency.Address]; ok {
		after = j
	}
	at, ok := known[dependency]
	if !ok {
		at = len(p.outside)
		known[dependency] = at
		p.outside = append(p.outside, outside{dependency: dependency, after: after})
	}
	p.outside[at].steps = append(p.outside[at].steps, i)
	p.asks[i] = append(p.asks[i], at)
	p.open[i]++
}

// offer makes a step that waits for nothing ready to begin.
func (p *Pacer) offer(i int) {
	switch {
	case p.open[i] > 0 || p.states[i] != stepWaits:
	case RolledOut(&p.steps[i]):
		heap.Push(&p.roll, i)
	default:
		heap.Push(&p.repair, i)
	}
}

// Next returns a step that begins now, if there is one. Repairs go before what was committed.
func (p *Pacer) Next() (step int, ok bool) {
	if p.running >= p.limit {
		return 0, false
	}
	if step, ok = p.take(&p.repair); !ok {
		step, ok = p.take(&p.roll)
	}
	if ok {
		p.states[step] = stepRuns
		p.running++
		p.rollout.Begin(&p.steps[step])
	}
	return step, ok
}

// take takes the first step of the plan that nothing holds.
func (p *Pacer) take(from *indexHeap) (step int, ok bool) {
	var held []int
	for from.Len() > 0 && !ok {
		step, _ = heap.Pop(from).(int)
		if ok = p.rollout.Hold(&p.steps[step]) == ""; !ok {
			held = append(held, step)
		}
	}
	for _, i := range held {
		heap.Push(from, i)
	}
	return step, ok
}

// End tells how a step went that Next returned. A step without an error is one whose guest is ready.
func (p *Pacer) End(i int, err error) {
	p.running--
	p.rollout.End(&p.steps[i], err)
	if err != nil {
		p.states[i] = stepFailed
		return
	}
	p.states[i] = stepDone
	for _, e := range p.next[i] {
		p.open[e.step]--
		p.offer(e.step)
	}
}

// Outside returns the dependencies that somebody has to ask for now. Each is returned once.
func (p *Pacer) Outside() []plan.Dependency {
	var out []plan.Dependency
	for i := range p.outside {
		o := &p.outside[i]
		if o.state != outsideUnknown || (o.after >= 0 && p.states[o.after] != stepDone) {
			continue
		}
		o.state = outsideAsked
		out = append(out, o.dependency)
	}
	return out
}

// Found tells of a dependency that Outside returned: it is ready, or why it is not.
func (p *Pacer) Found(dependency plan.Dependency, why string) {
	at := slices.IndexFunc(p.outside, func(o outside) bool { return o.dependency == dependency })
	if at < 0 {
		return
	}
	o := &p.outside[at]
	if why != "" {
		o.state, o.why = outsideFailed, why
		return
	}
	o.state = outsideReady
	for _, i := range o.steps {
		p.open[i]--
		p.offer(i)
	}
}

// Wait says what keeps a step from beginning, apart from the bound on how many are under way; "" when nothing does.
func (p *Pacer) Wait(i int) string {
	for _, e := range p.before[i] {
		if p.states[e.step] == stepDone {
			continue
		}
		other := &p.steps[e.step]
		return orderReason(e.why, other, p.states[e.step])
	}
	for _, at := range p.asks[i] {
		if o := &p.outside[at]; o.state != outsideReady {
			reason := "waits for " + name(o.dependency.Address)
			if o.why != "" {
				reason += ": " + o.why
			}
			return reason
		}
	}
	if hold := p.rollout.holdBack(&p.steps[i]); hold != "" {
		return hold
	}
	return p.rollout.interruptions.Hold(&p.steps[i])
}

func orderReason(why edgeKind, other *plan.Step, state stepState) string {
	end := map[stepState]string{
		stepWaits: "has not begun", stepRuns: "is under way", stepFailed: "failed",
	}[state]
	switch why {
	case sameDomain:
		return fmt.Sprintf("waits until the domain %s is free: its %s %s", other.Domain, other.Action, end)
	case stopsFirst:
		return fmt.Sprintf("waits for %s, which depends on it and whose %s %s", name(other.Address), other.Action, end)
	case needsReady:
	}
	return fmt.Sprintf("waits for %s, whose %s %s", name(other.Address), other.Action, end)
}

// indexHeap keeps the steps that may begin; the first of the plan is on top.
type indexHeap []int

func (h indexHeap) Len() int           { return len(h) }
func (h indexHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h indexHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *indexHeap) Push(x any) {
	if i, ok := x.(int); ok {
		*h = append(*h, i)
	}
}

// Pop implements heap.Interface.
func (h *indexHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
