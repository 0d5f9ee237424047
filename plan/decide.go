package plan

import (
	"fmt"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// decide turns what differs and the wanted power, for which why is the reason, into an action. A step that stays without an action has nothing to
// do.
func (s *Step) decide(power PowerChange, why string, have *Domain) {
	active := have.active()
	if s.Consequence == "" {
		s.Consequence = ConsequenceNone
	}
	changed := s.Reason != ""
	switch {
	case !changed && len(s.Drift) > 0:
		s.Reason, s.Define = ReasonDrift, true
	case !changed && power == PowerKeep && len(s.RunningDrift) > 0:
		s.Reason = ReasonRunningDrift
	case !changed && power == PowerKeep:
		return
	}
	switch {
	case changed && s.Consequence == ConsequenceReplace:
		s.replace(power, active)
	case power == PowerOff:
		s.Action, s.Power, s.Consequence = ActionStop, PowerOff, ConsequenceStop
		s.Summary = "will be shut down (" + why + ")"
		s.reasonPower()
		s.risk()
	case changed && active && (s.Consequence == ConsequenceRestart || s.Consequence == ConsequenceData):
		s.restart()
	case !changed && active && len(s.RunningDrift) > 0:
		s.undo(power)
	case s.Define:
		s.redefine(power, active)
		if power == PowerOn && have.Ran {
			s.risk()
		}
	default:
		s.start(why, have)
	}
}

func (s *Step) reasonPower() {
	if s.Reason == "" {
		s.Reason = ReasonPower
	}
}

// replace makes the domain anew, because libvirt cannot change what is different in place.
func (s *Step) replace(power PowerChange, active bool) {
	s.Action = ActionReplace
	s.Summary = "must be replaced" + s.because(ConsequenceReplace) + "; its disks are kept"
	s.Power = power
	if active && power != PowerOff {
		s.Power = PowerCycle
	}
	if active {
		s.down()
		s.risk()
		if s.VM.RunStrategy == kubevirtv1.RunStrategyManual {
			s.Blocked = "it can only be replaced while it is off; shut it down by hand (runStrategy is Manual)"
		}
	}
	s.DataAtRisk = append(s.DataAtRisk, firmwareState(s.VM.Spec())...)
}

// restart power-cycles a running guest, unless its run strategy leaves the power to people.
func (s *Step) restart() {
	because := s.because(s.Consequence)
	if s.VM.RunStrategy == kubevirtv1.RunStrategyManual {
		s.Action, s.Consequence = ActionUpdate, ConsequenceNextBoot
		s.Summary = "will be changed in its configuration" + because + "; the guest gets it when it is next started"
		if s.Reason == ReasonPendingRestart {
			s.Blocked = "the guest runs its old configuration until it is restarted by hand (runStrategy is Manual)"
		}
		return
	}
	s.Action, s.Power = ActionRestart, PowerCycle
	s.Summary = "must be restarted" + because
	if s.Reason == ReasonPendingRestart {
		s.Summary = "must be restarted to run what is configured already" + because
	}
	s.down()
	s.risk()
	s.lost()
}

// The parts of an estimated downtime, in seconds. Nobody knows how long a guest takes: these are what a small server needs.
const (
	downHost     = 2  // the host defines the domain and starts QEMU
	downShutdown = 10 // the guest shuts down; less where it has less time
	downBoot     = 28 // firmware, kernel and services
)

// down estimates how long a guest that is power-cycled is away.
func (s *Step) down() {
	if s.Power == PowerCycle {
		s.DowntimeSeconds = downHost + min(max(s.GraceSeconds, 0), downShutdown) + downBoot
	}
}

// lost lists the disks that go for good with what the guest wrote to them.
func (s *Step) lost() {
	for _, change := range s.Changes {
		if name, whole := elementOf(change.Path, pathVolumes); change.Consequence == ConsequenceData && name != "" {
			what := "becomes another disk"
			if whole {
				what = "goes"
			}
			s.DataAtRisk = append(s.DataAtRisk, fmt.Sprintf("disk %s %s: what the guest wrote to it is destroyed", name, what))
		}
	}
}

// redefine writes the configuration and, where wanted, starts the guest.
func (s *Step) redefine(power PowerChange, active bool) {
	s.Action, s.Power = ActionUpdate, power
	switch {
	case s.Reason == ReasonReturned:
		s.Summary = "is in git again; its domain is kept"
	case s.Reason == ReasonDrift:
		s.Summary = "was changed outside gitvirt; its configuration will be corrected"
	case s.Consequence == ConsequenceNone:
		s.Summary = "will be updated in place"
	case active && s.Consequence == ConsequenceNextBoot:
		s.Summary = "will be changed in its configuration" + s.because(ConsequenceNextBoot) + "; the guest gets it when it is next started"
	case active:
		s.Live = true
		s.Summary = "will be changed live" + s.because(ConsequenceLive)
	case power == PowerOn:
		s.Consequence = ConsequenceNone
		s.Summary = "will be changed"
	default:
		s.Consequence = ConsequenceNextBoot
		s.Summary = "will be changed; it is off"
	}
	if power == PowerOn {
		s.Summary += " and started"
	}
}

// start powers a domain on, and says why it was off.
func (s *Step) start(why string, have *Domain) {
	s.Action, s.Power, s.Consequence = ActionStart, PowerOn, ConsequenceNone
	switch {
	case have.Ran && have.Stop == StopDestroyed:
		s.Reason = ReasonDrift
		s.Drift = append(s.Drift, Change{Path: "power", Before: "running", After: "stopped by force", Consequence: ConsequenceNone})
		s.Summary = "was stopped outside gitvirt; it will be started (" + why + ")"
	case have.Ran && (have.Stop == StopCrashed || have.Stop == StopFailed):
		s.Summary = "crashed; it will be started again (" + why + ")"
	case have.Ran && have.Stop == StopShutdown:
		s.Summary = "was shut down by its guest; it will be started again (" + why + ")"
	default:
		s.Summary = "will be started (" + why + ")"
	}
	s.reasonPower()
	if have.Ran {
		s.risk()
	}
	if have.Stop == StopSaved {
		s.DataAtRisk = append(s.DataAtRisk, "the saved memory of the guest is discarded: it boots anew")
	}
}

// because names the fields that are to blame for a consequence.
func (s *Step) because(consequence Consequence) string {
	var fields []string
	more := 0
	for i := range s.Changes {
		change := &s.Changes[i]
		if change.Consequence != consequence {
			continue
		}
		if len(fields) == namedFields {
			more++
			continue
		}
		name := shortPath(change.Path)
		if change.Sensitive {
			fields = append(fields, name)
			continue
		}
		if change.isDigest() {
			fields = append(fields, name+": other content")
			continue
		}
		fields = append(fields, name+": "+brief(change.Before)+" -> "+brief(change.After))
	}
	switch {
	case len(fields) == 0:
		return ""
	case more > 0:
		fields = append(fields, strconv.Itoa(more)+" more")
	}
	return " (" + strings.Join(fields, ", ") + ")"
}

// risk lists what does not survive the stop of the guest: container disks, ephemeral volumes and UEFI variables are ephemeral,
// as in KubeVirt.
func (s *Step) risk() {
	for _, volume := range s.VM.Spec().Volumes {
		if volume.ContainerDisk != nil || volume.Ephemeral != nil {
			kind, _ := domainxml.VolumeKind(volume)
			s.DataAtRisk = append(s.DataAtRisk, "disk "+volume.Name+" ("+kind+"): what the guest wrote to it is discarded")
		}
	}
	s.DataAtRisk = append(s.DataAtRisk, s.podRisk()...)
	if volatileVariables(s.VM.Spec()) {
		s.DataAtRisk = append(s.DataAtRisk, "UEFI variables (boot entries, Secure Boot keys) are made anew; bootloader.efi.persistent keeps them")
	}
}

// describeDisk names a disk for people.
func describeDisk(disk Disk) string {
	text := fmt.Sprintf("disk %s (%s)", disk.Volume, disk.Kind)
	if disk.Path != "" && disk.Keep {
		text += " at " + disk.Path
	}
	return text
}
