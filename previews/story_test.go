package previews_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/fake"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

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
