package ledger_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/apply/ledger"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

func entry(name string, action plan.Action) ledger.Entry {
	step := &plan.Step{
		Address: schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name},
		Domain:  "default_" + name, Action: action, Reason: plan.ReasonChanged, Ready: schemas.Ready{Kind: schemas.ReadyAgent},
	}
	spent := policy.Spent{Address: step.Address, Labels: map[string]string{"tier": "web"}, Interrupts: action == plan.ActionRestart, Destroys: action == plan.ActionDestroy}
	e := ledger.NewEntry(step, spent, time.Date(2026, 11, 22, 6, 0, 0, 0, time.UTC))
	e.Awaits, e.Canary = true, 2
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// file is where the account of a revision is.
func file(dir, revision string) string { return filepath.Join(dir, "demo", revision+".jsonl") }

// TestAnotherProcessGoesOn: what was begun is there for the next process, with how far it is; what was spent stays spent
// whatever became of it.
func TestAnotherProcessGoesOn(t *testing.T) {
	dir := t.TempDir()
	first := ledger.NewBook(dir).Account("demo", "one")
	a, b, c := entry("a", plan.ActionRestart), entry("b", plan.ActionRestart), entry("c", plan.ActionDestroy)
	was := []policy.Named{{Namespace: "default", Labels: map[string]string{"tier": "db"}}}
	a.Was = was // and when it is tried again it is what it is now
	for _, e := range []ledger.Entry{a, b, c} {
		must(t, first.Begin(e))
	}
	must(t, first.End(a, ledger.Failed))
	must(t, first.End(c, ledger.Well))
	again := entry("a", plan.ActionStart)
	must(t, first.Begin(again))
	must(t, first.End(again, ledger.Well))

	next := ledger.NewBook(dir).Account("demo", "one")
	again.State, again.Interrupts, again.Was = ledger.Well, true, was
	b.State, c.State = ledger.Begun, ledger.Well
	if diff := cmp.Diff([]ledger.Entry{again, b, c}, next.Entries()); diff != "" {
		t.Errorf("the entries (-want +got):\n%s", diff)
	}
	labels := map[string]string{"tier": "web"}
	want := policy.History{Done: []policy.Spent{
		{Address: a.Address, Labels: labels, Was: was, Interrupts: true}, {Address: b.Address, Labels: labels, Interrupts: true}, {Address: c.Address, Labels: labels, Destroys: true},
	}}
	if diff := cmp.Diff(want, next.History()); diff != "" {
		t.Errorf("what was spent (-want +got):\n%s", diff)
	}
	if other := ledger.NewBook(dir).Account("demo", "two"); len(other.Entries()) > 0 {
		t.Errorf("another revision has %v", other.Entries())
	}
	if other := ledger.NewBook(dir).Account("../demo", "one"); len(other.Entries()) > 0 {
		t.Errorf("another fleet has %v", other.Entries())
	}
}

// TestOneAtATime: while somebody's steps are under way nobody else begins any, at whatever revision, and who comes next has
// to read what was begun before.
func TestOneAtATime(t *testing.T) {
	dir := t.TempDir()
	one, other := ledger.NewBook(dir), ledger.NewBook(dir)
	mine, before, theirs := one.Account("demo", "one"), one.Account("demo", "old"), other.Account("demo", "one")
	must(t, before.Begin(entry("x", plan.ActionRestart)))
	must(t, mine.Begin(entry("a", plan.ActionRestart)))
	if err := theirs.Begin(entry("b", plan.ActionRestart)); !errors.Is(err, ledger.ErrBusy) {
		t.Fatalf("a second process begins: %v", err)
	}
	must(t, mine.End(entry("a", plan.ActionRestart), ledger.Well))
	if err := theirs.Begin(entry("b", plan.ActionRestart)); !errors.Is(err, ledger.ErrBusy) {
		t.Fatalf("a second process begins while a step of an older revision is under way: %v", err)
	}
	must(t, before.End(entry("x", plan.ActionRestart), ledger.Begun))
	if err := theirs.Begin(entry("b", plan.ActionRestart)); !errors.Is(err, ledger.ErrMoved) {
		t.Fatalf("a second process begins without having read: %v", err)
	}
	must(t, theirs.Begin(entry("b", plan.ActionRestart)))
	theirs.Close()
	if !mine.Refresh() || mine.Refresh() || len(mine.Entries()) != 2 {
		t.Errorf("the first process has %v", mine.Entries())
	}
	must(t, mine.Hold())
	if err := theirs.Hold(); !errors.Is(err, ledger.ErrBusy) {
		t.Errorf("two hold: %v", err)
	}
	mine.Close()
	must(t, theirs.Hold())
}

