package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/plan"
)

// drifted tells what somebody changed outside gitvirt: in the definition, in the running guest, or in both.
func drifted(in *Input) Condition {
	var configured, running []plan.Change
	if in.Unknown != "" {
		return unknownHost(ConditionDrifted, in)
	}
	if in.Domain != nil {
		configured, running = in.Domain.Drift, in.Domain.RunningDrift
	}
	if in.Step != nil && len(in.Step.Drift)+len(in.Step.RunningDrift) > 0 {
		configured, running = in.Step.Drift, in.Step.RunningDrift
	}
	switch {
	case len(configured) > 0 && len(running) > 0:
		return condition(ConditionDrifted, True, "ChangedOutside", DescribeChanges(configured)+"; in the running guest: "+fieldsOf(running))
	case len(configured) > 0:
		return condition(ConditionDrifted, True, "ChangedOutside", DescribeChanges(configured))
	case len(running) > 0:
		return condition(ConditionDrifted, True, "RunningGuestChanged", "in the running guest: "+fieldsOf(running))
	}
	return condition(ConditionDrifted, False, "AsApplied", "")
}

// DescribeDrift says in a line what somebody changed outside gitvirt; "" for nothing.
func DescribeDrift(step *plan.Step) string {
	var parts []string
	if len(step.Drift) > 0 {
		parts = append(parts, DescribeChanges(step.Drift))
	}
	if len(step.RunningDrift) > 0 {
		parts = append(parts, "in the running guest: "+fieldsOf(step.RunningDrift))
	}
	return strings.Join(parts, "; ")
}

// fieldsOf names the fields of changes. Not their values: what a running guest has may move from one moment to the next, its
// memory for one, and no status is written for that.
func fieldsOf(changes []plan.Change) string {
	fields := make([]string, 0, len(changes))
	for _, change := range changes {
		fields = append(fields, change.Path)
	}
	return shortList(fields)
}

func shortList(fields []string) string {
	const most = 3
	if len(fields) > most {
		return strings.Join(fields[:most], ", ") + fmt.Sprintf(" and %d more", len(fields)-most)
	}
	return strings.Join(fields, ", ")
}

// restartPending tells what the guest gets only at a restart, and since when it waits for that.
func restartPending(in *Input) Condition {
	d := in.Domain
	switch {
	case in.Unknown != "":
		return unknownHost(ConditionRestartPending, in)
	case d == nil || d.RunningHash == "":
		return condition(ConditionRestartPending, False, "NotRunning", "")
	case d.RunningHash == d.Hash:
		return condition(ConditionRestartPending, False, "UpToDate", "")
	}
	const brings = "the guest runs what it was started with; a restart brings "
	pending, err := d.Pending()
	if in.Step != nil && in.Step.PendingRestart != nil {
		pending, err = in.Step.PendingRestart, nil
	}
	switch {
	case err != nil:
		return condition(ConditionRestartPending, True, "OlderConfiguration", brings+"the new configuration")
	case pending == nil:
		return condition(ConditionRestartPending, False, "UpToDate", "")
	}
	since := ""
	if !pending.Since.IsZero() {
		since = ", configured at " + pending.Since.UTC().Format(time.RFC3339)
	}
	return condition(ConditionRestartPending, True, "OlderConfiguration", brings+shortList(pending.Fields)+since)
}
