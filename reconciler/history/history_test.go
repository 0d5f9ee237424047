package history_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/history"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func manifest(name, memory string, lines ...string) string {
	return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata:\n  name: %s\n%sspec:\n  runStrategy: Always\n  template: {spec: {domain: {memory: {guest: %s}}}}\n",
		name, strings.Join(lines, ""), memory)
}

func address(t *testing.T, name string) schemas.Address {
	t.Helper()
	a, err := schemas.ParseAddress("VirtualMachine/default/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// counting counts the snapshots that are read.
type counting struct {
	*git.History
	snapshots int
}

func (c *counting) Snapshot(ctx context.Context, revision string) (*sources.Snapshot, error) {
	c.snapshots++
	return c.History.Snapshot(ctx, revision)
}

// browse tells the history of a machine in a real repository.
func browse(t *testing.T, repo *gittest.Repo, config git.Config, name string, options history.Options) (*history.Log, int) {
	t.Helper()
	config.URL, config.Dir = repo.URL(), t.TempDir()
	source, err := git.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	var log *history.Log
	read := 0
	err = source.Browse(t.Context(), "", func(h *git.History) error {
		repository := &counting{History: h}
		var err error
		if log, err = history.Of(t.Context(), repository, h.Head(), address(t, name), options); err != nil {
			return err
		}
		read = repository.snapshots
		return log.Observe(t.Context(), h, h.Branch("gitvirt/status"))
	})
	if err != nil {
		t.Fatal(err)
	}
	return log, read
}

// told is a log in a few words.
func told(log *history.Log) string {
	var words []string
	for _, entry := range log.Entries {
		words = append(words, string(entry.Kind)+" "+string(entry.Consequence))
	}
	return strings.Join(words, ", ")
}

// TestOf goes through the ways of a machine through a history.
func TestOf(t *testing.T) {
	for _, test := range []struct {
		reason  string
		commits []map[string]string
		name    string
		want    string
	}{
		{"made and never touched", []map[string]string{{"a.yaml": manifest("a", "64Mi")}, {"b.yaml": manifest("b", "64Mi")}}, "a", "created "},
		{"never there", []map[string]string{{"a.yaml": manifest("a", "64Mi")}}, "b", ""},
		{"a comment is no change", []map[string]string{{"a.yaml": manifest("a", "64Mi")}, {"a.yaml": "# hello\n" + manifest("a", "64Mi")}}, "a", "created "},
		{"moved to another file", []map[string]string{{"a.yaml": manifest("a", "64Mi")}, {"a.yaml": gittest.Delete, "b.yaml": manifest("a", "64Mi")}}, "a", "created "},
		{"gone and back", []map[string]string{{"a.yaml": manifest("a", "64Mi"), "b.yaml": manifest("b", "64Mi")}, {"a.yaml": gittest.Delete}, {"a.yaml": manifest("a", "64Mi")}}, "a", "created , removed destroy, created "},
		{"broken and mended", []map[string]string{{"a.yaml": manifest("a", "64Mi")}, {"a.yaml": manifest("a", "sixty")}, {"a.yaml": manifest("a", "64Mi")}}, "a", "mended , broken , created "},
		{"two renames", []map[string]string{
			{"a.yaml": manifest("a", "64Mi")},
			{"a.yaml": manifest("b", "64Mi", "  annotations: {gitvirt.io/previous-name: a}\n")},
			{"a.yaml": manifest("c", "64Mi", "  annotations: {gitvirt.io/previous-name: b}\n")},
		}, "c", "renamed none, renamed none, created "},
		{"a previous name that was never there", []map[string]string{{"a.yaml": manifest("a", "64Mi", "  annotations: {gitvirt.io/previous-name: z}\n")}}, "a", "created "},
		{"all manifests were away for a while", []map[string]string{{"a.yaml": manifest("a", "64Mi")}, {"a.yaml": gittest.Delete, "readme.md": "-"}, {"a.yaml": manifest("a", "64Mi")}}, "a", "created , removed destroy, created "},
	} {
		repo := gittest.NewRepo(t)
		for _, files := range test.commits {
			repo.Commit(files)
		}
		if log, _ := browse(t, repo, git.Config{}, test.name, history.Options{}); told(log) != test.want {
			t.Errorf("%s: %q, want %q", test.reason, told(log), test.want)
		}
	}
}

// TestLongHistories reads little of commits that have nothing to do with the machine, and stops where it is told to.
func TestLongHistories(t *testing.T) {
	repo := gittest.NewRepo(t)
	repo.Commit(map[string]string{"fleet/a.yaml": manifest("a", "64Mi"), "other/readme": "0"})
	for i := range 40 {
		repo.Commit(map[string]string{"other/readme": fmt.Sprint(i + 1)})
	}
	for i := range 15 {
		repo.Commit(map[string]string{"fleet/a.yaml": manifest("a", fmt.Sprintf("%dMi", 65+i))})
	}
	log, read := browse(t, repo, git.Config{Path: "fleet"}, "a", history.Options{Limit: 100})
	if len(log.Entries) != 16 || log.More || read > 17 {
		t.Errorf("%d entries of %d commits, more: %v, %d snapshots read", len(log.Entries), log.Commits, log.More, read)
	}
	if log, _ := browse(t, repo, git.Config{Path: "fleet"}, "a", history.Options{}); len(log.Entries) != 10 || !log.More {
		t.Errorf("%d entries, more: %v", len(log.Entries), log.More)
	}
	if log, _ := browse(t, repo, git.Config{Path: "fleet"}, "a", history.Options{Commits: 5, Limit: 100}); len(log.Entries) != 5 || !log.More {
		t.Errorf("%d entries, more: %v", len(log.Entries), log.More)
	}
}

// TestObserve reads from the status branch when a commit was applied, and who approved it.
func TestObserve(t *testing.T) {
	repo := gittest.NewRepo(t)
	first := repo.Commit(map[string]string{"a.yaml": manifest("a", "64Mi")})
	second := repo.Commit(map[string]string{"a.yaml": manifest("a", "128Mi")})
	third := repo.Commit(map[string]string{"readme": "nothing"})
	repo.Commit(map[string]string{"a.yaml": manifest("a", "256Mi")})
	vm := status.VM{Address: address(t, "a"), Phase: status.PhaseRunning, ObservedRevision: first}
	repo.CommitTo("gitvirt/status", map[string]string{"vms/default/a.yaml": string(vm.YAML())})
	vm.ObservedRevision = third
	approval := status.Approval{Plan: "0123456789abcdef", Fleet: "fleet", Revision: third, By: "Ann\n<ann@example.org>", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Steps: []status.ApprovedStep{{ID: "1", Address: vm.Address, Action: plan.ActionRestart}}}
	other := approval
	other.At, other.Steps = approval.At.Add(time.Hour), []status.ApprovedStep{{ID: "2", Address: address(t, "b")}}
	files := map[string]string{"vms/default/a.yaml": string(vm.YAML()), "approvals/garbage.yaml": "what: ever\n"}
	for _, a := range []status.Approval{approval, other} {
		content, err := a.YAML()
		if err != nil {
			t.Fatal(err)
		}
		files[a.Path()] = string(content)
	}
	repo.CommitTo("gitvirt/status", files)
	log, _ := browse(t, repo, git.Config{}, "a", history.Options{})
	if len(log.Entries) != 3 {
		t.Fatalf("%+v", log.Entries)
	}
	if newest := log.Entries[0]; !newest.Applied.IsZero() || len(newest.Approvals) != 0 {
		t.Errorf("what was never applied nor approved: %+v", newest)
	}
	if middle := log.Entries[1]; middle.Revision != second || middle.Applied.IsZero() || len(middle.Approvals) != 1 || middle.Approvals[0].By != "Ann <ann@example.org>" {
		t.Errorf("applied and approved at a later commit that did not change it: %+v", middle)
	}
	if oldest := log.Entries[2]; oldest.Applied.IsZero() || len(oldest.Approvals) != 0 {
		t.Errorf("applied, not approved: %+v", oldest)
	}
}

// TestCutOffHistory: a repository without its older commits says so.
func TestCutOffHistory(t *testing.T) {
	cut := cutOff{sources.Commit{Revision: "2", Parents: []string{"1"}, Tree: "t"}, &sources.Snapshot{Files: []*schemas.File{schemas.Parse("a.yaml", []byte(manifest("a", "64Mi")))}}}
	log, err := history.Of(t.Context(), cut, "2", address(t, "a"), history.Options{})
	if err != nil || !log.CutOff || len(log.Entries) != 0 {
		t.Errorf("%+v, %v", log, err)
	}
	if _, err := history.Of(t.Context(), cut, "0", address(t, "a"), history.Options{}); !errors.Is(err, sources.ErrEmpty) {
		t.Errorf("a commit that is not there: %v", err)
	}
}

type cutOff struct {
	commit   sources.Commit
	snapshot *sources.Snapshot
}

func (c cutOff) Commit(_ context.Context, revision string) (sources.Commit, error) {
	if revision != c.commit.Revision {
		return sources.Commit{}, &sources.Error{Kind: sources.ErrEmpty}
	}
	return c.commit, nil
}

func (c cutOff) Snapshot(context.Context, string) (*sources.Snapshot, error) { return c.snapshot, nil }
