package plan

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// destroy plans the end of a domain that git no longer has.
func (b *builder) destroy(have *Domain) {
	if have.Fleet != b.plan.Fleet {
		return // another fleet's domain on the same host
	}
	if have.Leave != "" {
		b.hold(have.Address, have.Leave)
		return
	}
	if b.unread(have.Holder()) {
		b.hold(have.Address, "the source "+have.Holder()+" cannot be read, so nobody knows what it asks for")
		return
	}
	step := Step{
		Address:      have.Address,
		Action:       ActionDestroy,
		Reason:       ReasonRemoved,
		Consequence:  ConsequenceDestroy,
		Domain:       have.Name,
		Precondition: have.Fingerprint,
		Pod:          podOf(have),
		Summary:      "will be destroyed: " + orUnknown(have.Source) + " no longer has it",
	}
	if have.Problem == "" {
		object, _, err := schemas.ParseRecord(have.Record, true)
		if err != nil {
			step.Blocked = "its record cannot be understood: " + err.Error()
		} else {
			step.GraceSeconds = domainxml.GraceSeconds(&object.Spec.Template.Spec)
			step.Blocked = protected(object.Annotations)
			step.DataAtRisk = firmwareState(&object.Spec.Template.Spec)
		}
	}
	for _, disk := range have.Disks {
		switch {
		case disk.Keep:
			step.Keeps = append(step.Keeps, describeDisk(disk))
		case disk.Kind == "containerDisk" || disk.Kind == "ephemeral" || disk.Kind == "emptyDisk":
			step.DataAtRisk = append(step.DataAtRisk, describeDisk(disk)+": what the guest wrote to it is discarded")
		}
	}
	b.retire(&step, have)
	switch {
	case have.State == StateMissing:
		step.Summary = "is gone from the host and from git; its leftovers will be cleared"
		step.Consequence = ConsequenceNone
	case have.Problem != "":
		step.Blocked = "its record cannot be understood: " + have.Problem
	}
	if step.Blocked == "" {
		step.Blocked = b.takeover.spared[have.Address]
	}
	if step.Blocked == "" {
		step.Blocked = b.withheld(have.Holder())
	}
	b.add(step)
}

// protected says that a VM must not be destroyed or replaced, by the annotations that were applied to it: removing the
// manifest does not remove the protection.
func protected(annotations map[string]string) string {
	if on, err := strconv.ParseBool(annotations[schemas.AnnotationProtect]); err != nil || !on {
		return ""
	}
	return "it is protected (" + schemas.AnnotationProtect + "); apply it with \"false\" first"
}

// protect blocks a step that makes a protected domain anew or destroys data of it. The machine is protected when git says so
// or when what was applied did.
func (b *builder) protect(step *Step, have *Domain) {
	if step.Action != ActionReplace && step.Consequence != ConsequenceData || step.Blocked != "" {
		return
	}
	object, _, err := schemas.ParseRecord(have.Record, false)
	switch {
	case err == nil && protected(object.Annotations) != "":
		step.Blocked = protected(object.Annotations)
	case step.VM.Settings.Protect:
		step.Blocked = "it is protected (" + schemas.AnnotationProtect + "); say \"false\" first"
	}
}

// succeeded reports whether git wants a machine of another kind under the name of a domain: there is no keeping the one while
// the other is made.
func (b *builder) succeeded(have *Domain) bool {
	next := have.Address
	next.Kind = schemas.KindVirtualMachine
	if have.Address.Kind == schemas.KindVirtualMachine {
		next.Kind = schemas.KindVirtualMachineInstance
	}
	return b.wanted(next)
}

// podOf is the Pod of a domain, as steps name it; nil on a host.
func podOf(have *Domain) *Pod {
	if have.Pod == "" {
		return nil
	}
	return &Pod{Name: have.Pod, Node: have.Node}
}

// retire makes of the end of a domain its beginning, where the Fleet keeps the domains of removed machines for a while: it is
// shut down first, and destroyed when that time is over. Whether it is over is for the policy to say, which knows what time
// it is; until then the step waits. A Pod is not kept: what outlives it are claims, and those nobody removes.
func (b *builder) retire(step *Step, have *Domain) {
	grace := time.Duration(b.want.Fleet.Spec.Policy.RemovalGrace)
	if grace <= 0 || b.pods != nil || have.State == StateMissing || b.succeeded(have) {
		return
	}
	if !have.RetiredSince.IsZero() && !have.active() {
		until := have.RetiredSince.Add(grace)
		step.Waits = []Wait{{For: WaitGrace, Until: until, Reason: fmt.Sprintf("is kept until %s (removalGrace is %s); if it comes back to git it is started again",
			until.UTC().Format("Mon 2 Jan 2006 15:04 MST"), durationWords(grace))}}
		step.Summary = fmt.Sprintf("is retired and will be destroyed: %s no longer has it", orUnknown(have.Source))
		return
	}
	step.Action, step.Consequence = ActionRetire, ConsequenceStop
	step.Summary = fmt.Sprintf("will be shut down and kept for %s before it is destroyed: %s no longer has it", durationWords(grace), orUnknown(have.Source))
	step.Keeps = nil // all of them, for now
	if have.active() {
		step.Power = PowerOff
	} else {
		step.DataAtRisk = nil
	}
}

// durationWords writes a duration without the zeros behind: 168h, 90m.
func durationWords(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// comeBack makes a step of a retired domain that git has again.
func (b *builder) comeBack(step *Step, have *Domain) {
	if have.RetiredSince.IsZero() {
		return
	}
	if step.Reason == "" {
		step.Reason = ReasonReturned
	}
	step.Define = true // the record then says no longer that it is retired
	step.Changes = append(step.Changes, Change{Path: "retired", Before: have.RetiredSince.UTC().Format(time.RFC3339), Consequence: ConsequenceNone})
}

// firmwareState lists what a guest keeps in its firmware and loses with its domain.
func firmwareState(spec *kubevirtv1.VirtualMachineInstanceSpec) []string {
	var lost []string
	if volatileVariables(spec) {
		lost = append(lost, "UEFI variables (boot entries, Secure Boot keys) are discarded")
	}
	tpm := spec.Domain.Devices.TPM
	if tpm != nil && (tpm.Enabled == nil || *tpm.Enabled) && (tpm.Persistent == nil || !*tpm.Persistent) {
		lost = append(lost, "TPM state is discarded: what the guest sealed with it cannot be opened any more")
	}
	return lost
}

// volatileVariables reports whether a guest has UEFI variables that are made anew at every power-on: those that are not
// persistent, as in KubeVirt.
func volatileVariables(spec *kubevirtv1.VirtualMachineInstanceSpec) bool {
	firmware := spec.Domain.Firmware
	if firmware == nil || firmware.Bootloader == nil || firmware.Bootloader.EFI == nil {
		return false
	}
	persistent := firmware.Bootloader.EFI.Persistent
	return persistent == nil || !*persistent
}
