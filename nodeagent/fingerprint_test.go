package nodeagent

import (
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// What was approved of a machine holds for that machine: applied by that commit and, where the step is about what the guest
// has, in that run of the guest. All else that a plan depends on is seen by other tests, through the agent.
func TestFingerprintIsForOnce(t *testing.T) {
	t.Parallel()
	of := func(revision, run, applied string, changes ...*api.Change) string {
		now := &seen{
			domain:  facts{UUID: "u", State: hypervisor.StateRunning, ID: run},
			record:  &domainxml.Record{Revision: revision, Hash: applied},
			running: &domainxml.Record{Hash: "started"},
		}
		now.conclusions.running = changes
		return fingerprint(now, "<domain/>")
	}
	drift := &api.Change{Path: "spec.x"}
	for name, c := range map[string]struct {
		a, b string
		same bool
	}{
		"another commit":               {of("1", "1", "started"), of("2", "1", "started"), false},
		"another run, nothing pending": {of("1", "1", "started"), of("1", "2", "started"), true},
		"another run, a restart waits": {of("1", "1", "defined"), of("1", "2", "defined"), false},
		"another run, it differs":      {of("1", "1", "started", drift), of("1", "2", "started", drift), false},
		"the same again":               {of("1", "1", "defined", drift), of("1", "1", "defined", drift), true},
	} {
		if (c.a == c.b) != c.same {
			t.Errorf("%s: the fingerprints are %s and %s", name, c.a, c.b)
		}
	}
	first, second := &domainxml.Record{Revision: "1"}, &domainxml.Record{Revision: "2"}
	if a, b := missing(first).message.(*api.Domain), missing(second).message.(*api.Domain); a.GetFingerprint() == b.GetFingerprint() {
		t.Error("a machine that is missing has the same fingerprint whoever applied it")
	}
}
