package reconciler

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/sources"
)

// metrics are what Prometheus reads. Counters are kept as things happen; states are derived from the View when they are
// asked for, so that none of them can go stale.
type metrics struct {
	registry     *prometheus.Registry
	polls        *prometheus.CounterVec
	pollSeconds  prometheus.Histogram
	planSeconds  prometheus.Histogram
	appliedTotal *prometheus.CounterVec
	applySeconds *prometheus.HistogramVec
	refused      *prometheus.CounterVec
	drift        prometheus.Counter
	statusPushes *prometheus.CounterVec
	lastPoll     prometheus.Gauge
}

func newMetrics(r *Reconciler) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_poll_total", Help: "Polls of the source, by result (ok, refused, error).",
		}, []string{"result"}),
		pollSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gitvirt_poll_duration_seconds", Help: "How long polls of the source took.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}),
		planSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gitvirt_plan_duration_seconds", Help: "How long making plans took.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		appliedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_apply_total", Help: "Steps carried out, by action and result (ok, stale, stalled, error).",
		}, []string{"action", "result"}),
		applySeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gitvirt_apply_duration_seconds", Help: "How long steps took, by action.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 15),
		}, []string{"action"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_refused_total", Help: "Machines that the platform does not take as they are wanted, by reason; each revision of a machine counts once.",
		}, []string{"reason"}),
		drift: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gitvirt_drift_total", Help: "How often a change outside gitvirt was detected.",
		}),
		statusPushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_status_publish_total", Help: "Attempts to publish the status, by result (ok, unchanged, error).",
		}, []string{"result"}),
		lastPoll: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gitvirt_poll_last_success_timestamp_seconds", Help: "When the source could be read last.",
		}),
	}
	m.registry.MustRegister(m.polls, m.pollSeconds, m.planSeconds, m.appliedTotal, m.applySeconds, m.refused, m.drift, m.statusPushes, m.lastPoll,
		&viewCollector{r: r}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) polled(p poll) {
	m.pollSeconds.Observe(p.took.Seconds())
	switch {
	case errors.Is(p.err, sources.ErrUntrusted):
		m.polls.WithLabelValues("refused").Inc()
	case p.err != nil:
		m.polls.WithLabelValues("error").Inc()
		return
	default:
		m.polls.WithLabelValues("ok").Inc()
	}
	m.lastPoll.SetToCurrentTime()
}

func (m *metrics) planned(took time.Duration) { m.planSeconds.Observe(took.Seconds()) }

// refusedByNode is the reason of what an agent refuses to carry out: a path outside the folders that it allows, a device that nobody may have.
const refusedByNode = "node"

func (m *metrics) applied(o outcome) {
	result := "error"
	switch {
	case o.err == nil:
		result = "ok"
	case errors.Is(o.err, apply.ErrStale):
		result = "stale"
	case errors.Is(o.err, apply.ErrStalled):
		result = "stalled"
		m.refused.WithLabelValues(refusedByNode).Inc()
	}
	m.appliedTotal.WithLabelValues(string(o.step.Action), result).Inc()
	m.applySeconds.WithLabelValues(string(o.step.Action)).Observe(o.took.Seconds())
}

// viewCollector derives the metrics that are states.
type viewCollector struct{ r *Reconciler }

var (
	vmState      = prometheus.NewDesc("gitvirt_vm_state", "1 for the phase that a VM is in.", []string{"namespace", "name", "phase"}, nil)
	vmSynced     = prometheus.NewDesc("gitvirt_vm_synced", "1 when a VM is as git wants it, 0 when not; absent when unknown.", []string{"namespace", "name"}, nil)
	planSteps    = prometheus.NewDesc("gitvirt_plan_steps", "Steps of the current plan, by action; blocked steps count as blocked only.", []string{"action"}, nil)
	revisionInfo = prometheus.NewDesc("gitvirt_revision_info", "1 for the revision that is wanted.", []string{"fleet", "revision"}, nil)
	sourceInfo   = prometheus.NewDesc("gitvirt_source_info", "1 for the revision that counts of each repository that the Fleet names; it is empty when none was ever read.", []string{"source", "revision"}, nil)
	sourceFails  = prometheus.NewDesc("gitvirt_source_failing", "1 when a repository that the Fleet names cannot be read, or its head is not trusted.", []string{"source"}, nil)
	refusedHead  = prometheus.NewDesc("gitvirt_revision_refused", "1 when the head of the branch is not applied because it is not trusted.", nil, nil)
	statusLag    = prometheus.NewDesc("gitvirt_status_lag_seconds", "For how long the status branch has been behind; 0 when it is not.", nil, nil)
	hostKnown    = prometheus.NewDesc("gitvirt_host_known", "1 when the host can be read.", nil, nil)
	brokenFiles  = prometheus.NewDesc("gitvirt_manifest_errors", "Mistakes in the manifests of the wanted revision.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *viewCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{vmState, vmSynced, planSteps, revisionInfo, sourceInfo, sourceFails, refusedHead, statusLag, hostKnown, brokenFiles} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *viewCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	lag := 0.0
	if since := c.r.unpublished.Load(); since != 0 {
		lag = max(0, c.r.config.Clock.Now().Sub(time.Unix(0, since)).Seconds())
	}
	gauge(statusLag, lag)
	view := c.r.View()
	gauge(refusedHead, truth(view.Refused != ""))
	if view.Plan == nil {
		return
	}
	gauge(revisionInfo, 1, view.Plan.Fleet, view.Plan.Revision)
	for _, part := range view.Snapshot.Parts {
		if part.Name != "" {
			gauge(sourceInfo, 1, part.Name, part.Revision)
			gauge(sourceFails, truth(fails(&part)), part.Name)
		}
	}
	gauge(hostKnown, truth(view.Plan.Unknown == ""))
	gauge(brokenFiles, float64(view.Desired.Diagnostics.Errors()))
	for action, count := range stepCounts(view.Plan) {
		gauge(planSteps, float64(count), action)
	}
	type name struct{ namespace, name string }
	told := map[name]bool{}
	for _, vm := range view.Statuses() {
		n := name{vm.Address.Namespace, vm.Address.Name}
		if told[n] {
			continue // two kinds of one name: a mistake that the manifests report
		}
		told[n] = true
		gauge(vmState, 1, n.namespace, n.name, string(vm.Phase))
		if synced := vm.Synced(); synced != "Unknown" {
			gauge(vmSynced, truth(synced == "True"), n.namespace, n.name)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// stepCounts counts every action, those without a step too, so that a graph has no gaps.
func stepCounts(p *plan.Plan) map[string]int {
	s := p.Summary
	return map[string]int{
		string(plan.ActionCreate): s.Create, string(plan.ActionUpdate): s.Update, string(plan.ActionStart): s.Start,
		string(plan.ActionStop): s.Stop, string(plan.ActionRestart): s.Restart, string(plan.ActionReplace): s.Replace,
		string(plan.ActionDestroy): s.Destroy, "blocked": s.Blocked,
	}
}
