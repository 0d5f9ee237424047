package status_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

var update = flag.Bool("update", false, "write the golden files")

// at is when the states of the tests are seen.
var at = time.Date(2026, 11, 21, 14, 0, 0, 123, time.UTC)

func address(name string) schemas.Address {
	return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}
}

func wish(t *testing.T, name, strategy string) *schemas.VM {
	t.Helper()
	file := schemas.Parse("vms/"+name+".yaml", []byte("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: "+name+
		"}\nspec:\n  runStrategy: "+strategy+"\n  template: {spec: {domain: {memory: {guest: 64Mi}, devices: {}}}}\n"))
	if len(file.VMs) != 1 {
		t.Fatal(file.Diagnostics)
	}
	return file.VMs[0]
}

func domain(vm *schemas.VM, edits ...func(*plan.Domain)) *plan.Domain {
	d := &plan.Domain{
		Address: vm.Address, Name: "default_" + vm.Address.Name, Fleet: "demo", Revision: "1111111111111111111111111111111111111111", Source: vm.Position.String(),
		State: plan.StateRunning, Ran: true, Hash: vm.Hash, RunningHash: vm.Hash, Addresses: []string{"192.0.2.7", "2001:db8::7"},
		Disks: []plan.Disk{
			{Volume: "root", Kind: "containerDisk", Path: "/c/root"},
			{Volume: "data", Kind: "emptyDisk", Path: "/d/data", CapacityBytes: 1 << 30, Keep: true},
		},
	}
	for _, edit := range edits {
		edit(d)
	}
	return d
}

func stopped(why string) func(*plan.Domain) {
	return func(d *plan.Domain) { d.State, d.Stop, d.RunningHash, d.Addresses = plan.StateStopped, why, "", nil }
}

const head = "2222222222222222222222222222222222222222"

// cases are the states that a machine can be in.
func cases(t *testing.T) []status.Input {
	vm := func(name string) *schemas.VM { return wish(t, name, "Always") }
	step := func(action plan.Action, summary string) *plan.Step {
		return &plan.Step{Action: action, Consequence: plan.ConsequenceNone, Summary: summary}
	}
	drift := []plan.Change{{Path: "vcpu", Before: "1", After: "4"}, {Path: "description", Before: nil, After: "a|b`c"}}
	inputs := []status.Input{
		{VM: vm("a-running"), Domain: domain(vm("a-running"))},
		{VM: vm("b-pending"), Step: step(plan.ActionCreate, "will be created and started")},
		{VM: vm("c-creating"), Step: step(plan.ActionCreate, "will be created and started"), Attempt: status.Attempt{Action: plan.ActionCreate}},
		{VM: vm("d-failed"), Step: step(plan.ActionCreate, "will be created"), Attempt: status.Attempt{Error: "no space left on device"}},
		{VM: vm("e-stalled"), Step: step(plan.ActionCreate, "will be created"), Attempt: status.Attempt{Error: "no such image", Stalled: true}},
		{VM: vm("f-blocked"), Step: &plan.Step{Action: plan.ActionCreate, Summary: "will be created", Blocked: "a domain of that name exists"}},
		{VM: vm("g-crashloop"), Domain: domain(vm("g-crashloop"), stopped(plan.StopCrashed)), Step: step(plan.ActionStart, "crashed; it will be started again"), Attempt: status.Attempt{CrashLoop: true, Restarts: 3}},
		{VM: vm("h-drifted"), Domain: domain(vm("h-drifted")), Step: &plan.Step{Action: plan.ActionUpdate, Summary: "was changed outside", Drift: drift, Blocked: "drift is only reported"}},
		{VM: vm("i-restart-pending"), Domain: domain(vm("i-restart-pending"), func(d *plan.Domain) { d.RunningHash = "older" })},
		{VM: wish(t, "j-succeeded", "Once"), Domain: domain(wish(t, "j-succeeded", "Once"), stopped(plan.StopShutdown))},
		{VM: wish(t, "k-halted", "Halted"), Domain: domain(wish(t, "k-halted", "Halted"), stopped(plan.StopShutdown))},
		{Address: address("l-removed"), Domain: domain(vm("l-removed")), Step: &plan.Step{Action: plan.ActionDestroy, Consequence: plan.ConsequenceDestroy, Summary: "will be destroyed", Blocked: "nothing is destroyed while a file cannot be read: x.yaml"}},
		{Address: address("m-terminating"), Domain: domain(vm("m-terminating")), Step: step(plan.ActionDestroy, "will be destroyed"), Attempt: status.Attempt{Action: plan.ActionDestroy}},
		{Address: address("n-broken"), ManifestProblem: "vms/n.yaml:7:3: spec.foo: unknown field", Domain: domain(vm("n-broken"))},
		{Address: address("o-broken-new"), ManifestProblem: "vms/o.yaml:7:3: spec.foo: unknown field"},
		{VM: vm("p-paused"), Domain: domain(vm("p-paused"), func(d *plan.Domain) { d.State = plan.StatePaused })},
		{VM: vm("q-held"), Domain: domain(vm("q-held")), Held: `domain belongs to the fleet "other"`},
		{VM: vm("r-missing"), Domain: domain(vm("r-missing"), stopped(""), func(d *plan.Domain) { d.State = plan.StateMissing }), Step: step(plan.ActionCreate, "was undefined outside gitvirt and will be created")},
		{VM: vm("s-stopping"), Domain: domain(vm("s-stopping")), Step: step(plan.ActionStop, "will be shut down"), Attempt: status.Attempt{Action: plan.ActionStop}},
		{VM: vm("t-ready"), Domain: domain(vm("t-ready"), func(d *plan.Domain) { d.Ready = "true" })},
		{VM: vm("u-not-ready"), Domain: domain(vm("u-not-ready"), func(d *plan.Domain) { d.Ready, d.ReadyReason = "false", "the answer is 500" })},
		{VM: vm("v-ready-unknown"), Domain: domain(vm("v-ready-unknown"), func(d *plan.Domain) { d.Ready, d.ReadyReason = "unknown", "no address is known yet" })},
		{VM: vm("w-no-keys"), Domain: domain(vm("w-no-keys"), func(d *plan.Domain) { d.CredentialsProblem = "no guest agent answers" })},
		{VM: vm("x-changed-in-the-guest"), Domain: domain(vm("x-changed-in-the-guest"), func(d *plan.Domain) { d.RunningDrift = drift })},
		{VM: vm("y-changed-in-both"), Domain: domain(vm("y-changed-in-both"), func(d *plan.Domain) { d.Drift, d.RunningDrift = drift[:1], drift[1:] })},
		{VM: vm("z-pending-since"), Domain: domain(vm("z-pending-since"), func(d *plan.Domain) { d.RunningHash = "older" }), Step: &plan.Step{
			Action: plan.ActionRestart, Consequence: plan.ConsequenceRestart, Summary: "must be restarted",
			PendingRestart: &plan.Pending{Fields: []string{"spec.template.spec.domain.memory.guest", "a", "b", "c"}, Since: time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)},
		}},
		{VM: vm("zz-not-ours"), Domain: &plan.Domain{Address: address("zz-not-ours"), Pod: "virt-launcher-zz-not-ours", Problem: "the Pod is not as the controller made it"}, Held: "its domain's record cannot be understood"},
	}
	for i := range inputs {
		in := &inputs[i]
		in.Node, in.Revision, in.PlanID = "node-1", head, "feedfacecafebeef"
		if in.VM != nil {
			in.Address = in.VM.Address
		}
	}
	return inputs
}

