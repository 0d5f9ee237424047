// Package wire translates between the words of plans and those of the node agent's API.
package wire

import (
	"encoding/json"
	"fmt"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// VM is the message for the agent of what a step wants; nil when it wants no machine.
func VM(target apply.Target, step *plan.Step) (*api.VM, error) {
	if step.VM == nil {
		return nil, nil //nolint:nilnil // a step that removes a machine
	}
	object, err := json.Marshal(step.VM.Object)
	if err != nil {
		return nil, fmt.Errorf("encoding the VM: %w", err)
	}
	target = target.For(step)
	out := &api.VM{
		Address: step.Address.String(), Fleet: target.Fleet, Revision: target.Revision, Source: step.Source,
		Object: object, Record: step.VM.Record, Hash: step.VM.Hash,
	}
	return out, addReferences(out, step.VM)
}

// addReferences puts what the references of a VM resolved to into the message for the agent.
func addReferences(out *api.VM, vm *schemas.VM) error {
	if len(vm.Contents) > 0 {
		out.Contents = make(map[string]*api.Content, len(vm.Contents))
		for reference, content := range vm.Contents {
			out.Contents[reference] = contentOf(content)
		}
	}
	if len(vm.Claims) > 0 {
		out.Claims = make(map[string]*api.Claim, len(vm.Claims))
	}
	for volume := range vm.Claims {
		claim := vm.Claims[volume]
		message, err := claimOf(&claim)
		if err != nil {
			return err
		}
		out.Claims[volume] = message
	}
	if len(vm.HostDevices) > 0 {
		out.HostDevices = make(map[string]*api.HostDeviceSelector, len(vm.HostDevices))
	}
	for name, selector := range vm.HostDevices {
		message := &api.HostDeviceSelector{Resource: selector.Resource, Pci: selector.PCI, Mediated: selector.Mediated}
		for _, usb := range selector.USB {
			message.Usb = append(message.Usb, &api.USBSelector{Vendor: usb.Vendor, Product: usb.Product})
		}
		out.HostDevices[name] = message
	}
	return nil
}

// claimOf is nil for no claim.
func claimOf(claim *schemas.Claim) (*api.Claim, error) {
	if claim == nil {
		return nil, nil //nolint:nilnil // a claim that is no copy is the usual case
	}
	out := &api.Claim{
		Namespace: claim.Namespace, Name: claim.Name, CapacityBytes: claim.Capacity, Path: claim.Path, Block: claim.Block, Shared: claim.Shared,
	}
	if claim.Source != nil {
		source, err := json.Marshal(claim.Source)
		if err != nil {
			return nil, fmt.Errorf("encoding the source of the claim %s: %w", claim.Name, err)
		}
		out.Source, out.SourceContent = source, contentOf(claim.SourceContent)
	}
	var err error
	out.CopyOf, err = claimOf(claim.CopyOf)
	return out, err
}

func contentOf(content schemas.Content) *api.Content {
	out := &api.Content{Values: make(map[string][]byte, len(content))}
	for key, value := range content {
		out.Values[key] = []byte(value)
	}
	return out
}
