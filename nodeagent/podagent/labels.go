package podagent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// nodeLabels are what the Node says of guests on it. They are written when they differ, and looked at only when this agent starts and when it
// learns something.
type nodeLabels struct {
	agent *Agent
	wake  chan struct{}

	mu   sync.Mutex
	live []string
}

func newNodeLabels(a *Agent) *nodeLabels {
	out := &nodeLabels{agent: a, wake: make(chan struct{}, 1)}
	nudge(out.wake)
	return out
}

// learn notes what can be done for running guests, which is the same in all Pods of the node.
func (l *nodeLabels) learn(live []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(live) > 0 && !slices.Equal(l.live, live) {
		l.live = slices.Clone(live)
		nudge(l.wake)
	}
}

// run writes until ctx ends.
func (l *nodeLabels) run(ctx context.Context) {
	if l.agent.config.DomainType == "" {
		return
	}
	pause := firstRewrite
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		err := l.write(ctx)
		if err == nil {
			pause = firstRewrite
			continue
		}
		if ctx.Err() == nil {
			l.agent.config.Logger.Warn("cannot label the node", "error", err, "again_in", pause)
		}
		if backoff.Wait(ctx, nil, pause) != nil {
			return
		}
		pause = min(2*pause, lastRewrite)
		nudge(l.wake)
	}
}

// write makes the Node say what is known.
func (l *nodeLabels) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*writeLimit)
	defer cancel()
	nodes := l.agent.config.Client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, l.agent.config.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the Node: %w", err)
	}
	labels := map[string]string{podapi.LabelHypervisor: l.agent.config.DomainType}
	for _, model := range l.agent.config.CPUModels {
		labels[podapi.LabelCPUModel+model] = "true"
	}
	annotations := map[string]string{}
	l.mu.Lock()
	if len(l.live) > 0 {
		annotations[podapi.AnnotationLive] = strings.Join(l.live, ",")
	}
	l.mu.Unlock()
	changes := difference(node.Labels, labels, podapi.LabelCPUModel)
	notes := difference(node.Annotations, annotations, "")
	if len(changes)+len(notes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": changes, "annotations": notes}})
	if err != nil {
		return err
	}
	if _, err := nodes.Patch(ctx, l.agent.config.Node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager}); err != nil {
		return fmt.Errorf("writing on the Node: %w", err)
	}
	return nil
}

// difference returns what has to be changed of some values: those that are wanted and others, and, with null, those of a prefix that are not.
func difference(now, wanted map[string]string, prefix string) map[string]any {
	out := map[string]any{}
	for _, key := range slices.Collect(maps.Keys(now)) {
		if _, keep := wanted[key]; !keep && prefix != "" && strings.HasPrefix(key, prefix) {
			out[key] = nil
		}
	}
	for key, value := range wanted {
		if before, ok := now[key]; !ok || before != value {
			out[key] = value
		}
	}
	return out
}
