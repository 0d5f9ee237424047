package plan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// hosted is a machine as a host renders it.
func hosted(vm *schemas.VM) domainxml.Machine {
	m := domainxml.Machine{Address: vm.Address, Spec: vm.Spec(), Host: domainxml.Host{DomainType: "qemu", Dir: "/vms/a"}}
	for _, volume := range vm.Spec().Volumes {
		out := domainxml.Volume{Name: volume.Name, Path: "/disks/" + volume.Name, Format: "qcow2"}
		out.Kind, _ = domainxml.VolumeKind(volume)
		switch {
		case volume.EmptyDisk != nil:
			out.Capacity = volume.EmptyDisk.Capacity.Value()
		case volume.ContainerDisk != nil:
			out.Path += volume.ContainerDisk.Image
		case volume.PersistentVolumeClaim != nil:
			claim := vm.Claims[volume.Name]
			if out.Path = claim.Path; out.Path == "" {
				out.Path, out.Capacity = "/claims/"+claim.Name, claim.Capacity
			}
		case volume.ConfigMap != nil, volume.Secret != nil:
			source, _ := json.Marshal(volume)
			out.Content = fmt.Sprintf("%s %v", source, vm.Contents[volume.Name])
		}
		m.Volumes = append(m.Volumes, out)
	}
	return m
}

// TestTheTablePromisesWhatTheAgentDoes holds the table and the agent together: what a plan calls live, the agent finds operations
// for, and what it calls none changes nothing in the domain.
func TestTheTablePromisesWhatTheAgentDoes(t *testing.T) {
	lived := map[string]bool{}
	for _, test := range liveCases() {
		if test.host != nil || test.consequence != plan.ConsequenceLive && test.consequence != plan.ConsequenceNone {
			continue
		}
		t.Run(test.reason, func(t *testing.T) {
			was, want := desired(t, fleet, test.before).VMs[0], desired(t, fleet, test.after).VMs[0]
			running, err := domainxml.Render(hosted(was))
			if err != nil {
				t.Fatal(err)
			}
			operations, err := domainxml.Live(hosted(was), hosted(want), running)
			var not *domainxml.NotLiveError
			if errors.As(err, &not) {
				t.Fatalf("the agent cannot do it live: %v", not.Reasons)
			}
			if err != nil {
				t.Fatal(err)
			}
			if test.consequence == plan.ConsequenceNone && len(operations) > 0 {
				t.Errorf("the agent changes the guest: %+v", operations)
			}
			have := capable(plan.FromDesired(desired(t, fleet, test.before), "base").Domains)
			step := onlyStep(t, desired(t, fleet, test.after), have)
			for _, change := range step.Changes {
				for _, row := range plan.Rows() {
					if len(row.Needs) > 0 && change.Consequence == plan.ConsequenceLive && row.Path == rowFor(bare(change.Path)) {
						lived[row.Path] = true
						if len(operations) == 0 {
							t.Errorf("%s is live and the agent does nothing", change.Path)
						}
					}
				}
			}
		})
	}
	for _, row := range plan.Rows() {
		twin := row.Path == "spec.volumes.ephemeral"
		if len(row.Needs) > 0 && !lived[row.Path] && !twin {
			t.Errorf("no case shows that %s can be changed live", row.Path)
		}
	}
}

func onlyStep(t *testing.T, want *schemas.Desired, have plan.Observed) plan.Step {
	t.Helper()
	p, err := plan.Build(want, have, plan.Options{})
	if err != nil || len(p.Steps) != 1 {
		t.Fatalf("%v, %+v", err, p)
	}
	return p.Steps[0]
}

// bare is a path as the table has it.
func bare(path string) string {
	out, depth := "", 0
	for _, c := range path {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case depth == 0:
			out += string(c)
		}
	}
	const template = "spec.template."
	if len(out) > len(template) && out[:len(template)] == template {
		return out[len("spec.template.spec.")-len("spec."):]
	}
	return out
}

func TestReachesGuest(t *testing.T) {
	for _, test := range []struct {
		reason      string
		consequence plan.Consequence
		live, want  bool
	}{
		{reason: "nothing that the guest could notice", consequence: plan.ConsequenceNone, want: true},
		{reason: "a live change", consequence: plan.ConsequenceLive, live: true, want: true},
		{reason: "a live change that is not marked as one", consequence: plan.ConsequenceLive, want: true},
		{reason: "a part is live, another waits", consequence: plan.ConsequenceNextBoot, live: true, want: true},
		{reason: "only for the next boot", consequence: plan.ConsequenceNextBoot},
		{reason: "the guest is restarted", consequence: plan.ConsequenceRestart},
		{reason: "the guest goes", consequence: plan.ConsequenceDestroy},
	} {
		t.Run(test.reason, func(t *testing.T) {
			step := plan.Step{Consequence: test.consequence, Live: test.live}
			if got := step.ReachesGuest(); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
