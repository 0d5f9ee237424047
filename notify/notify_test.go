package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/notify"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slack answers as Slack's incoming webhooks do, and looks for those whom a text would call, as Slack and as Mattermost find them.
type slack struct {
	mu     sync.Mutex
	texts  []string
	pinged []string
	answer func() (code int, header http.Header)
	got    chan struct{}
}

var (
	calls      = regexp.MustCompile(`<[!@#][^>]*>`)
	plainCalls = regexp.MustCompile(`@[A-Za-z]\w*`)
)

func (s *slack) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if s.got != nil {
			s.got <- struct{}{}
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer != nil {
		code, header := s.answer()
		for name, values := range header {
			w.Header()[name] = values
		}
		if code != http.StatusOK {
			http.Error(w, "no", code)
			return
		}
	}
	var payload map[string]string
	if err := json.NewDecoder(r.Body).Decode(&payload); err != nil || r.Method != http.MethodPost || len(payload) != 1 || payload["text"] == "" {
		http.Error(w, "invalid_payload", http.StatusBadRequest)
		return
	}
	text := payload["text"]
	s.texts = append(s.texts, text)
	s.pinged = append(s.pinged, calls.FindAllString(text, -1)...)
	s.pinged = append(s.pinged, plainCalls.FindAllString(text, -1)...)
	fmt.Fprint(w, "ok")
}

func (s *slack) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.texts...)
}

// inMemory sends requests to a handler without a network, so that tests can hold the clock.
type inMemory struct{ handler http.Handler }

func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	recorder := httptest.NewRecorder()
	m.handler.ServeHTTP(recorder, r)
	response := recorder.Result()
	response.Request = r
	return response, nil
}

// controller has events, and a Fleet.
type controller struct {
	mu      sync.Mutex
	view    *reconciler.View
	events  []reconciler.Event
	reports []reconciler.Note
	changed chan struct{}
}

func newController(t testing.TB, receivers string) *controller {
	c := &controller{changed: make(chan struct{}, 1)}
	c.setFleet(t, receivers)
	return c
}

func fleet(t testing.TB, receivers string) *schemas.Desired {
	t.Helper()
	file := schemas.Parse("gitvirt.yaml", []byte("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\nspec: {notifications: ["+receivers+"]}\n"))
	if len(file.Diagnostics) > 0 {
		t.Fatal(file.Diagnostics)
	}
	return schemas.Assemble([]*schemas.File{file})
}

func (c *controller) setFleet(t testing.TB, receivers string) {
	desired := fleet(t, receivers)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view = &reconciler.View{Desired: desired}
	c.tell()
}

func (c *controller) tell() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *controller) View() *reconciler.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

func (c *controller) Events(since uint64) []reconciler.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]reconciler.Event(nil), c.events[since:]...)
}

func (c *controller) Follow() (changed <-chan struct{}, stop func()) { return c.changed, func() {} }

func (c *controller) Report(note reconciler.Note) {
	c.mu.Lock()
	c.reports = append(c.reports, note)
	c.mu.Unlock()
	c.happens(note.Type, note.Reason, "", note.Message)
}

func (c *controller) happens(kind reconciler.EventType, reason reconciler.Reason, name, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := reconciler.Event{ID: uint64(len(c.events)) + 1, Time: time.Now(), FirstTime: time.Now(), Count: 1, Type: kind, Reason: reason, Message: message, Revision: "4c1f0c2aa9f1"}
	if name != "" {
		e.Address = schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "shop", Name: name}
	}
	for _, before := range c.events {
		if before.Address == e.Address && before.Reason == reason && before.Message == message {
			e.Count++
		}
	}
	c.events = append(c.events, e)
	c.tell()
}

func (c *controller) reported() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, note := range c.reports {
		fmt.Fprintf(&b, "%s: %s\n", note.Type, note.Message)
	}
	return b.String()
}

// files are those of the controller's machine.
type files map[string]string

func (f files) read(path string) ([]byte, error) {
	content, ok := f[path]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return []byte(content), nil
}

const secretURL = "https://hooks.slack.test/services/T0/B0/sesame"

func configured(handler http.Handler) notify.Config {
	return notify.Config{
		Transport: inMemory{handler}, ReadFile: files{"/slack": secretURL + "\n", "/http": "https://audit.test/x\n", "/key": "sesame\n"}.read,
		Registerer: prometheus.NewRegistry(), Rand: func() float64 { return 0 },
	}
}

var endpoints = notify.Endpoints{"ops": {URLFile: "/slack"}}

