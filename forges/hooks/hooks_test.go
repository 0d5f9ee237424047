package hooks_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/hooks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "sesame"

// forge signs like GitHub; the kind is in the body.
type forge struct{}

func (forge) Hook(header http.Header, body []byte, secret string) (forges.Event, error) {
	if !hmac.Equal([]byte(header.Get("Signature")), []byte(forgetest.Sign(body, secret))) {
		return forges.Event{}, fmt.Errorf("%w: wrong signature", forges.ErrDenied)
	}
	event := forges.Event{Delivery: header.Get("Delivery")}
	if err := json.Unmarshal(body, &struct{ Kind *forges.EventKind }{&event.Kind}); err != nil {
		return forges.Event{}, fmt.Errorf("%w: no JSON", forges.ErrRefused)
	}
	return event, nil
}

// world is a Handler and those whom it nudges.
type world struct {
	t          testing.TB
	handler    *hooks.Handler
	registry   *prometheus.Registry
	log        bytes.Buffer
	git, pulls atomic.Int64
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, registry: prometheus.NewRegistry()}
	handler, err := hooks.New(forge{}, hooks.Config{
		Secret:   func() (string, error) { return secret, nil },
		NudgeGit: func() { w.git.Add(1) }, NudgePulls: func() { w.pulls.Add(1) },
		Log: slog.New(slog.NewTextHandler(&w.log, nil)), Registerer: w.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.handler = handler
	return w
}

// play runs a story in virtual time.
func play(t *testing.T, story func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = w.handler.Run(ctx) })
		story(w)
		cancel()
		running.Wait()
	})
}

func request(body, delivery, signature string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/hooks", strings.NewReader(body))
	r.Header.Set("Delivery", delivery)
	r.Header.Set("Signature", signature)
	return r
}

func (w *world) send(r *http.Request) int {
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, r)
	return recorder.Code
}

// push sends a signed webhook of a kind.
func (w *world) push(kind forges.EventKind, n int, delivery string) int {
	body := fmt.Sprintf(`{"kind": %q, "n": %d}`, kind, n)
	return w.send(request(body, delivery, forgetest.Sign([]byte(body), secret)))
}

