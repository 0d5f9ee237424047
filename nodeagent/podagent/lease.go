package podagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
)

// A guest that writes to claims runs while its Pod holds the Lease of the Pod's name, and no longer: a Pod of the same name on another
// node, whose guest has the same claims, waits for it. The Lease has no time: it is given up by the one agent that can see that the guest
// is off, or taken over when the node of its holder is gone for good. Nothing guesses by the clock.

// leaseState is what a worker knows of its Lease.
type leaseState struct {
	held bool
	// released says that it was given up, or that there was none.
	released bool
	// again is when to ask for it the next time, for a guest that runs without.
	again time.Time
	// warned says that people know of a guest that runs without it.
	warned bool
}

// taintOutOfService is what an administrator says of a node that is off and stays so
// (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown).
const taintOutOfService = corev1.TaintNodeOutOfService

// writesClaims tells whether the machine of a record writes to claims; what is ephemeral or read only does not.
func writesClaims(record []byte) (bool, error) {
	vm, _, err := schemas.ParseRecord(record, true)
	if err != nil {
		return false, err
	}
	volumes := vm.Spec.Template.Spec.Volumes
	for i := range volumes {
		if claim := volumes[i].PersistentVolumeClaim; claim != nil && !claim.ReadOnly || volumes[i].DataVolume != nil {
			return true, nil
		}
	}
	return false, nil
}

// holder is who this Pod is on a Lease.
func (w *worker) holder() string { return w.agent.config.Node + "/" + string(w.place.UID) }

// acquire takes the Lease of the Pod. The error says who has it.
func (w *worker) acquire(ctx context.Context) error {
	leases := w.agent.config.Client.CoordinationV1().Leases(w.place.Namespace)
	holder := w.holder()
	if err := os.WriteFile(filepath.Join(w.place.StateDir, leaseFile), []byte(w.place.Namespace+"/"+w.place.Name), 0o600); err != nil {
		return fmt.Errorf("noting the Lease of the machine's claims: %w", err)
	}
	_, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.place.Namespace, Name: w.place.Name, Labels: map[string]string{podapi.LabelManagedBy: podapi.ManagedBy},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}, metav1.CreateOptions{FieldManager: FieldManager})
	if !apierrors.IsAlreadyExists(err) {
		w.lease.held = err == nil
		if err != nil {
			return fmt.Errorf("taking the Lease of the machine's claims: %w", err)
		}
		return nil
	}
	found, err := leases.Get(ctx, w.place.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the Lease of the machine's claims: %w", err)
	}
	before := ""
	if found.Spec.HolderIdentity != nil {
		before = *found.Spec.HolderIdentity
	}
	if before == holder {
		w.lease.held = true
		return nil
	}
	if err := w.mayTake(ctx, before); err != nil {
		return err
	}
	found.Spec.HolderIdentity = &holder
	if _, err := leases.Update(ctx, found, metav1.UpdateOptions{FieldManager: FieldManager}); err != nil {
		return fmt.Errorf("taking over the Lease of the machine's claims: %w", err)
	}
	w.log.Info("took over the Lease of the machine's claims", "from", before)
	w.lease.held = true
	return nil
}

// mayTake tells whether the guest of a Lease's holder is off for certain; the error says why not.
func (w *worker) mayTake(ctx context.Context, holder string) error {
	node, uid, ok := strings.Cut(holder, "/")
	if !ok || node == "" || uid == "" {
		return fmt.Errorf("waiting for the Lease of the machine's claims: %q has it, which is none of gitvirt's agents", holder)
	}
	if node == w.agent.config.Node {
		return w.agent.isOff(types.UID(uid), w.place.UID)
	}
	found, err := w.agent.config.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("waiting for the Lease of the machine's claims: looking at node %s, which has it: %w", node, err)
	}
	for i := range found.Spec.Taints {
		if found.Spec.Taints[i].Key == taintOutOfService {
			return nil
		}
	}
	return fmt.Errorf("waiting for the Lease of the machine's claims: node %s has it for Pod %s; "+
		"if the node is off for good, delete it or taint it with %s", node, uid, taintOutOfService)
}

// isOff tells whether nothing of a Pod of this node runs any more. own is a Pod that runs for certain: if that is not seen, others
// are not either.
func (a *Agent) isOff(uid, own types.UID) error {
	all, err := a.processes.list()
	if err != nil {
		return err
	}
	others, seen := 0, false
	for i := range all {
		seen = seen || all[i].pod == own
		if all[i].pod == uid {
			others++
		}
	}
	switch {
	case !seen:
		return fmt.Errorf("%s does not show the processes of this node's Pods; run the agent with hostPID", a.config.ProcDir)
	case others > 0:
		return fmt.Errorf("waiting for the Lease of the machine's claims: %d processes of Pod %s still run on this node", others, uid)
	}
	return nil
}

// hold sees to it that a guest that runs already has its Lease. One that runs without goes on: whoever took the Lease away is told of.
func (w *worker) hold(ctx context.Context, domain *api.Domain) {
	if !w.job.claims || w.lease.held || !active(domain) || time.Now().Before(w.lease.again) {
		return
	}
	err := w.acquire(ctx)
	if err == nil {
		return
	}
	w.lease.again = time.Now().Add(lastRetry)
	if !w.lease.warned {
		w.lease.warned = true
		w.log.Warn("the guest runs without the Lease of its claims", "error", err)
		pod, _ := w.current()
		w.agent.config.Events.Event(reference(pod), corev1.EventTypeWarning, "NoLease", "the guest runs without the Lease of its claims: "+err.Error())
	}
}

// release gives the Lease up; the guest is off.
func (w *worker) release(ctx context.Context) error {
	if w.lease.released {
		return nil
	}
	if w.job.step != nil && !w.job.claims {
		w.lease.released = true
		return nil
	}
	if err := w.agent.releaseLease(ctx, w.place.Namespace, w.place.Name, w.holder()); err != nil {
		return err
	}
	w.lease.held, w.lease.released = false, true
	return nil
}

// leaseFile is what is kept of a Pod that may hold a Lease: its namespace and name. The agent may be away when the Pod goes, and has no
// right to list Leases.
const leaseFile = "lease"

// releaseNoted gives up the Lease of a Pod of which only what was kept is left.
func (a *Agent) releaseNoted(ctx context.Context, uid types.UID) error {
	content, err := os.ReadFile(filepath.Join(a.config.StateDir, "pods", string(uid), leaseFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(string(content), "/")
	return a.releaseLease(ctx, namespace, name, a.config.Node+"/"+string(uid))
}

// releaseLease deletes a Lease if a holder has it.
func (a *Agent) releaseLease(ctx context.Context, namespace, name, holder string) error {
	leases := a.config.Client.CoordinationV1().Leases(namespace)
	found, err := leases.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading a Lease: %w", err)
	case found.Spec.HolderIdentity == nil || *found.Spec.HolderIdentity != holder:
		return nil
	}
	err = leases.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("giving a Lease up: %w", err)
	}
	return nil
}
