package podagent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// metrics are what Prometheus reads.
type metrics struct {
	registry *prometheus.Registry
	refused  *prometheus.CounterVec
	steps    *prometheus.CounterVec
	seconds  prometheus.Histogram
	writes   *prometheus.CounterVec
}

func newMetrics(a *Agent) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_agent_refused_pods_total",
			Help: "Pods with gitvirt's labels, or steps on them, that the controller has not signed, by what is wrong (no step, step, signature, record, namespace), " +
				"and steps that would need emulation and do not allow it (emulation).",
		}, []string{"reason"}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_agent_steps_total", Help: "Steps carried out, by outcome (done, stale, retry, stalled).",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gitvirt_agent_step_duration_seconds", Help: "How long steps took.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_agent_pod_writes_total", Help: "Writes of what is known on Pods, by result (ok, error).",
		}, []string{"result"}),
	}
	for _, reason := range []string{
		podapi.ForgedNoStep, podapi.ForgedStep, podapi.ForgedSignature, podapi.ForgedRecord, podapi.ForgedNamespace, reasonEmulation,
	} {
		m.refused.WithLabelValues(reason) // what has not happened is zero, not absent
	}
	m.registry.MustRegister(m.refused, m.steps, m.seconds, m.writes, &stateCollector{a},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// stateCollector tells what is now.
type stateCollector struct{ agent *Agent }

//nolint:gochecknoglobals // constants
var (
	podsDesc    = prometheus.NewDesc("gitvirt_agent_pods", "Pods of this node, by state (ready, notready, refused).", []string{"state"}, nil)
	orphansDesc = prometheus.NewDesc("gitvirt_agent_orphans", "Guests and domains that belong to no Pod, by kind (pod, outside, domain).", []string{"kind"}, nil)
)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	out <- podsDesc
	out <- orphansDesc
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	states := map[string]int{"ready": 0, "notready": 0, "refused": 0}
	for _, w := range c.agent.all() {
		known := w.known()
		switch {
		case known.step == nil:
			states["refused"]++
		case known.condition().Status == "True":
			states["ready"]++
		default:
			states["notready"]++
		}
	}
	for state, count := range states {
		out <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(count), state)
	}
	for kind, count := range c.agent.orphans.counts() {
		out <- prometheus.MustNewConstMetric(orphansDesc, prometheus.GaugeValue, float64(count), kind)
	}
}