func (w *world) counted(result string) int {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == result {
				return int(metric.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func (w *world) nudged(git, pulls int64) {
	w.t.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	if g, p := w.git.Swap(0), w.pulls.Swap(0); g != git || p != pulls {
		w.t.Errorf("nudged git %d times and pulls %d times, want %d and %d", g, p, git, pulls)
	}
}

// TestKinds: who is nudged by what.
func TestKinds(t *testing.T) {
	for kind, want := range map[forges.EventKind][2]int64{
		forges.EventPush: {1, 1}, forges.EventPullRequest: {0, 1}, forges.EventComment: {0, 1}, forges.EventOther: {0, 0},
	} {
		play(t, func(w *world) {
			if code := w.push(kind, 1, "one"); code != http.StatusAccepted {
				t.Errorf("%s: %d", kind, code)
			}
			w.nudged(want[0], want[1])
		})
	}
}

// TestForged: a thousand forged requests nudge nobody, and are logged a few times.
func TestForged(t *testing.T) {
	play(t, func(w *world) {
		denied := 0
		for i := range 1000 {
			body := fmt.Sprintf(`{"kind": "push", "n": %d}`, i)
			signature := forgetest.Sign([]byte(body), fmt.Sprintf("guess %d", i))
			if i%3 == 0 {
				signature = ""
			}
			r := request(body, fmt.Sprint(i), signature)
			r.RemoteAddr = fmt.Sprintf("192.0.2.%d:4711", i%200)
			switch code := w.send(r); code {
			case http.StatusUnauthorized:
				denied++
			case http.StatusTooManyRequests:
			default:
				t.Fatalf("answered %d", code)
			}
			time.Sleep(100 * time.Millisecond)
		}
		w.nudged(0, 0)
		if n := w.counted("forged"); n != denied || n != 1000 {
			t.Errorf("%d forged, %d denied", n, denied)
		}
		if lines := strings.Count(w.log.String(), "\n"); lines != 2 || !strings.Contains(w.log.String(), "since_last=600") || strings.Contains(w.log.String(), secret) {
			t.Errorf("%d lines are logged: %s", lines, w.log.String())
		}
		if w.push(forges.EventPush, 1, "0"); w.counted("accepted") != 1 {
			t.Error("a forged name of a delivery keeps the real one out")
		}
		w.nudged(1, 1)
	})
}

// TestReplay: what was taken is not taken again, under its name or another, until it is forgotten.
func TestReplay(t *testing.T) {
	play(t, func(w *world) {
		w.push(forges.EventPush, 1, "one")
		w.nudged(1, 1)
		w.push(forges.EventPush, 1, "one")
		w.push(forges.EventPush, 2, "one")
		w.push(forges.EventPush, 1, "two")
		w.push(forges.EventPush, 1, "")
		w.nudged(0, 0)
		if n := w.counted("replayed"); n != 4 {
			t.Errorf("%d replayed", n)
		}
		time.Sleep(10 * time.Minute)
		w.push(forges.EventPush, 1, "one")
		w.nudged(1, 1)
		for i := range 12_000 { // the memory is bounded
			w.push(forges.EventOther, i, fmt.Sprint("other ", i))
			time.Sleep(100 * time.Millisecond)
		}
		if n := w.counted("ignored"); n != 12_000 {
			t.Errorf("%d ignored", n)
		}
	})
}

// TestBurst: many webhooks at once are one nudge, and those that come while it is carried out are one more.
func TestBurst(t *testing.T) {
	play(t, func(w *world) {
		for i := range 10 {
			w.push(forges.EventPush, i, fmt.Sprint(i))
			time.Sleep(5 * time.Millisecond)
		}
		w.nudged(1, 1)
		for i := range 50 { // for five seconds
			w.push(forges.EventPush, 100+i, fmt.Sprint(100+i))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if n := w.git.Load(); n < 5 || n > 7 {
			t.Errorf("nudged %d times within five seconds", n)
		}
	})
}

// TestFlood: a source that floods is refused before anything is read, and others are not.
func TestFlood(t *testing.T) {
	play(t, func(w *world) {
		for i := range 5000 {
			r := request("{}", "", "")
			r.RemoteAddr = fmt.Sprintf("[2001:db8:0:1::%x]:1", i)
			if code := w.send(r); code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
				t.Fatalf("answered %d", code)
			}
		}
		if n := w.counted("forged"); n != 100 {
			t.Errorf("%d were looked at", n)
		}
		if code := w.push(forges.EventPush, 1, "one"); code != http.StatusAccepted {
			t.Errorf("another source: %d", code)
		}
		for i := range 20_000 { // from everywhere
			r := request("{}", "", "")
			r.RemoteAddr = fmt.Sprintf("[2001:db8:%x:%x::1]:1", i/65536+2, i%65536)
			w.send(r)
		}
		if n := w.counted("forged"); n > 1300 {
			t.Errorf("%d were looked at", n)
		}
		time.Sleep(time.Minute)
		if code := w.push(forges.EventPush, 2, "two"); code != http.StatusAccepted {
			t.Errorf("after the flood: %d", code)
		}
		w.nudged(2, 2)
	})
}

// TestRefused: what is no webhook.
func TestRefused(t *testing.T) {
	signed := func(body string) *http.Request { return request(body, "", forgetest.Sign([]byte(body), secret)) }
	large := signed(strings.Repeat(" ", 1<<20+1))
	unknown := signed(strings.Repeat(" ", 1<<20+1))
	unknown.ContentLength = -1
	other := func(method, path string) *http.Request { return httptest.NewRequest(method, path, http.NoBody) }
	cut := request("", "", "")
	cut.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), failing{}))
	for name, test := range map[string]struct {
		r    *http.Request
		code int
	}{
		"large":             {large, http.StatusRequestEntityTooLarge},
		"large, in pieces":  {unknown, http.StatusRequestEntityTooLarge},
		"no JSON":           {signed("kind=push"), http.StatusBadRequest},
		"cut":               {cut, http.StatusBadRequest},
		"GET":               {other(http.MethodGet, "/hooks"), http.StatusMethodNotAllowed},
		"another path":      {other(http.MethodPost, "/hooks/"), http.StatusNotFound},
		"the API":           {other(http.MethodGet, "/api/v1/fleet"), http.StatusNotFound},
		"with a way out":    {other(http.MethodPost, "/../hooks"), http.StatusNotFound},
		"the largest there": {signed(`{"kind": "other"}` + strings.Repeat(" ", 1<<20-17)), http.StatusAccepted},
	} {
		play(t, func(w *world) {
			if code := w.send(test.r); code != test.code {
				t.Errorf("%s: %d, want %d", name, code, test.code)
			}
			w.nudged(0, 0)
			if n := testutil.CollectAndCount(w.registry, "gitvirt_webhook_requests_total"); n != 1 {
				t.Errorf("%s: counted %d times", name, n)
			}
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

// TestNoSecret: without a secret nothing is taken, least of all what is signed with an empty one.
func TestNoSecret(t *testing.T) {
	for _, read := range []func() (string, error){
		func() (string, error) { return "", nil },
		func() (string, error) { return "", errors.New("no such file") },
	} {
		handler, err := hooks.New(forge{}, hooks.Config{Secret: read, NudgeGit: func() {}, NudgePulls: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request("{}", "", forgetest.Sign([]byte("{}"), "")))
		if recorder.Code != http.StatusServiceUnavailable {
			t.Errorf("answered %d", recorder.Code)
		}
	}
	if _, err := hooks.New(forge{}, hooks.Config{}); err == nil {
		t.Error("nothing is needed")
	}
}

// BenchmarkAnswer is how long a forge waits for an answer, with a push of 20 kB.
func BenchmarkAnswer(b *testing.B) {
	body := `{"kind": "push", "text": "` + strings.Repeat("x", 20_000) + `", "n": "`
	for name, key := range map[string]string{"taken": secret, "forged": "guess"} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			now := 0
			for b.Loop() {
				now++
				content := body + fmt.Sprint(now) + `"}`
				r := request(content, fmt.Sprint(now), forgetest.Sign([]byte(content), key))
				r.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1", now>>16&255, now>>8&255, now&255)
				w.send(r)
			}
		})
	}
}