func derive(inputs []status.Input) []status.VM {
	var vms []status.VM
	for _, in := range inputs {
		vms = append(vms, status.Of(in))
	}
	return vms
}

// golden compares files with testdata/NAME.txtar.
func golden(t *testing.T, name string, files map[string][]byte) {
	t.Helper()
	archive := &txtar.Archive{}
	var paths []string
	for path := range files {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		archive.Files = append(archive.Files, txtar.File{Name: path, Data: files[path]})
	}
	got := txtar.Format(archive)
	file := filepath.Join("testdata", name+".txtar")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (run with -update to accept):\n%s", file, diff)
	}
}

func TestFiles(t *testing.T) {
	evil := "x | y `z` <script>alert(1)</script> [a](javascript:b) *b* _c_ # d\n- e\r\x00\u202e\u0085end & $x$ @me https://evil.example ~~f~~ \\"
	hostile := status.Of(status.Input{
		Address: schemas.Address{Kind: "VirtualMachine", Namespace: "../../etc", Name: "a|b\n# c"}, ManifestProblem: evil, Revision: head,
	})
	tests := map[string]*status.Fleet{
		"phases": {Name: "demo", Revision: head, VMs: derive(cases(t)), KeptDisks: []status.KeptDisk{
			{Owner: address("old"), Node: "node-1", Disk: status.Disk{Volume: "data", Kind: "emptyDisk", Path: "/d/old/data", CapacityBytes: 10 << 30}},
		}},
		"empty": {Name: "demo", Revision: head},
		"sources": {Name: "demo", Revision: head + "+0123456789ab", Parts: []sources.Part{
			{Revision: head, Time: at},
			{Name: "shop", Revision: strings.Repeat("a1b2c3d4", 5), Time: at.Add(time.Minute)},
			{Name: "wiki", Revision: strings.Repeat("0", 40), Time: at, Problem: "https://git.example.com/wiki.git: polling main: connection refused"},
			{Name: "new", Problem: "it is being read for the first time", Pending: true},
		}},
		"hostile": {Name: evil, Revision: evil, VMs: []status.VM{hostile}, Unknown: evil, Broken: schemas.Diagnostics{
			{Position: schemas.Position{File: evil, Line: 3, Column: 1}, Severity: schemas.SeverityError, Path: evil, Message: evil, Fix: evil},
			{Position: schemas.Position{File: "w.yaml", Line: 3}, Severity: schemas.SeverityWarning, Message: "only a warning"},
		}, KeptDisks: []status.KeptDisk{{Owner: address(evil), Node: evil, Disk: status.Disk{Volume: evil, Path: evil}}}},
	}
	for name, fleet := range tests {
		t.Run(name, func(t *testing.T) {
			fleet.VMs = status.NewHistory(nil).Merge(fleet.VMs, at)
			files := fleet.Files()
			golden(t, name, files)
			for path, content := range files {
				if path == status.TablePath {
					continue
				}
				vm, err := status.Parse(content)
				if err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				if again := vm.YAML(); !bytes.Equal(again, content) {
					t.Errorf("%s is not the same once read:\n%s", path, cmp.Diff(string(content), string(again)))
				}
			}
		})
	}
}

