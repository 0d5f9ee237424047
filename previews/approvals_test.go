package previews_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// TestApproveBeforeTheMerge: what is approved on a pull request happens after its merge, and what can be approved only then waits.
func TestApproveBeforeTheMerge(t *testing.T) {
	spec := commands + "  policy: {apply: {create: approval}}\n"
	commandStory(t, spec, func(t *testing.T, s *story) {
		// db and web of the first commit wait to be made, which is approved by its plan's ID.
		waiting := s.loop.View().Plan
		s.open(9, map[string]string{"README.md": "Hello\n"}, false)
		s.wait(interval)
		s.forge.Say(9, "will", "/gitvirt approve "+waiting.ID)
		s.wait(2 * interval)
		s.answered(9, fmt.Sprintf("`will` `/gitvirt approve %s`: **done**, approved 2 steps of plan `%.12s`", waiting.ID, waiting.ID))
		if diff := cmp.Diff([]string{"create db", "create web"}, s.done()); diff != "" {
			t.Fatal(diff)
		}
		id := s.openWaiting(1, false)
		s.forge.Say(1, "ann", "/gitvirt approve "+strings.ToUpper(id[:8])+"\r\n\r\nThanks! @will")
		s.wait(interval)
		golden(t, "commands.md", s.comment(1))
		list := s.approvals()
		if len(list) != 2 || len(list[1].Steps) != 2 || list[1].By != "ann (forge.example.org/shop/fleet#1) <gitvirt@localhost>" {
			t.Fatalf("approvals: %+v", list)
		}
		if got := s.repo.Git("log", "--format=%an <%ae> %s", "-1", "gitvirt/status", "--", "approvals"); got != list[1].By+" Approve plan "+id+": 2 steps" {
			t.Errorf("the commit is %s", got)
		}
		if s.wait(time.Minute); len(s.done()) > 0 {
			t.Error("something happens before the merge")
		}
		s.merge(1)
		s.wait(time.Minute)
		if diff := cmp.Diff([]string{"destroy db", "restart web"}, s.done()); diff != "" {
			t.Error(diff)
		}
		s.says(1, "was merged into `main`", "**Commands**\n\n", "**done**, approved 2 steps")

		// The third is made at the merge's revision. It can be approved on any pull request, by the ID of the plan that waits now.
		s.forge.Say(9, "ann", "/gitvirt approve "+s.loop.View().Plan.ID)
		s.wait(2 * interval)
		if diff := cmp.Diff([]string{"create new"}, s.done()); diff != "" {
			t.Error(diff)
		}
		if events := s.events(previews.CommandDone); len(events) != 3 || !strings.HasPrefix(events[1], "Normal pull request 1: /gitvirt approve ") {
			t.Errorf("events: %q", events)
		}
		if n := testutil.CollectAndCount(s.loop.Registry(), "gitvirt_previews_command_total"); n != 1 {
			t.Errorf("%d counters of commands", n)
		}
	})
}

// TestApprovalsReachNoFurther: an approval is of steps as they were shown.
func TestApprovalsReachNoFurther(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		id := s.openWaiting(1, false)
		s.forge.Say(1, "will", "/gitvirt approve "+id)
		s.wait(interval)
		s.push(1, map[string]string{"web.yaml": manifest("web", "224Mi")})
		s.wait(interval)
		s.done()
		s.merge(1)
		s.wait(time.Minute)
		if diff := cmp.Diff([]string{"create new", "destroy db"}, s.done()); diff != "" {
			t.Error(diff)
		}
	})
	commandStory(t, commands, func(t *testing.T, s *story) {
		// All that waits is made at a revision, or the rules will be others.
		s.repo.Commit(map[string]string{"gitvirt.yaml": fleet + commands + "  policy: {apply: {create: approval}}\n"})
		s.open(1, map[string]string{"new.yaml": manifest("new", "64Mi")}, false)
		s.open(2, map[string]string{"gitvirt.yaml": fleet + commands, "web.yaml": manifest("web", "192Mi")}, false)
		s.wait(time.Minute)
		for number, answer := range map[int]string{
			1: "making and starting a VM is approved for one revision, and the merge makes another one: approve it then",
			2: "the pull request changes the Fleet, whose new rules hold after the merge: approve it then",
		} {
			if strings.Contains(s.comment(number), "/gitvirt approve") {
				t.Errorf("pull request %d offers an approval:\n%s", number, s.comment(number))
			}
			s.forge.Say(number, "will", "/gitvirt approve 0123456789")
			s.wait(interval)
			stale := s.answers(number)
			id := regexp.MustCompile("that of this pull request is `([0-9a-f]{12})`$").FindStringSubmatch(stale[0])
			if id == nil {
				t.Fatalf("the answer is %q", stale)
			}
			s.forge.Say(number, "will", "/gitvirt approve "+id[1])
			s.wait(interval)
			s.answered(number, stale[0], "`will` `/gitvirt approve "+id[1]+"`: **refused**, "+answer)
		}
		if list := s.approvals(); len(list) > 0 {
			t.Errorf("approvals: %+v", list)
		}
	})
}

