package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
)

func annotated(manifest string, annotations ...string) string {
	return strings.Replace(manifest, "metadata:\n", "metadata:\n  annotations:\n    "+strings.Join(annotations, "\n    ")+"\n", 1)
}

// TestBuildDependencies: steps say which machines come first and when those are ready, also those of machines that git no
// longer has.
func TestBuildDependencies(t *testing.T) {
	const fleet = "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: base}\n"
	db := annotated(manifest("db", "Always", "64Mi"), "gitvirt.io/ready: agent")
	dns := manifest("dns", "Always", "64Mi")
	web := annotated(manifest("web", "Always", "64Mi"), `gitvirt.io/depends-on: "db, default/dns=tcp:53"`)
	describe := func(p *plan.Plan) string {
		var lines []string
		for _, step := range p.Steps {
			line := fmt.Sprintf("%s %s", step.Action, step.Address.Name)
			if step.Ready.Kind != "" {
				line += " ready by " + step.Ready.String()
			}
			for _, dependency := range step.DependsOn {
				line += fmt.Sprintf(" after %s(%s)", dependency.Address.Name, dependency.Ready)
			}
			lines = append(lines, line)
		}
		return strings.Join(lines, "\n")
	}
	for _, test := range []struct{ reason, got, want string }{
		{
			"all are new", describe(build(t, desired(t, fleet, db, dns, web), nil)),
			"create db ready by agent\ncreate dns\ncreate web after db(agent) after dns(tcp:53)",
		},
		{"one is new", describe(build(t, desired(t, fleet, db, dns, web), running(t, fleet, db, dns))), "create web after db(agent) after dns(tcp:53)"},
		{
			"all go", describe(build(t, desired(t, fleet), running(t, fleet, db, dns, web))),
			"destroy db\ndestroy dns\ndestroy web after db() after dns(tcp:53)",
		},
	} {
		if test.got != test.want {
			t.Errorf("%s: got\n%s\nwant\n%s", test.reason, test.got, test.want)
		}
	}
}