// run plays a story in virtual time, with a Notifier.
func run(t *testing.T, c *controller, to notify.Endpoints, config notify.Config, story func()) {
	t.Helper()
	n, err := notify.New(c, to, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	synctest.Wait()
	story()
	synctest.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestSlack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slack{}
		c := newController(t, "{name: ops, kind: slack}")
		run(t, c, endpoints, configured(server), func() {
			c.happens(reconciler.Normal, reconciler.Started, "web", "the guest runs")
			c.happens(reconciler.Warning, reconciler.ApplyFailed, "web", "no space left in </srv> & elsewhere")
			c.happens(reconciler.Warning, reconciler.PollFailed, "", "git cannot be reached")
			time.Sleep(2 * time.Second)
			want := "[demo] Warning ApplyFailed shop/web: no space left in &lt;/srv&gt; &amp; elsewhere (revision 4c1f0c2, 00:00:00 UTC)\n" +
				"[demo] Warning PollFailed: git cannot be reached (revision 4c1f0c2, 00:00:00 UTC)"
			if told := server.told(); len(told) != 1 || told[0] != want {
				t.Errorf("told %q, want %q", told, want)
			}
		})
	})
}

// TestNobodyIsCalled: neither the name of a machine nor the subject of a commit calls anybody.
func TestNobodyIsCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slack{}
		c := newController(t, "{name: ops, kind: slack, filter: 'true'}")
		run(t, c, endpoints, configured(server), func() {
			for _, text := range []string{
				"fetched revision 4c1f0c2 (<!channel> look)", "<@U024BE7LH> did it", "@here @channel @everyone @all", "<!subteam^SAZ94GDB8>", "&lt;!here&gt;",
				"a line\n@here\r\n<!here>", "\u2028<#C024BE7LR>", "approved by Ada <ada@example.com>",
			} {
				c.happens(reconciler.Normal, reconciler.RevisionFetched, "@here", text)
			}
			time.Sleep(time.Minute)
			told := server.told()
			if len(told) != 1 || len(server.pinged) > 0 || strings.Count(told[0], "\n") != 7 {
				t.Errorf("pinged %q by %q", server.pinged, told)
			}
		})
	})
}

// TestBurst: a thousand events are two messages, and what was not listed is counted.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slack{}
		c := newController(t, "{name: ops, kind: slack}")
		config := configured(server)
		run(t, c, endpoints, config, func() {
			c.happens(reconciler.Warning, reconciler.Crashed, "first", "the guest crashed")
			time.Sleep(2 * time.Second)
			for i := range 1000 {
				c.happens(reconciler.Warning, reconciler.ApplyFailed, fmt.Sprintf("vm-%d", i), "no space left")
				c.happens(reconciler.Warning, reconciler.Crashed, "web", "the guest crashed")
			}
			synctest.Wait()
			if told := server.told(); len(told) != 1 {
				t.Errorf("%d messages within the pause", len(told))
			}
			time.Sleep(20 * time.Second)
			told := server.told()
			if len(told) != 2 || !strings.Contains(told[1], "and 480 more: 479 ApplyFailed, 1 Crashed\n501 earlier events could not be told") {
				t.Errorf("%d messages, the last %q", len(told), told[len(told)-1])
			}
			time.Sleep(time.Hour)
			if told := server.told(); len(told) != 2 {
				t.Errorf("%d messages in the end", len(told))
			}
		})
		const want = `
# HELP gitvirt_notification_dropped_events_total Events that a receiver was never told of, because too many waited.
# TYPE gitvirt_notification_dropped_events_total counter
gitvirt_notification_dropped_events_total{receiver="ops"} 501
`
		if err := testutil.GatherAndCompare(config.Registerer.(*prometheus.Registry), strings.NewReader(want), "gitvirt_notification_dropped_events_total"); err != nil {
			t.Error(err)
		}
	})
}

// TestRetries: what fails is tried again, not before the receiver wants it, the same message; what happens meanwhile comes after it.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, start := []time.Duration{}, time.Now()
		server := &slack{}
		server.answer = func() (int, http.Header) {
			tries = append(tries, time.Since(start))
			switch len(tries) {
			case 1, 2:
				return http.StatusInternalServerError, nil
			case 3:
				return http.StatusTooManyRequests, http.Header{"Retry-After": {"120"}}
			}
			return http.StatusOK, nil
		}
		c := newController(t, "{name: ops, kind: slack}")
		run(t, c, endpoints, configured(server), func() {
			c.happens(reconciler.Warning, reconciler.Crashed, "web", "the guest crashed")
			time.Sleep(5 * time.Second)
			c.happens(reconciler.Warning, reconciler.Crashed, "db", "the guest crashed")
			time.Sleep(10 * time.Minute)
			want := []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 127 * time.Second, 138 * time.Second}
			if told := server.told(); fmt.Sprint(tries) != fmt.Sprint(want) || len(told) != 2 || !strings.Contains(told[0], "shop/web") || !strings.Contains(told[1], "shop/db") {
				t.Errorf("tried after %v, want %v; told %q", tries, want, told)
			}
		})
		said := c.reported()
		if want := `Warning: telling "ops": hooks.slack.test answers 500 Internal Server Error; it is tried again
Warning: telling "ops": hooks.slack.test answers 429 Too Many Requests; it is tried again
Normal: "ops" can be told again
`; said != want {
			t.Errorf("reported\n%s", said)
		}
	})
}