// TestStatusBranchRefuses: an approval that cannot be recorded is told as such and tried again, also by the next controller.
func TestStatusBranchRefuses(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		id := s.openWaiting(1, false)
		hook := filepath.Join(s.repo.Dir, "hooks", "pre-receive")
		if err := os.WriteFile(hook, []byte("#!/bin/sh\necho this branch is protected >&2\nexit 1\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		s.forge.Say(1, "will", "/gitvirt approve "+id)
		s.forge.Say(1, "will", "/gitvirt plan")
		s.wait(2 * time.Minute)
		line := "`will` `/gitvirt approve " + id + "`: "
		waits := line + "**not yet**, the status branch cannot be written; the controller's events say why, and it tries again"
		s.answered(1, waits)
		if events := s.events(previews.CommandFailed); len(events) != 1 || !strings.Contains(events[0], "this branch is protected") || !strings.HasPrefix(events[0], "Warning ") {
			t.Errorf("events: %q", events)
		}
		if problem := s.p.Pulls()[1].Problem; !strings.Contains(problem, "this branch is protected") {
			t.Errorf("the problem is %q", problem)
		}
		before := s.comment(1)
		_, writes := s.forge.Requests()
		s.stop()
		s.start()
		s.wait(3 * time.Minute)
		if _, wrote := s.forge.Requests(); wrote != writes || s.comment(1) != before {
			t.Errorf("trying again wrote %d times:\n%s", wrote-writes, s.comment(1))
		}
		if err := os.Remove(hook); err != nil {
			t.Fatal(err)
		}
		s.wait(15 * time.Minute)
		s.answered(1, line+"**done**, approved 2 steps of plan `"+id+"`, for after the merge, if they are the same then", "`will` `/gitvirt plan`: **done**, the plan was made anew")
		if list := s.approvals(); len(list) != 1 {
			t.Errorf("approvals: %+v", list)
		}
		if problem := s.p.Pulls()[1].Problem; problem != "" {
			t.Error(problem)
		}
	})
}

// TestDeadBetweenApprovalAndAnswer: a controller that dies there leaves an approval without an answer.
func TestDeadBetweenApprovalAndAnswer(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		id := s.openWaiting(1, false)
		s.forge.Fail(func(method string) error { return deny(method, "EditComment") })
		s.forge.Say(1, "will", "/gitvirt approve "+id)
		s.wait(time.Minute)
		s.stop()
		s.forge.Fail(nil)
		s.start()
		s.wait(time.Minute)
		s.answered(1, "`will` `/gitvirt approve "+id+"`: **done**, approved before: 2 steps of plan `"+id+"`")
		if list := s.approvals(); len(list) != 1 {
			t.Errorf("approvals: %+v", list)
		}
	})
}

