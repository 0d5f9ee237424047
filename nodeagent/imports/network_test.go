package imports

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/images"
)

// redirecting answers for one name without a network; all else goes to the default transport.
type redirecting struct {
	to string
	http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (r redirecting) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Host != "elsewhere.example" {
		return r.RoundTripper.RoundTrip(request)
	}
	return &http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {r.to}}, Body: http.NoBody, Request: request}, nil
}

// TestLocalAddresses: what listens on this host trusts whoever reaches it.
func TestLocalAddresses(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write(disk())
	}))
	defer server.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	guarded := New(nil, nil, Options{Attempts: 1})
	direct := defaultTransport(false)
	direct.Proxy = nil // not that of whoever runs the tests
	redirected := New(nil, nil, Options{Attempts: 1, Client: &http.Client{Transport: redirecting{server.URL, direct}}})
	tests := []struct {
		reason, url string
		importer    *Importer
	}{
		{"loopback", server.URL, guarded},
		{"a name of it", "http://localhost:" + port, guarded},
		{"loopback as IPv6 writes IPv4", "http://[::ffff:127.0.0.1]:" + port, redirected},
		{"any address", "http://0.0.0.0:" + port, redirected},
		{"a cloud's metadata", "http://169.254.169.254/latest", redirected},
		{"link-local", "http://[fe80::1%25lo]/x", redirected},
		{"a redirect", "http://elsewhere.example/x", redirected},
	}
	for _, test := range tests {
		_, _, err := get(t, test.importer, fromURL(test.url))
		if !errors.Is(err, images.ErrInvalid) || !strings.Contains(err.Error(), "--allow-local-imports") {
			t.Errorf("%s: %v, want it refused", test.reason, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
	if _, _, err := get(t, New(nil, nil, Options{Attempts: 1, AllowLocal: true}), fromURL(server.URL)); err != nil {
		t.Errorf("allowed: %v", err)
	}
}

// TestReferer: the address that redirects may hold a signature.
func TestReferer(t *testing.T) {
	var referer atomic.Value
	second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		referer.Store(r.Referer())
		_, _ = w.Write(disk())
	}))
	defer second.Close()
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, second.URL+"/disk", http.StatusFound)
	}))
	defer first.Close()
	if _, _, err := get(t, newImporter(t, nil, nil), fromURL(first.URL+"/disk?signature=secret")); err != nil {
		t.Fatal(err)
	}
	if got := referer.Load(); got != "" {
		t.Errorf("the second server is told %q", got)
	}
}

// TestTrickle: a transfer that always brings a little would never end.
func TestTrickle(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte("x")); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	}))
	defer server.Close()
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	importer := New(nil, nil, Options{Client: &http.Client{Transport: transport}, Attempts: 1, StallTimeout: 100 * time.Millisecond})
	_, _, err := get(t, importer, fromURL(server.URL))
	if !errors.Is(err, images.ErrUnavailable) || !strings.Contains(err.Error(), "less than 64.0 KiB arrived") {
		t.Errorf("%v, want the transfer ended", err)
	}
}
