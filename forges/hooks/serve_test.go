package hooks_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/github"
	"github.com/gitvirt/gitvirt/forges/hooks"
)

// serve starts a server, and stops it when the test ends.
func serve(t *testing.T, handler *hooks.Handler, certificate, key string) (address string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- hooks.Serve(ctx, listener, handler, certificate, key) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// TestGitHub: what GitHub sends over TLS, with GitHub's client and a secret from a file, nudges.
func TestGitHub(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	client, err := github.New(github.Config{URL: "https://github.test", Owner: "shop", Repository: "fleet", TokenFile: write("token", []byte("t"))})
	if err != nil {
		t.Fatal(err)
	}
	nudged := make(chan string, 10)
	handler, err := hooks.New(client, hooks.Config{
		Secret:   hooks.SecretFile(write("secret", []byte(secret+"\n"))),
		NudgeGit: func() { nudged <- "git" }, NudgePulls: func() { nudged <- "pulls" },
	})
	if err != nil {
		t.Fatal(err)
	}
	borrowed := httptest.NewUnstartedServer(nil) // for its certificate
	borrowed.StartTLS()
	defer borrowed.Close()
	pair := borrowed.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, handler,
		write("tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		write("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	roots := x509.NewCertPool()
	roots.AddCert(borrowed.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	send := func(body, key string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+"/hooks", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{
			"X-Github-Event": {"push"}, "X-Github-Delivery": {"72d3162e-cc78-11e3-81ab-4c9367dc0958"}, "X-Hub-Signature-256": {"sha256=" + forgetest.Sign([]byte(body), key)},
		}
		response, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	if code := send(`{"ref": "refs/heads/main"}`, "guess"); code != http.StatusUnauthorized {
		t.Errorf("forged: %d", code)
	}
	if code := send(`{"ref": "refs/heads/main"}`, secret); code != http.StatusAccepted {
		t.Errorf("a push: %d", code)
	}
	if both := <-nudged + <-nudged; both != "gitpulls" && both != "pullsgit" {
		t.Errorf("nudged %s", both)
	}
}

// TestPlainRequests: nothing is smuggled, and nobody holds a connection.
func TestPlainRequests(t *testing.T) {
	address := serve(t, newWorld(t).handler, "", "")
	for name, test := range map[string]struct{ request, want string }{
		"two lengths":         {"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "400"},
		"length and chunks":   {"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "401"},
		"chunks of something": {"POST /hooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501"},
		"no host":             {"POST /hooks HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", "400"},
		"large headers":       {"POST /hooks HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "431"},
		"forged":              {"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", "401"},
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprint(conn, test.request)
		reader := bufio.NewReader(conn)
		line, _ := reader.ReadString('\n')
		if !strings.HasPrefix(line, "HTTP/1.1 "+test.want) {
			t.Errorf("%s: %q, want %s", name, line, test.want)
		}
		for err == nil { // the server closes: a second request in the same bytes finds nobody
			_, err = reader.ReadString('\n')
		}
		_ = conn.Close()
	}
}

func TestCertificateMissing(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	err = hooks.Serve(t.Context(), listener, newWorld(t).handler, "/nowhere/tls.crt", "/nowhere/tls.key")
	if err == nil || !strings.Contains(err.Error(), "the webhook's certificate: stat /nowhere/tls.crt") {
		t.Errorf("%v", err)
	}
}

// TestSecretFile: a secret that is not there is told, and nothing is taken without one.
func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	read := hooks.SecretFile(path)
	if got, err := read(); err == nil || got != "" {
		t.Errorf("%q, %v", got, err)
	}
	for _, step := range []struct{ content, want string }{{" \n", ""}, {"sesame\n", "sesame"}, {"", "sesame"}} {
		if err := os.WriteFile(path, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := read(); got != step.want || (err == nil) != (step.want != "") {
			t.Errorf("%q: %q, %v", step.content, got, err)
		}
	}
}

// FuzzHook: whatever is sent is answered, and without the secret nobody is nudged.
func FuzzHook(f *testing.F) {
	f.Add("POST", "/hooks", "127.0.0.1:1", "one", "", []byte(`{"kind": "push"}`))
	f.Add("GET", "/", "[::1%lo]:1", "", "sha256=", []byte{0xff})
	f.Fuzz(func(t *testing.T, method, path, remote, delivery, signature string, body []byte) {
		if signature == forgetest.Sign(body, secret) {
			return // it knows the secret
		}
		w := newWorld(t)
		r := httptest.NewRequest(http.MethodPost, "/hooks", strings.NewReader(string(body)))
		r.Method, r.URL.Path, r.RemoteAddr = method, path, remote
		r.Header = http.Header{"Delivery": {delivery}, "Signature": {signature}}
		if code := w.send(r); code < 400 || code >= 500 {
			t.Errorf("answered %d", code)
		}
		if w.counted("accepted")+w.counted("ignored")+w.counted("replayed") > 0 {
			t.Error("taken")
		}
	})
}
