package domainxml_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// drawLive draws a spec that the guest of liveSpec, or of another drawn one, can become while it runs, but for what no guest does: it
// gives back no vCPUs, and its disks do not shrink.
func drawLive(tb testing.TB, t *rapid.T) (spec string, sockets, mebibytes int) {
	sockets, mebibytes = rapid.IntRange(2, 4).Draw(t, "sockets"), 64*rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "capacity")
	spec = strings.Replace(liveSpec, "sockets: 2, m", fmt.Sprintf("sockets: %d, m", sockets), 1)
	spec = strings.Replace(spec, "guest: 256Mi", fmt.Sprintf("guest: %dMi", 64*rapid.IntRange(2, 12).Draw(t, "memory")), 1)
	spec = strings.Replace(spec, "{name: root, emptyDisk: {capacity: 64Mi", fmt.Sprintf("{name: root, emptyDisk: {capacity: %dMi", mebibytes), 1)
	edit := func(what string, pairs ...string) {
		if rapid.Bool().Draw(t, what) {
			spec = edited(tb, spec, pairs...)
		}
	}
	edit("no data", dataDisk, "", dataVolume, "")
	edit("virtio", "    - {name: cd", "    - {name: extra, serial: EXTRA, disk: {bus: virtio}}\n    - {name: cd", "volumes:\n", "volumes:\n- {name: extra, emptyDisk: {capacity: 1Gi}}\n")
	edit("scsi", "    - {name: cd", "    - {name: more, disk: {bus: scsi}}\n    - {name: cd", "volumes:\n", "volumes:\n- {name: more, emptyDisk: {capacity: 1Gi}}\n")
	edit("medium", "volumes:\n", "volumes:\n- {name: cd, cloudInitNoCloud: {userData: x}}\n")
	edit("link", "{name: default, masquerade: {}}", "{name: default, masquerade: {}, state: down}")
	edit("no lan", "\n    - {name: lan, bridge: {}}", "", "\n- {name: lan, multus: {networkName: lan}}", "")
	edit("wan", "interfaces:\n", "interfaces:\n    - {name: wan, bridge: {}}\n", "networks:\n", "networks:\n- {name: wan, multus: {networkName: wan}}\n")
	return spec, sockets, mebibytes
}

// carryOut does to a running guest what Live has found.
func carryOut(ctx context.Context, h hypervisor.Hypervisor, name string, operations []domainxml.Operation) error {
	for _, o := range operations {
		var err error
		switch o.Kind {
		case domainxml.OperationDetach:
			err = h.DetachDevice(ctx, name, o.Device)
		case domainxml.OperationUpdate:
			err = h.UpdateDevice(ctx, name, o.Device)
		case domainxml.OperationReinsert:
			err = errors.Join(h.UpdateDevice(ctx, name, o.Empty), h.UpdateDevice(ctx, name, o.Device))
		case domainxml.OperationAttach:
			err = h.AttachDevice(ctx, name, o.Device)
		case domainxml.OperationResize:
			err = h.ResizeDisk(ctx, name, o.Target, o.Bytes)
		case domainxml.OperationMemory:
			err = h.SetMemory(ctx, name, o.KiB)
		case domainxml.OperationVCPUs:
			err = h.SetVCPUs(ctx, name, o.VCPUs)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", o.Text, err)
		}
	}
	return nil
}

// TestLiveToAndFro: a guest that is changed from one drawn spec to another, back, and so on, is each time what it should be, and in the
// end what it was; what cannot be taken back is refused whole, for that reason alone.
func TestLiveToAndFro(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		h := fake.New()
		var machines [2]domainxml.Machine
		var sockets, sizes [2]int
		for i := range machines {
			var spec string
			spec, sockets[i], sizes[i] = drawLive(t, rt)
			machines[i] = liveMachine(t, spec)
		}
		name := domainxml.DomainName(machines[0].Address)
		if err := errors.Join(h.Define(ctx, rendered(t, machines[0])), h.SetPower(ctx, name, hypervisor.PowerOn)); err != nil {
			rt.Fatal(err)
		}
		for turn := range 5 {
			was, want := turn%2, 1-turn%2
			domain, err := h.Domain(ctx, name)
			if err != nil {
				rt.Fatal(err)
			}
			operations, err := domainxml.Live(machines[was], machines[want], domain.Live)
			var not *domainxml.NotLiveError
			switch impossible := sockets[want] < sockets[was] || sizes[want] < sizes[was]; {
			case errors.As(err, &not) && len(operations) == 0 && (impossible || strings.Contains(err.Error(), "no PCI slot is free")):
				return // and nothing was done
			case err != nil || impossible:
				rt.Fatalf("turn %d: %v, impossible %v", turn, err, impossible)
			}
			if err := carryOut(ctx, h, name, operations); err != nil {
				rt.Fatalf("turn %d: %v", turn, err)
			}
			if domain, err = h.Domain(ctx, name); err != nil {
				rt.Fatal(err)
			}
			if again, err := domainxml.Live(machines[want], machines[want], domain.Live); err != nil || len(again) > 0 {
				rt.Fatalf("turn %d: it is not there yet: %+v, %v", turn, again, err)
			}
			differences, err := domainxml.CompareRunning(rendered(t, machines[want]), domain.Live)
			if err != nil || len(differences) > 0 {
				rt.Fatalf("turn %d: it differs: %+v, %v\n%s", turn, differences, err, domain.Live)
			}
		}
	})
}
