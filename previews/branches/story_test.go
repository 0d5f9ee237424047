package branches_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/previews/branches"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const fleet = "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\n"

func manifest(name, memory string) string {
	return "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: " + name + "}\n" +
		"spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: " + memory + "}}}}}\n"
}

// story is a plain repository with branches, and a host in memory that is kept as main says.
type story struct {
	t        *testing.T
	repo     *gittest.Repo
	host     *reconcilertest.Host
	patterns []string
	// pushes counts the attempts.
	pushes atomic.Int64
	loop   *reconciler.Reconciler
	p      *previews.Previews
	b      *branches.Branches
	stop   func()
}

// pushing is the publisher, counted.
type pushing struct {
	*git.Publisher
	s *story
}

func (p pushing) Update(ctx context.Context, updates []sources.RefUpdate) (map[string]sources.RefResult, error) {
	p.s.pushes.Add(1)
	return p.Publisher.Update(ctx, updates, git.Author{Name: "gitvirt", Email: "gitvirt@localhost"})
}

// play tells a story in virtual time.
func play(t *testing.T, tell func(t *testing.T, s *story), patterns ...string) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{t: t, repo: gittest.NewRepo(t), host: reconcilertest.NewHost(), patterns: patterns}
		s.repo.Commit(map[string]string{"gitvirt.yaml": fleet, "web.yaml": manifest("web", "128Mi"), "db.yaml": manifest("db", "256Mi")})
		s.start()
		defer func() { s.stop() }()
		s.wait(20 * time.Second)
		tell(t, s)
	})
}

// start starts a controller, which knows nothing of an earlier one but what is on disk.
func (s *story) start() {
	s.t.Helper()
	dir := func(name string) string { return filepath.Join(s.repo.Dir, "..", name) }
	source, err := git.Open(git.Config{URL: s.repo.Dir, Dir: dir("loop")})
	if err != nil {
		s.t.Fatal(err)
	}
	beside, err := source.Beside(dir("beside"))
	if err != nil {
		s.t.Fatal(err)
	}
	publisher, err := git.NewPublisher(git.Config{URL: s.repo.Dir, Dir: dir("publisher")})
	if err != nil {
		s.t.Fatal(err)
	}
	zero := func() float64 { return 0 }
	if s.loop, err = reconciler.New(source, s.host, reconciler.Config{Rand: zero}); err != nil {
		s.t.Fatal(err)
	}
	s.b, err = branches.New(beside, pushing{publisher, s}, branches.Config{
		Patterns: s.patterns, Skip: func(name string) bool { return name == "gitvirt/status" }, Report: s.loop.Report, Rand: zero,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if s.p, err = previews.New(s.b, s.b, s.loop, previews.Config{Rand: zero}); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 3)
	go func() { ended <- s.loop.Run(ctx) }()
	go func() { ended <- s.p.Run(ctx) }()
	go func() { ended <- s.b.Run(ctx) }()
	s.stop = func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, <-ended, source.Close(), beside.Close(), publisher.Close()); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *story) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// branch makes a branch of main, with files.
func (s *story) branch(name string, files map[string]string) string {
	s.repo.Git("update-ref", "refs/heads/"+name, "main")
	return s.repo.CommitTo(name, files)
}

// at is where the plan of a branch is; "" when it is not there.
func (s *story) at(name string) string {
	s.t.Helper()
	if !s.repo.Has(branches.Prefix + name) {
		return ""
	}
	return s.repo.Git("rev-parse", branches.Prefix+name)
}

// file is what people read with git show.
func (s *story) file(name, path string) string {
	s.t.Helper()
	if s.at(name) == "" {
		s.t.Fatalf("there is no plan of %s; events: %+v", name, s.loop.Events(0))
	}
	return s.repo.Git("show", branches.Prefix+name+":"+path) + "\n"
}

func (s *story) says(name string, words ...string) {
	s.t.Helper()
	text := s.file(name, "plan.md")
	for _, word := range words {
		if !strings.Contains(text, word) {
			s.t.Errorf("the plan of %s does not say %q:\n%s", name, word, text)
		}
	}
}

