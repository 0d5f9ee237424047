package previews_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/fake"
	"github.com/gitvirt/gitvirt/forges/hooks"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

const (
	commands = "  pullRequests: {commands: true, forks: true}\n"
	// interval is a little more than one of the forge's polls.
	interval = 16 * time.Second
)

// commandStory tells a story with a Fleet that lets people command, in which will may write, rita may read and nobody knows mallory.
func commandStory(t *testing.T, spec string, tell func(t *testing.T, s *story)) {
	playAs(t, spec, true, func(t *testing.T, s *story) {
		s.forge.Grant("will", forges.Write)
		s.forge.Grant("ann", forges.Write)
		s.forge.Grant("rita", forges.Read)
		tell(t, s)
	})
}

// openWaiting opens a pull request with two steps that wait for an approval, and one that does not; it returns the ID of its plan.
func (s *story) openWaiting(number int, fork bool) (id string) {
	s.t.Helper()
	s.open(number, map[string]string{"web.yaml": manifest("web", "192Mi"), "new.yaml": manifest("new", "64Mi"), "db.yaml": gittest.Delete}, fork)
	s.wait(interval)
	return s.named(number)
}

var approving = regexp.MustCompile("`/gitvirt approve ([0-9a-f]{12})` lets happen")

// named is the ID that the comment names.
func (s *story) named(number int) string {
	s.t.Helper()
	found := approving.FindStringSubmatch(s.comment(number))
	if found == nil {
		s.t.Fatalf("the comment names no plan:\n%s", s.comment(number))
	}
	return found[1]
}

var when = regexp.MustCompile(`^- [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2} UTC `)

// answers are what the comment says of commands, without the times.
func (s *story) answers(number int) []string {
	s.t.Helper()
	_, section, _ := strings.Cut(s.comment(number), "\n**Commands**\n\n")
	var lines []string
	for line := range strings.Lines(section) {
		if !when.MatchString(line) {
			s.t.Errorf("an answer without its time: %q", line)
		}
		lines = append(lines, strings.TrimSpace(when.ReplaceAllString(line, "")))
	}
	return lines
}

