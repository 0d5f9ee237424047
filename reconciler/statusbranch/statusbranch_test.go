package statusbranch_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/reconciler/statusbranch"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A Branch is what the reconciler writes to and reads approvals from.
var (
	_ reconciler.StatusBranch   = statusbranch.Branch{}
	_ reconciler.ApprovalBranch = statusbranch.Branch{}
)

func open(t *testing.T, repo *gittest.Repo) statusbranch.Branch {
	t.Helper()
	publisher, err := git.NewPublisher(git.Config{URL: repo.Dir, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := publisher.Close(); err != nil {
			t.Error(err)
		}
	})
	return statusbranch.Branch{Publisher: publisher, Name: "gitvirt/status", Follows: "main"}
}

// approval approves steps of a plan; a digit stands for an ID.
func approval(by, steps string) *status.Approval {
	a := &status.Approval{Plan: strings.Repeat("ab", 16), Fleet: "shop", Revision: strings.Repeat("c", 40), By: by, At: time.Date(2026, 3, 1, 12, 30, 5, 0, time.UTC)}
	for _, id := range steps {
		a.Steps = append(a.Steps, status.ApprovedStep{
			ID: strings.Repeat(string(id), 32), Address: schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web"}, Action: plan.ActionRestart,
		})
	}
	return a
}

// TestApprove records approvals on a branch that does not exist yet, beside others of the same second, and none twice.
func TestApprove(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	repo.Commit(map[string]string{"gitvirt.yaml": "kind: Fleet\n"})
	branch := open(t, repo)
	for _, step := range []struct {
		why, by, steps string
		recorded       bool
		author         string
	}{
		{"the first", "Ada <ada@example.com>", "1", true, "Ada <ada@example.com>"},
		{"the same again", "Ben <ben@example.com>", "1", false, ""},
		{"another step in the same second", "Ben <ben@example.com>", "2", true, "Ben <ben@example.com>"},
		{"both, which two people have approved", "Cy <cy@example.com>", "12", false, ""},
		{"one of three", "ann (forge.example.org/shop/fleet#1) <gitvirt@localhost>", "123", true, "ann (forge.example.org/shop/fleet#1) <gitvirt@localhost>"},
		{"without an address", "nobody", "4", true, "nobody <gitvirt@localhost>"},
	} {
		commit, err := branch.Approve(t.Context(), approval(step.by, step.steps))
		if err != nil || (commit != "") != step.recorded {
			t.Fatalf("%s: %q, %v", step.why, commit, err)
		}
		if !step.recorded {
			continue
		}
		if got := repo.Git("log", "-1", "--format=%H %an <%ae>", "gitvirt/status"); got != commit+" "+step.author {
			t.Errorf("%s: the commit is %s", step.why, got)
		}
	}
	files := map[string][]byte{}
	for path, text := range repo.Files("gitvirt/status") {
		files[path] = []byte(text)
	}
	recorded, problems := status.ReadApprovals(files)
	var got []string
	for _, one := range recorded {
		got = append(got, one.At.Format("05 ")+one.By)
	}
	want := []string{"05 Ada <ada@example.com>", "06 Ben <ben@example.com>", "07 ann (forge.example.org/shop/fleet#1) <gitvirt@localhost>", "08 nobody"}
	if diff := cmp.Diff(want, got); diff != "" || len(problems) > 0 {
		t.Error(problems, diff)
	}
}

// TestApprovalsAndStatusShareABranch: neither takes the other's files away.
func TestApprovalsAndStatusShareABranch(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	repo.Commit(map[string]string{"gitvirt.yaml": "kind: Fleet\n"})
	branch := open(t, repo)
	if files, err := branch.Read(t.Context()); err != nil || len(files) > 0 {
		t.Errorf("a branch that does not exist holds %v, %v", files, err)
	}
	if _, _, err := branch.ReadFolder(t.Context(), status.ApprovalFolder, ""); !errors.Is(err, sources.ErrEmpty) {
		t.Errorf("the folder of a branch that does not exist: %v", err)
	}
	if _, err := branch.Approve(t.Context(), approval("Ada <ada@example.com>", "1")); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if changed, err := branch.Publish(t.Context(), map[string][]byte{status.TablePath: []byte(text)}, "Status"); err != nil || !changed {
			t.Fatal(changed, err)
		}
	}
	files, err := branch.Read(t.Context())
	if err != nil || len(files) != 2 || string(files[status.TablePath]) != "two" {
		t.Errorf("the branch holds %v, %v", files, err)
	}
	folder, commit, err := branch.ReadFolder(t.Context(), status.ApprovalFolder, "")
	if err != nil || len(folder) != 1 || commit != repo.Git("rev-parse", "gitvirt/status") {
		t.Errorf("the folder holds %v at %s, %v", folder, commit, err)
	}
}

// TestOwnBranch: what the manifests come from is never written to, nor does it approve anything.
func TestOwnBranch(t *testing.T) {
	t.Parallel()
	branch := open(t, gittest.NewRepo(t))
	branch.Name = branch.Follows
	_, readErr := branch.Read(t.Context())
	_, publishErr := branch.Publish(t.Context(), nil, "Status")
	_, _, folderErr := branch.ReadFolder(t.Context(), "", "")
	_, approveErr := branch.Approve(t.Context(), approval("Ada <ada@example.com>", "1"))
	for _, err := range []error{readErr, publishErr, folderErr, approveErr} {
		if !errors.Is(err, statusbranch.ErrOwnBranch) {
			t.Errorf("got %v", err)
		}
	}
}