// TestApprovedIsShown on every pull request that does the same, as of the next poll, and also after a restart, which edits nothing.
func TestApprovedIsShown(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		const approved = "\n  approved by ann (forge.example.org/shop/fleet#1) <gitvirt@localhost> at 2000-01-01T"
		id := s.openWaiting(1, false)
		s.open(2, map[string]string{"db.yaml": gittest.Delete}, false)
		s.wait(interval)
		s.says(2, "Waiting: 1.", "`/gitvirt approve ")
		s.forge.Say(1, "ann", "/gitvirt approve "+id)
		s.wait(time.Minute)
		s.says(1, "Blocked: 0. Unknown: 0.", approved)
		s.says(2, "Blocked: 0. Unknown: 0.", approved)
		if text, err := s.p.Full(t.Context(), 2); err != nil || !strings.Contains(text, "approved by: ann ") && !strings.Contains(text, "approved by ann ") {
			t.Errorf("the full plan: %v\n%s", err, text)
		}
		for number := 1; number <= 2; number++ {
			if strings.Contains(s.comment(number), "`/gitvirt approve "+id+"` lets happen") {
				t.Errorf("an approval is offered for what is approved:\n%s", s.comment(number))
			}
		}
		s.forge.Say(1, "will", "/gitvirt approve "+id)
		s.wait(interval)
		if answers := s.answers(1); len(answers) != 2 || !strings.HasSuffix(answers[1], "**done**, approved before: 2 steps of plan `"+id+"`") {
			t.Errorf("answers: %q", answers)
		}
		s.restartsQuietly()

		// What was approved happens after the merge, also where nobody may command any more; without a status branch there are no approvals.
		s.repo.Commit(map[string]string{"gitvirt.yaml": fleet + "  pullRequests: {forks: true}\n"})
		s.wait(2 * time.Minute)
		s.says(1, "Blocked: 0. Unknown: 0.", approved)
		s.repo.Commit(map[string]string{"gitvirt.yaml": fleet + "  status: {enabled: false}\n"})
		s.wait(2 * time.Minute)
		s.says(1, "Waiting: 2.", "waits for gitvirt approve")
		s.repo.Commit(map[string]string{"gitvirt.yaml": fleet + commands})
		s.wait(2 * time.Minute)
		s.says(1, "Blocked: 0. Unknown: 0.", approved)

		// Who takes it back makes it wait again, on the pull request and after the merge.
		s.repo.Git("update-ref", "-d", "refs/heads/gitvirt/status")
		s.wait(2 * time.Minute)
		s.says(1, "Waiting: 2.", "waits for gitvirt approve")
		s.says(2, "Waiting: 1.", "waits for gitvirt approve")
		s.done()
		s.merge(1)
		s.wait(time.Minute)
		if diff := cmp.Diff([]string{"create new"}, s.done()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestApprovalsUnread: what cannot be read is told, and keeps nobody from planning; what was read last still counts.
func TestApprovalsUnread(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		const unread = "**What was approved cannot be read now**"
		id := s.openWaiting(1, false)
		s.forge.Say(1, "ann", "/gitvirt approve "+id)
		s.wait(interval)
		s.unreadable.Store(true)
		s.push(1, map[string]string{"README.md": "Hello\n"})
		s.wait(time.Minute)
		if events := s.events(reconciler.ApprovalFailed); len(events) != 1 || !strings.HasSuffix(events[0], "reading approvals from gitvirt/status: the server is down") {
			t.Errorf("events: %q", events)
		}
		s.says(1, "Blocked: 0. Unknown: 0.", "approved by ann")

		// A controller that starts waits a little for it, and then says that it does not know.
		_, writes := s.forge.Requests()
		s.stop()
		s.start()
		s.wait(20 * time.Second)
		if _, wrote := s.forge.Requests(); wrote != writes {
			t.Errorf("it writes at once:\n%s", s.comment(1))
		}
		s.wait(time.Minute)
		s.says(1, "Waiting: 2.", unread)
		s.unreadable.Store(false)
		s.wait(time.Minute)
		s.says(1, "Blocked: 0. Unknown: 0.", "approved by ann")
		if comment := s.comment(1); strings.Contains(comment, unread) {
			t.Errorf("it still does not know:\n%s", comment)
		}
	})
}

// TestApprovedByOtherRules: what was approved does not count where the pull request changes the rules.
func TestApprovedByOtherRules(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		id := s.openWaiting(1, false)
		s.forge.Say(1, "ann", "/gitvirt approve "+id)
		s.open(2, map[string]string{"db.yaml": gittest.Delete, "gitvirt.yaml": strings.Replace(fleet, "demo", "other", 1) + commands}, false)
		s.wait(time.Minute)
		s.says(1, "Blocked: 0. Unknown: 0.", "approved by ann")
		s.says(2, "**The Fleet changes.**")
		if comment := s.comment(2); strings.Contains(comment, "approved by") {
			t.Errorf("an approval counts:\n%s", comment)
		}
	})
}
