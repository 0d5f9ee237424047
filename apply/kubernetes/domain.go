package kubernetes

import (
	"cmp"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/apply/internal/wire"
	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// domain is a Pod as plans see it. silent says that its node does not answer.
func (g *guest) domain(silent string) *plan.Domain {
	out := g.pending()
	switch {
	case g.forged != nil:
		return out
	case g.finished():
		out.State, out.Stop, out.Ran = plan.StateStopped, g.ended, g.ended != plan.StopFailed
		out.RunningHash, out.RunningRecord, out.Ready, out.ReadyReason = "", nil, "", ""
	case g.observed == nil || g.observed.Step != g.step.ID && g.observed.Domain == nil:
	case g.observed.Domain == nil && g.observed.Outcome != podapi.Retry:
		// Its guest could not be made, and will not be by waiting.
		out.State, out.Stop, out.RunningHash, out.RunningRecord = plan.StateStopped, plan.StopFailed, "", nil
		out.ReadyReason = g.observed.Message
	case g.observed.Domain != nil:
		out = g.told()
	}
	switch {
	case g.deleting:
		out.Leave = "its Pod is being deleted; what is to run then is decided when it is gone"
	case silent != "":
		out.Leave = silent + "; its guest may still run. If you are sure that the node is off, taint it with node.kubernetes.io/out-of-service, and the guest is started elsewhere"
	}
	return out
}

// pending is a Pod of which nobody has told yet: what it is to be is on its way.
func (g *guest) pending() *plan.Domain {
	out := &plan.Domain{Pod: g.name, Node: g.node}
	if g.forged != nil {
		out.Address = schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: g.namespace, Name: strings.TrimPrefix(g.name, pods.Prefix)}
		out.Name, out.Problem = domainxml.DomainName(out.Address), g.forged.Error()+"; if it is none of yours, delete the Pod"
		out.Fingerprint = g.uid
		return out
	}
	out.Address, _ = schemas.ParseAddress(g.step.Address) // podapi.Read has read it
	out.Name, out.Fleet, out.Revision, out.Hash, out.Record = domainxml.DomainName(out.Address), g.step.Fleet, g.step.Revision, g.step.Hash, g.record
	out.State, out.RunningHash, out.RunningRecord = plan.StateRunning, g.step.Hash, g.record
	out.Ready, out.ReadyReason = "false", cmp.Or(g.waiting, "its Pod is "+strings.ToLower(string(cmp.Or(g.phase, "Pending"))))
	out.Fingerprint = g.uid
	return out
}

// told is the domain as the agent of its node tells it.
func (g *guest) told() *plan.Domain {
	out := wire.Domain(g.observed.Domain)
	out.Pod, out.Node, out.Fingerprint = g.name, g.node, g.uid+":"+out.Fingerprint
	for i := range out.Disks {
		if disk := &out.Disks[i]; disk.Kind == "emptyDisk" { // it goes with the Pod
			disk.Keep = false
		}
	}
	addresses := slices.Clone(g.addresses)
	for _, address := range out.Addresses {
		if !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	out.Addresses = addresses
	out.Ready, out.ReadyReason = "false", g.waiting
	if g.ready {
		out.Ready, out.ReadyReason = "true", ""
	}
	return out
}

// onPodNetwork reports whether others reach the guest of a record at the addresses of its Pod.
func onPodNetwork(record []byte) bool {
	read, err := schemas.ReadRecord(record, false)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(read.Object.Spec.Template.Spec.Networks, func(network kubevirtv1.Network) bool { return network.Pod != nil })
}

// agents returns the agent's part of a fingerprint.
func agents(fingerprint string) string {
	_, after, _ := strings.Cut(fingerprint, ":")
	return after
}
