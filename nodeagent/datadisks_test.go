package nodeagent

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// TestDeletedDisksAreReservedFirst: no step may begin to use a disk between the question who uses it and its end.
func TestDeletedDisksAreReservedFirst(t *testing.T) {
	h := fake.New()
	agent, err := New(Config{Node: "host-1", StateDir: t.TempDir(), DomainType: "qemu"}, h)
	if err != nil {
		t.Fatal(err)
	}
	claiming := func(name string) *api.ExecuteRequest {
		object := &kubevirtv1.VirtualMachine{}
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"`+name+`","namespace":"default"},"spec":{"runStrategy":"Always","template":{"spec":{
			"domain":{"memory":{"guest":"64Mi"},"devices":{"autoattachPodInterface":false,"disks":[{"name":"data","disk":{"bus":"virtio"}}]}},
			"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]}}}}`), object); err != nil {
			t.Fatal(err)
		}
		vm := wire(t, object, nil, map[string]*api.Claim{"data": {Namespace: "default", Name: "data", CapacityBytes: 1 << 20}})
		return &api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Vm: vm}
	}
	execute := func(request *api.ExecuteRequest) error {
		if now, err := agent.refresh(t.Context(), "default_a"); err == nil && request.GetDestroy() {
			request.Precondition = (&execution{now: now}).fingerprint()
		}
		_, err := agent.Execute(t.Context(), request, func(string) {})
		return err
	}
	first := claiming("a")
	if err := execute(first); err != nil {
		t.Fatal(err)
	}
	if err := execute(&api.ExecuteRequest{Address: first.GetAddress(), Destroy: true}); err != nil {
		t.Fatal(err)
	}
	var begun error
	h.Fail(fake.Names, func() fake.Hook {
		var once sync.Once
		return func(context.Context, string) error {
			once.Do(func() { begun = execute(claiming("b")) })
			return nil
		}
	}())
	deleted, err := agent.DeleteDisks(t.Context(), []string{"default/data"})
	if err != nil || len(deleted) != 1 {
		t.Errorf("DeleteDisks() = %v, %v", deleted, err)
	}
	if begun == nil {
		t.Error("a step got the claim while it was being deleted")
	}
}