// told are the events of a reason.
func (s *story) told(reason reconciler.Reason) (messages []string) {
	for _, event := range s.loop.Events(0) {
		if event.Reason == reason {
			for range event.Count {
				messages = append(messages, event.Message)
			}
		}
	}
	return messages
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestStory follows a branch until it is merged, and one until it is given up.
func TestStory(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		head := s.branch("feature/more", map[string]string{"web.yaml": manifest("web", "192Mi"), "cache.yaml": manifest("cache", "64Mi")})
		s.branch("other/one", map[string]string{"web.yaml": manifest("web", "64Mi")})
		s.branch("feature/bad", map[string]string{"web.yaml": manifest("web", "lots")})
		s.wait(20 * time.Second)
		golden(t, "plan.md", s.file("feature/more", "plan.md"))
		golden(t, "status.json", s.file("feature/more", "status.json"))
		golden(t, "bad.json", s.file("feature/bad", "status.json"))
		if subject := s.repo.Git("log", "-1", "--format=%an: %s", branches.Prefix+"feature/more"); subject != "gitvirt: Plan of feature/more: 1 to create, 1 restart (about 40 s down). Blocked: 0. Waiting: 1. Unknown: 0." {
			t.Errorf("the commit is %q", subject)
		}
		if s.at("other/one") != "" || s.at("main") != "" {
			t.Error("what nobody asked for is planned")
		}
		if s.repo.Git("rev-parse", "feature/more") != head {
			t.Error("the branch was moved")
		}

		first, pushes := s.at("feature/more"), s.pushes.Load()
		s.stop()
		s.start()
		s.wait(5 * time.Minute)
		if s.at("feature/more") != first || s.pushes.Load() != pushes {
			t.Error("a restart has written a plan anew")
		}

		second := s.repo.CommitTo("feature/more", map[string]string{"cache.yaml": gittest.Delete})
		s.wait(20 * time.Second)
		s.says("feature/more", second[:9], "Plan: 1 restart")
		if s.repo.Git("rev-parse", branches.Prefix+"feature/more^") != first {
			t.Error("the plan before is lost")
		}
		base := s.repo.Commit(map[string]string{"late.yaml": manifest("late", "64Mi")})
		s.wait(time.Minute)
		s.says("feature/more", "`main` at `"+base[:9]+"`", "Plan: 1 restart")

		s.repo.Git("update-ref", "refs/heads/main", s.repo.Git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit-tree", second+"^{tree}", "-p", "main", "-p", second, "-m", "merge"))
		s.repo.Git("update-ref", "-d", "refs/heads/feature/bad")
		s.wait(time.Minute)
		if s.at("feature/more") != "" || s.at("feature/bad") != "" {
			t.Errorf("plans of what is merged and gone are still there: %q, %q", s.at("feature/more"), s.at("feature/bad"))
		}
		if pulls := s.p.Pulls(); len(pulls) != 0 {
			t.Errorf("it is known of %+v", pulls)
		}
		s.repo.CommitTo("feature/more", map[string]string{"web.yaml": manifest("web", "320Mi")})
		s.wait(time.Minute)
		s.says("feature/more", "Plan: 1 restart") // it goes on after its merge
	}, "feature/*")
}

// TestAllBranches: neither the base nor the status branch, and names that git allows.
func TestAllBranches(t *testing.T) {
	odd := []string{`q"'$(id);&|<>%#!{}@,=+`, "数据库/🚀", "-dash", "a/b/c"}
	play(t, func(t *testing.T, s *story) {
		s.repo.CommitTo("gitvirt/status", map[string]string{"README.md": "status"})
		s.branch("same-as-main", nil)
		s.repo.Git("update-ref", "refs/heads/same-as-main", "main")
		s.repo.CommitTo("unrelated", map[string]string{"web.yaml": manifest("web", "64Mi")})
		for i, name := range odd {
			s.branch(name, map[string]string{"web.yaml": manifest("web", fmt.Sprint(200+i, "Mi"))})
		}
		s.wait(time.Minute)
		for i, name := range odd {
			s.says(name, fmt.Sprintf("128Mi -> %dMi", 200+i))
			var content struct{ Branch string }
			if err := json.Unmarshal([]byte(s.file(name, "status.json")), &content); err != nil || content.Branch != name {
				t.Errorf("%s: %v, %+v", name, err, content)
			}
		}
		s.says("unrelated", "the branches have no commit in common")
		for _, name := range []string{"main", "gitvirt/status", "same-as-main"} {
			if s.at(name) != "" {
				t.Errorf("%s is planned", name)
			}
		}
		s.repo.Git("update-ref", "-d", "refs/heads/a/b/c") // and a name that needs its place
		s.branch("a", map[string]string{"web.yaml": manifest("web", "256Mi")})
		s.wait(time.Minute)
		s.says("a", "128Mi -> 256Mi")
	}, "*")
}

