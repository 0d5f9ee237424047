package reconciler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// watcher tells what has changed from one round to the next: it turns states into events and decides nothing. It
// belongs to the loop.
type watcher struct {
	r *Reconciler
	// steps are the ones that were told, by machine, in a form that is equal when they mean the same.
	steps map[key]string
	// drift is what was told to have drifted, by machine.
	drift map[key]string
	// seen says that the host was known once, unknown what was told when it cannot be read.
	seen     bool
	unknown  string
	revision string
	// opaque are the unreadable files that were told.
	opaque []schemas.Position
}

func newWatcher(r *Reconciler) *watcher {
	return &watcher{r: r, steps: map[key]string{}, drift: map[key]string{}}
}

// manifests tells which objects are broken, and which files say nothing.
func (w *watcher) manifests(desired *schemas.Desired, before, now map[schemas.Address]string, revision string) {
	for _, address := range slices.SortedFunc(maps.Keys(now), schemas.Address.Compare) {
		if before[address] != now[address] {
			w.r.event(Warning, ManifestBroken, address, revision, now[address])
		}
	}
	for _, file := range desired.Opaque {
		if !slices.Contains(w.opaque, file) {
			w.r.event(Warning, ManifestBroken, schemas.Address{}, revision, file.String()+" cannot be read; nothing is destroyed meanwhile")
		}
	}
	w.opaque = desired.Opaque
}

// host tells whether the host can be read. That it cannot yet is no news before git is known.
func (w *watcher) host(now plan.Observed, started bool) {
	switch {
	case now.Unknown == "" && (!w.seen || w.unknown != ""):
		w.r.event(Normal, HostKnown, schemas.Address{}, "", "the host "+now.Node+" can be read")
		w.seen, w.unknown = true, ""
	case now.Unknown != w.unknown && (w.seen || started):
		w.r.event(Warning, HostUnknown, schemas.Address{}, "", "the host cannot be read, nothing is changed: "+now.Unknown)
		w.unknown = now.Unknown
	}
}

// domains walks two pictures of the host, each ordered by address, and tells what happened between them.
func (w *watcher) domains(before, now []*plan.Domain, gate *gate, at time.Time) {
	for len(before) > 0 || len(now) > 0 {
		var order int
		switch {
		case len(before) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = before[0].Address.Compare(now[0].Address)
		}
		switch {
		case order < 0:
			w.r.event(Normal, Removed, before[0].Address, "", "is gone from the host")
			before = before[1:]
		case order > 0:
			now = now[1:] // Applied tells it, or it was there before this process
		default:
			if before[0] != now[0] {
				w.changed(before[0], now[0], gate, at)
			}
			before, now = before[1:], now[1:]
		}
	}
}

// changed tells what happened to the power of a guest.
func (w *watcher) changed(before, now *plan.Domain, gate *gate, at time.Time) {
	k := keyFor(now.Address)
	wasOn := before.State == plan.StateRunning || before.State == plan.StatePaused
	isOn := now.State == plan.StateRunning || now.State == plan.StatePaused
	switch {
	case before.State == "" || now.State == "": // what it was or is, nobody can tell
	case isOn && !wasOn:
		gate.running(k, at)
		w.r.event(Normal, Started, now.Address, now.Revision, "the guest runs")
	case wasOn && !isOn:
		w.down(now, gate.busy(k))
	}
}

func (w *watcher) down(now *plan.Domain, ours bool) {
	switch {
	case ours:
		w.r.event(Normal, Stopped, now.Address, now.Revision, "the guest was stopped by gitvirt")
	case now.State == plan.StateMissing:
		w.r.event(Warning, Stopped, now.Address, now.Revision, "the domain was stopped and undefined outside gitvirt")
	case now.Stop == plan.StopCrashed || now.Stop == plan.StopFailed:
		w.r.event(Warning, Crashed, now.Address, now.Revision, "the guest crashed")
	case now.Stop == plan.StopDestroyed:
		w.r.event(Warning, Stopped, now.Address, now.Revision, "the guest was stopped by force outside gitvirt")
	default:
		w.r.event(Normal, Stopped, now.Address, now.Revision, "the guest shut itself down")
	}
}

// planned tells of a plan that has something in it that was not told yet, and of new drift.
func (w *watcher) planned(p *plan.Plan) {
	if p.Unknown != "" {
		return
	}
	news := p.Revision != w.revision
	w.revision = p.Revision
	steps := make(map[key]string, len(p.Steps))
	drift := map[key]string{}
	for i := range p.Steps {
		step := &p.Steps[i]
		k := keyFor(step.Address)
		told := fmt.Sprintf("%s\x00%s\x00%s\x00%s", step.Action, step.Summary, step.Blocked, wantedHash(step))
		steps[k] = told
		if w.steps[k] != told {
			news = true
			for _, reason := range step.Refused {
				w.r.metrics.refused.WithLabelValues(reason).Inc()
			}
			if step.Blocked != "" {
				w.r.event(Warning, Blocked, step.Address, p.Revision, step.Summary+"; blocked: "+step.Blocked)
			}
		}
		text := status.DescribeDrift(step)
		if text == "" {
			continue
		}
		drift[k] = text
		if w.drift[k] != drift[k] {
			w.r.metrics.drift.Inc()
			w.r.event(Warning, DriftDetected, step.Address, p.Revision, "changed outside gitvirt: "+drift[k])
		}
	}
	w.steps, w.drift = steps, drift
	if news {
		w.r.event(Normal, Planned, schemas.Address{}, p.Revision, p.SummaryLine())
	}
}

// pastTense says what a step has done.
var pastTense = map[plan.Action]string{
	plan.ActionCreate: "created", plan.ActionUpdate: "updated", plan.ActionStart: "started", plan.ActionStop: "shut down",
	plan.ActionRestart: "restarted", plan.ActionReplace: "replaced", plan.ActionDestroy: "destroyed",
	plan.ActionAdopt: "adopted", plan.ActionRename: "renamed", plan.ActionRetire: "shut down, and kept for its grace period",
}

// applied tells how a step went.
func (w *watcher) applied(o outcome) {
	step := &o.step
	switch {
	case o.err == nil:
		text := pastTense[step.Action]
		if len(step.Changes) > 0 {
			text += " (" + status.DescribeChanges(step.Changes) + ")"
		}
		w.r.event(Normal, Applied, step.Address, o.revision, text)
		if drift := status.DescribeDrift(step); drift != "" {
			w.r.event(Normal, DriftCorrected, step.Address, o.revision, "corrected what was changed outside gitvirt: "+drift)
		}
	case errors.Is(o.err, apply.ErrStale):
		w.r.event(Normal, PlanStale, step.Address, o.revision, "the domain has changed since the plan was made; planning again")
	case errors.Is(o.err, apply.ErrStalled):
		w.r.event(Warning, Stalled, step.Address, o.revision, problemOf(o.err)+"; tried again when git or the domain changes, or in ten minutes")
	default:
		w.r.event(Warning, ApplyFailed, step.Address, o.revision, problemOf(o.err))
	}
}

// waits tells that a machine has to wait before its step is carried out, once per wait.
func (w *watcher) waits(state *attempts, address schemas.Address, now time.Time) {
	until := state.retryAt
	why := "will be tried again"
	if state.waitsToReboot {
		until, why = state.rebootAt, "the guest keeps going down; it will be started again"
	}
	if !now.Before(until) || state.told.Equal(until) {
		return
	}
	state.told = until
	wait := (until.Sub(now) + time.Second - 1).Truncate(time.Second)
	w.r.event(Warning, BackOff, address, w.revision, fmt.Sprintf("%s in %s", why, wait))
}
