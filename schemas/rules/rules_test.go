package rules_test

import (
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas/rules"
)

func input() *rules.Input {
	spec := func() map[string]any {
		return map[string]any{"runStrategy": "Always", "template": map[string]any{"spec": map[string]any{
			"domain":  map[string]any{"cpu": map[string]any{"cores": int64(4)}},
			"volumes": []any{map[string]any{"name": "root"}, map[string]any{"name": "data", "hostDisk": map[string]any{"path": "/srv"}}},
		}}}
	}
	return &rules.Input{
		Object: &rules.Machine{Kind: "VirtualMachine", Namespace: "prod", Name: "web-1", Labels: map[string]string{"tier": "prod"}, Spec: spec},
		Before: func() *rules.Machine { return nil },
		Step: &rules.Step{
			Action: "restart", Consequence: "restart", DowntimeSeconds: 40,
			Changes: []rules.Change{{Path: "spec.template.spec.domain.cpu.model", Before: "host-model", After: "host-passthrough", Consequence: "restart"}},
		},
	}
}

func TestHolds(t *testing.T) {
	for expression, want := range map[string]bool{
		`step.consequence != 'restart' || object.metadata.labels.tier != 'prod'`:                        false,
		`step.consequence != 'restart' || object.metadata.labels.?owner.orValue('') == ''`:              true,
		`!('owner' in object.metadata.labels)`:                                                          true,
		`has(object.metadata.labels.tier)`:                                                              true,
		`before == null || before.metadata.name == object.metadata.name`:                                true,
		`step.changes.all(c, !c.path.startsWith('spec.template.spec.domain.cpu'))`:                      false,
		`step.changes.exists(c, c.before == 'host-model' && c.after == 'host-passthrough')`:             true,
		`object.spec.template.spec.domain.cpu.cores <= 8`:                                               true,
		`object.spec.template.spec.volumes.all(v, !has(v.hostDisk) || v.hostDisk.path == '/srv')`:       true,
		`object.spec.template.spec.?networks.orValue([]).size() == 0`:                                   true,
		`step.downtimeSeconds < 30`:                                                                     false,
		`sets.contains(['restart', 'destroy'], [step.action]) && !step.live`:                            true,
		`object.metadata.name.matches('^[a-z]+-[0-9]+$') && object.metadata.namespace in ['prod']`:      true,
		`size(step.dataAtRisk) == 0 && size(step.keeps) == 0 && size(object.metadata.annotations) == 0`: true,
	} {
		rule, problem := rules.Compile(expression)
		if problem != nil {
			t.Errorf("%s: %v", expression, problem)
			continue
		}
		if got, err := rule.Holds(rules.Prepare(input())); err != nil || got != want {
			t.Errorf("%s: %v %v, want %v", expression, got, err, want)
		}
	}
}

func TestMistakes(t *testing.T) {
	for expression, want := range map[string]string{
		``:                                       "the expression is empty",
		`step.consequense == 'restart'`:          "undefined field 'consequense' (column 5)",
		`obj.metadata.name == 'a'`:               "undeclared reference to 'obj' (in container '') (column 1)",
		`step.action = 'restart'`:                "token recognition error at: '= '",
		`step.action`:                            "the expression is a string, and a rule is true or false",
		`step.downtimeSeconds == 'long'`:         "found no matching overload for '_==_' applied to '(int, string)' (column 22)",
		"true &&\nstep.acton == 'x'":             "undefined field 'acton' (line 2, column 5)",
		`object.metadata.name.matches('[')`:      "invalid matches argument (column 30)",
		strings.Repeat("true && ", 600) + "true": "the expression has 4804 characters, at most 4096 are allowed",
		`step.changes.all(a, step.changes.all(b, step.changes.all(c, step.changes.all(d, a.path == d.path && b.path == c.path))))`: "the expression may take too long",
		`true && object.metadata.name.replace('a', 'aa') == ''`:                                                                    `rules have no "replace": there is no bound to what it makes (column 37)`,
		`step.keeps.join(', ') == ''`:      `rules have no "join": there is no bound to what it makes (column 16)`,
		`'%s'.format([step.action]) == ''`: `rules have no "format": there is no bound to what it makes (column 12)`,
		`step.changes.all(c, step.drift.all(d, c.path.split('').all(x, d.path.lowerAscii() != x)))`: "the expression may take too long",
	} {
		_, problem := rules.Compile(expression)
		if problem == nil || !strings.HasPrefix(problem.Error(), strings.TrimSuffix(want, " (column 1)")) {
			t.Errorf("%q: %v, want %s", expression, problem, want)
		}
	}
}

func TestErrors(t *testing.T) {
	in := input()
	in.Object.Labels["secret"] = "hush-hush"
	for expression, want := range map[string]string{
		`object.metadata.labels.owner == 'me'`:                                                "no such key: owner",
		`before.metadata.name == 'web-1'`:                                                     "the machine is new: before is null",
		`int(object.metadata.labels.secret) == 1`:                                             "type conversion error",
		`duration(object.metadata.labels.secret) > duration('1s')`:                            "type conversion error",
		`object.spec.template.spec.domain.cpu.cores == 'four' || object.spec.template.spec.x`: "no such key: x",
	} {
		rule, problem := rules.Compile(expression)
		if problem != nil {
			t.Errorf("%s: %v", expression, problem)
			continue
		}
		_, err := rule.Holds(rules.Prepare(in))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %s", expression, err, want)
		}
	}
}

// TestCostLimit takes a machine with lists and texts that are longer than the estimate has them.
func TestCostLimit(t *testing.T) {
	in := input()
	for range 1000 {
		in.Step.Changes = append(in.Step.Changes, in.Step.Changes[0])
	}
	in.Object.Annotations = map[string]string{"notes": strings.Repeat("a", 1<<20)}
	for _, expression := range []string{
		`step.changes.all(a, step.changes.all(b, a.path != b.path || a.path == b.path))`,
		`step.changes.all(c, object.metadata.annotations.notes.indexOf('b') < 0)`,
	} {
		rule, problem := rules.Compile(expression)
		if problem != nil {
			t.Fatal(problem)
		}
		if _, err := rule.Holds(rules.Prepare(in)); err == nil || err.Error() != "it takes too long: its cost is over 100000" {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

func BenchmarkHolds(b *testing.B) {
	rule, problem := rules.Compile(`step.consequence != 'restart' || object.metadata.labels.?tier.orValue('') != 'prod'`)
	if problem != nil {
		b.Fatal(problem)
	}
	in := input()
	for b.Loop() {
		if _, err := rule.Holds(rules.Prepare(in)); err != nil {
			b.Fatal(err)
		}
	}
}
