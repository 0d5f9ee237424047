package reconciler

import (
	"bytes"
	"fmt"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// holder is what lives at an address, or that nothing does.
type holder struct {
	held  schemas.Held
	lives bool
}

// holders is what the wanted state depends on of what lives: who has what several sources ask for. It has the addresses that were
// asked about, and only those.
type holders map[schemas.Address]holder

// of answers as what lives says, and keeps that it was asked.
func (h holders) of(observed *plan.Observed) func(schemas.Address) (schemas.Held, bool) {
	return func(address schemas.Address) (schemas.Held, bool) {
		var one holder
		one.held, one.lives = observed.Holder(address)
		h[address] = one
		return one.held, one.lives
	}
}

// moved reports whether an answer would be another one now.
func (h holders) moved(observed *plan.Observed) bool {
	for address, before := range h {
		held, lives := observed.Holder(address)
		if lives != before.lives || held.Source != before.held.Source || !bytes.Equal(held.Record, before.held.Record) {
			return true
		}
	}
	return false
}

// assemble makes the wanted state of the snapshot. What lives counts where several sources ask for one thing; while the host cannot be
// read that is what lived before.
func (l *loop) assemble() {
	known := plan.Observed{Domains: l.known, Objects: l.objects}
	l.holders = holders{}
	l.desired = schemas.Assemble(l.snapshot.Files, schemas.Holding(l.holders.of(&known)))
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
