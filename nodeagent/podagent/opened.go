package podagent

import (
	"context"
	"os"
	"sync"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// opened is an agent of the Pod that was opened.
type opened struct {
	guest Guest
	close func()
}

// enter opens the agent of the Pod.
func (w *worker) enter(ctx context.Context) error {
	if w.open != nil {
		return nil
	}
	if err := os.MkdirAll(w.place.StateDir, 0o700); err != nil {
		return err
	}
	place, err := w.locate()
	if err != nil {
		return err
	}
	guest, closeGuest, err := w.agent.config.Open(ctx, place)
	if err != nil {
		return err
	}
	// It follows the Pod until the worker ends: a step that is on its way when the agent stops needs it.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var followers sync.WaitGroup
	followers.Go(func() { guest.Run(life) })
	followers.Go(func() { guest.Watch(life, w.look) })
	followers.Go(func() { w.follow(life, guest) })
	w.open = &opened{guest: guest, close: func() {
		end()
		followers.Wait()
		closeGuest()
	}}
	w.mu.Lock()
	w.state.ready.guest = guest
	w.mu.Unlock()
	return nil
}

// locate finds what is needed to open the agent of the Pod.
func (w *worker) locate() (Pod, error) {
	place := w.place
	var err error
	if place.Address, err = schemas.ParseAddress(w.job.step.Address); err != nil {
		return place, err
	}
	if place.PID, err = w.agent.processes.launcher(place.UID); err != nil {
		return place, err
	}
	pod, _ := w.current()
	place.Object, place.IP, place.Networks = w.job.object, pod.Status.PodIP, pod.Annotations[annotationNetworks]
	place.VHost = len(pod.Spec.Containers) > 0
	return place, nil
}

// shut lets go of the Pod; what is in it goes on.
func (w *worker) shut() {
	if w.open != nil {
		w.mu.Lock()
		w.state.ready.guest = nil
		w.mu.Unlock()
		w.open.close()
		w.open = nil
	}
}

// look takes what the Pod's libvirt has.
func (w *worker) look(sight nodeagent.PodState) {
	if sight.Unknown != "" {
		return // the guest goes on while libvirt does not answer: what was seen last holds
	}
	w.note(func(s *state) {
		s.sight = &sight
		s.ready.run(active(sight.Domain))
	})
	w.agent.labels.learn(sight.Live)
	nudge(w.wake)
}

// domain returns the Pod's domain; nil when there is none. It is not seen while libvirt has not answered yet.
func (w *worker) domain() (domain *api.Domain, seen bool) {
	known := w.known()
	if known.sight == nil {
		return nil, false
	}
	return known.sight.Domain, true
}

// active tells whether a guest runs.
func active(domain *api.Domain) bool {
	return domain.GetState() == "running" || domain.GetState() == "paused"
}
