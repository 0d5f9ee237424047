package plan

import (
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

func TestConsequenceOf(t *testing.T) {
	for _, test := range []struct {
		path   string
		want   Consequence
		reason string
	}{
		{"vm.spec.template.spec.domain.cpu.cores", ConsequenceRestart, "hardware"},
		{"vmi.spec.domain.cpu.cores", ConsequenceRestart, "the same in an instance"},
		{"vm.spec.template.spec.domain.devices.interfaces.ports.port", ConsequenceLive, "the host's side of a guest that runs"},
		{"vm.spec.template.spec.domain.devices.interfaces.model", ConsequenceRestart, "a network card"},
		{"vmi.spec.nodeSelector", ConsequenceNone, "placement"},
		{"vmirs.spec.template.spec.domain.firmware.uuid", ConsequenceReplace, "identity"},
		{"vmpool.spec.virtualMachineTemplate.spec.runStrategy", ConsequenceNone, "power is a step of its own"},
		{"vmpool.spec.replicas", "", "no part of a machine"},
		{"instancetype.spec.cpu.guest", ConsequenceRestart, "the machines that use it"},
		{"instancetype.metadata.name", "", "no part of a machine"},
		{"vm.status", "", "only servers write it"},
		{"fleet.spec.interval", "", "no part of a machine"},
	} {
		field, err := schemas.Describe(test.path, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := ConsequenceOf(field); got != test.want {
			t.Errorf("%s: %s: %q, want %q", test.reason, test.path, got, test.want)
		}
	}
}