func TestShortRevision(t *testing.T) {
	commit := strings.Repeat("a1b2c3d4", 5)
	for revision, want := range map[string]string{
		"": "", "vm.yaml": "vm.yaml", commit: "a1b2c3d", "sha256:" + commit: "sha256:a1b2c3d", commit + "+0123456789ab": "a1b2c3d+0123456",
		"shop@" + commit: "shop@a1b2c3d", "shop@": "shop@", "no label@" + commit: "no labe", "sha256:" + commit + "+0123456789ab": "sha256:a1b2c3d+0123456",
	} {
		if got := status.ShortRevision(revision); got != want {
			t.Errorf("%q became %q, want %q", revision, got, want)
		}
	}
}

// TestUnknownKeepsFacts: what was known of a machine is written while its host cannot be read.
func TestUnknownKeepsFacts(t *testing.T) {
	inputs := cases(t)
	before := status.NewHistory(status.NewHistory(nil).Merge(derive(inputs), at))
	for i := range inputs {
		inputs[i].Domain, inputs[i].Step, inputs[i].Unknown, inputs[i].Node = nil, nil, "the agent does not answer", ""
	}
	fleet := &status.Fleet{Name: "demo", Revision: head, VMs: before.Merge(derive(inputs), at.Add(time.Hour)), Unknown: "the agent does not answer"}
	golden(t, "unknown", fleet.Files())
}

func TestHistory(t *testing.T) {
	vm := wish(t, "web", "Always")
	running := status.Input{Address: vm.Address, VM: vm, Domain: domain(vm), Revision: head}
	crashed := running
	crashed.Domain = domain(vm, stopped(plan.StopCrashed))
	crashed.Step = &plan.Step{Action: plan.ActionStart, Summary: "crashed; it will be started again"}
	crashed.PlanID = "p1"

	first := status.NewHistory(nil).Merge(derive([]status.Input{running}), at)
	// Nothing has changed: the files are the same, whatever the time and the commit.
	later := running
	later.Revision = "3333333333333333333333333333333333333333"
	second := status.NewHistory(first).Merge(derive([]status.Input{later}), at.Add(time.Hour))
	if diff := cmp.Diff(string(first[0].YAML()), string(second[0].YAML())); diff != "" {
		t.Errorf("changed without a change:\n%s", diff)
	}
	// A change moves the times of the conditions that changed, and of no other.
	third := status.NewHistory(second).Merge(derive([]status.Input{crashed}), at.Add(2*time.Hour))
	for _, test := range []struct {
		condition status.ConditionType
		want      time.Duration
	}{{status.ConditionReady, 2 * time.Hour}, {status.ConditionSynced, 2 * time.Hour}, {status.ConditionDrifted, 0}, {status.ConditionManifestValid, 0}} {
		if got := third[0].Condition(test.condition).LastTransitionTime; !got.Equal(at.Add(test.want).Truncate(time.Second)) {
			t.Errorf("%s changed at %s", test.condition, got)
		}
	}
	// The controller is restarted: the file is all that is left, and it is the same again.
	path, _ := status.Path(vm.Address)
	files := map[string][]byte{path: third[0].YAML(), "README.md": []byte("# x"), "vms/default/other.yaml": []byte("{broken")}
	crashed.PlanID = "p2"
	fresh := status.NewHistory(nil).Merge(derive([]status.Input{crashed}), at.Add(3*time.Hour))
	merged := status.NewHistory(fresh).Or(status.ReadHistory(files)).Merge(derive([]status.Input{crashed}), at.Add(4*time.Hour))
	if diff := cmp.Diff(string(files[path]), string(merged[0].YAML())); diff != "" {
		t.Errorf("changed over a restart:\n%s", diff)
	}
	// The same thing that happens again is a new plan.
	again := status.NewHistory(first).Merge(derive([]status.Input{crashed}), at.Add(5*time.Hour))
	if got := again[0].LastPlan; got.ID != "p2" || !got.Time.Equal(at.Add(5*time.Hour).Truncate(time.Second)) {
		t.Errorf("the last plan is %+v", got)
	}
}

