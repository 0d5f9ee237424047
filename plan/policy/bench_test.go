package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
)

// BenchmarkAnalyse is a policy of 3 rules and 10 windows on 5,000 steps, half of them restarts.
func BenchmarkAnalyse(b *testing.B) {
	const n = 5000
	var before, after []string
	for i := range n {
		name, labels := fmt.Sprintf("vm-%04d", i), fmt.Sprintf(", labels: {tier: t%d}", i%10)
		if i%2 == 0 {
			before = append(before, vm(name, "qemu64", labels))
		}
		after = append(after, vm(name, "Penryn", labels))
	}
	var spans []string
	for i := range 10 {
		spans = append(spans, fmt.Sprintf(`{name: w%d, schedule: "0 %d * * *", duration: 2h, timeZone: Europe/Berlin, selector: {matchLabels: {tier: t%d}}}`, i, 2*i, i))
	}
	const rules = `[{name: a, expression: "step.consequence != 'restart' || object.metadata.labels.?tier.orValue('') != 't0'", message: no}, ` +
		`{name: b, expression: "step.changes.all(c, !c.path.startsWith('spec.template.spec.domain.firmware'))", message: no}, ` +
		`{name: c, expression: "object.spec.template.spec.domain.memory.guest == '64Mi'", message: no, action: warn}]`
	want := desired(b, append(after, fleet("{windows: ["+strings.Join(spans, ", ")+"], rules: "+rules+"}"))...)
	have := plan.FromDesired(desired(b, before...), "old")
	built, err := plan.Build(want, have, plan.Options{Revision: "r"})
	if err != nil || len(built.Steps) != n {
		b.Fatal(err, len(built.Steps))
	}
	options := policy.Options{Now: at(b, "2026-11-22 12:00")}
	b.ReportAllocs()
	for b.Loop() {
		p := *built
		p.Steps = append([]plan.Step(nil), built.Steps...)
		policy.New(want.Fleet, options).Analyse(&p, want, have)
	}
}
