// Package giteatest starts a real Gitea for a test: a private one on a port of this machine, with its files in a temporary folder, that is gone
// with the test. hack/gitea builds the program.
package giteatest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout bounds how long Gitea may take to be there, in software emulation's neighbourhood too.
const startTimeout = 2 * time.Minute

// Server is a Gitea.
type Server struct {
	// URL is its address, without a slash at its end.
	URL string
	// AdminToken is a token of the administrator, "root-of-gitea".
	AdminToken string

	dir      string
	client   *http.Client
	password string
	mu       sync.Mutex
	// users have a token each.
	users map[string]string
}

const (
	admin = "root-of-gitea"
	// passwordPrefix marks the administrator's password where a token is wanted.
	passwordPrefix = "password:"
)

// Option adjusts a server.
type Option func(*settings)

type settings struct {
	pageSize int
	actions  bool
}

// WithPageSize sets how many items are on a page at most; Gitea's own is 50.
func WithPageSize(n int) Option { return func(s *settings) { s.pageSize = n } }

// WithActions lets workflows run, on machines that AddRunner adds.
func WithActions() Option { return func(s *settings) { s.actions = true } }

// programs returns the folder that "make gitea" fills.
func programs(tb testing.TB) string {
	tb.Helper()
	dir := os.Getenv("GITVIRT_GITEA")
	if dir == "" {
		top, err := exec.CommandContext(tb.Context(), "go", "env", "GOMOD").Output()
		if err != nil {
			tb.Fatalf("find the module: %v", err)
		}
		script := filepath.Join(filepath.Dir(strings.TrimSpace(string(top))), "hack", "gitea", "path.sh")
		out, err := exec.CommandContext(tb.Context(), script).Output()
		if err != nil {
			tb.Fatalf("%s: %v", script, err)
		}
		dir = strings.TrimSpace(string(out))
	}
	if _, err := os.Stat(filepath.Join(dir, "complete")); err != nil {
		tb.Fatalf("Gitea is missing (%v): run `make gitea`", err)
	}
	return dir
}

// New starts a server.
func New(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	chosen := settings{pageSize: 50}
	for _, option := range options {
		option(&chosen)
	}
	files := programs(tb)
	s := &Server{dir: tb.TempDir(), client: &http.Client{Transport: &http.Transport{}}, users: map[string]string{}, password: random()}
	tb.Cleanup(s.client.CloseIdleConnections)
	port := freePort(tb)
	s.URL = "http://127.0.0.1:" + port
	s.configure(tb, files, port, chosen)
	s.run(tb, files, "migrate")
	s.run(tb, files, "admin", "user", "create", "--admin", "--username", admin, "--password", s.password, "--email", "root@gitea.test", "--must-change-password=false")
	s.start(tb, files)
	s.AdminToken = s.newToken(tb, admin, "all")
	s.users[admin] = s.AdminToken
	return s
}

