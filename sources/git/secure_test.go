package git_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// TestNoWayAroundChecks turns off what git and ssh let people turn off: certificates and host keys are checked all the same.
func TestNoWayAroundChecks(t *testing.T) {
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one"})
	secure := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{TLS: true})
	server := gittest.NewSSHServer(t)
	home := t.TempDir()
	for name, content := range map[string]string{
		".gitconfig":       "[http]\n\tsslVerify = false\n[core]\n\tsshCommand = ssh -o StrictHostKeyChecking=no\n",
		".ssh/config":      "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n",
		".ssh/known_hosts": "",
	} {
		path := filepath.Join(home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{
		"HOME": home, "GIT_SSL_NO_VERIFY": "true", "GIT_SSH_COMMAND": "ssh -o StrictHostKeyChecking=no",
		"SSH_KNOWN_HOSTS": server.KnownHosts, "GIT_CONFIG_GLOBAL": filepath.Join(home, ".gitconfig"),
	} {
		t.Setenv(name, value)
	}
	for _, cfg := range []git.Config{
		{URL: secure.RepoURL},
		{URL: server.URL(r), Auth: git.Auth{SSHKeyFile: server.KeyFile}},
	} {
		if _, err := open(t, cfg).Poll(context.Background()); !errors.Is(err, sources.ErrAuth) {
			t.Errorf("%s: got %v, want ErrAuth", cfg.URL, err)
		}
	}
	if _, err := open(t, git.Config{URL: secure.RepoURL, CAFile: secure.CAFile}).Poll(context.Background()); err != nil {
		t.Errorf("with the authority: %v", err)
	}
	if _, err := open(t, git.Config{URL: server.URL(r), KnownHosts: server.KnownHosts, Auth: git.Auth{SSHKeyFile: server.KeyFile}}).Poll(context.Background()); err != nil {
		t.Errorf("with the host key: %v", err)
	}
}

// TestNoWayOutOfHTTPS has a server that sends its clients to where nothing is encrypted.
func TestNoWayOutOfHTTPS(t *testing.T) {
	var asked atomic.Int32
	open80 := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(open80.Close)
	r := gittest.NewRepo(t)
	r.Commit(map[string]string{"a.yaml": "one"})
	secure := gittest.NewHTTPServer(t, r, gittest.HTTPOptions{TLS: true, Wrap: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, open80.URL+req.URL.RequestURI(), http.StatusMovedPermanently)
		})
	}})
	token := gittest.WriteFile(t, "top-secret-token")
	s := open(t, git.Config{URL: secure.RepoURL, CAFile: secure.CAFile, Auth: git.Auth{TokenFile: token}})
	_, err := s.Poll(context.Background())
	if err == nil || !strings.Contains(err.Error(), "redirect") || strings.Contains(err.Error(), "top-secret-token") {
		t.Errorf("got %v", err)
	}
	if asked.Load() != 0 {
		t.Error("the server without encryption was asked")
	}
}
