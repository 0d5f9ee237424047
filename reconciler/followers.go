package reconciler

import "sync"

// followers are told that there is a new View or a new event. Telling never waits for any of them.
type followers struct {
	mu       sync.Mutex
	channels map[chan struct{}]struct{}
}

func (f *followers) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for channel := range f.channels {
		select {
		case channel <- struct{}{}:
		default:
		}
	}
}

// Follow returns a channel that receives a value when View or Events has something new; several things may be one value. There is one at once,
// for what was before. stop ends it.
func (r *Reconciler) Follow() (changed <-chan struct{}, stop func()) {
	channel := make(chan struct{}, 1)
	channel <- struct{}{}
	r.followers.mu.Lock()
	defer r.followers.mu.Unlock()
	if r.followers.channels == nil {
		r.followers.channels = map[chan struct{}]struct{}{}
	}
	r.followers.channels[channel] = struct{}{}
	return channel, func() {
		r.followers.mu.Lock()
		defer r.followers.mu.Unlock()
		delete(r.followers.channels, channel)
	}
}

// Report records and logs what somebody beside the loop has to tell.
func (r *Reconciler) Report(note Note) {
	r.event(note.Type, note.Reason, note.Address, note.Revision, note.Message)
}
