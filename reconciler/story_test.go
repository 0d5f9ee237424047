package reconciler_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/ledger"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/several"
)

// TestStories plays the scripts of testdata/stories against a fake repository, host and status branch, in virtual time.
// The commands are the methods of story named like them; "!" before one wants it to fail.
func TestStories(t *testing.T) {
	paths, err := filepath.Glob("testdata/stories/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				s := newStory(t, archive)
				defer func() { _ = s.stop(nil) }()
				s.play(path, string(archive.Comment))
			})
		})
	}
}

// manifest is a small VM of the tests.
func manifest(name, strategy, memory string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %s}
spec:
  runStrategy: %s
  template:
    spec:
      terminationGracePeriodSeconds: 30
      domain:
        memory: {guest: %s}
        devices:
          disks:
          - {name: data, disk: {bus: virtio}}
          - {name: init, disk: {bus: virtio}}
      volumes:
      - name: data
        emptyDisk: {capacity: 1Gi}
      - name: init
        cloudInitNoCloud: {userData: "#!/bin/sh\necho top-secret-marker"}
`, name, strategy, memory)
}

func vm(name string) schemas.Address {
	return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}
}

// story is a world with a reconciler in it.
type story struct {
	t      testing.TB
	files  map[string]string
	repo   *reconcilertest.Repository
	others reconcilertest.Others
	source *several.Source
	host   *reconcilertest.Host
	branch *reconcilertest.Branch
	config reconciler.Config
	log    strings.Builder

	r      *reconciler.Reconciler
	cancel context.CancelFunc
	ended  chan error
	events uint64
}

func newStory(t testing.TB, archive *txtar.Archive) *story {
	s := &story{t: t, files: map[string]string{}, others: reconcilertest.Others{}, host: reconcilertest.NewHost(), branch: reconcilertest.NewBranch()}
	for _, file := range archive.Files {
		s.files[file.Name] = string(file.Data)
	}
	s.repo = reconcilertest.NewRepository(map[string]string{"gitvirt.yaml": "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\nspec:\n  policy: {apply: {restart: automatic, replace: automatic, destroy: automatic}}\n"})
	s.config = reconciler.Config{
		Status: func(string) reconciler.StatusBranch { return s.branch },
		Ledger: ledger.NewBook(filepath.Join(t.TempDir(), "ledger")),
		Rand:   func() float64 { return 0 },
		Log:    slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	return s
}

func (s *story) play(path, script string) {
	commands := map[string]func([]string) error{
		"start": s.start, "stop": s.stop, "wait": s.wait, "commit": s.commit, "force-push": s.forcePush, "git": s.git, "source": s.other, "nudge": s.nudge,
		"crash": s.happens(s.host.Crash), "pull-plug": s.happens(s.host.PullPlug), "power-off": s.happens(s.host.PowerOff),
		"edit": s.happens(s.host.Edit), "vanish": s.happens(s.host.Vanish), "silence": s.silence, "host": s.hostIs, "fault": s.fault,
		"slow": s.slow, "branch": s.branchIs, "state": s.state, "steps": s.steps, "sick": s.sick, "message": s.message, "event": s.event, "phase": s.phase, "condition": s.condition,
		"status": s.status, "synced": s.synced, "recorded": s.recorded, "ready": s.ready, "polls": s.polls, "commits": s.commits, "approve": s.approve, "check": s.check,
	}
	scanner := bufio.NewScanner(strings.NewReader(script))
	for n := 1; scanner.Scan(); n++ {
		line, _, _ := strings.Cut(scanner.Text(), "#")
		words := fields(line)
		if len(words) == 0 {
			continue
		}
		fails := words[0] == "!"
		if fails {
			words = words[1:]
		}
		command, ok := commands[words[0]]
		if !ok {
			s.t.Fatalf("%s:%d: no command %s", path, n, words[0])
		}
		if words[0] != "start" {
			synctest.Wait()
		}
		switch err := command(words[1:]); {
		case err != nil && !fails:
			s.t.Fatalf("%s:%d: %s: %v\n%s", path, n, scanner.Text(), err, s.log.String())
		case err == nil && fails:
			s.t.Fatalf("%s:%d: %s: did not fail\n%s", path, n, scanner.Text(), s.log.String())
		}
	}
}

// fields splits a line into words; quotes keep words together.
func fields(line string) []string {
	var out []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}

func (s *story) start([]string) error {
	source, err := several.New(s.repo, s.others, several.Config{Rand: s.config.Rand})
	if err != nil {
		return err
	}
	r, err := reconciler.New(source, s.host, s.config)
	if err != nil {
		return err
	}
	s.source = source
	ctx, cancel := context.WithCancel(context.Background())
	s.r, s.cancel, s.ended, s.events = r, cancel, make(chan error, 1), 0
	go func() { s.ended <- r.Run(ctx) }()
	return nil
}

func (s *story) stop([]string) error {
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	s.cancel = nil
	return errors.Join(<-s.ended, s.source.Close())
}

func (s *story) wait(args []string) error {
	d, err := time.ParseDuration(args[0])
	time.Sleep(d)
	synctest.Wait()
	return err
}

// content returns the files of a commit: names of the archive, whose folders tell versions of a file apart, VM=STRATEGY/MEMORY for a small VM, -NAME to remove.
func (s *story) content(args []string) map[string]string {
	files := map[string]string{}
	for _, arg := range args {
		name, made, isVM := strings.Cut(arg, "=")
		switch {
		case isVM:
			strategy, memory, _ := strings.Cut(made, "/")
			files[name+".yaml"] = manifest(name, strategy, memory)
		case strings.HasPrefix(arg, "-"):
			files[arg[1:]+".yaml"] = ""
		default:
			files[filepath.Base(arg)] = s.files[arg]
		}
	}
	return files
}

// commit pushes and, when a controller runs, has it polled.
func (s *story) commit(args []string) error {
	s.repo.Commit("commit "+strings.Join(args, " "), s.content(args))
	return s.nudge(nil)
}

func (s *story) forcePush(args []string) error {
	s.repo.ForcePush("rewritten", s.content(args))
	return s.nudge(nil)
}

// approve records an approval of what waits for a machine in the plan of the status branch.
func (s *story) approve(args []string) error {
	waiting, err := plan.ReadJSON([]byte(s.branch.File(status.PlanPath)))
	if err != nil {
		return err
	}
	approval := status.Approval{Plan: waiting.ID, Fleet: waiting.Fleet, Revision: waiting.Revision, By: "Ada <ada@example.com>", At: time.Now().UTC()}
	for i := range waiting.Steps {
		if step := &waiting.Steps[i]; step.Address.Name == args[0] && step.Approvable() {
			approval.Steps = append(approval.Steps, status.ApprovedStep{ID: step.ID, Address: step.Address})
		}
	}
	if len(approval.Steps) == 0 {
		return fmt.Errorf("nothing waits for %s: %+v", args[0], waiting.Steps)
	}
	content, err := approval.YAML()
	if err != nil {
		return err
	}
	s.branch.Put(approval.Path(), content)
	return nil
}

func (s *story) nudge([]string) error {
	if s.cancel != nil {
		s.r.Nudge()
		synctest.Wait()
	}
	return nil
}

func (s *story) git(args []string) error {
	is(s.repo, args[0])
	return nil
}

// other commits to a repository that the Fleet names, which begins with that, or lets it fail as git does.
func (s *story) other(args []string) error {
	name, what := args[0], args[1]
	repo := s.others[name]
	switch {
	case what != "commit":
		is(repo, what)
		return nil
	case repo == nil:
		s.others.Add(name, s.content(args[2:]))
	default:
		repo.Commit("commit "+strings.Join(args[2:], " "), s.content(args[2:]))
	}
	return s.nudge(nil)
}

// is lets a repository fail, or ends that.
func is(repo *reconcilertest.Repository, what string) {
	switch what {
	case "down":
		repo.Fail(&sources.Error{Kind: sources.ErrUnreadable, Source: "fake", Op: "polling", Err: errors.New("connection refused")})
	case "empty":
		repo.Fail(&sources.Error{Kind: sources.ErrEmpty, Source: "fake", Op: "polling"})
	case "unsigned":
		repo.Fail(&sources.Error{Kind: sources.ErrUntrusted, Source: "fake", Op: "judging main", Err: errors.New("commit 0123456789ab is not signed"), Fix: "sign it"})
	case "hangs":
		repo.Hang(true)
	case "fetched":
		repo.Fetched()
	case "up":
		repo.Fail(nil)
		repo.Hang(false)
	}
}

func (s *story) happens(do func(schemas.Address)) func([]string) error {
	return func(args []string) error {
		for _, name := range args {
			do(vm(name))
		}
		synctest.Wait()
		return nil
	}
}

func (s *story) silence(args []string) error {
	s.host.Silence(args[0] == "on")
	return nil
}

func (s *story) hostIs(args []string) error {
	why := ""
	if args[0] == "unknown" {
		why = "libvirtd does not answer"
	}
	s.host.SetUnknown(why)
	synctest.Wait()
	return nil
}

func (s *story) fault(args []string) error {
	kinds := map[string]error{"retry": apply.ErrRetry, "stalled": apply.ErrStalled, "stale": apply.ErrStale}
	kind, ok := kinds[args[1]]
	if !ok {
		s.host.SetFault(vm(args[0]), nil)
		return nil
	}
	s.host.SetFault(vm(args[0]), func(plan.Step) error { return fmt.Errorf("%w: injected", kind) })
	return nil
}

func (s *story) slow(args []string) error {
	d, err := time.ParseDuration(args[1])
	switch args[0] {
	case "define":
		s.host.DefineDelay = d
	case "start":
		s.host.StartDelay = d
	case "shutdown":
		s.host.ShutdownDelay = d
	}
	return err
}

func (s *story) branchIs(args []string) error {
	if args[0] == "down" {
		s.branch.Fail(errors.New("remote hung up"))
	} else {
		s.branch.Fail(nil)
	}
	return nil
}

func (s *story) state(args []string) error {
	domain, ok := s.host.Domain(vm(args[0]))
	have := string(domain.State)
	if !ok {
		have = "absent"
	}
	if have != args[1] {
		return fmt.Errorf("%s is %s", args[0], have)
	}
	return nil
}

// recorded wants a machine to be recorded as made from a source; "" is the repository of the Fleet.
func (s *story) recorded(args []string) error {
	domain, _ := s.host.Domain(vm(args[0]))
	if repo := s.others[args[1]]; domain.Holder() != args[1] || repo != nil && !strings.Contains(domain.Revision, "@") {
		return fmt.Errorf("%s is recorded as %s", args[0], domain.Revision)
	}
	return nil
}

// steps compares what was carried out since the last time: "create web", in any order of the machines.
func (s *story) steps(args []string) error {
	var have []string
	for _, execution := range s.host.Executions() {
		text := string(execution.Action) + " " + execution.Address.Name
		if execution.Err != nil {
			text += " failed"
		}
		have = append(have, text)
	}
	slices.Sort(have)
	slices.Sort(args)
	if !slices.Equal(have, args) {
		return fmt.Errorf("carried out: %q", have)
	}
	return nil
}

// event wants an event of a reason, and of a text, since the last time one was found.
func (s *story) event(args []string) error {
	for _, event := range s.r.Events(s.events) {
		text := event.Address.Name + ": " + event.Message
		if string(event.Reason) == args[0] && (len(args) < 2 || strings.Contains(text, args[1])) {
			return nil
		}
	}
	return fmt.Errorf("no such event in %+v", s.r.Events(s.events))
}

// sick makes a guest not ready, for a reason; "" ends that.
func (s *story) sick(args []string) error {
	s.host.SetSick(vm(args[0]), args[1])
	return nil
}

// check decides what the host says of the steps of a machine before they are carried out: a problem, or why they are not live.
func (s *story) check(args []string) error {
	var found apply.Findings
	switch args[1] {
	case "problem":
		found.Problems = args[2:]
	case "not-live":
		found.NotLive = args[2]
	}
	s.host.SetFindings(vm(args[0]), found)
	return nil
}

// message wants a text in what people are told of a machine.
func (s *story) message(args []string) error {
	have, _ := s.r.VM("default", args[0])
	if !strings.Contains(have.Message, args[1]) {
		return fmt.Errorf("the message is %q", have.Message)
	}
	return nil
}

func (s *story) phase(args []string) error {
	have, _ := s.r.VM("default", args[0])
	if string(have.Phase) != args[1] {
		return fmt.Errorf("the phase is %q (%s)", have.Phase, have.Message)
	}
	return nil
}

func (s *story) condition(args []string) error {
	have, _ := s.r.VM("default", args[0])
	for _, c := range have.Conditions {
		if string(c.Type) == args[1] && string(c.Status)+"/"+c.Reason == args[2] {
			return nil
		}
	}
	return fmt.Errorf("the conditions are %+v", have.Conditions)
}

// status wants a text in a file of the status branch; without a text, the file.
func (s *story) status(args []string) error {
	content := s.branch.File(args[0])
	if content == "" || (len(args) > 1 && !strings.Contains(content, args[1])) {
		return fmt.Errorf("the branch holds %v; %s is\n%s", s.branch.Paths(), args[0], content)
	}
	return nil
}

// synced wants that nothing is left to do.
func (s *story) synced([]string) error {
	view := s.r.View()
	if view.Plan == nil || !view.Plan.Empty() || view.Plan.Unknown != "" {
		return fmt.Errorf("the plan is %+v", view.Plan)
	}
	return nil
}

func (s *story) ready([]string) error { return errors.Join(s.r.Ready(), s.r.Healthy()) }

func (s *story) polls(args []string) error {
	if have := fmt.Sprint(s.repo.Polls()); have != args[0] {
		return fmt.Errorf("polled %s times", have)
	}
	return nil
}

func (s *story) commits(args []string) error {
	if have := s.branch.Commits(); fmt.Sprint(len(have)) != args[0] {
		return fmt.Errorf("the status branch has %d commits: %q", len(have), have)
	}
	return nil
}