// TestRefused: a message that is refused for what it is does not hold up those after it.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, first := &slack{}, true
		server.answer = func() (int, http.Header) {
			defer func() { first = false }()
			if first {
				return http.StatusBadRequest, nil
			}
			return http.StatusOK, nil
		}
		c := newController(t, "{name: ops, kind: slack}")
		run(t, c, endpoints, configured(server), func() {
			c.happens(reconciler.Warning, reconciler.Crashed, "web", "the guest crashed")
			time.Sleep(time.Minute)
			c.happens(reconciler.Warning, reconciler.Crashed, "db", "the guest crashed")
			time.Sleep(time.Minute)
		})
		if told := server.told(); len(told) != 1 || !strings.Contains(told[0], "shop/db") || !strings.Contains(c.reported(), "the message is given up") {
			t.Errorf("told %q, reported %s", told, c.reported())
		}
	})
}

// TestFleetChanges: receivers follow the Fleet, and those without an address are told of and wait.
func TestFleetChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slack{}
		c := newController(t, "{name: ops, kind: slack}, {name: night, kind: slack}")
		run(t, c, endpoints, configured(server), func() {
			crash := func(name string) {
				c.happens(reconciler.Warning, reconciler.Crashed, name, "the guest crashed")
				time.Sleep(time.Minute)
			}
			crash("one")
			c.setFleet(t, `{name: ops, kind: slack, filter: "event.name != 'two'"}`)
			crash("two")
			crash("three")
			c.setFleet(t, "")
			crash("four")
			c.setFleet(t, "{name: ops, kind: slack}")
			crash("five")
		})
		told := strings.Join(server.told(), "\n")
		for name, want := range map[string]bool{"one": true, "two": false, "three": true, "four": false, "five": true} {
			if strings.Contains(told, "shop/"+name) != want {
				t.Errorf("told of %s: %v, want %v: %s", name, !want, want, told)
			}
		}
		want := `Warning: "night" of spec.notifications is told nothing: start the controller with --notification-url-file night=FILE
Warning: the controller has the address of "ops", and the Fleet's spec.notifications has no such receiver
`
		if said := c.reported(); said != want {
			t.Errorf("reported %s", said)
		}
	})
}

// TestFilesComeLate: a file that is not there yet, or holds nothing, is read again.
func TestFilesComeLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slack{}
		c := newController(t, "{name: ops, kind: slack}")
		config := configured(server)
		var mu sync.Mutex
		have := files{}
		config.ReadFile = func(path string) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			return have.read(path)
		}
		put := func(content string) {
			mu.Lock()
			have["/slack"] = content
			mu.Unlock()
			time.Sleep(10 * time.Minute)
		}
		run(t, c, endpoints, config, func() {
			c.happens(reconciler.Warning, reconciler.Crashed, "web", "the guest crashed")
			time.Sleep(time.Minute)
			put(" \n")
			put("sesame")
			put("ftp://hooks.slack.test/sesame")
			put("https://hooks.slack.test/%zz/sesame")
			put(secretURL)
		})
		said := c.reported()
		for _, want := range []string{"reading its URL: /slack: file does not exist", "/slack is empty", "/slack holds no URL"} {
			if !strings.Contains(said, want) {
				t.Errorf("not reported: %s", want)
			}
		}
		if strings.Contains(said, "sesame") || len(server.told()) != 1 {
			t.Errorf("told %q, reported %s", server.told(), said)
		}
	})
}

// TestNoEndOfItself: what is told of notifications is told to nobody.
func TestNoEndOfItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		server := &slack{answer: func() (int, http.Header) { tries++; return http.StatusBadRequest, nil }}
		c := newController(t, "{name: ops, kind: slack, filter: 'true'}")
		run(t, c, endpoints, configured(server), func() {
			c.happens(reconciler.Normal, reconciler.Started, "web", "the guest runs")
			time.Sleep(time.Hour)
		})
		if tries != 1 {
			t.Errorf("tried %d times", tries)
		}
	})
}

func TestNew(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := newController(t, "")
	if _, err := notify.New(c, nil, notify.Config{Registerer: registry}); err != nil {
		t.Error(err)
	}
	_, err := notify.New(c, nil, notify.Config{Registerer: registry})
	if already := (prometheus.AlreadyRegisteredError{}); !errors.As(err, &already) {
		t.Errorf("twice: %v", err)
	}
	if _, err := notify.New(nil, nil, notify.Config{}); err == nil {
		t.Error("no controller")
	}
	if _, err := notify.New(c, nil, notify.Config{Pause: -1}); err == nil {
		t.Error("a negative pause")
	}
}
