// Package hooks takes what a forge sends to a webhook, and nudges whoever is to look again. Nothing that is sent is believed or done: a webhook
// that is lost costs one interval of polling, and a forged one nothing.
//
// The secret is checked by the forge's client, in constant time; what was sent before is not taken a second time; nothing is done before the
// answer but that. Many webhooks at once are one nudge.
package hooks

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
)

// Path is the only one that is served.
const Path = "/hooks"

// The bounds.
const (
	maxBody = 1 << 20
	// gather is how long a nudge waits for more, spacing how far nudges are apart at least.
	gather  = 100 * time.Millisecond
	spacing = time.Second
	// remembered is for how long a delivery is known, maxRemembered how many.
	remembered    = 10 * time.Minute
	maxRemembered = 10_000
	// logEvery is how often something refused is logged.
	logEvery = time.Minute
)

// The results that are counted.
const (
	accepted    = "accepted"
	ignored     = "ignored"  // from the forge, and about nothing that matters here
	replayed    = "replayed" // was taken before
	forged      = "forged"   // without the secret
	refused     = "refused"  // cannot be understood, or is no webhook at all
	tooLarge    = "too_large"
	limited     = "limited"
	unavailable = "unavailable" // the secret cannot be read
)

// Forge reads what was sent; every forges.Forge is one.
type Forge interface {
	Hook(header http.Header, body []byte, secret string) (forges.Event, error)
}

// Config says what a Handler needs.
type Config struct {
	// Secret returns what the forge was given. It is asked for each request that has a body.
	Secret func() (string, error)
	// NudgeGit has the repository polled, NudgePulls the pull requests.
	NudgeGit, NudgePulls func()
	// Log gets what was refused, now and then; nil means nobody reads it.
	Log *slog.Logger
	// Registerer gets the metrics; nil means nobody does.
	Registerer prometheus.Registerer
	// Clock is for tests; nil means the real one.
	Clock backoff.Clock
}

// Handler answers a forge. It is safe for concurrent use; Run is called once.
type Handler struct {
	forge  Forge
	config Config
	counts *prometheus.CounterVec
	seen   *memory
	rates  *rates
	// git and pulls receive a value when somebody is to be nudged.
	git, pulls chan struct{}

	mu      sync.Mutex
	silent  time.Time // until then nothing is logged
	refused int       // since something was logged
}

// New returns a Handler that nudges nobody until Run.
func New(forge Forge, config Config) (*Handler, error) {
	if forge == nil || config.Secret == nil || config.NudgeGit == nil || config.NudgePulls == nil {
		return nil, errors.New("hooks: a forge, a secret and two nudges are needed")
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Clock == nil {
		config.Clock = backoff.SystemClock{}
	}
	h := &Handler{
		forge: forge, config: config, seen: newMemory(), rates: newRates(), git: make(chan struct{}, 1), pulls: make(chan struct{}, 1),
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_webhook_requests_total", Help: "Requests to the webhook, by result (accepted, ignored, replayed, forged, refused, too_large, limited, unavailable).",
		}, []string{"result"}),
	}
	if config.Registerer != nil {
		if err := config.Registerer.Register(h.counts); err != nil {
			return nil, fmt.Errorf("hooks: %w", err)
		}
	}
	return h, nil
}

// Run nudges until ctx ends, and returns nil.
func (h *Handler) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { h.nudge(ctx, h.git, h.config.NudgeGit) })
	running.Go(func() { h.nudge(ctx, h.pulls, h.config.NudgePulls) })
	return nil
}

// nudge makes one nudge of all that comes within a moment.
func (h *Handler) nudge(ctx context.Context, wanted <-chan struct{}, nudge func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-wanted:
		}
		if backoff.Wait(ctx, h.config.Clock, gather) != nil {
			return
		}
		select {
		case <-wanted: // this nudge is for it, too
		default:
		}
		nudge()
		if backoff.Wait(ctx, h.config.Clock, spacing-gather) != nil {
			return
		}
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := h.config.Clock.Now()
	result, code, reason := h.take(w, r, now)
	h.counts.WithLabelValues(result).Inc()
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	switch code {
	case http.StatusMethodNotAllowed:
		header.Set("Allow", http.MethodPost)
	case http.StatusTooManyRequests:
		header.Set("Retry-After", "1")
	}
	if code/100 == 2 {
		w.WriteHeader(code)
		return
	}
	h.told(result, reason, r.RemoteAddr, now)
	header.Set("Connection", "close") // what is refused shall not hold a connection
	http.Error(w, result, code)
}

// take decides about a request: what is counted, what is answered, and why for the log.
func (h *Handler) take(w http.ResponseWriter, r *http.Request, now time.Time) (result string, code int, reason string) {
	switch {
	case !h.rates.allow(r.RemoteAddr, now):
		return limited, http.StatusTooManyRequests, "too many requests"
	case r.URL.Path != Path:
		return refused, http.StatusNotFound, "not the path of the webhook"
	case r.Method != http.MethodPost:
		return refused, http.StatusMethodNotAllowed, "not a POST"
	case r.ContentLength > maxBody:
		return tooLarge, http.StatusRequestEntityTooLarge, "the body is too large"
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge, http.StatusRequestEntityTooLarge, "the body is too large"
	case err != nil:
		return refused, http.StatusBadRequest, "the body ends early"
	}
	secret, err := h.config.Secret()
	if err == nil && secret == "" {
		err = errors.New("the secret is empty")
	}
	if err != nil {
		return unavailable, http.StatusServiceUnavailable, err.Error()
	}
	event, err := h.forge.Hook(r.Header, body, secret)
	switch {
	case errors.Is(err, forges.ErrDenied):
		return forged, http.StatusUnauthorized, "not sent with the secret"
	case err != nil:
		return refused, http.StatusBadRequest, "it cannot be understood"
	}
	// Names of deliveries are not signed, so a replay may have another one: the body counts as well.
	if !h.seen.add(now, sha256.Sum256(body)) || event.Delivery != "" && !h.seen.add(now, sha256.Sum256([]byte("delivery "+event.Delivery))) {
		return replayed, http.StatusOK, ""
	}
	return h.wake(event.Kind), http.StatusAccepted, ""
}

// wake notes who is to be nudged.
func (h *Handler) wake(kind forges.EventKind) (result string) {
	var wanted []chan struct{}
	switch kind {
	case forges.EventPush:
		wanted = []chan struct{}{h.git, h.pulls}
	case forges.EventPullRequest, forges.EventComment:
		wanted = []chan struct{}{h.pulls}
	case forges.EventOther:
	}
	for _, channel := range wanted {
		select {
		case channel <- struct{}{}:
		default:
		}
	}
	if len(wanted) == 0 {
		return ignored
	}
	return accepted
}

// told logs what was refused, at most now and then.
func (h *Handler) told(result, reason, from string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused++
	if now.Before(h.silent) {
		return
	}
	h.config.Log.Warn("webhook refused", "result", result, "why", reason, "from", from, "since_last", h.refused)
	h.silent, h.refused = now.Add(logEvery), 0
}
