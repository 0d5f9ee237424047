package reconciler

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestRefusalsAreLoggedAndCounted: what the platform does not take is logged and counted by reason, once for each revision of a machine however
// often it is planned; so is what an agent refuses.
func TestRefusalsAreLoggedAndCounted(t *testing.T) {
	var log bytes.Buffer
	r := &Reconciler{config: Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Clock: backoff.SystemClock{}}, events: newRecorder()}
	r.metrics = newMetrics(r)
	w := newWatcher(r)
	web := schemas.Address{Kind: "VirtualMachine", Namespace: "bank", Name: "web"}
	refused := func(revision, why string, reasons ...string) {
		w.planned(&plan.Plan{Revision: revision, Steps: []plan.Step{{Address: web, Action: plan.ActionCreate, Summary: "will be created", Blocked: why, Refused: reasons}}})
	}
	for range 3 {
		refused("1", "not there", "namespace")
	}
	refused("2", "not there, and not as that", "namespace", "service account")
	r.metrics.applied(outcome{step: plan.Step{Action: plan.ActionCreate}, err: fmt.Errorf("%w: host disks are allowed below /data only", apply.ErrStalled)})
	got := map[string]float64{}
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.metrics.refused)
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range gathered {
		for _, one := range family.GetMetric() {
			got[one.GetLabel()[0].GetValue()] = one.GetCounter().GetValue()
		}
	}
	if len(got) != 3 || got["namespace"] != 2 || got["service account"] != 1 || got["node"] != 1 {
		t.Errorf("counted %v", got)
	}
	if said := log.String(); strings.Count(said, "blocked: not there") != 2 || !strings.Contains(said, "level=WARN") || !strings.Contains(said, "vm=VirtualMachine/bank/web") {
		t.Errorf("logged\n%s", said)
	}
}