// TestHundred: a hundred branches are few pushes, also when their base moves, and none when nothing does.
func TestHundred(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		for i := range 100 {
			s.branch(fmt.Sprint("topic", i), map[string]string{"web.yaml": manifest("web", fmt.Sprint(200+i, "Mi"))})
		}
		s.wait(5 * time.Minute)
		first := s.pushes.Swap(0)
		base := s.repo.Commit(map[string]string{"late.yaml": manifest("late", "64Mi")})
		s.wait(5 * time.Minute)
		second := s.pushes.Swap(0)
		for i := 0; i < 100; i += 9 {
			s.says(fmt.Sprint("topic", i), base[:9], fmt.Sprintf("128Mi -> %dMi", 200+i))
		}
		if first > 20 || second > 20 {
			t.Errorf("%d and %d pushes", first, second)
		}
		t.Logf("%d and %d pushes", first, second)
		s.wait(10 * time.Minute)
		if quiet := s.pushes.Load(); quiet != 0 {
			t.Errorf("%d pushes although nothing moved", quiet)
		}
	}, "*")
}

// TestLeftovers removes plans of branches that went while no controller ran, and of those that are not planned any more.
func TestLeftovers(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		for i, name := range []string{"kept", "gone", "merged", "x-not-planned"} {
			s.branch(name, map[string]string{"web.yaml": manifest("web", fmt.Sprint(200+i, "Mi"))})
		}
		s.wait(time.Minute)
		s.says("gone", "Plan: 1 restart")
		s.says("x-not-planned", "Plan: 1 restart")
		theirs := s.repo.CommitTo("elsewhere", map[string]string{"plan.md": "somebody's"})
		s.repo.Git("update-ref", branches.Prefix+"of-nobody", theirs)
		s.repo.Git("update-ref", "-d", "refs/heads/elsewhere")
		s.stop()
		s.repo.Git("update-ref", "-d", "refs/heads/gone")
		s.repo.Git("update-ref", "refs/heads/main", "merged")
		s.patterns = []string{"kept", "gone", "merg??"}
		s.start()
		s.wait(time.Minute)
		for _, name := range []string{"gone", "merged", "x-not-planned"} {
			if s.at(name) != "" {
				t.Errorf("the plan of %s is still there", name)
			}
		}
		s.says("kept", "both sides changed the same lines")
		if s.at("of-nobody") != theirs {
			t.Error("what is somebody else's was touched")
		}
	}, "*")
}

// TestRefused has a server that does not allow it for an hour: it is told once, asked less and less, and nothing is lost.
func TestRefused(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		s.repo.Git("config", "receive.hideRefs", "refs/gitvirt")
		s.branch("a", map[string]string{"web.yaml": manifest("web", "192Mi")})
		s.branch("b", map[string]string{"web.yaml": manifest("web", "256Mi")})
		s.wait(time.Hour)
		told := s.told(branches.PlansNotPushed)
		if len(told) != 1 || !strings.Contains(told[0], "deny updating a hidden ref") || !strings.Contains(told[0], "some servers take only branches and tags") {
			t.Errorf("told %q", told)
		}
		if n := s.pushes.Load(); n < 5 || n > 20 {
			t.Errorf("%d attempts within an hour", n)
		}
		if !strings.Contains(s.b.Problem(), "hidden ref") {
			t.Errorf("the problem is %q", s.b.Problem())
		}
		if err := s.loop.Healthy(); err != nil || s.loop.View().Plan == nil {
			t.Error(err)
		}
		head := s.repo.CommitTo("a", map[string]string{"web.yaml": manifest("web", "320Mi")})
		s.repo.Git("config", "--unset", "receive.hideRefs")
		s.wait(20 * time.Minute)
		s.says("a", head[:9], "128Mi -> 320Mi")
		s.says("b", "128Mi -> 256Mi")
		if again := s.told(branches.PlansPushedAgain); len(again) != 1 || s.b.Problem() != "" {
			t.Errorf("told %q, and there is %q", again, s.b.Problem())
		}
	}, "*")
}

