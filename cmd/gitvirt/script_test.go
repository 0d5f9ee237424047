package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestScripts runs what people type, in a shell's place: each script has a folder, a home and an environment of its own.
// None needs libvirt: where a host is asked, an agent over a hypervisor in memory answers.
//
// Besides testscript's own commands there are:
//
//	exits CODE PROGRAM ARGS...   run a program that must end with this exit code
//	commit REPO                  commit all of a work tree, always with the same author and time; made when missing
//	says REPO MESSAGE            commit with this message, an hour after the last one
//	sparse FILE BYTES            make a file of this size that takes no space
//	controller FOLDER            answer as the controller's API: /api/v1/fleet is FOLDER/fleet.json, and so on
//	agent start|stop             answer on $SOCKET as the agent of a host
//	until PATTERN PROGRAM ARGS...  run a program again and again until one of its lines matches
//	happens WHAT [DOMAIN]        what is done behind gitvirt's back: crash, undefine, define (a file), start, edit, down
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                filepath.Join("testdata", "script"),
		Setup:              setUp,
		UpdateScripts:      *update,
		RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "commit": commit, "says": says, "sparse": sparse, "controller": controller, "agent": agent, "happens": happens, "until": until,
		},
	})
}

// worldKey finds the world of a script.
type worldKey struct{}

func setUp(env *testscript.Env) error {
	env.Values[worldKey{}] = &world{hypervisor: fake.New()}
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	if err != nil {
		return err
	}
	socket, err := os.MkdirTemp("", "gitvirt-") // a socket's path has at most 107 bytes
	if err != nil {
		return err
	}
	env.Defer(func() { _ = os.RemoveAll(socket) })
	encrypted, err := filepath.Abs(filepath.Join("..", "..", "sources", "sops", "testdata"))
	if err != nil {
		return err
	}
	listen, err := freePort()
	if err != nil {
		return err
	}
	program, err := exec.LookPath("gitvirt") // this test binary, see TestMain
	if err != nil {
		return err
	}
	for _, variable := range [][2]string{
		{"GITVIRT", program},
		{"OLDPATH", env.Getenv("PATH")},
		{"EXAMPLES", examples},
		{"HOME", filepath.Join(env.WorkDir, "home")},
		{"XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache")},
		{"TZ", "UTC"},
		{"TERM", "xterm"},
		{"GORACE", "atexit_sleep_ms=0"}, // with -race each of hundreds of commands would sleep for a second when it ends
		{"LISTEN", listen},
		{"ENCRYPTED", encrypted},
		{"SOCKET", filepath.Join(socket, "agent.sock")},
		{"GIT_CONFIG_GLOBAL", os.DevNull},
		{"GIT_CONFIG_NOSYSTEM", "1"},
		{"GIT_AUTHOR_NAME", "An Author"},
		{"GIT_AUTHOR_EMAIL", "author@example.com"},
		{"GIT_AUTHOR_DATE", "2026-01-02T03:04:05Z"},
		{"GIT_COMMITTER_NAME", "An Author"},
		{"GIT_COMMITTER_EMAIL", "author@example.com"},
		{"GIT_COMMITTER_DATE", "2026-01-02T03:04:05Z"},
	} {
		env.Setenv(variable[0], variable[1])
	}
	return os.MkdirAll(filepath.Join(env.WorkDir, "home"), 0o700)
}

// arguments ends the script when a command is used in another way than described.
func arguments(ts *testscript.TestScript, neg bool, args []string, least int, usage string) {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 2, "exits CODE PROGRAM ARGS...")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var ended *exec.ExitError
		if !errors.As(err, &ended) {
			ts.Fatalf("%v", err)
		}
		code = ended.ExitCode()
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 2, "until PATTERN PROGRAM ARGS...")
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	said := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		_ = ts.Exec(args[1], args[2:]...) // it may be too early for it to succeed
		if said = ts.ReadFile("stdout") + ts.ReadFile("stderr"); pattern.MatchString(said) {
			return
		}
	}
	ts.Fatalf("%q never came; the last that was said:\n%s", args[0], said)
}

func commit(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1, "commit REPO")
	repo := ts.MkAbs(args[0])
	if _, err := os.Stat(filepath.Join(repo, ".git")); err != nil {
		ts.Check(ts.Exec("git", "init", "-q", "-b", "main", repo))
	}
	ts.Check(ts.Exec("git", "-C", repo, "add", "-A"))
	ts.Check(ts.Exec("git", "-C", repo, "commit", "-q", "-m", "Change the fleet"))
}

