package notify_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/gitvirt/gitvirt/notify"
	"github.com/gitvirt/gitvirt/reconciler"
)

// TestHTTP: the events as JSON, as the published schema has them, signed, and the same ID when a message is sent again.
func TestHTTP(t *testing.T) {
	published, err := os.ReadFile("../docs/schemas/" + notify.SchemaName)
	if err != nil || !bytes.Equal(published, notify.JSONSchema()) {
		t.Errorf("docs/schemas/%s is stale: run make generate (%v)", notify.SchemaName, err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(published))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(notify.SchemaName, document); err != nil {
		t.Fatal(err)
	}
	schema := compiler.MustCompile(notify.SchemaName)

	synctest.Test(t, func(t *testing.T) {
		var bodies [][]byte
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			bodies = append(bodies, body)
			mac := hmac.New(sha256.New, []byte("sesame"))
			mac.Write(body)
			if got, want := r.Header.Get("Gitvirt-Signature-256"), "sha256="+hex.EncodeToString(mac.Sum(nil)); got != want {
				t.Errorf("signed %q, want %q", got, want)
			}
			if len(bodies) == 1 {
				w.WriteHeader(http.StatusBadGateway)
			}
		})
		c := newController(t, `{name: audit, kind: http, filter: "event.reason != 'Planned'"}`)
		run(t, c, notify.Endpoints{"audit": {URLFile: "/http", SecretFile: "/key"}}, configured(handler), func() {
			c.happens(reconciler.Normal, reconciler.Planned, "", "1 to create")
			c.happens(reconciler.Warning, reconciler.Crashed, "web", "the guest crashed")
			c.happens(reconciler.Warning, reconciler.Crashed, "web", "the guest crashed")
			for i := range 250 {
				c.happens(reconciler.Normal, reconciler.Applied, "", fmt.Sprint(i))
			}
			time.Sleep(5 * time.Minute)
		})
		if len(bodies) != 4 || !bytes.Equal(bodies[0], bodies[1]) {
			t.Fatalf("%d messages", len(bodies))
		}
		events := 0
		for _, body := range bodies[1:] {
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(value); err != nil {
				t.Errorf("%s: %v", body, err)
			}
			var message notify.Message
			if err := json.Unmarshal(body, &message); err != nil {
				t.Fatal(err)
			}
			if events == 0 {
				if e := message.Events[0]; e.Count != 2 || e.Name != "web" || e.Namespace != "shop" || e.Kind != "VirtualMachine" || e.Reason != "Crashed" || e.Type != "Warning" || e.Revision != "4c1f0c2aa9f1" {
					t.Errorf("%+v", e)
				}
			}
			events += len(message.Events)
		}
		if events != 251 {
			t.Errorf("told of %d events", events)
		}
	})
}

// realServer runs a Notifier against real servers, until one event has come to an end, and returns what was reported.
func realServer(t *testing.T, url string, config notify.Config, ended func(c *controller) bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(path, []byte(url), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newController(t, "{name: ops, kind: slack}")
	config.Gather, config.Pause = time.Millisecond, time.Millisecond
	n, err := notify.New(c, notify.Endpoints{"ops": {URLFile: path}}, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	c.happens(reconciler.Warning, reconciler.Crashed, "web", "the guest crashed")
	for !ended(c) {
		select {
		case <-t.Context().Done():
			t.Fatal("it takes for ever")
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return c.reported()
}

func problem(c *controller) bool { return c.reported() != "" }

// TestRealServer: TLS is checked, and redirects lead nowhere but to the same host with the same message.
func TestRealServer(t *testing.T) {
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("redirected to another host") }))
	defer elsewhere.Close()
	server := &slack{}
	mux := http.NewServeMux()
	mux.Handle("/services/sesame", server)
	mux.Handle("/moved/sesame", http.RedirectHandler("/services/sesame", http.StatusPermanentRedirect))
	mux.Handle("/found/sesame", http.RedirectHandler("/services/sesame", http.StatusFound))
	mux.Handle("/round/sesame", http.RedirectHandler("/round/sesame", http.StatusTemporaryRedirect))
	mux.Handle("/away/sesame", http.RedirectHandler(elsewhere.URL+"/sesame", http.StatusTemporaryRedirect))
	https := httptest.NewTLSServer(mux)
	defer https.Close()
	trusting := notify.Config{Transport: https.Client().Transport}
	toldTo := func(n int) func(*controller) bool {
		return func(*controller) bool { return len(server.told()) == n }
	}
	if said := realServer(t, https.URL+"/services/sesame", trusting, toldTo(1)); said != "" {
		t.Errorf("reported %s", said)
	}
	if said := realServer(t, https.URL+"/moved/sesame", trusting, toldTo(2)); said != "" {
		t.Errorf("moved: reported %s", said)
	}
	for path, want := range map[string]string{"/found/sesame": "it redirects", "/round/sesame": "it redirects", "/away/sesame": "it redirects", "/gone/sesame": "answers 404"} {
		if said := realServer(t, https.URL+path, trusting, problem); !strings.Contains(said, want) || strings.Contains(said, "sesame") {
			t.Errorf("%s: reported %s", path, said)
		}
	}
	if said := realServer(t, https.URL+"/services/sesame", notify.Config{}, problem); !strings.Contains(said, "certificate signed by unknown authority") || strings.Contains(said, "sesame") {
		t.Errorf("reported %s", said)
	}
	if n := len(server.told()); n != 2 {
		t.Errorf("told %d times", n)
	}
}
