package hooks

import (
	"net/netip"
	"sync"
	"time"
)

// memory knows what came before, for a while.
type memory struct {
	mu    sync.Mutex
	seen  map[[32]byte]struct{}
	order []memorised // the oldest first
}

type memorised struct {
	digest [32]byte
	at     time.Time
}

func newMemory() *memory { return &memory{seen: map[[32]byte]struct{}{}} }

// add reports whether a digest is new.
func (m *memory) add(now time.Time, digest [32]byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	forget := 0
	for forget < len(m.order) && (len(m.order)-forget >= maxRemembered || now.Sub(m.order[forget].at) >= remembered) {
		delete(m.seen, m.order[forget].digest)
		forget++
	}
	m.order = m.order[forget:]
	if _, known := m.seen[digest]; known {
		return false
	}
	m.seen[digest] = struct{}{}
	m.order = append(m.order, memorised{digest, now})
	return true
}

// A source may send burst requests at once and perSecond from then on. maxSources are known at a time; more share what is left of all.
const (
	burst      = 100
	perSecond  = 10
	maxSources = 1024
)

// rates bounds what each source may send.
type rates struct {
	mu      sync.Mutex
	sources map[netip.Prefix]*bucket
	forgot  time.Time
}

// bucket holds what a source may still send.
type bucket struct {
	left float64
	at   time.Time
}

func newRates() *rates { return &rates{sources: map[netip.Prefix]*bucket{}} }

// allow reports whether a source may send now. Who has an address of IPv6 has a whole /64.
func (r *rates) allow(remote string, now time.Time) bool {
	source := sourceOf(remote)
	r.mu.Lock()
	defer r.mu.Unlock()
	b, known := r.sources[source]
	if !known {
		if len(r.sources) >= maxSources && now.Sub(r.forgot) >= time.Second {
			r.forget(now)
		}
		if len(r.sources) >= maxSources {
			source = netip.Prefix{} // somebody sends from everywhere; those share one bucket
			b, known = r.sources[source]
		}
		if !known {
			b = &bucket{left: burst, at: now}
			r.sources[source] = b
		}
	}
	b.left = min(burst, b.left+now.Sub(b.at).Seconds()*perSecond)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// forget drops sources whose bucket is full again.
func (r *rates) forget(now time.Time) {
	r.forgot = now
	for source, b := range r.sources {
		if b.left+now.Sub(b.at).Seconds()*perSecond >= burst {
			delete(r.sources, source)
		}
	}
}

func sourceOf(remote string) netip.Prefix {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	address := at.Addr().Unmap().WithZone("")
	bits := 32
	if address.Is6() {
		bits = 64
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}
