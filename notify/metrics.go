package notify

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	messages *prometheus.CounterVec
	dropped  *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_notification_messages_total", Help: "Attempts to send a message, by receiver and result (ok, error: tried again, refused: given up).",
		}, []string{"receiver", "result"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gitvirt_notification_dropped_events_total", Help: "Events that a receiver was never told of, because too many waited.",
		}, []string{"receiver"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.messages, m.dropped} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("notify: %w", err)
		}
	}
	return m, nil
}