// TestWantedRevision: a wish that stays the same keeps the commit that brought it, however long it is not carried out.
func TestWantedRevision(t *testing.T) {
	vm := wish(t, "web", "Always")
	in := status.Input{Address: vm.Address, VM: vm, Revision: "r1"}
	first := status.NewHistory(nil).Merge(derive([]status.Input{in}), at)
	in.Revision = "r2"
	second := status.NewHistory(first).Merge(derive([]status.Input{in}), at)
	if got := second[0].WantedRevision; got != "r1" {
		t.Errorf("wanted since %s, want r1", got)
	}
	other := wish(t, "web", "Halted")
	in.VM, in.Revision = other, "r3"
	if got := status.NewHistory(second).Merge(derive([]status.Input{in}), at)[0].WantedRevision; got != "r3" {
		t.Errorf("wanted since %s, want r3", got)
	}
}

// TestYAMLIsSafe: every text comes back as it was, whatever is in it, and no text makes lines of its own.
func TestYAMLIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`(?s)[ \t\n\r:#'"\\{}\[\],&*!|>%@-]{0,12}`), rapid.SampledFrom([]string{"true", "No", "0x1f", "1e3", "~", "2001-01-01", "null", "- a", "a: b", "---"})).Draw(t, "text")
		vm := status.VM{Address: address("web"), Phase: status.PhaseRunning, Message: text, Node: text, Addresses: []string{text}, Conditions: []status.Condition{{Type: status.ConditionReady, Status: status.True, Message: text}}}
		content := vm.YAML()
		got, err := status.Parse(content)
		if err != nil {
			t.Fatalf("%v in\n%s", err, content)
		}
		want := strings.ToValidUTF8(text, "�")
		if len(want) <= 1024 && (got.Message != want || got.Node != want || got.Addresses[0] != want || got.Conditions[0].Message != want) {
			t.Fatalf("%q became %q in\n%s", text, got.Message, content)
		}
		if lines := strings.Count(string(content), "\n"); lines > 17 {
			t.Fatalf("%d lines:\n%s", lines, content)
		}
		var generic map[string]any
		if err := yaml.Unmarshal(content, &generic); err != nil || len(generic) != 4 {
			t.Fatalf("%v: %v", err, generic)
		}
	})
}

// TestTableIsSafe: a text never ends its cell, its row or its paragraph, and no HTML gets through.
func TestTableIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching("(?s)[|`<>\\\\\\n*_\\[\\]()#!~ ]{0,20}")).Draw(t, "text")
		vm := status.VM{Address: address("web"), Phase: status.PhaseRunning, Message: text, Node: text, Addresses: []string{text}}
		fleet := &status.Fleet{Name: "demo", Revision: head, VMs: []status.VM{vm}}
		rows := 0
		for _, line := range strings.Split(string(fleet.Files()[status.TablePath]), "\n") {
			if !strings.HasPrefix(line, "| [default/web]") {
				continue
			}
			rows++
			bare := strings.ReplaceAll(strings.ReplaceAll(line, `\\`, ""), `\|`, "")
			if cells := strings.Count(bare, "|"); cells != 8 || strings.ContainsAny(line, "<>") {
				t.Fatalf("%d bars in %s", cells, line)
			}
		}
		if rows != 1 {
			t.Fatalf("%d rows", rows)
		}
	})
}

// TestLargeTable: a table that no forge would show is cut, and what needs attention stays in it.
func TestLargeTable(t *testing.T) {
	var vms []status.VM
	for i := range 3000 {
		vm := status.Of(status.Input{Address: address(strings.Repeat("x", i%5+1) + "-" + time.Duration(i).String()), Revision: head, ManifestProblem: map[bool]string{true: "late.yaml:1: broken"}[i == 2999]})
		vms = append(vms, vm)
	}
	table := string((&status.Fleet{Name: "demo", Revision: head, VMs: vms}).Files()[status.TablePath])
	if len(table) > 500_000 || !strings.Contains(table, "late.yaml:1") || !strings.Contains(table, "and 2000 more") {
		t.Errorf("%d bytes", len(table))
	}
}