// answered holds that the comment says this of commands.
func (s *story) answered(number int, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.answers(number)); diff != "" {
		s.t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// approvals are those on the status branch.
func (s *story) approvals() []status.Approval {
	s.t.Helper()
	files := map[string][]byte{}
	if s.repo.Has("refs/heads/gitvirt/status") {
		for path, text := range s.repo.Files("gitvirt/status") {
			files[path] = []byte(text)
		}
	}
	list, problems := status.ReadApprovals(files)
	if len(problems) > 0 {
		s.t.Error(problems)
	}
	return list
}

// merge merges a pull request as forges do, with a commit of its own.
func (s *story) merge(number int) {
	s.t.Helper()
	branch := fmt.Sprint("topic", number)
	merged := s.repo.Git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit-tree", branch+"^{tree}", "-p", "main", "-p", branch, "-m", "Merge")
	s.repo.Git("update-ref", "refs/heads/main", merged)
	s.forge.Change(number, func(pr *forges.PullRequest) { pr.State = forges.Merged })
}

// done are the steps that were carried out since the last call.
func (s *story) done() []string {
	var list []string
	for _, execution := range s.host.Executions() {
		list = append(list, fmt.Sprint(execution.Action, " ", execution.Address.Name))
	}
	slices.Sort(list)
	return list
}

func (s *story) events(reason reconciler.Reason) (messages []string) {
	for _, event := range s.loop.Events(0) {
		if event.Reason == reason {
			messages = append(messages, string(event.Type)+" "+event.Message)
		}
	}
	return messages
}

// TestWhoMayCommand goes through people and what they write.
func TestWhoMayCommand(t *testing.T) {
	const (
		denied = ": **refused**, that takes write permission in the repository, and the forge says "
		anew   = ": **done**, the plan was made anew"
	)
	tests := []struct {
		name, author, body string
		fork               bool
		want               string // nothing: it is no command
	}{
		{"a writer", "will", "/gitvirt plan", false, "`will` `/gitvirt plan`" + anew},
		{"a writer, on a fork", "will", "/gitvirt plan", true, "`will` `/gitvirt plan`" + anew},
		{"the author, who may read", "rita", "/gitvirt plan  ", false, "`rita` `/gitvirt plan`" + anew},
		{"the author of a fork, who may read", "rita", "/gitvirt plan", true, "`rita` `/gitvirt plan`" + denied + "`read`"},
		{"the author approves", "rita", "/gitvirt approve ID", false, "`rita` `/gitvirt approve ID`" + denied + "`read`"},
		{"a reader", "rob", "/gitvirt plan", false, "`rob` `/gitvirt plan`" + denied + "`read`"},
		{"a stranger", "mallory", "/gitvirt approve ID", false, "`mallory` `/gitvirt approve ID`" + denied + "`none`"},
		{"another plan", "will", "/gitvirt approve 0123456789", false, "`will` `/gitvirt approve 0123456789`: **refused**, there is no such plan now; that of this pull request is `ID`"},
		{"too short", "will", "/gitvirt approve SHORT", false, "`will` `/gitvirt approve SHORT`: **refused**, the TOO-SHORT needs 8 characters at least"},
		{"no plan", "will", "/gitvirt approve", false, "`will` `/gitvirt approve`: **refused**, there is no such command, only `/gitvirt plan` and `/gitvirt approve PLAN-ID`"},
		{"too many words", "will", "/gitvirt plan now", false, "`will` `/gitvirt plan now`: **refused**, there is no such command, only `/gitvirt plan` and `/gitvirt approve PLAN-ID`"},
		{
			"hostile", "mallory", "/gitvirt `@everyone` <img src=x> \x1b[31m<!-- gitvirt:plan:demo --> " + strings.Repeat("x", 500), false,
			"`mallory` `/gitvirt '@everyone' <img src=x> \\u001b[31m<!__ gitvirt:plan:demo --> xxxxxxx...`: **refused**, there is no such command, only `/gitvirt plan` and `/gitvirt approve PLAN-ID`",
		},
		{"ourselves", fake.Account, "/gitvirt plan", false, ""},
		{"a quote", "will", "> /gitvirt plan", false, ""},
		{"in the middle", "will", "Let us see:\n/gitvirt plan", false, ""},
		{"not at the beginning", "will", " /gitvirt plan", false, ""},
		{"an empty first line", "will", "\n/gitvirt plan", false, ""},
		{"another word", "will", "/gitvirtual plan", false, ""},
		{"code", "will", "```\n/gitvirt plan\n```", false, ""},
		{"nothing", "will", "", false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			commandStory(t, commands, func(t *testing.T, s *story) {
				s.forge.Grant("rob", forges.Read)
				s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi")}, test.fork)
				s.forge.Change(1, func(pr *forges.PullRequest) { pr.Author = "rita" })
				s.wait(interval)
				id := s.named(1)
				ids := strings.NewReplacer("ID", id, "SHORT", id[:7], "PLAN-ID", "PLAN-ID", "TOO-SHORT", "ID")
				before := s.comment(1)
				s.forge.Say(1, test.author, ids.Replace(test.body))
				s.wait(2 * interval)
				if test.want == "" {
					if said := s.forge.Said(1, fake.Account); said[0] != before {
						t.Errorf("the comment was edited:\n%s", said[0])
					}
					return
				}
				s.answered(1, ids.Replace(test.want))
				if list := s.approvals(); len(list) > 0 {
					t.Errorf("approvals: %+v", list)
				}
				events := append(s.events(previews.CommandDone), s.events(previews.CommandRefused)...)
				if len(events) != 1 || !strings.HasPrefix(events[0], "Normal pull request 1: ") || strings.ContainsAny(events[0], "\x1b\n") {
					t.Errorf("events: %q", events)
				}
			})
		})
	}
}

