package plan

import (
	"fmt"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// Of each VM there are three truths: what git wants, what the host has configured, and what the running guest has. The first
// two differ by changes and by drift, the last two by a pending restart and by running drift. This file is about the guest's.

// Pending says what the running guest has otherwise than its configuration, nil when nothing, and nil with an error when the
// records cannot be compared.
func (d *Domain) Pending() (*Pending, error) {
	if d.RunningHash == "" || d.RunningHash == d.Hash {
		return nil, nil //nolint:nilnil // nothing is pending
	}
	changes, err := diffRecords(d.RunningRecord, d.Record, judge{room: d.Headroom})
	if err != nil {
		return nil, fmt.Errorf("comparing the running guest with its configuration: %w", err)
	}
	pending := &Pending{Since: d.PendingSince}
	for _, change := range changes {
		if change.Consequence != ConsequenceNone {
			pending.Fields = append(pending.Fields, change.Path)
		}
	}
	if len(pending.Fields) == 0 {
		return nil, nil //nolint:nilnil // what differs is nothing to the guest
	}
	return pending, nil
}

// truths fills a step with how the running guest differs from its configuration and from its record.
func (s *Step) truths(vm *schemas.VM, have *Domain, live LiveSet) error {
	var err error
	if s.PendingRestart, err = have.Pending(); err != nil {
		return err
	}
	s.RunningDrift = slices.Clone(have.RunningDrift)
	for i := range s.RunningDrift {
		change := &s.RunningDrift[i]
		need := undoes(vm, change)
		switch {
		case need == "":
			change.Consequence = ConsequenceRestart
		case !live.Has(need):
			change.worsen(ConsequenceRestart, "this host cannot "+liveWords[need])
		case have.LiveRefused == vm.Hash:
			change.worsen(ConsequenceRestart, "the host could not do it live: "+have.LiveRefusedReason)
		default:
			change.Consequence = ConsequenceLive
		}
	}
	return nil
}

// undoes says what a host must be able to do to undo a change in a running guest; "" for what only a restart undoes.
func undoes(vm *schemas.VM, change *Change) LiveChange {
	if name, whole := elementOf(change.Path, pathDisks); name != "" && whole {
		return LiveDisk
	}
	if name, whole := elementOf(change.Path, pathInterfaces); name != "" && whole {
		return LiveInterface
	}
	if name, _ := elementOf(change.Path, pathInterfaces); name != "" && strings.HasSuffix(change.Path, "].state") {
		return LiveLink
	}
	if name, whole := elementOf(change.Path, pathVolumes); name != "" && whole && isCDROM(vm.Spec(), name) {
		return LiveMedia
	}
	switch change.Path {
	case pathSpec + "domain.memory.guest":
		return LiveBalloon
	case pathSpec + "domain.cpu.sockets":
		before, known := change.Before.(float64)
		after, alsoKnown := change.After.(float64)
		if known && alsoKnown && after < before {
			return LiveCPU
		}
	}
	return ""
}

func isCDROM(spec *kubevirtv1.VirtualMachineInstanceSpec, name string) bool {
	return slices.ContainsFunc(spec.Domain.Devices.Disks, func(disk kubevirtv1.Disk) bool {
		return disk.Name == name && disk.CDRom != nil
	})
}

// undo plans to put right what somebody changed in the running guest: live where that is enough.
func (s *Step) undo(power PowerChange) {
	configuration := ""
	if len(s.Drift) > 0 {
		configuration = " and its configuration will be corrected"
	}
	worst := ConsequenceNone
	for _, change := range s.RunningDrift {
		worst = worst.Worse(change.Consequence)
	}
	if worst == ConsequenceLive {
		s.Action, s.Power, s.Consequence, s.Live = ActionUpdate, power, ConsequenceLive, true
		s.Summary = "was changed in its running guest; that will be undone live" + configuration + fieldNames(s.RunningDrift)
		return
	}
	if s.VM.RunStrategy == kubevirtv1.RunStrategyManual {
		s.Action, s.Consequence = ActionUpdate, ConsequenceNextBoot
		s.Summary = "was changed in its running guest" + fieldNames(s.RunningDrift) + "; a restart undoes that" + configuration
		if len(s.Drift) == 0 {
			s.Blocked = "the running guest stays as it is until it is restarted by hand (runStrategy is Manual)"
		}
		return
	}
	// The definition is written again: the record then says that gitvirt is about to stop the guest.
	s.Action, s.Power, s.Consequence, s.Define = ActionRestart, PowerCycle, ConsequenceRestart, true
	s.Summary = "must be restarted to undo what was changed in its running guest" + fieldNames(s.RunningDrift)
	s.down()
	s.risk()
}

// namedFields is how many fields a summary names.
const namedFields = 3

// fieldNames lists the fields of changes in brackets, those first that need more than a live change.
func fieldNames(changes []Change) string {
	var fields []string
	for _, consequence := range []Consequence{ConsequenceRestart, ConsequenceLive} {
		for _, change := range changes {
			if change.Consequence == consequence {
				fields = append(fields, shortPath(change.Path))
			}
		}
	}
	if len(fields) > namedFields {
		fields = append(fields[:namedFields], fmt.Sprintf("%d more", len(fields)-namedFields))
	}
	return " (" + strings.Join(fields, ", ") + ")"
}
