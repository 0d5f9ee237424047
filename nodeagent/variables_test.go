package nodeagent

import (
	"errors"
	"os"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// TestFirmwareVariables switches guests with UEFI off and on.
func TestFirmwareVariables(t *testing.T) {
	r := newRig(t)
	for name, persistent := range map[string]bool{"volatile": false, "kept": true} {
		t.Run(name, func(t *testing.T) {
			object := machineYAML(t, name, "", "")
			no := false
			object.Spec.Template.Spec.Domain.Firmware.Bootloader = &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: &no, Persistent: &persistent}}
			vm := wire(t, object, nil, nil)
			r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Power: "on", Vm: vm})
			path := r.agent.volumes.files.NVRAM(address(name), &object.Spec.Template.Spec)
			r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Power: "off", Vm: vm})
			variables, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			variables[len(variables)-1] = 'x'
			if err := os.WriteFile(path, variables, 0o600); err != nil {
				t.Fatal(err)
			}
			r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Power: "on", Vm: vm})
			after, err := os.ReadFile(path)
			if err != nil || (after[len(after)-1] == 'x') != persistent {
				t.Errorf("the variables were kept: %v, %v; want %v", after[len(after)-1] == 'x', err, persistent)
			}
			r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Destroy: true})
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) == persistent {
				t.Errorf("after the VM: %v", err)
			}
			listed, err := r.agent.Disks(t.Context())
			if err != nil || (len(listed) == 1) != persistent {
				t.Errorf("listed are %v, %v", listed, err)
			}
			if persistent {
				if deleted, err := r.agent.DeleteDisks(t.Context(), []string{"default/kept/firmware.nvram"}); err != nil || len(deleted) != 1 {
					t.Errorf("DeleteDisks() = %v, %v", deleted, err)
				}
			}
		})
	}
}