// says is commit with a message, an hour after the last one.
func says(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 2, "says REPO MESSAGE")
	repo := ts.MkAbs(args[0])
	if _, err := os.Stat(filepath.Join(repo, ".git")); err != nil {
		ts.Check(ts.Exec("git", "init", "-q", "-b", "main", repo))
	}
	w := ts.Value(worldKey{}).(*world)
	w.commits++
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(w.commits) * time.Hour).Format(time.RFC3339)
	ts.Setenv("GIT_AUTHOR_DATE", at)
	ts.Setenv("GIT_COMMITTER_DATE", at)
	ts.Check(ts.Exec("git", "-C", repo, "add", "-A"))
	ts.Check(ts.Exec("git", "-C", repo, "commit", "-q", "-m", args[1]))
}

func sparse(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 2, "sparse FILE BYTES")
	size, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), nil, 0o600))
	ts.Check(os.Truncate(ts.MkAbs(args[0]), size))
}

// controller answers from files, which have to be answers as the controller gives them.
func controller(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1, "controller FOLDER")
	answers := map[string]string{}
	dir := ts.MkAbs(args[0])
	ts.Check(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, strings.TrimSuffix(path, ".json"))
		if err != nil {
			return err
		}
		var answer any = &httpapi.VM{}
		switch name {
		case "fleet":
			answer = &httpapi.Fleet{}
		case "events":
			answer = &httpapi.Events{}
		case "live":
			answer = &plan.Live{}
		}
		content := ts.ReadFile(path)
		decoder := json.NewDecoder(strings.NewReader(content))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(answer); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		answers["/api/v1/"+name] = content
		return nil
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, content)
	}))
	ts.Defer(server.Close)
	ts.Setenv("GITVIRT_SERVER", server.URL)
}

// world is what a script's commands share: a host that outlives its agent.
type world struct {
	hypervisor *fake.Hypervisor
	stopAgent  func()
	commits    int
}

// agent starts and stops the agent of a host. An agent that starts reads all of the host before it answers, so a script
// that lets things happen in between does not depend on how fast events travel.
func agent(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1, "agent start|stop")
	w := ts.Value(worldKey{}).(*world)
	if args[0] == "stop" {
		w.stopAgent()
		return
	}
	agent, err := nodeagent.New(nodeagent.Config{Node: "host-1", StateDir: ts.MkAbs("agent-state"), DomainType: "qemu"}, w.hypervisor)
	ts.Check(err)
	listener, err := api.Listen(ts.Getenv("SOCKET"))
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	server := api.NewGRPCServer()
	api.RegisterAgentServer(server, nodeagent.NewServer(ctx, agent))
	var running sync.WaitGroup
	running.Go(func() { agent.Run(ctx) })
	running.Go(func() { _ = server.Serve(listener) })
	w.stopAgent = sync.OnceFunc(func() {
		cancel()
		server.Stop()
		running.Wait()
	})
	ts.Defer(w.stopAgent)
}

func happens(ts *testscript.TestScript, neg bool, args []string) {
	arguments(ts, neg, args, 1, "happens crash|undefine|define|start|edit|down [DOMAIN]")
	host, done := ts.Value(worldKey{}).(*world).hypervisor, true
	switch args[0] {
	case "crash":
		done = host.GuestCrashes(args[1])
	case "undefine":
		ts.Check(host.Undefine(context.Background(), args[1]))
	case "define":
		ts.Check(host.Define(context.Background(), ts.ReadFile(args[1])))
	case "start":
		ts.Check(host.SetPower(context.Background(), args[1], hypervisor.PowerOn))
	case "edit":
		done = host.EditConfig(args[1], func(xml string) string { return strings.Replace(xml, ">67108864</memory>", ">33554432</memory>", 1) })
	case "down":
		host.Down()
	default:
		ts.Fatalf("nobody knows how to %s", args[0])
	}
	if !done {
		ts.Fatalf("%v did not happen", args)
	}
}

// TestEveryCommandIsExplained holds every command's help to what the others have: an example and the exit codes.
func TestEveryCommandIsExplained(t *testing.T) {
	c := &cli{getenv: func(string) string { return "" }}
	root := c.root()
	var visit func(command *cobra.Command)
	visit = func(command *cobra.Command) {
		for _, below := range command.Commands() {
			visit(below)
		}
		path := command.CommandPath()
		if command.Name() == "help" {
			return
		}
		if !strings.Contains(command.Example, path) {
			t.Errorf("%s: no example of it in its help", path)
		}
		if command.Short == "" || strings.HasSuffix(command.Short, ".") {
			t.Errorf("%s: the short help is %q; want one line without a full stop", path, command.Short)
		}
		if command.RunE != nil && !strings.Contains(command.Long, "Exit codes:") {
			t.Errorf("%s: the help does not tell the exit codes", path)
		}
	}
	visit(root)
}
