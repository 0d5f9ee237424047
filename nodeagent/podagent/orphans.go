package podagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// The kinds of what belongs to no Pod.
const (
	orphanPod     = "pod"     // a guest in the cgroup of a Pod that the API server does not know: it was deleted by force
	orphanOutside = "outside" // a guest of gitvirt's in no Pod at all
	orphanDomain  = "domain"  // a domain in a Pod's libvirt that is not the Pod's
)

// hostState is where guests of gitvirt have their files on a host without Kubernetes.
const hostState = "/var/lib/gitvirt"

// orphans are guests that belong to no Pod. They are found and told of, once each; who put them there may still need them, so nobody
// here ends them.
type orphans struct {
	agent *Agent

	mu    sync.Mutex
	found map[orphan]bool
}

// orphan is one of them.
type orphan struct {
	kind string
	// uid is the Pod's, name the domain's.
	uid  types.UID
	name string
}

// text tells people of it.
func (o orphan) text() string {
	switch o.kind {
	case orphanPod:
		return fmt.Sprintf("guest %s runs in Pod %s, which the API server does not know any more", o.name, o.uid)
	case orphanOutside:
		return fmt.Sprintf("guest %s runs outside any Pod", o.name)
	default:
		return fmt.Sprintf("domain %s is in the libvirt of Pod %s and is not the Pod's", o.name, o.uid)
	}
}

func newOrphans(a *Agent) *orphans { return &orphans{agent: a, found: map[orphan]bool{}} }

// run looks for guests of no Pod from time to time, until ctx ends.
func (o *orphans) run(ctx context.Context) {
	tick := time.NewTicker(o.agent.config.Sweep)
	defer tick.Stop()
	for {
		o.sweep(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep looks once.
func (o *orphans) sweep(ctx context.Context) {
	all, err := o.agent.processes.list()
	if err != nil {
		o.agent.config.Logger.Warn("cannot look for guests of no Pod", "error", err)
		return
	}
	now := map[orphan]bool{}
	alive := map[types.UID]bool{}
	for i := range all {
		process := &all[i]
		alive[process.pod] = true
		if !process.isQEMU() || !process.names(protocol.Dir) && !process.names(hostState) {
			continue
		}
		if process.pod == "" {
			now[orphan{kind: orphanOutside, name: process.guestName()}] = true
		} else if !o.agent.looksAfter(process.pod) {
			now[orphan{kind: orphanPod, uid: process.pod, name: process.guestName()}] = true
		}
	}
	if blind := o.agent.unseen(alive); blind != "" {
		o.agent.config.Logger.Warn("cannot look for guests of no Pod: a Pod that runs has no process here", "pod", blind, "processes", o.agent.config.ProcDir)
		return
	}
	o.settle(func(kind string) bool { return kind != orphanDomain }, now)
	o.lookIntoPods(ctx)
	o.clear(ctx, alive)
}

// settle takes what was found of some kinds for all that there is of them, and tells what is new.
func (o *orphans) settle(of func(kind string) bool, now map[orphan]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for known := range o.found {
		if of(known.kind) && !now[known] {
			delete(o.found, known)
			o.agent.config.Logger.Info("gone: " + known.text())
		}
	}
	for found := range now {
		if !o.found[found] {
			o.found[found] = true
			o.agent.config.Logger.Warn(found.text())
			o.agent.config.Events.Event(o.node(), corev1.EventTypeWarning, "OrphanedGuest", found.text())
		}
	}
}

// node names the Node as the kubelet does in its events.
func (o *orphans) node() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: o.agent.config.Node, UID: types.UID(o.agent.config.Node)}
}

// inPod takes what a Pod's libvirt has beside the Pod's own domain.
func (o *orphans) inPod(uid types.UID, names []string) {
	now := map[orphan]bool{}
	for _, name := range names {
		now[orphan{kind: orphanDomain, uid: uid, name: name}] = true
	}
	o.mu.Lock()
	for known := range o.found {
		if known.kind == orphanDomain && known.uid != uid {
			now[known] = true
		}
	}
	o.mu.Unlock()
	o.settle(func(kind string) bool { return kind == orphanDomain }, now)
}

// stranger is a Guest that tells which domains its Pod's libvirt has that are not the Pod's.
type stranger interface {
	Strangers(ctx context.Context) (names []string, err error)
}

// lookIntoPods asks each Pod's libvirt for domains that are not the Pod's.
func (o *orphans) lookIntoPods(ctx context.Context) {
	for _, w := range o.agent.all() {
		guest, ok := w.known().ready.guest.(stranger)
		if !ok {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		names, err := guest.Strangers(limited)
		cancel()
		if err == nil { // a libvirt that does not answer is asked again the next time
			o.inPod(w.place.UID, names)
		}
	}
}

// counts returns how many there are, by kind.
func (o *orphans) counts() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]int{orphanPod: 0, orphanOutside: 0, orphanDomain: 0}
	for found := range o.found {
		out[found.kind]++
	}
	return out
}

// looksAfter tells whether a Pod is known to the API server.
func (a *Agent) looksAfter(uid types.UID) bool {
	a.mu.Lock()
	w := a.workers[uid]
	a.mu.Unlock()
	if w == nil {
		return false
	}
	_, gone := w.current()
	return !gone
}

// unseen returns a Pod whose launcher runs by what the API server says, and of which no process is seen; "" for none. Whoever does not see
// Pods' processes cannot tell that there are none.
func (a *Agent) unseen(alive map[types.UID]bool) string {
	for _, w := range a.all() {
		if pod, gone := w.current(); !gone && launcherRuns(pod) && !alive[pod.UID] {
			if count, err := a.processes.of(pod.UID); err == nil && count > 0 {
				continue // it has just started
			}
			return pod.Namespace + "/" + pod.Name
		}
	}
	return ""
}

// clear gives up the Leases of Pods that went while no agent looked, and removes what was kept of them, as soon as nothing of them runs
// any more. Their workers do so for all others.
func (o *orphans) clear(ctx context.Context, alive map[types.UID]bool) {
	dir := filepath.Join(o.agent.config.StateDir, "pods")
	entries, err := os.ReadDir(dir)
	if err != nil {
		o.agent.config.Logger.Warn("cannot look for what is kept of Pods that are gone", "error", err)
		return
	}
	for _, entry := range entries {
		uid := types.UID(entry.Name())
		if alive[uid] || o.agent.worker(uid) != nil {
			continue
		}
		err := o.agent.releaseNoted(ctx, uid)
		if err == nil {
			err = os.RemoveAll(filepath.Join(dir, entry.Name()))
		}
		if err != nil && ctx.Err() == nil {
			o.agent.config.Logger.Warn("cannot clear up after a Pod that is gone", "uid", uid, "error", err)
		}
	}
}

// worker returns who looks after a Pod; nil for nobody.
func (a *Agent) worker(uid types.UID) *worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workers[uid]
}
