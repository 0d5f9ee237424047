package reconciler

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

// EventType says whether somebody should look at an event.
type EventType string

// The types of events.
const (
	Normal  EventType = "Normal"
	Warning EventType = "Warning"
)

// Reason is what kind of event it is.
type Reason string

// The closed set of reasons that the loop itself gives; a platform's notes bring their own.
const (
	RevisionFetched       Reason = "RevisionFetched"
	RevisionRestored      Reason = "RevisionRestored" // git cannot be reached at start; the last fetched revision is used
	RevisionRefused       Reason = "RevisionRefused"  // nobody whose signature counts has signed it
	SourceFailed          Reason = "SourceFailed"     // a repository that the Fleet names cannot be read, or is not applied
	SourceRecovered       Reason = "SourceRecovered"
	HistoryRewritten      Reason = "HistoryRewritten"
	PollFailed            Reason = "PollFailed"
	PollRecovered         Reason = "PollRecovered"
	ManifestBroken        Reason = "ManifestBroken"
	Planned               Reason = "Planned"
	PlanFailed            Reason = "PlanFailed"
	PlanStale             Reason = "PlanStale"
	Applied               Reason = "Applied"
	ApplyFailed           Reason = "ApplyFailed"
	Stalled               Reason = "Stalled" // failed in a way that trying again does not mend
	BackOff               Reason = "BackOff"
	DriftDetected         Reason = "DriftDetected"
	DriftCorrected        Reason = "DriftCorrected"
	Crashed               Reason = "Crashed"
	Started               Reason = "Started"
	Stopped               Reason = "Stopped"
	Removed               Reason = "Removed"
	Blocked               Reason = "Blocked"
	HostUnknown           Reason = "HostUnknown"
	HostKnown             Reason = "HostKnown"
	StatusPublished       Reason = "StatusPublished"
	StatusPublishFailed   Reason = "StatusPublishFailed"
	GuestReady            Reason = "GuestReady"    // after the step that started it
	GuestNotReady         Reason = "GuestNotReady" // in time
	PlanApproved          Reason = "PlanApproved"
	ApprovalFailed        Reason = "ApprovalFailed" // the approvals cannot be read
	NotificationFailed    Reason = "NotificationFailed"
	CommitStatusFailed    Reason = "CommitStatusFailed" // how far a revision is cannot be told on the forge
	NotificationRecovered Reason = "NotificationRecovered"
)

// Event is something that happened, possibly several times.
type Event struct {
	// ID grows with every occurrence; what was told again has a new one.
	ID uint64 `json:"id"`
	// Time is the last occurrence, FirstTime the first, Count how many there were.
	Time      time.Time       `json:"time"`
	FirstTime time.Time       `json:"first_time"`
	Count     int             `json:"count"`
	Address   schemas.Address `json:"address,omitzero"`
	Type      EventType       `json:"type"`
	Reason    Reason          `json:"reason"`
	Message   string          `json:"message"`
	// Revision is the one of the last occurrence.
	Revision string `json:"revision,omitempty"`
}

// Note is what a platform, or somebody else beside the loop, has to tell.
type Note struct {
	Type    EventType
	Reason  Reason
	Address schemas.Address
	// Revision is the one that it is about; empty for none.
	Revision string
	Message  string
}

// maxEvents is how many different events are kept, maxMessage how many bytes of each message.
const (
	maxEvents  = 1000
	maxMessage = 1024
)

type eventKey struct {
	address schemas.Address
	kind    EventType
	reason  Reason
	message string
}

// recorder keeps the last events; equal ones are counted, as Kubernetes does.
type recorder struct {
	mu    sync.Mutex
	last  uint64
	order []*Event // by ID
	index map[eventKey]*Event
}

func newRecorder() *recorder { return &recorder{index: map[eventKey]*Event{}} }

func keyOf(e *Event) eventKey { return eventKey{e.Address, e.Type, e.Reason, e.Message} }

func (r *recorder) add(event Event) {
	if len(event.Message) > maxMessage {
		event.Message = event.Message[:maxMessage]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	event.ID, event.FirstTime, event.Count = r.last, event.Time, 1
	key := keyOf(&event)
	if before, ok := r.index[key]; ok {
		event.FirstTime, event.Count = before.FirstTime, before.Count+1
		at, _ := slices.BinarySearchFunc(r.order, before.ID, func(e *Event, id uint64) int { return cmp.Compare(e.ID, id) })
		r.order = slices.Delete(r.order, at, at+1)
	} else if len(r.order) == maxEvents {
		delete(r.index, keyOf(r.order[0]))
		r.order = slices.Delete(r.order, 0, 1)
	}
	r.order = append(r.order, &event)
	r.index[key] = &event
}

// since returns the events with an ID above id, oldest first.
func (r *recorder) since(id uint64) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Event
	for _, event := range r.order {
		if event.ID > id {
			out = append(out, *event)
		}
	}
	return out
}