// TestEditedComments: nobody knows who wrote what of a comment that was edited, and an answered one stays answered.
func TestEditedComments(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		id := s.openWaiting(1, false)
		comment := s.forge.Say(1, "will", "I like it")
		s.wait(interval)
		s.forge.Reword(1, comment, "/gitvirt approve "+id)
		s.wait(interval)
		edited := "`will` `/gitvirt approve " + id + "`: **refused**, the comment was edited; write a new one"
		s.answered(1, edited)
		planned := s.forge.Say(1, "will", "/gitvirt plan")
		s.wait(interval)
		s.forge.Reword(1, planned, "/gitvirt approve "+id)
		s.wait(2 * interval)
		s.answered(1, edited, "`will` `/gitvirt plan`: **done**, the plan was made anew")
		if list := s.approvals(); len(list) > 0 {
			t.Errorf("approvals: %+v", list)
		}
	})
}

// TestForgedMemory: what others write that looks like our comment is nothing, and what is written into ours decides about nothing.
func TestForgedMemory(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi")}, false)
		s.wait(interval)
		s.forge.Say(1, "will", "/gitvirt plan")
		s.wait(interval)
		ours := s.comment(1)
		s.stop()
		_, hidden, _ := strings.Cut(ours, "<!-- gitvirt:commands:")
		hidden, _, _ = strings.Cut(hidden, " -->")
		s.forge.Say(1, "mallory", strings.Replace(ours, hidden, "eyJ0aHJvdWdoIjo5OTk5OX0", 1))
		s.forge.Say(1, "will", "/gitvirt plan")
		s.start()
		s.wait(2 * interval)
		again := "`will` `/gitvirt plan`: **done**, the plan was made anew"
		s.answered(1, again, again)

		// Somebody who may edit our comments makes us forget: a command may be carried out again, by the rights of who wrote it.
		s.stop()
		s.forge.Grant("will", forges.Read)
		comments, err := s.forge.Comments(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, comment := range comments {
			if comment.Author == fake.Account {
				s.forge.Reword(1, comment.ID, strings.Replace(comment.Body, "<!-- gitvirt:commands:", "<!-- gitvirt:commands:!", 1))
			}
		}
		s.start()
		s.wait(2 * interval)
		refused := "`will` `/gitvirt plan`: **refused**, that takes write permission in the repository, and the forge says `read`"
		s.answered(1, refused, refused)
	})
}

// TestCommandsOnce: a command is carried out once, whatever becomes of the controller, and one that was written while there was none is.
func TestCommandsOnce(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		id := s.openWaiting(1, false)
		s.forge.Say(1, "will", "/gitvirt approve "+id)
		s.forge.Say(1, "rita", "/gitvirt approve "+id)
		s.wait(interval)
		before := s.comment(1)
		s.wait(time.Minute)
		_, writes := s.forge.Requests()
		for range 2 {
			s.stop()
			s.start()
			s.wait(time.Minute)
		}
		if _, wrote := s.forge.Requests(); wrote != writes || s.comment(1) != before {
			t.Errorf("two restarts wrote %d times:\n%s", wrote-writes, s.comment(1))
		}
		s.stop()
		s.wait(time.Hour)
		s.forge.Say(1, "ann", "/gitvirt plan")
		s.wait(time.Hour)
		s.start()
		s.wait(interval)
		answers := s.answers(1)
		if len(answers) != 3 || answers[2] != "`ann` `/gitvirt plan`: **done**, the plan was made anew" {
			t.Errorf("answers: %q", answers)
		}
		if list := s.approvals(); len(list) != 1 {
			t.Errorf("approvals: %+v", list)
		}
	})
}

// TestCommandsAreOff until the base says otherwise: then nobody reads comments.
func TestCommandsAreOff(t *testing.T) {
	play(t, func(t *testing.T, s *story) {
		s.forge.Grant("will", forges.Write)
		s.open(1, map[string]string{"web.yaml": manifest("web", "192Mi"), "gitvirt.yaml": fleet + commands}, false)
		s.wait(time.Minute)
		before := s.comment(1)
		s.forge.Fail(func(method string) error { return deny(method, "Comments", "Permission") })
		s.forge.Say(1, "will", "/gitvirt plan")
		s.wait(time.Minute)
		if s.comment(1) != before || s.p.Pulls()[1].Problem != "" {
			t.Errorf("somebody listens: %+v\n%s", s.p.Pulls()[1], s.comment(1))
		}
		s.forge.Fail(nil)
		s.repo.Git("update-ref", "refs/heads/main", "topic1") // where it is on
		s.forge.Change(1, func(pr *forges.PullRequest) { pr.State = forges.Merged })
		s.open(2, map[string]string{"web.yaml": manifest("web", "256Mi")}, false)
		s.forge.Say(2, "will", "/gitvirt approve 0123456789")
		s.wait(time.Minute)
		if answers := s.answers(2); len(answers) != 1 || !strings.Contains(answers[0], "**refused**, there is no such plan now") {
			t.Errorf("answers: %q", answers)
		}
		s.forge.Say(2, "will", "/gitvirt approve "+s.named(2))
		s.wait(interval)
		if answers := s.answers(2); len(answers) != 2 || !strings.HasSuffix(answers[1], "**refused**, the controller writes no status branch, which is where approvals are recorded") {
			t.Errorf("answers: %q", answers)
		}
	})
}