// TestOthers: what others push where plans are is never pushed over without their knowing.
func TestOthers(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		theirs := s.repo.CommitTo("elsewhere", map[string]string{"plan.md": "not ours"})
		s.repo.Git("update-ref", branches.Prefix+"theirs", theirs)
		another := s.repo.CommitTo("elsewhere", map[string]string{"plan.md": "<!-- gitvirt:plan:another -->\nof another fleet"})
		s.repo.Git("update-ref", "-d", "refs/heads/elsewhere")
		s.branch("theirs", map[string]string{"web.yaml": manifest("web", "192Mi")})
		s.branch("ours", map[string]string{"web.yaml": manifest("web", "192Mi")})
		s.wait(time.Minute)
		if s.at("theirs") != theirs {
			t.Error("somebody else's was pushed over")
		}
		if told := s.told(previews.ForgeFailed); len(told) != 1 || !strings.Contains(told[0], "refs/gitvirt/plans/theirs holds what gitvirt has not written") {
			t.Errorf("told %q", told)
		}
		s.repo.Git("update-ref", "-d", branches.Prefix+"theirs")
		s.wait(20 * time.Minute)
		s.says("theirs", "128Mi -> 192Mi")

		// Somebody writes into our plan: ours goes on top, and theirs stays in its past.
		edited := s.repo.CommitTo("elsewhere", map[string]string{"plan.md": s.file("ours", "plan.md") + "looks good"})
		s.repo.Git("update-ref", branches.Prefix+"ours", edited)
		s.repo.CommitTo("ours", map[string]string{"web.yaml": manifest("web", "256Mi")})
		s.wait(time.Minute)
		s.says("ours", "128Mi -> 256Mi")
		if s.repo.Git("rev-parse", branches.Prefix+"ours^") != edited {
			t.Error("what somebody wrote is lost")
		}
		if told := s.told(branches.PlanMoved); len(told) != 1 || !strings.Contains(told[0], "the plan goes on top of that") {
			t.Errorf("told %q", told)
		}

		// Another fleet takes the place: it is theirs from now on.
		s.repo.Git("update-ref", branches.Prefix+"ours", another)
		s.repo.CommitTo("ours", map[string]string{"web.yaml": manifest("web", "320Mi")})
		s.wait(time.Minute)
		s.repo.Git("update-ref", "-d", "refs/heads/ours")
		s.wait(time.Minute)
		if s.at("ours") != another {
			t.Error("the plan of another fleet was pushed over")
		}
		if told := s.told(branches.PlanMoved); len(told) != 2 || !strings.Contains(told[1], "it is left as it is") {
			t.Errorf("told %q", told)
		}
	}, "*")
}

// TestLostAnswer lets a push arrive whose answer is lost.
func TestLostAnswer(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		s.branch("a", map[string]string{"web.yaml": manifest("web", "192Mi")})
		s.wait(time.Minute)
		first := s.at("a")
		s.repo.CommitTo("a", map[string]string{"web.yaml": manifest("web", "256Mi")})
		hook := filepath.Join(s.repo.Dir, "hooks", "post-receive")
		if err := os.WriteFile(hook, []byte("#!/bin/sh\nrm $0\nkill -9 $PPID\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		s.wait(10 * time.Minute)
		s.says("a", "128Mi -> 256Mi")
		if s.repo.Git("rev-parse", branches.Prefix+"a^") != first {
			t.Error("it was written twice")
		}
		if told := s.told(branches.PlanMoved); len(told) != 0 {
			t.Errorf("told %q", told)
		}
	}, "*")
}

func TestNew(t *testing.T) {
	source, err := git.Open(git.Config{URL: t.TempDir(), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, patterns := range [][]string{nil, {""}, {"feature *"}, {"main", "a:b"}} {
		if _, err := branches.New(source, pushing{}, branches.Config{Patterns: patterns}); err == nil {
			t.Errorf("%q are taken", patterns)
		}
	}
	if _, err := branches.New(nil, nil, branches.Config{Patterns: []string{"*"}}); err == nil {
		t.Error("without a repository")
	}
}