// TestDamage: a line that was cut off while it was written was never begun; any other damage leaves nothing to rely on.
func TestDamage(t *testing.T) {
	whole := func() (dir string) {
		dir = t.TempDir()
		account := ledger.NewBook(dir).Account("demo", "one")
		must(t, account.Begin(entry("a", plan.ActionRestart)))
		must(t, account.Begin(entry("b", plan.ActionRestart)))
		account.Close()
		return dir
	}
	for _, test := range []struct {
		why     string
		damage  func(content string) string
		entries int
		doubt   string
	}{
		{"cut off", func(content string) string { return content[:len(content)-9] }, 1, ""},
		{"only the line end is missing", func(content string) string { return strings.TrimSuffix(content, "\n") }, 1, ""},
		{"a line in the middle", func(content string) string { return "{" + content }, 1, "line 1 of "},
		{"empty", func(string) string { return "" }, 0, ""},
	} {
		dir := whole()
		content, err := os.ReadFile(file(dir, "one"))
		must(t, err)
		must(t, os.WriteFile(file(dir, "one"), []byte(test.damage(string(content))), 0o600))
		account := ledger.NewBook(dir).Account("demo", "one")
		if got := account.History().Doubt; len(account.Entries()) != test.entries || (got == "") != (test.doubt == "") || !strings.Contains(got, test.doubt) {
			t.Errorf("%s: %d entries, doubt %q", test.why, len(account.Entries()), got)
		}
		must(t, account.Begin(entry("c", plan.ActionRestart)))
		next := ledger.NewBook(dir).Account("demo", "one")
		if entries := next.Entries(); len(entries) == 0 || entries[len(entries)-1].Address.Name != "c" {
			t.Errorf("%s: what was written afterwards cannot be read: %v", test.why, entries)
		}
	}
	dir := whole()
	must(t, os.Remove(file(dir, "one")))
	must(t, os.Mkdir(file(dir, "one"), 0o700))
	account := ledger.NewBook(dir).Account("demo", "one")
	if account.History().Doubt == "" {
		t.Error("a file that cannot be read is not told")
	}
	if err := account.Begin(entry("c", plan.ActionRestart)); err == nil {
		t.Error("a step begins that cannot be written down")
	}
}

// TestOldAccountsGo: the accounts of a fleet do not grow without bound, and the newest stay.
func TestOldAccountsGo(t *testing.T) {
	dir := t.TempDir()
	book := ledger.NewBook(dir)
	for i := range 25 {
		revision := fmt.Sprintf("r%02d", i)
		account := book.Account("demo", revision)
		must(t, account.Begin(entry("a", plan.ActionRestart)))
		account.Close()
		at := time.Unix(int64(i), 0)
		must(t, os.Chtimes(file(dir, revision), at, at))
	}
	paths, err := filepath.Glob(filepath.Join(dir, "demo", "*.jsonl"))
	must(t, err)
	if len(paths) != 20 || filepath.Base(paths[0]) != "r05.jsonl" {
		t.Errorf("%d accounts, from %s on", len(paths), paths[0])
	}
}