// TestManyCommands: in order, so many at a time, and the last ones are shown. Two people at once are two approvals or one, never none.
func TestManyCommands(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		id := s.openWaiting(1, false)
		for _, who := range []string{"rita", "will", "ann", "will", "rita", "will", "ann"} {
			s.forge.Say(1, who, "/gitvirt approve "+id)
		}
		s.forge.Say(1, "will", "/gitvirt plan")
		s.wait(interval)
		line := func(who, what string) string { return fmt.Sprintf("`%s` `/gitvirt approve %s`: %s", who, id, what) }
		refused := "**refused**, that takes write permission in the repository, and the forge says `read`"
		before := "**done**, approved before: 2 steps of plan `" + id + "`"
		s.answered(1,
			line("rita", refused), line("will", "**done**, approved 2 steps of plan `"+id+"`, for after the merge, if they are the same then"),
			line("ann", before), line("will", before), line("rita", refused))
		s.wait(2 * interval)
		s.answered(1, line("will", before), line("rita", refused), line("will", before), line("ann", before), "`will` `/gitvirt plan`: **done**, the plan was made anew")
		if list := s.approvals(); len(list) != 1 || len(list[0].Steps) != 2 {
			t.Errorf("approvals: %+v", list)
		}
		for range 30 {
			s.forge.Say(1, "mallory", "/gitvirt plan")
		}
		s.forge.Say(1, "ann", "/gitvirt plan")
		s.wait(10 * interval)
		if answers := s.answers(1); len(answers) != 5 || !strings.HasPrefix(answers[4], "`ann` `/gitvirt plan`: **done**") {
			t.Errorf("answers: %q", answers)
		}
		s.restartsQuietly()
	})
}

// TestForgeFailsInTheMiddle of a command, in several places.
func TestForgeFailsInTheMiddle(t *testing.T) {
	approved := "**done**, approved 2 steps of plan `ID`, for after the merge, if they are the same then"
	tests := []struct {
		name  string
		fault func(method string) error
		// meanwhile is what the comment says while it fails, recorded how many approvals there are, after what it says when it is over.
		meanwhile string
		recorded  int
		after     string
	}{
		{
			"it does not say who may", func(method string) error { return deny(method, "Permission") },
			"**not yet**, the forge does not say at the moment what they may do; it is asked again", 0, approved,
		},
		{"it wants no requests", func(method string) error {
			if method == "Permission" {
				return &forges.RateLimitedError{Until: time.Now().Add(time.Hour)}
			}
			return nil
		}, "**not yet**, the forge does not say at the moment what they may do; it is asked again", 0, approved},
		{
			"it tells nobody who may", func(method string) error {
				if method == "Permission" {
					return fmt.Errorf("403: %w", forges.ErrDenied)
				}
				return nil
			},
			"**refused**, the forge does not tell gitvirt's account what others may do; it may need an account that administers the repository", 0, "",
		},
		{"it takes no comment", func(method string) error { return deny(method, "EditComment") }, "", 1, approved},
		{"it takes no status", func(method string) error { return deny(method, "SetStatus") }, "", 1, approved},
		{"it shows no comments", func(method string) error { return deny(method, "Comments") }, "", 0, approved},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			commandStory(t, commands, func(t *testing.T, s *story) {
				id := s.openWaiting(1, false)
				lines := func(text string) []string {
					if text == "" {
						return nil
					}
					return []string{"`will` `/gitvirt approve " + id + "`: " + strings.ReplaceAll(text, "ID", id)}
				}
				s.forge.Fail(test.fault)
				s.forge.Say(1, "will", "/gitvirt approve "+id)
				s.wait(2 * time.Minute)
				s.answered(1, lines(test.meanwhile)...)
				if list := s.approvals(); len(list) != test.recorded {
					t.Errorf("approvals: %+v", list)
				}
				s.forge.Fail(nil)
				s.wait(30 * time.Minute)
				if test.after == "" {
					s.answered(1, lines(test.meanwhile)...)
					if events := s.events(previews.CommandRefused); len(events) != 1 || !strings.HasPrefix(events[0], "Warning ") {
						t.Errorf("events: %q", events)
					}
					return
				}
				s.answered(1, lines(test.after)...)
				if list := s.approvals(); len(list) != 1 {
					t.Errorf("approvals: %+v", list)
				}
			})
		})
	}
}

