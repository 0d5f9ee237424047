package wire

import (
	"encoding/json"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// Foreign translates what an agent says of a domain that is not gitvirt's.
func Foreign(in *api.Foreign) plan.Foreign {
	return plan.Foreign{
		Name: in.GetName(), UUID: in.GetUuid(), MACs: in.GetMacs(), State: plan.State(in.GetState()), Fingerprint: in.GetFingerprint(),
		Record: in.GetRecord(), Unexpressed: in.GetUnexpressed(), Problem: in.GetProblem(),
	}
}

// Domain translates the agent's words. An address that cannot be read makes the domain a problem, not an absence.
func Domain(in *api.Domain) *plan.Domain {
	out := &plan.Domain{
		Name: in.GetName(), UUID: in.GetUuid(), Fleet: in.GetFleet(), Revision: in.GetRevision(), Source: in.GetSource(),
		State: plan.State(in.GetState()), Stop: in.GetStop(), Ran: in.GetRan(), Transient: in.GetTransient(),
		Hash: in.GetHash(), Record: in.GetRecord(), RunningHash: in.GetRunningHash(), RunningRecord: in.GetRunningRecord(),
		Addresses: in.GetAddresses(), Fingerprint: in.GetFingerprint(), Problem: in.GetProblem(), Unread: in.GetUnread(),
		Ready: in.GetReady(), ReadyReason: in.GetReadyReason(), CredentialsProblem: in.GetCredentialsProblem(), PortsProblem: in.GetPortsProblem(),
	}
	if out.RunningHash != "" && len(out.RunningRecord) == 0 {
		out.RunningRecord = out.Record
	}
	var err error
	if out.Address, err = schemas.ParseAddress(in.GetAddress()); err != nil {
		out.Address = schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: schemas.DefaultNamespace, Name: in.GetName()}
		out.Problem = err.Error()
	}
	for _, former := range in.GetFormer() {
		if address, err := schemas.ParseAddress(former); err == nil {
			out.Former = append(out.Former, address)
		}
	}
	out.Drift, out.RunningDrift = changesOf(in.GetDrift()), changesOf(in.GetRunningDrift())
	out.PendingSince, out.RetiredSince = moment(in.GetPendingSinceUnix()), moment(in.GetRetiredSinceUnix())
	out.LiveRefused, out.LiveRefusedReason = in.GetLiveRefused().GetHash(), in.GetLiveRefused().GetReason()
	if headroom := in.GetHeadroom(); headroom != nil {
		out.Headroom = &plan.Headroom{
			MaxVCPUs: headroom.GetMaxVcpus(), MaxMemoryBytes: headroom.GetMaxMemoryBytes(),
			BalloonBytes: headroom.GetBalloonBytes(), FreePCISlots: headroom.GetFreePciSlots(),
		}
	}
	for _, disk := range in.GetDisks() {
		out.Disks = append(out.Disks, plan.Disk{
			Volume: disk.GetVolume(), Kind: disk.GetKind(), Path: disk.GetPath(), CapacityBytes: disk.GetCapacityBytes(), Keep: disk.GetKeep(),
		})
	}
	return out
}

func changesOf(in []*api.Change) []plan.Change {
	var out []plan.Change
	for _, change := range in {
		out = append(out, plan.Change{
			Path: change.GetPath(), Before: value(change.GetBefore()), After: value(change.GetAfter()), Consequence: plan.ConsequenceNone,
		})
	}
	return out
}

// moment is the time of Unix seconds; 0 is no time.
func moment(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

func value(encoded []byte) any {
	if len(encoded) == 0 {
		return nil
	}
	var out any
	if err := json.Unmarshal(encoded, &out); err != nil {
		return string(encoded)
	}
	return out
}
