package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/forges"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "s3cret-0123456789"

// get makes a GET of a server with a token in a file.
func get(t *testing.T, handler http.HandlerFunc) error {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	base, err := BaseURL(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(Config{Base: base, Credential: TokenFile(file), Authorize: func(h http.Header, token string) { h.Set("Authorization", "Bearer "+token) }})
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	defer client.Transport.(*roundTripper).next.(*http.Transport).CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/x", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		err = errors.Join(err, response.Body.Close())
	}
	return Error(t.Context(), "asking", err)
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		status int
		body   string
		kind   error
		want   string
	}{
		{200, `{}`, nil, ""},
		{204, ``, nil, ""},
		{401, `{"message":"Bad credentials"}`, forges.ErrDenied, "asking: the forge denies it: 401 Unauthorized: Bad credentials"},
		{403, `{"message":"403 Forbidden - ` + secret + ` may not"}`, forges.ErrDenied, "403 Forbidden - [token] may not"},
		{403, `{"error":"insufficient_scope","error_description":"wants more","scope":"api"}`, forges.ErrDenied, "insufficient_scope wants more"},
		{404, `<html>no</html>`, forges.ErrNotFound, "asking: the forge does not have it: 404 Not Found"},
		{410, `{}`, forges.ErrNotFound, "410 Gone"},
		{422, `{"message":"Validation Failed","errors":[{"field":"data","message":"too\nlong\u001b[1m"}]}`, forges.ErrRefused, `Validation Failed [{"field":"data","message":"too\nlong\u001b[1m"}]`},
		{400, `{"message":{"note":["is too long"]}}`, forges.ErrRefused, `{"note":["is too long"]}`},
		{409, `{"message":"` + strings.Repeat("long ", 500) + `"}`, forges.ErrRefused, "…"},
		{501, `{}`, forges.ErrUnavailable, "501 Not Implemented"},
	} {
		err := get(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+secret {
				t.Error("without the token")
			}
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.body)
		})
		switch {
		case test.kind == nil && err != nil, test.kind != nil && (!errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%d %s: %v", test.status, test.body, err)
		case err != nil && (strings.Contains(err.Error(), secret) || len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\n\x1b")):
			t.Errorf("%d %s: %q", test.status, test.body, err)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	chunk := make([]byte, 1<<20)
	for i := range chunk {
		chunk[i] = ' '
	}
	sent := 0
	err := get(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
			sent++
		}
	})
	if !errors.Is(err, forges.ErrUnavailable) || !strings.Contains(err.Error(), "more than 64 MiB") {
		t.Errorf("an answer without an end: %v", err)
	}
	if sent > 80 {
		t.Errorf("%d MiB were taken", sent)
	}
}

func TestTokenOfAnotherServer(t *testing.T) {
	var stolen string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen = fmt.Sprint(r.Header) }))
	defer thief.Close()
	base := &url.URL{Scheme: "https", Host: "forge.example.com"}
	client, err := NewClient(Config{Base: base, Credential: TokenFile("/no/such/file"), Authorize: func(http.Header, string) {}})
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, thief.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err == nil {
		_ = response.Body.Close()
		t.Errorf("a request to another server is answered; it saw %s", stolen)
	}
	if stolen != "" {
		t.Errorf("it saw %s", stolen)
	}
}

func TestSameServer(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"https://forge.example.com", "https://FORGE.example.com:443/x", true},
		{"http://127.0.0.1:80", "http://127.0.0.1/x", true},
		{"https://forge.example.com", "http://forge.example.com", false},
		{"https://forge.example.com", "https://forge.example.com:8443", false},
		{"https://forge.example.com", "https://evil.forge.example.com", false},
		{"https://forge.example.com", "https://forge.example.com.evil.example", false},
	} {
		a, err := url.Parse(test.a)
		if err != nil {
			t.Fatal(err)
		}
		b, err := url.Parse(test.b)
		if err != nil {
			t.Fatal(err)
		}
		if got := sameServer(a, b); got != test.want {
			t.Errorf("%s and %s: %v", test.a, test.b, got)
		}
	}
}

func TestBaseURL(t *testing.T) {
	for text, want := range map[string]string{
		"https://forge.example.com":         "https://forge.example.com",
		"https://forge.example.com/":        "https://forge.example.com",
		"https://example.com:8443/a/forge/": "https://example.com:8443/a/forge",
		"http://localhost:3000":             "http://localhost:3000",
		"http://[::1]:3000/":                "http://[::1]:3000",
	} {
		if got, err := BaseURL(text); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "forge.example.com", "ftp://forge.example.com", "https://", "https://forge.example.com?x=1", "https://forge.example.com#x", "http://10.0.0.1", "http://localhost.example.com", "https://ann:s3cret@forge.example.com"} {
		if got, err := BaseURL(text); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func TestAfter(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for text, want := range map[string]time.Duration{
		"0": 0, "30": 30 * time.Second, "1800000060": time.Minute,
		now.Add(time.Hour).UTC().Format(http.TimeFormat): time.Hour,
	} {
		if got, ok := after(text, now); !ok || got.Sub(now) != want {
			t.Errorf("%q: %s, %v", text, got.Sub(now), ok)
		}
	}
	for _, text := range []string{"", "soon", "-5", "1e3", "99999999999999999999"} {
		if got, ok := after(text, now); ok {
			t.Errorf("%q: %s", text, got)
		}
	}
}

func TestErrorsOfContexts(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 0, errors.New("the reason"))
	defer cancel()
	<-ctx.Done()
	err := Error(ctx, "asking", errors.New("whatever"))
	if !errors.Is(err, forges.ErrUnavailable) || !strings.Contains(err.Error(), "the reason") {
		t.Error(err)
	}
}

// What was kept for one account is not shown to another, nor asked about.
func TestKeptAnswersBelongToAToken(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("If-None-Match"))
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", `"1"`)
		_, _ = io.WriteString(w, `{}`)
	}))
	defer server.Close()
	base, err := BaseURL(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	client, err := NewClient(Config{Base: base, Credential: TokenFile(file), Authorize: func(http.Header, string) {}})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"one", "one", "two", "two"} {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(Remember(t.Context()), http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != `{}` || response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s, %v", token, response.Status, body, err)
		}
		_ = response.Body.Close()
	}
	if got := fmt.Sprintf("%q", asked); got != `["" "\"1\"" "" "\"1\""]` {
		t.Errorf("it was asked with %s", got)
	}
	client.Transport.(*roundTripper).next.(*http.Transport).CloseIdleConnections()
}
