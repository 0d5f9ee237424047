package nodeagent

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// watcher is told which domains to look at again. It keeps names, not messages, so a slow one costs little.
type watcher struct {
	wake chan struct{}
	// all asks for everything anew.
	all   bool
	dirty map[string]bool
}

func (v *view) tell(name string) {
	for w := range v.watchers {
		w.dirty[name] = true
		w.nudge()
	}
}

func (w *watcher) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (v *view) subscribe() *watcher {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := &watcher{wake: make(chan struct{}, 1), all: true, dirty: map[string]bool{}}
	w.nudge()
	v.watchers[w] = struct{}{}
	return w
}

func (v *view) unsubscribe(w *watcher) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.watchers, w)
}

// update is what a watcher has to be told next.
type update struct {
	unknown  string
	complete bool
	domains  map[string]*seen // nil for the ones that are gone
	names    []string         // in order
	health   map[string]health
	reached  map[string]reach
	able     []string
}

// take returns what has changed for a watcher since it asked last.
func (v *view) take(w *watcher) update {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.unknown != "" {
		return update{unknown: v.unknown}
	}
	out := update{domains: map[string]*seen{}, health: map[string]health{}, reached: map[string]reach{}}
	if w.all {
		out.complete = true
		maps.Copy(out.domains, v.domains)
	} else {
		for name := range w.dirty {
			out.domains[name] = v.domains[name]
		}
	}
	for _, change := range v.able {
		out.able = append(out.able, string(change))
	}
	w.all = false
	clear(w.dirty)
	out.names = slices.Sorted(maps.Keys(out.domains))
	for _, name := range out.names {
		if health, ok := v.health[name]; ok {
			out.health[name] = health
		}
		if reach, ok := v.reached[name]; ok {
			out.reached[name] = reach
		}
	}
	return out
}

// message returns what watchers are told of a domain, what its guest says and how it is reached included. It can always be
// encoded.
func (u *update) message(name string) proto.Message {
	now := u.domains[name]
	if now == nil {
		return nil
	}
	health, said := u.health[name]
	reach, reached := u.reached[name]
	domain, ok := now.message.(*api.Domain)
	if (!said && !reached) || !ok {
		return encodable(now.message)
	}
	out, ok := proto.Clone(domain).(*api.Domain)
	if !ok {
		return encodable(now.message)
	}
	out.Ready, out.ReadyReason, out.CredentialsProblem = health.ready, health.readyReason, health.credentials
	if reach.address != "" {
		out.Addresses = append([]string{reach.address}, out.GetAddresses()...)
	}
	out.PortsProblem = reach.problem
	return encodable(out)
}

// news takes what has changed for a watcher, and reports whether a domain is of it.
func (v *view) news(w *watcher, name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	about := w.all || w.dirty[name]
	w.all = false
	clear(w.dirty)
	return about
}
