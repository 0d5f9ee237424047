package gittest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// HTTPOptions adjust an HTTPServer.
type HTTPOptions struct {
	// Username and Password are asked for when one of them is set.
	Username, Password string
	// TLS serves https with a certificate of its own authority.
	TLS bool
	// Wrap goes around the handler, to observe or to spoil requests.
	Wrap func(http.Handler) http.Handler
}

// HTTPServer serves a repository with git-http-backend.
type HTTPServer struct {
	*httptest.Server
	// RepoURL is the repository's URL, without credentials.
	RepoURL string
	// CAFile is the PEM file of the server's authority, with TLS.
	CAFile string
}

// NewHTTPServer serves the repository until the test ends.
func NewHTTPServer(t testing.TB, r *Repo, opts HTTPOptions) *HTTPServer {
	t.Helper()
	handler := Backend(t, r, opts)
	s := &HTTPServer{}
	if opts.TLS {
		s.Server = httptest.NewTLSServer(handler)
		s.CAFile = filepath.Join(t.TempDir(), "ca.pem")
		block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
		if err := os.WriteFile(s.CAFile, block, 0o600); err != nil {
			t.Fatal(err)
		}
	} else {
		s.Server = httptest.NewServer(handler)
	}
	t.Cleanup(s.Close)
	s.RepoURL = s.URL + "/" + filepath.Base(r.Dir)
	return s
}

// Backend is the handler of an HTTPServer.
func Backend(t testing.TB, r *Repo, opts HTTPOptions) http.Handler {
	t.Helper()
	var handler http.Handler = &cgi.Handler{
		Path: filepath.Join(run(t, "", nil, "git", "--exec-path"), "git-http-backend"),
		Env: []string{
			"GIT_PROJECT_ROOT=" + filepath.Dir(r.Dir), "GIT_HTTP_EXPORT_ALL=1",
			"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		},
		Stderr: testWriter{t},
	}
	if opts.Username != "" || opts.Password != "" {
		inner := handler
		handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			user, password, ok := req.BasicAuth()
			if !ok || user != opts.Username || password != opts.Password {
				w.Header().Set("WWW-Authenticate", `Basic realm="gittest"`)
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
			// As REMOTE_USER this would let git-http-backend serve pushes; the repository's config does already.
			req.Header.Del("Authorization")
			inner.ServeHTTP(w, req)
		})
	}
	if opts.Wrap != nil {
		handler = opts.Wrap(handler)
	}
	return handler
}

// testWriter drops what the backend says: tests break connections on purpose.
type testWriter struct{ testing.TB }

func (testWriter) Write(p []byte) (int, error) { return len(p), nil }

// SSHServer is an sshd that serves the machine's repositories.
type SSHServer struct {
	// Host and Port are where it listens; User is who may log in.
	Host, Port, User string
	// KeyFile is the private key it accepts.
	KeyFile string
	// KnownHosts is a file with its host key.
	KnownHosts string
}

// URL is a repository's ssh:// URL.
func (s *SSHServer) URL(r *Repo) string {
	return fmt.Sprintf("ssh://%s@%s%s", s.User, net.JoinHostPort(s.Host, s.Port), r.Dir)
}

// NewSSHServer starts sshd on a free port until the test ends. It must be run as root or as the user who logs in.
func NewSSHServer(t testing.TB) *SSHServer {
	t.Helper()
	dir := t.TempDir()
	s := &SSHServer{Host: "127.0.0.1", User: run(t, "", nil, "id", "-un"), KeyFile: filepath.Join(dir, "id"), KnownHosts: filepath.Join(dir, "known_hosts")}
	hostKey := NewKey(t, filepath.Join(dir, "host"))
	userKey := NewKey(t, s.KeyFile)
	writeFile(t, filepath.Join(dir, "authorized_keys"), string(ssh.MarshalAuthorizedKey(userKey)))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, s.Port, _ = net.SplitHostPort(listener.Addr().String())
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.KnownHosts, fmt.Sprintf("[%s]:%s %s", s.Host, s.Port, ssh.MarshalAuthorizedKey(hostKey)))
	writeFile(t, filepath.Join(dir, "config"), strings.Join([]string{
		"ListenAddress " + net.JoinHostPort(s.Host, s.Port),
		"HostKey " + filepath.Join(dir, "host"),
		"AuthorizedKeysFile " + filepath.Join(dir, "authorized_keys"),
		"PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no",
		"PermitRootLogin yes", "MaxStartups 200", "LogLevel ERROR", "",
	}, "\n"))
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(dir, "config"))
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting sshd (install openssh-server): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	waitFor(t, net.JoinHostPort(s.Host, s.Port))
	return s
}

// NewKey writes a new private key to file and returns its public half.
func NewKey(t testing.TB, file string) ssh.PublicKey {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "gittest")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, string(pem.EncodeToMemory(block)))
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer.PublicKey()
}

// NewDaemon serves a repository with git daemon (git://) and returns its URL. Pushing is allowed.
func NewDaemon(t testing.TB, r *Repo) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(run(t, "", nil, "git", "--exec-path"), "git-daemon"), "--reuseaddr", "--listen=127.0.0.1", "--port="+port,
		"--base-path="+filepath.Dir(r.Dir), "--export-all", "--enable=receive-pack")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	waitFor(t, address)
	return "git://" + address + "/" + filepath.Base(r.Dir)
}

func waitFor(t testing.TB, address string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", address, time.Second); err == nil {
			_ = conn.Close()
			return
		}
	}
	t.Fatalf("nothing listens on %s: %v", address, err)
}

func writeFile(t testing.TB, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
