package git_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

func TestAccess(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one"})
	web := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Username: "ann", Password: "right"})
	secure := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{TLS: true})
	forbidden := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	}})
	server := gittest.NewSSHServer(t)
	empty := filepath.Join(t.TempDir(), "known_hosts")
	changed := filepath.Join(t.TempDir(), "known_hosts")
	stranger := filepath.Join(t.TempDir(), "id")
	key := gittest.NewKey(t, stranger)
	write(t, empty, "")
	write(t, changed, fmt.Sprintf("[%s]:%s %s", server.Host, server.Port, ssh.MarshalAuthorizedKey(key)))
	tests := []struct {
		name   string
		reason string
		config git.Config
		words  []string
	}{
		{"no credentials", "401 without any", git.Config{URL: web.RepoURL}, []string{"authentication required", "token"}},
		{"wrong password in the URL", "401, and the URL must not tell the password", git.Config{URL: strings.Replace(web.RepoURL, "//", "//ann:s3cret@", 1)}, []string{"authentication required"}},
		{"wrong token", "401", git.Config{URL: web.RepoURL, Auth: git.Auth{TokenEnv: "TOKEN"}}, []string{"authentication required"}},
		{"forbidden", "403", git.Config{URL: forbidden.RepoURL}, []string{"authorization failed"}},
		{"missing secret file", "it may not be mounted yet", git.Config{URL: web.RepoURL, Auth: git.Auth{PasswordFile: "/no/such/file"}}, []string{"/no/such/file"}},
		{"unknown authority", "the certificate is not trusted", git.Config{URL: secure.RepoURL}, []string{"certificate", "CA file"}},
		{"unknown host key", "nobody has vouched for the host", git.Config{URL: server.URL(r), KnownHosts: empty, Auth: git.Auth{SSHKeyFile: server.KeyFile}}, []string{"SHA256:", "ssh-keyscan -p " + server.Port + " 127.0.0.1 >> " + empty}},
		{"changed host key", "it may be an attack", git.Config{URL: server.URL(r), KnownHosts: changed, Auth: git.Auth{SSHKeyFile: server.KeyFile}}, []string{"HAS CHANGED", changed + ":1"}},
		{"no known hosts", "the check cannot be left out", git.Config{URL: server.URL(r), KnownHosts: "/no/such/file", Auth: git.Auth{SSHKeyFile: server.KeyFile}}, []string{"known_hosts", "ssh-keyscan"}},
		{"unknown key", "the server does not accept it", git.Config{URL: server.URL(r), KnownHosts: server.KnownHosts, Auth: git.Auth{SSHKeyFile: stranger}}, []string{"deploy key"}},
		{"no key", "there is neither a key nor an agent", git.Config{URL: server.URL(r), KnownHosts: server.KnownHosts}, []string{"no ssh key"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, test.config, git.WithGetenv(func(name string) string {
				return map[string]string{"TOKEN": "s3cret"}[name]
			}))
			_, err := s.Poll(t.Context())
			wantKind(t, err, sources.ErrAuth)
			wantText(t, err, test.words...)
			printed := fmt.Sprintf("%v %v %+v", err, s, publisher(t, test.config))
			if strings.Contains(printed, "s3cret") {
				t.Errorf("the secret leaks: %v", err)
			}
		})
	}
}

func TestServerFaults(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one"})
	answer := func(kind, body string) string {
		return gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				_, _ = w.Write([]byte(body))
			})
		}}).RepoURL
	}
	half := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPost {
				w = &cutWriter{w, 120}
			}
			next.ServeHTTP(w, req)
		})
	}}).RepoURL
	broken := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{Wrap: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops", http.StatusBadGateway) })
	}}).RepoURL
	const advertisement = "application/x-git-upload-pack-advertisement"
	mute := muteServer(t)
	tests := []struct {
		name, reason, url string
		words             []string
	}{
		{"down", "nobody listens", "http://127.0.0.1:1/x.git", []string{"refused"}},
		{"ssh down", "nobody listens", "ssh://git@127.0.0.1:1/x.git", []string{"refused"}},
		{"web page", "a proxy's log-in page", answer("text/html", "<html>hello</html>"), []string{"does not speak git", "text/html"}},
		{"garbage", "it says git and is not", answer(advertisement, "\x00\x01garbage"), nil},
		{"empty answer", "it says git and nothing else", answer(advertisement, ""), nil},
		{"lying", "it offers what it does not have", answer(advertisement, lie()), nil},
		{"cut off", "the connection ends in the middle of a pack", half, nil},
		{"502", "a gateway without its server", broken, []string{"502"}},
		{"slow http", "it accepts and says nothing", "http://" + mute + "/x.git", []string{"no complete answer within"}},
		{"slow git", "it accepts and says nothing", "git://" + mute + "/x.git", []string{"no complete answer within"}},
		{"slow ssh", "it accepts and says nothing", "ssh://git@" + mute + "/x.git", []string{"no complete answer within"}},
	}
	known, key := filepath.Join(t.TempDir(), "known"), filepath.Join(t.TempDir(), "key")
	write(t, known, "")
	gittest.NewKey(t, key)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			timeout := 5 * time.Second
			if strings.HasPrefix(test.name, "slow") {
				timeout = 200 * time.Millisecond
			}
			s := open(t, git.Config{URL: test.url, Timeout: timeout, KnownHosts: known, Auth: git.Auth{SSHKeyFile: key}})
			snapshot, err := s.Poll(context.Background())
			if snapshot != nil {
				t.Errorf("got a snapshot: %+v", snapshot)
			}
			wantKind(t, err, sources.ErrUnreadable)
			wantText(t, err, test.words...)
			if _, err := s.Last(t.Context()); err == nil {
				t.Error("Last returns something")
			}
		})
	}
}

// lie is an advertisement of a commit that does not exist.
func lie() string {
	head := strings.Repeat("1", 40) + " HEAD\x00symref=HEAD:refs/heads/main\n"
	line := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	return line("# service=git-upload-pack\n") + "0000" + line(head) + line(strings.Repeat("1", 40)+" refs/heads/main\n") + "0000"
}

// cutWriter breaks the connection after left bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

// muteServer accepts connections and never answers.
func muteServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var open []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				for _, c := range open {
					_ = c.Close()
				}
				return
			}
			open = append(open, conn)
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().String()
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNoGit(t *testing.T) {
	r := gittest.NewRepo(t)
	t.Setenv("PATH", t.TempDir())
	_, err := open(t, git.Config{URL: r.Dir}).Poll(t.Context())
	wantKind(t, err, sources.ErrUnreadable)
	wantText(t, err, "apt-get install git")
}
