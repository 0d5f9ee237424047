package reconciler

import (
	"bytes"
	"fmt"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// holders answers Assemble's questions about what lives, and keeps the answers: the wanted state depends on those and only those. It is a
// schemas.Living.
type holders struct {
	observed *plan.Observed
	asked    map[schemas.Address]holder
	// machines are all that live, when that was asked.
	machines []machine
	all      bool
}

// holder is what lives at an address, or that nothing does.
type holder struct {
	held  schemas.Held
	lives bool
}

type machine struct {
	address schemas.Address
	held    schemas.Held
}

// Holder implements schemas.Living.
func (h *holders) Holder(address schemas.Address) (schemas.Held, bool) {
	var one holder
	one.held, one.lives = h.observed.Holder(address)
	h.asked[address] = one
	return one.held, one.lives
}

// Machines implements schemas.Living.
func (h *holders) Machines(visit func(schemas.Address, schemas.Held)) {
	h.all, h.machines = true, h.machines[:0]
	h.observed.Machines(func(address schemas.Address, held schemas.Held) {
		h.machines = append(h.machines, machine{address, held})
		visit(address, held)
	})
}

// moved reports whether an answer would be another one now.
func (h *holders) moved(observed *plan.Observed) bool {
	for address, before := range h.asked {
		held, lives := observed.Holder(address)
		if lives != before.lives || !sameHeld(&held, &before.held) {
			return true
		}
	}
	if !h.all {
		return false
	}
	at, moved := 0, false
	observed.Machines(func(address schemas.Address, held schemas.Held) {
		moved = moved || at >= len(h.machines) || h.machines[at].address != address || !sameHeld(&held, &h.machines[at].held)
		at++
	})
	return moved || at != len(h.machines)
}

func sameHeld(a, b *schemas.Held) bool {
	return a.Source == b.Source && a.Fleet == b.Fleet && bytes.Equal(a.Record, b.Record)
}

// assemble makes the wanted state of the snapshot. What lives counts where several sources ask for one thing; while the host cannot be
// read that is what lived before.
func (l *loop) assemble() {
	known := plan.Observed{Domains: l.known, Objects: l.objects}
	l.holders = &holders{observed: &known, asked: map[schemas.Address]holder{}}
	l.desired = schemas.Assemble(l.snapshot.Files, schemas.Holding(l.holders))
	before := l.problems
	l.problems = brokenProblems(l.desired)
	l.watcher.manifests(l.desired, before, l.problems, l.snapshot.Revision)
}

// parts tells what has happened to the repositories that the Fleet names since the snapshot before.
func (l *loop) parts(snapshot *sources.Snapshot) {
	before := map[string]sources.Part{}
	if l.snapshot != nil {
		for _, part := range l.snapshot.Parts {
			before[part.Name] = part
		}
	}
	for _, part := range snapshot.Parts {
		if part.Name == "" {
			continue
		}
		old, known := before[part.Name]
		revision := schemas.Provenance(part.Name, part.Revision)
		if part.Revision != "" && part.Revision != old.Revision {
			text := "fetched " + short(revision)
			if part.Subject != "" {
				text += " (" + status.OneLine(part.Subject) + ")"
			}
			l.r.event(Normal, RevisionFetched, schemas.Address{}, revision, text)
			if known && part.Rewritten != "" && part.Rewritten == old.Revision {
				l.r.event(Warning, HistoryRewritten, schemas.Address{}, revision,
					fmt.Sprintf("the history of %s was rewritten (a force-push): %s is not in that of %s", part.Name, short(part.Rewritten), short(part.Revision)))
			}
		}
		switch failed, failing := fails(&part), fails(&old); {
		case failed && !failing:
			l.r.event(Warning, SourceFailed, schemas.Address{}, "", part.Name+": "+status.OneLine(part.Problem)+keeping(&part))
		case !failed && failing && !part.Pending:
			l.r.event(Normal, SourceRecovered, schemas.Address{}, "", part.Name+" can be read again")
		}
	}
}

func fails(part *sources.Part) bool { return part.Problem != "" && !part.Pending }

// keeping says what goes on to count of a repository that cannot be read.
func keeping(part *sources.Part) string {
	if part.Revision == "" {
		return "; it was never read, and nothing that was made from it is removed"
	}
	return "; " + short(part.Revision) + " goes on to count"
}
