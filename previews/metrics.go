package previews

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what Prometheus reads.
type metrics struct {
	polls       *prometheus.CounterVec
	lastPoll    prometheus.Gauge
	plans       *prometheus.CounterVec
	planSeconds prometheus.Histogram
	comments    *prometheus.CounterVec
	commands    *prometheus.CounterVec
}

func newMetrics(p *Previews, registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_previews_poll_total", Help: "Polls of the forge, by result (ok, error).",
		}, []string{"result"}),
		lastPoll: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gitvirt_previews_poll_last_success_timestamp_seconds", Help: "When the forge could be read last.",
		}),
		plans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_previews_plan_total", Help: "Plans of pull requests, by result (success, failure, error).",
		}, []string{"result"}),
		planSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gitvirt_previews_plan_duration_seconds", Help: "How long merging and planning a pull request took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		comments: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_previews_comment_total", Help: "What became of comments (created, edited, unchanged, closed).",
		}, []string{"result"}),
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_previews_command_total", Help: "Commands in comments (plan, approve, other), by result (done, refused, not yet).",
		}, []string{"command", "result"}),
	}
	if registry == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{
		m.polls, m.lastPoll, m.plans, m.planSeconds, m.comments, m.commands,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gitvirt_previews_open", Help: "Pull requests that are looked after."}, func() float64 {
			return float64(len(p.Pulls()))
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gitvirt_previews_failing", Help: "Pull requests whose comment or status could not be written."}, func() float64 {
			failing := 0
			for _, pull := range p.Pulls() {
				if pull.Problem != "" {
					failing++
				}
			}
			return float64(failing)
		}),
	} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) polled(err error) {
	if err != nil {
		m.polls.WithLabelValues("error").Inc()
		return
	}
	m.polls.WithLabelValues("ok").Inc()
	m.lastPoll.SetToCurrentTime()
}

func (m *metrics) planned(r *report, err error, took time.Duration) {
	m.planSeconds.Observe(took.Seconds())
	if err != nil {
		m.plans.WithLabelValues("error").Inc()
		return
	}
	m.plans.WithLabelValues(string(r.status().State)).Inc()
}
