package previews_test

import (
	"context"
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

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/fake"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/reconciler/status"
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
	// unreadable says that the approvals on it cannot be read.
	unreadable atomic.Bool
	loop       *reconciler.Reconciler
	p          *previews.Previews
	stop       func()
}

// readBranch is a status branch that may be unreadable for those who look for approvals.
type readBranch struct {
	statusbranch.Branch
	unreadable *atomic.Bool
}

func (b readBranch) ReadFolder(ctx context.Context, folder, known string) (files map[string][]byte, commit string, err error) {
	if b.unreadable.Load() {
		return nil, "", errors.New("the server is down")
	}
	return b.Branch.ReadFolder(ctx, folder, known)
}

// nudging has the loop look for an approval as soon as it is recorded.
type nudging struct {
	statusbranch.Branch
	s *story
}

func (b nudging) Approve(ctx context.Context, approval *status.Approval) (commit string, err error) {
	defer b.s.loop.Nudge()
	return b.Branch.Approve(ctx, approval)
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
			return readBranch{statusbranch.Branch{Publisher: publisher, Name: name}, &s.unreadable}
		}
		showing.Approvals = func(name string) previews.ApprovalBranch {
			return nudging{statusbranch.Branch{Publisher: publisher, Name: name}, s}
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
