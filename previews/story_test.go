package previews_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/fake"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/reconciler/statusbranch"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
	"github.com/gitvirt/gitvirt/sources/several"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
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

// manifest is a small VM of the tests.
func manifest(name, memory string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %s}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: %s}
      volumes:
      - name: data
        emptyDisk: {capacity: 1Gi}
      - name: init
        cloudInitNoCloud: {userData: "top-secret-marker"}
`, name, memory)
}

const fleet = "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\nspec:\n"

// story is a real repository on a forge in memory, and a host in memory that is kept as main says.
type story struct {
	t    *testing.T
	repo *gittest.Repo
	// others are the repositories that the Fleet names.
	others reconcilertest.Others
	host   *reconcilertest.Host
	forge  *fake.Forge
	// published says that there is a status branch.
	published bool
	loop      *reconciler.Reconciler
	p         *previews.Previews
	stop      func()
}

// play tells a story in virtual time.
func play(t *testing.T, tell func(t *testing.T, s *story)) {
	playAs(t, "  pullRequests: {forks: false}\n", false, tell)
}

// playAs is play with a Fleet of a spec, perhaps with a status branch.
func playAs(t *testing.T, spec string, published bool, tell func(t *testing.T, s *story)) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{t: t, repo: gittest.NewRepo(t), others: reconcilertest.Others{}, host: reconcilertest.NewHost(), forge: fake.New(time.Now), published: published}
		s.repo.Commit(map[string]string{"gitvirt.yaml": fleet + spec, "web.yaml": manifest("web", "128Mi"), "db.yaml": manifest("db", "256Mi")})
		s.start()
		defer func() { s.stop() }()
		s.wait(20 * time.Second)
		tell(t, s)
	})
}

// restartsQuietly has another controller come after this one, which finds everything as it should be.
func (s *story) restartsQuietly() {
	s.t.Helper()
	_, writes := s.forge.Requests()
	s.stop()
	s.start()
	s.wait(time.Minute)
	if _, wrote := s.forge.Requests(); wrote != writes {
		s.t.Errorf("a restart wrote %d times", wrote-writes)
	}
}

// start starts a controller, which knows nothing of an earlier one but what is on disk.
func (s *story) start() {
	s.t.Helper()
	source, err := git.Open(git.Config{URL: s.repo.Dir, Dir: filepath.Join(s.repo.Dir, "..", "loop")})
	if err != nil {
		s.t.Fatal(err)
	}
	beside, err := source.Beside(filepath.Join(s.repo.Dir, "..", "previews"))
	if err != nil {
		s.t.Fatal(err)
	}
	publisher, err := git.NewPublisher(git.Config{URL: s.repo.Dir, Dir: filepath.Join(s.repo.Dir, "..", "status")})
	if err != nil {
		s.t.Fatal(err)
	}
	zero := func() float64 { return 0 }
	looping, showing := reconciler.Config{Rand: zero}, previews.Config{ExternalURL: "https://gitvirt.example.org/", Rand: zero}
	if s.published {
		looping.Status = func(name string) reconciler.StatusBranch {
			return statusbranch.Branch{Publisher: publisher, Name: name}
		}
		showing.Approvals = func(name string) previews.ApprovalBranch {
			return statusbranch.Branch{Publisher: publisher, Name: name}
		}
	}
	all, err := several.New(source, s.others, several.Config{Rand: zero})
	if err != nil {
		s.t.Fatal(err)
	}
	if s.loop, err = reconciler.New(all, s.host, looping); err != nil {
		s.t.Fatal(err)
	}
	showing.Registry = s.loop.Registry()
	if s.p, err = previews.New(s.forge, beside, s.loop, showing); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 2)
	go func() { ended <- s.loop.Run(ctx) }()
	go func() { ended <- s.p.Run(ctx) }()
	s.stop = func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, all.Close(), publisher.Close(), source.Close(), beside.Close()); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *story) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// open opens a pull request with files on top of main as it is.
func (s *story) open(number int, files map[string]string, fork bool) string {
	branch := fmt.Sprint("topic", number)
	s.repo.Git("branch", branch, "main")
	head := s.repo.CommitTo(branch, files)
	s.repo.Git("update-ref", fmt.Sprintf("refs/pull/%d/head", number), head)
	s.forge.Open(forges.PullRequest{Number: number, Title: "Change @everyone", Author: "ann", Base: "main", Head: head, Fork: fork})
	return head
}

// push moves the head of a pull request.
func (s *story) push(number int, files map[string]string) string {
	head := s.repo.CommitTo(fmt.Sprint("topic", number), files)
	s.repo.Git("update-ref", fmt.Sprintf("refs/pull/%d/head", number), head)
	s.forge.Change(number, func(pr *forges.PullRequest) { pr.Head = head })
	return head
}

// comment is the only one that gitvirt has written on a pull request.
func (s *story) comment(number int) string {
	s.t.Helper()
	said := s.forge.Said(number, fake.Account)
	if len(said) != 1 {
		s.t.Fatalf("pull request %d has %d comments of gitvirt: %q", number, len(said), said)
	}
	return said[0]
}

func (s *story) status(head string, state forges.StatusState, words string) {
	s.t.Helper()
	if got := s.forge.Told(head, previews.StatusContext); got.State != state || !strings.Contains(got.Description, words) {
		s.t.Errorf("the status of %.9s is %s: %s; want %s with %q", head, got.State, got.Description, state, words)
	}
}

func (s *story) says(number int, words ...string) {
	s.t.Helper()
	for _, word := range words {
		if comment := s.comment(number); !strings.Contains(comment, word) {
			s.t.Errorf("the comment does not say %q:\n%s", word, comment)
		}
	}
}

// TestStory follows a pull request from its opening to its merge.
func TestStory(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		first := s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi"), "new.yaml": manifest("new", "64Mi"), "db.yaml": gittest.Delete}, false)
		s.wait(16 * time.Second) // one interval
		golden(t, "opened.md", s.comment(1))
		s.status(first, forges.Success, "1 to create, 1 restart")

		second := s.push(1, map[string]string{"db.yaml": manifest("db", "256Mi")})
		s.wait(16 * time.Second)
		golden(t, "moved.md", s.comment(1))
		s.status(second, forges.Success, "1 to create, 1 restart")

		base := s.repo.Commit(map[string]string{"other.yaml": manifest("other", "64Mi")})
		s.wait(time.Minute)
		s.says(1, "at `"+base[:9]+"`", "Plan: 1 to create, 1 restart")

		s.host.PowerOff(vm("web")) // and gitvirt starts it with what it is to have
		_, before := s.forge.Requests()
		s.wait(3 * time.Minute)
		if _, after := s.forge.Requests(); after > before+6 {
			t.Errorf("a world that moved cost %d writes", after-before)
		}

		s.repo.Git("update-ref", "refs/heads/main", second)
		s.forge.Change(1, func(pr *forges.PullRequest) { pr.State = forges.Merged })
		s.wait(time.Minute)
		golden(t, "merged.md", s.comment(1))
		if pulls := s.p.Pulls(); len(pulls) != 0 {
			t.Errorf("after the merge there is %v in memory", pulls)
		}
	})
}

// TestQuiet polls while nothing happens: one request each time, also for a controller that was just started.
func TestQuiet(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		for number := range 5 {
			s.open(number+1, map[string]string{"web.yaml": manifest("web", fmt.Sprint(200+number, "Mi"))}, false)
		}
		s.wait(time.Minute)
		before := s.comment(3)
		s.forge.Say(3, "ann", "what a plan")
		s.wait(time.Minute)
		all, writes := s.forge.Requests()
		s.wait(150 * time.Second)
		if more, wrote := s.forge.Requests(); more != all+10 || wrote != writes {
			t.Errorf("ten polls took %d requests, %d of them writes", more-all, wrote-writes)
		}
		s.stop()
		s.start()
		s.wait(2 * time.Minute)
		if _, wrote := s.forge.Requests(); wrote != writes {
			t.Errorf("a restart wrote %d times", wrote-writes)
		}
		if s.comment(3) != before {
			t.Error("a restart has edited a comment")
		}
		if pull := s.p.Pulls()[3]; pull.State != forges.Success {
			t.Errorf("after a restart it is known that %+v", pull)
		}
		text, err := s.p.Full(t.Context(), 3)
		if err != nil || !strings.Contains(text, "memory.guest: 128Mi -> 202Mi") {
			t.Errorf("the full plan is %q, %v", text, err)
		}
		if _, err := s.p.Full(t.Context(), 9); !errors.Is(err, previews.ErrNoPlan) {
			t.Errorf("the plan of what is not there: %v", err)
		}
	})
}

// TestBroken opens one with mistakes, mends it, and breaks main, which is not its fault.
func TestBroken(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		head := s.open(1, map[string]string{"web.yaml": manifest("web", `"<b>@everyone</b> ![x](http://evil) '''"`)}, false)
		s.wait(20 * time.Second)
		golden(t, "broken.md", s.comment(1))
		s.status(head, forges.Failure, "1 mistake in the manifests")
		want := []forges.Annotation{{
			Path: "web.yaml", Line: 9,
			Message: "spec.template.spec.domain.memory.guest: \"<b>@everyone</b> ![x](http://evil) '''\" is not a quantity; write a number with a unit, such as 512Mi or 2Gi",
		}}
		if diff := cmp.Diff(want, s.forge.Told(head, previews.StatusContext).Annotations); diff != "" {
			t.Error(diff)
		}
		s.repo.Commit(map[string]string{"db.yaml": manifest("db", "much")})
		head = s.push(1, map[string]string{"web.yaml": manifest("web", "192Mi")})
		s.wait(time.Minute)
		s.status(head, forges.Success, "1 restart")
	})
}

// TestConflict opens one that cannot be merged.
func TestConflict(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		head := s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi"), "![x](http:`evil`).md": "a"}, false)
		s.repo.Commit(map[string]string{"web.yaml": manifest("web", "256Mi"), "![x](http:`evil`).md": "b"})
		s.wait(time.Minute)
		golden(t, "conflict.md", s.comment(1))
		s.status(head, forges.Failure, "in conflict with main: 2 conflicts")
		if got := s.forge.Told(head, previews.StatusContext).Annotations; len(got) != 2 || got[1].Path != "web.yaml" {
			t.Errorf("annotations: %v", got)
		}
		s.forge.Change(1, func(pr *forges.PullRequest) { pr.State = forges.Closed })
		s.wait(time.Minute)
		s.says(1, "was closed without being merged")
		s.forge.Change(1, func(pr *forges.PullRequest) { pr.State = forges.Open })
		s.wait(time.Minute)
		s.says(1, "It is in conflict with `main`")
	})
}

// TestForks: the Fleet of the base says whether they are planned, and one that says so itself is not believed.
func TestForks(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		allow := fleet + "  pullRequests: {forks: true}\n  policy: {apply: {restart: automatic}}\n"
		head := s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi"), "gitvirt.yaml": allow}, true)
		s.wait(time.Minute)
		s.status(head, forges.Failure, "it comes from a fork")
		if said := s.forge.Said(1, fake.Account); len(said) != 0 {
			t.Errorf("a refused fork was commented on: %q", said)
		}
		s.restartsQuietly()
		s.repo.Commit(map[string]string{"gitvirt.yaml": fleet + "  pullRequests: {forks: true}\n"})
		s.wait(time.Minute)
		s.says(1, "It is in conflict") // about the Fleet
		s.push(1, map[string]string{"gitvirt.yaml": fleet + "  pullRequests: {forks: true}\n"})
		s.repo.Git("update-ref", "refs/pull/1/head", s.repo.Git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit-tree", "topic1^{tree}", "-p", "main", "-m", "x"))
		s.wait(time.Minute)
		s.says(1, "Plan: 1 restart", "waits for gitvirt approve")
	})
}

// TestOtherRepositories: what they hold is part of the plan for people of here, and unknown to those from elsewhere.
func TestOtherRepositories(t *testing.T) {
	named := fleet + "  pullRequests: {forks: true}\n  sources: [{name: shop, git: {url: \"https://git.example.com/shop.git\"}, namespaces: [default]}]\n"
	play(t, func(t *testing.T, s *story) {
		s.others.Add("shop", map[string]string{"cart.yaml": manifest("cart", "64Mi"), "broken.yaml": manifest("tenant-secret", "none")})
		s.repo.Commit(map[string]string{"gitvirt.yaml": named})
		s.wait(time.Minute)
		if domain, ok := s.host.Domain(vm("cart")); !ok || domain.Holder() != "shop" {
			t.Fatalf("the machine of the other repository is %+v", domain)
		}
		s.open(1, map[string]string{"new.yaml": manifest("new", "64Mi"), "cart.yaml": manifest("cart", "64Mi")}, false)
		s.open(2, map[string]string{"new.yaml": manifest("new", "64Mi")}, true)
		s.wait(time.Minute)
		s.says(1, "shop:cart.yaml")
		s.says(2, "Plan: 1 to create")
		for _, word := range []string{"shop", "cart", "tenant-secret"} {
			if strings.Contains(s.comment(2), word) {
				t.Errorf("who comes from a fork is told of %s:\n%s", word, s.comment(2))
			}
		}
		if strings.Contains(s.comment(1), "tenant-secret") {
			t.Errorf("what is wrong elsewhere is told on a pull request that has nothing to do with it:\n%s", s.comment(1))
		}
		before := s.comment(2)
		s.others["shop"].Commit("more", map[string]string{"more.yaml": manifest("more", "64Mi")})
		s.wait(2 * time.Minute)
		if s.comment(2) != before {
			t.Errorf("a push elsewhere has edited the comment:\n%s", s.comment(2))
		}
		s.open(3, map[string]string{"gitvirt.yaml": fleet}, false) // which takes the source out
		s.wait(time.Minute)
		s.says(3, "**The Fleet changes.**", "2 to destroy")
	})
}

// TestFleetChanges: the rules that judge are those of the base.
func TestFleetChanges(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi"), "gitvirt.yaml": fleet + "  policy: {apply: {restart: automatic}}\n"}, false)
		s.wait(time.Minute)
		s.says(1, "**The Fleet changes.**", "waits for gitvirt approve (apply.restart is window")
	})
}

// TestOthers leaves what others write, whatever it looks like, and puts right what they do to ours.
func TestOthers(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi")}, false)
		forged := "<!-- gitvirt:plan:demo -->\n<!-- gitvirt:digest:closed -->\nnothing to see"
		s.forge.Say(1, "mallory", forged)
		other := s.forge.Say(1, fake.Account, "<!-- gitvirt:plan:another -->\nthe plan of another Fleet")
		s.wait(time.Minute)
		if got := s.forge.Said(1, "mallory"); len(got) != 1 || got[0] != forged {
			t.Errorf("the forged comment is %q", got)
		}
		said := s.forge.Said(1, fake.Account)
		if len(said) != 2 || !strings.Contains(said[1], "Plan: 1 restart") {
			t.Fatalf("comments: %q", said)
		}
		if err := s.forge.DeleteComment(t.Context(), 1, other); err != nil {
			t.Fatal(err)
		}
		if err := s.forge.DeleteComment(t.Context(), 1, other+1); err != nil {
			t.Fatal(err)
		}
		s.push(1, map[string]string{"web.yaml": manifest("web", "256Mi")})
		s.wait(time.Minute)
		s.says(1, "128Mi -> 256Mi")
		// A controller that died after it had commented, and before it knew, leaves two.
		s.stop()
		s.forge.Say(1, fake.Account, s.comment(1))
		s.start()
		s.wait(time.Minute)
		s.says(1, "128Mi -> 256Mi")
	})
}

// TestForgeDown loses nothing while the forge fails in several ways, and tells so.
func TestForgeDown(t *testing.T) {
	for name, fault := range map[string]func(method string) error{
		"down":     func(string) error { return fmt.Errorf("connection refused: %w", forges.ErrUnavailable) },
		"limited":  func(string) error { return &forges.RateLimitedError{Until: time.Now().Add(time.Hour)} },
		"no edits": func(method string) error { return deny(method, "EditComment", "SetStatus") },
		"no reads": func(method string) error { return deny(method, "Comments", "Changed") },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s *story) {
				s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi")}, false)
				s.wait(time.Minute)
				s.open(2, map[string]string{"web.yaml": manifest("web", "320Mi")}, false)
				all, _ := s.forge.Requests()
				s.forge.Fail(fault)
				s.push(1, map[string]string{"web.yaml": manifest("web", "256Mi")})
				s.wait(5 * time.Minute)
				told := s.p.Problem()
				for _, pull := range s.p.Pulls() {
					told += pull.Problem
				}
				if told == "" {
					t.Error("nobody is told")
				}
				if more, _ := s.forge.Requests(); more > all+60 {
					t.Errorf("a forge that fails was asked %d times in five minutes", more-all)
				}
				found := false
				for _, event := range s.loop.Events(0) {
					found = found || event.Reason == previews.ForgeFailed
				}
				if !found {
					t.Error("there is no event")
				}
				s.forge.Fail(nil)
				s.wait(20 * time.Minute)
				s.says(1, "128Mi -> 256Mi")
				s.says(2, "128Mi -> 320Mi")
				if problem := s.p.Problem(); problem != "" {
					t.Error(problem)
				}
			})
		})
	}
}

func deny(method string, denied ...string) error {
	for _, name := range denied {
		if method == name {
			return fmt.Errorf("500: %w", forges.ErrUnavailable)
		}
	}
	return nil
}

// TestHostUnknown plans nothing while nobody knows what lives, says so, and leaves comments as they are.
func TestHostUnknown(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi")}, false)
		s.wait(time.Minute)
		before := s.comment(1)
		s.host.SetUnknown("no agent")
		s.wait(time.Minute)
		head := s.open(2, map[string]string{"web.yaml": manifest("web", "320Mi")}, false)
		s.wait(time.Minute)
		s.status(head, forges.Pending, "waiting: what lives is not known")
		if s.comment(1) != before {
			t.Error("a comment was edited")
		}
		s.host.SetUnknown("")
		s.wait(time.Minute)
		s.status(head, forges.Success, "1 restart")
		if s.comment(1) != before {
			t.Error("a comment was edited although nothing came of it")
		}
	})
}

// TestClosedMeanwhile puts the comment right of one that was closed while no controller ran.
func TestClosedMeanwhile(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi")}, false)
		s.wait(time.Minute)
		s.stop()
		s.wait(time.Hour)
		s.forge.Change(1, func(pr *forges.PullRequest) { pr.State = forges.Merged })
		s.wait(time.Hour)
		s.start()
		s.wait(time.Minute)
		s.says(1, "was merged into `main`", "Its last plan was: 1 restart")
	})
}

// TestFlapping lets a guest crash again and again: its comment is edited at most once in half a minute.
func TestFlapping(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi")}, false)
		s.wait(time.Minute)
		_, before := s.forge.Requests()
		for range 60 {
			s.host.Edit(vm("web"))
			s.wait(5 * time.Second)
		}
		_, after := s.forge.Requests()
		// An edit of the comment comes with one of the status.
		if edits := (after - before) / 2; edits > 11 {
			t.Errorf("%d edits in five minutes", edits)
		}
	})
}

// TestNoSecrets reads everything that was written.
func TestNoSecrets(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.md")
	if err != nil || len(paths) < 5 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`top-secret`).Match(text) {
			t.Errorf("%s shows a secret", path)
		}
	}
}