func freePort(tb testing.TB) string {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // nothing was sent
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

func random() string {
	secret := make([]byte, 20)
	_, _ = rand.Read(secret) // it never fails
	return hex.EncodeToString(secret)
}

// configure writes Gitea's settings: nothing that a test does not need, and secrets that are hashed once and not fifty thousand times.
func (s *Server) configure(tb testing.TB, files, port string, chosen settings) {
	tb.Helper()
	me, err := user.Current()
	if err != nil {
		tb.Fatal(err)
	}
	content := strings.NewReplacer(
		"$DIR", s.dir, "$FILES", files, "$PORT", port, "$USER", me.Username, "$URL", s.URL, "$PAGE", strconv.Itoa(chosen.pageSize), "$SECRET", random(),
		"$ACTIONS", strconv.FormatBool(chosen.actions)).Replace(`
APP_NAME = giteatest
RUN_USER = $USER
RUN_MODE = prod
WORK_PATH = $DIR
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
[server]
PROTOCOL = http
HTTP_ADDR = 127.0.0.1
HTTP_PORT = $PORT
ROOT_URL = $URL/
STATIC_ROOT_PATH = $FILES
APP_DATA_PATH = $DIR/data
DISABLE_SSH = true
OFFLINE_MODE = true
LFS_START_SERVER = false
[database]
DB_TYPE = sqlite3
PATH = $DIR/gitea.db
SQLITE_JOURNAL_MODE = WAL
[repository]
ROOT = $DIR/repositories
DEFAULT_BRANCH = main
[git]
HOME_PATH = $DIR/home
[security]
INSTALL_LOCK = true
SECRET_KEY = $SECRET
INTERNAL_TOKEN = $SECRET
PASSWORD_HASH_ALGO = pbkdf2$1$50
[oauth2]
ENABLED = false
JWT_SECRET = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
[service]
DISABLE_REGISTRATION = true
[webhook]
ALLOWED_HOST_LIST = loopback
[api]
MAX_RESPONSE_ITEMS = $PAGE
DEFAULT_PAGING_NUM = $PAGE
[session]
PROVIDER = memory
[queue]
TYPE = channel
[indexer]
ISSUE_INDEXER_TYPE = db
[cron]
ENABLED = false
[actions]
ENABLED = $ACTIONS
[packages]
ENABLED = false
[log]
MODE = console
LEVEL = Warn
`)
	if err := os.WriteFile(filepath.Join(s.dir, "app.ini"), []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// command is a Gitea program that knows its settings and nothing of this machine's user.
func (s *Server) command(ctx context.Context, files string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(files, "gitea"), append([]string{"--config", filepath.Join(s.dir, "app.ini")}, arguments...)...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "GITEA_WORK_DIR="+s.dir, "GIT_CONFIG_NOSYSTEM=1")
	// In a group of its own, with the git programs that it starts, and not outliving a test that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

func (s *Server) run(tb testing.TB, files string, arguments ...string) {
	tb.Helper()
	if out, err := s.command(tb.Context(), files, arguments...).CombinedOutput(); err != nil {
		tb.Fatalf("gitea %s: %v\n%s", arguments[0], err, out)
	}
}

// start runs the server until the test ends, and waits until it answers.
func (s *Server) start(tb testing.TB, files string) {
	tb.Helper()
	output, ended := background(tb, "Gitea", func(ctx context.Context) *exec.Cmd { return s.command(ctx, files, "web") })
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(startTimeout)
	for !s.healthy(tb.Context()) {
		select {
		case <-ticker.C:
		case <-ended:
			tb.Fatalf("Gitea ended:\n%s", output.String())
		case <-deadline:
			tb.Fatalf("Gitea does not answer after %s:\n%s", startTimeout, output.String())
		}
	}
}

// background runs a program until the test ends, which tells what the program said when it fails.
func background(tb testing.TB, name string, command func(context.Context) *exec.Cmd) (output *lockedBuffer, ended <-chan struct{}) {
	tb.Helper()
	output = &lockedBuffer{}
	ctx, stop := context.WithCancel(context.Background())
	cmd := command(ctx)
	cmd.Stdout, cmd.Stderr = output, output
	started, gone := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		// Linux kills it when the thread ends that has started it, so that thread waits here.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	if err := <-started; err != nil {
		stop()
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		stop()
		<-gone
		if tb.Failed() {
			tb.Logf("%s said:\n%s", name, output.String())
		}
	})
	return output, gone
}

func (s *Server) healthy(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/healthz", http.NoBody)
	if err != nil {
		return false
	}
	response, err := s.client.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// Do makes a request to the API as somebody, and reads the answer. It fails the test unless that is a success.
func (s *Server) Do(tb testing.TB, token, method, path string, content, into any) {
	tb.Helper()
	if err := s.try(tb.Context(), token, method, path, content, into); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) try(ctx context.Context, token, method, path string, content, into any) error {
	body, err := json.Marshal(content)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, s.URL+"/api/v1"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if password, ok := strings.CutPrefix(token, passwordPrefix); ok {
		request.SetBasicAuth(admin, password)
	} else {
		request.Header.Set("Authorization", "token "+token)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode < 200 || response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// newToken makes a token of anybody's, which Gitea does for the administrator's password only.
func (s *Server) newToken(tb testing.TB, login string, scopes ...string) string {
	tb.Helper()
	var made struct {
		Token string `json:"sha1"`
	}
	s.Do(tb, passwordPrefix+s.password, http.MethodPost, "/users/"+login+"/tokens", map[string]any{"name": random(), "scopes": scopes}, &made)
	return made.Token
}

// AddUser makes a user, if there is none of the name, and returns a token of theirs.
func (s *Server) AddUser(tb testing.TB, login string) string {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if token, ok := s.users[login]; ok {
		return token
	}
	s.Do(tb, s.AdminToken, http.MethodPost, "/admin/users", map[string]any{
		"username": login, "email": login + "@gitea.test", "password": random(), "must_change_password": false,
	}, nil)
	s.users[login] = s.newToken(tb, login, "all")
	return s.users[login]
}

// ScopedTokenFile writes a token of a user into a file that is good for some scopes only, such as "write:issue".
func (s *Server) ScopedTokenFile(tb testing.TB, login string, scopes ...string) string {
	tb.Helper()
	s.AddUser(tb, login)
	return writeToken(tb, s.newToken(tb, login, scopes...))
}

// TokenFile makes a user as AddUser does, and writes the token into a file.
func (s *Server) TokenFile(tb testing.TB, login string) string {
	tb.Helper()
	return writeToken(tb, s.AddUser(tb, login))
}

func writeToken(tb testing.TB, token string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// lockedBuffer keeps what a program says while it runs.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