// TestCommandTooLate: one that comes with the merge gets its answer, and is not carried out.
func TestCommandTooLate(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		id := s.openWaiting(1, false)
		s.done()
		s.forge.Say(1, "will", "/gitvirt approve "+id)
		s.merge(1)
		s.wait(time.Minute)
		s.says(1, "was merged into `main`")
		s.answered(1, "`will` `/gitvirt approve "+id+"`: **refused**, nobody decides about the pull request any more")
		if diff := cmp.Diff([]string{"create new"}, s.done()); diff != "" {
			t.Error(diff)
		}
		s.restartsQuietly()
	})
}

// TestQuietWithCommands polls while nothing happens: one request each time, however many pull requests are open.
func TestQuietWithCommands(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		for number := range 5 {
			s.open(number+1, map[string]string{"web.yaml": manifest("web", fmt.Sprint(200+number, "Mi"))}, false)
		}
		s.wait(time.Minute)
		s.forge.Say(3, "will", "/gitvirt plan")
		s.wait(time.Minute)
		all, _ := s.forge.Requests()
		s.wait(150 * time.Second)
		if more, _ := s.forge.Requests(); more != all+10 {
			t.Errorf("ten polls took %d requests", more-all)
		}
		s.forge.Say(3, "ann", "what a plan")
		s.wait(150 * time.Second)
		if more, _ := s.forge.Requests(); more > all+22 {
			t.Errorf("twenty polls and a comment took %d requests", more-all)
		}
	})
}

// TestWithinASecond: forges tell times in seconds, so what is written in the second in which the comments were read looks read.
func TestWithinASecond(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		s.stop()
		s.forge = fake.New(func() time.Time { return time.Now().Truncate(time.Second) })
		s.forge.Grant("will", forges.Write)
		s.start()
		s.openWaiting(1, false)
		s.wait(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		for range 3 {
			s.forge.Say(1, "will", "/gitvirt plan")
			s.p.Nudge()
			s.wait(200 * time.Millisecond)
		}
		s.wait(5 * time.Second)
		if answers := s.answers(1); len(answers) != 3 {
			t.Errorf("answers: %q", answers)
		}
	})
}

// TestWebhookOfAComment is heard at once.
func TestWebhookOfAComment(t *testing.T) {
	commandStory(t, commands, func(t *testing.T, s *story) {
		s.openWaiting(1, false)
		s.wait(3 * time.Second)
		handler, err := hooks.New(s.forge, hooks.Config{
			Secret: func() (string, error) { return "secret", nil }, NudgeGit: s.loop.Nudge, NudgePulls: s.p.Nudge,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- handler.Run(ctx) }()
		defer func() {
			cancel()
			<-ended
		}()
		s.forge.Say(1, "will", "/gitvirt plan")
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, hooks.Path, strings.NewReader(`{"Kind": "comment", "Number": 1}`))
		request.Header.Set("Secret", "secret")
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		s.wait(time.Second)
		if answer.Code != http.StatusAccepted {
			t.Errorf("the webhook got %d", answer.Code)
		}
		s.answered(1, "`will` `/gitvirt plan`: **done**, the plan was made anew")
	})
}
