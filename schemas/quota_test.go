package schemas_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// quotaVM is a machine of the namespace a; domain and rest are parts of its spec.
func quotaVM(name, domain, rest string) string {
	return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: %s, namespace: a}\nspec: {runStrategy: Always, template: {spec: {domain: {%s}%s}}}\n---\n", name, domain, rest)
}

func quotaMemory(name, amount string) string {
	return quotaVM(name, "memory: {guest: "+amount+"}", "")
}

// quotaUser is a machine that uses a claim.
func quotaUser(name, claim string) string {
	return quotaVM(name, "memory: {guest: 1Gi}", ", volumes: [{name: d, persistentVolumeClaim: {claimName: "+claim+"}}]")
}

func quotaClaim(name, storage string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s, namespace: a}\nspec: {accessModes: [ReadWriteMany], resources: {requests: {storage: %s}}}\n---\n", name, storage)
}

// quotaClone is a claim that takes the size of another.
func quotaClone(name, of string) string {
	return fmt.Sprintf("apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: %s, namespace: a}\nspec: {source: {pvc: {name: %s}}, storage: {accessModes: [ReadWriteMany]}}\n---\n", name, of)
}

func quotaSet(rest string) string {
	return "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceReplicaSet\nmetadata: {name: s, namespace: a}\n" +
		"spec: {replicas: 2, " + rest + "selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {domain: {memory: {guest: 1Gi}}}}}\n---\n"
}

// TestQuotas: who gets what of a quota, given what lived before. What is wanted are the names of machines, and those of the objects that
// a cluster gets after a bar.
func TestQuotas(t *testing.T) {
	fleet := func(quota string) *schemas.File {
		return schemas.Parse("gitvirt.yaml", []byte(strings.Replace(tenants, "quota: {vms: 4}", "quota: "+quota, 1)+"  platform: kubernetes\n"))
	}
	parse := func(manifests []string) *schemas.File {
		return schemas.ParseFrom("team-a", "vms.yaml", []byte(strings.Join(manifests, "")))
	}
	for _, test := range []struct {
		reason, quota string
		lived, now    []string
		want          string
	}{
		{"more than can be counted", "{memory: 8Gi}", nil, []string{quotaMemory("a", "7Ei"), quotaMemory("b", "7Ei")}, ""},
		{"more lives than can be counted", "{memory: 8Gi}", []string{quotaMemory("a", "7Ei"), quotaMemory("b", "7Ei")}, []string{quotaMemory("a", "7Ei"), quotaMemory("b", "7Ei"), quotaMemory("c", "1Gi")}, "a b"},
		{"disks of more than can be counted", "{storage: 8Gi}", nil, []string{quotaVM("a", "memory: {guest: 1Gi}", ", volumes: [{name: d, emptyDisk: {capacity: 7Ei}}, {name: e, emptyDisk: {capacity: 7Ei}}]")}, ""},
	} {
		holding := schemas.Holding(living{})
		if len(test.lived) > 0 {
			holding = holdingAll([]*schemas.File{fleet("{vms: 100}"), parse(test.lived)})
		}
		desired := schemas.Assemble([]*schemas.File{fleet(test.quota), parse(test.now)}, holding)
		var machines, objects []string
		for _, vm := range desired.VMs {
			machines = append(machines, vm.Address.Name)
		}
		got := strings.Join(machines, " ")
		for _, object := range desired.Objects {
			objects = append(objects, object.Address.Name)
		}
		if len(objects) > 0 {
			got += " | " + strings.Join(objects, " ")
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q\n%s", test.reason, got, test.want, told(desired.Diagnostics))
		}
	}
}
