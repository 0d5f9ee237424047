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

		{"a removed one lives", "{vms: 2}", []string{quotaMemory("a", "1Gi"), quotaMemory("b", "1Gi")}, []string{quotaMemory("b", "1Gi"), quotaMemory("c", "1Gi")}, "b"},
		{"removed ones leave room", "{memory: 3Gi}", []string{quotaMemory("a", "1Gi")}, []string{quotaMemory("b", "2Gi"), quotaMemory("c", "1Gi")}, "b"},
		{"all of a paused set live", "{vms: 2}", []string{quotaSet("")}, []string{quotaSet("paused: true, "), quotaMemory("c", "1Gi")}, ""},
		{"what cannot be read lives", "{memory: 2Gi}", []string{quotaMemory("a", "2Gi")}, []string{"kind: [\n---\n", quotaMemory("c", "1Gi")}, ""},
		{"one with mistakes lives", "{memory: 2Gi}", []string{quotaMemory("a", "2Gi")}, []string{quotaMemory("a", "nonsense"), quotaMemory("c", "1Gi")}, ""},
		{"a renamed one is one", "{vms: 2}", []string{quotaMemory("a", "1Gi")}, []string{
			strings.Replace(quotaMemory("b", "1Gi"), "namespace: a", "namespace: a, annotations: {gitvirt.io/previous-name: a}", 1), quotaMemory("c", "1Gi"),
		}, "b c"},
		{"another kind is the same machine", "{vms: 2}", []string{quotaMemory("a", "1Gi")}, []string{
			"apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a, namespace: a}\nspec: {domain: {memory: {guest: 1Gi}}}\n---\n", quotaMemory("c", "1Gi"),
		}, "a c"},
		{"the claim of a removed one", "{storage: 10Gi}", []string{quotaClaim("data", "8Gi"), quotaUser("a", "data")}, []string{quotaClaim("more", "8Gi"), quotaUser("b", "more")}, ""},
		{
			"the claim of a removed one is used again", "{storage: 10Gi}",
			[]string{quotaClaim("data", "8Gi"), quotaUser("a", "data")},
			[]string{quotaClaim("data", "8Gi"), quotaUser("b", "data"), quotaClaim("more", "2Gi")},
			"b | data more",
		},
		{
			"a shared claim is no room for others", "{storage: 10Gi}",
			[]string{quotaClaim("data", "8Gi"), quotaUser("a", "data"), quotaUser("b", "data")},
			[]string{quotaClaim("data", "8Gi"), quotaUser("a", "data"), quotaVM("b", "memory: {guest: 1Gi}", ", volumes: [{name: d, persistentVolumeClaim: {claimName: data}}, {name: e, emptyDisk: {capacity: 8Gi}}]")},
			"a | data",
		},

		{"clones of clones", "{storage: 10Gi}", nil, []string{quotaClaim("data", "4Gi"), quotaClone("one", "data"), quotaClone("two", "one"), quotaUser("a", "data"), quotaUser("b", "two")}, "a | data"},
		{"clones that nobody uses", "{storage: 10Gi}", nil, []string{quotaClaim("data", "8Gi"), quotaClone("one", "data")}, " | data"},
		{
			"clones of clones live", "{storage: 10Gi}",
			[]string{quotaClaim("data", "4Gi"), quotaClone("one", "data"), quotaClone("two", "one"), quotaUser("a", "data"), quotaUser("b", "two")},
			[]string{quotaClaim("data", "4Gi"), quotaClone("one", "data"), quotaUser("a", "data"), quotaClaim("more", "3Gi")},
			"a | data",
		},
		{
			"a clone lives and stays", "{storage: 1Gi}",
			[]string{quotaClaim("data", "4Gi"), quotaClone("one", "data"), quotaUser("a", "data"), quotaUser("b", "one")},
			[]string{quotaClaim("data", "4Gi"), quotaClone("one", "data"), quotaUser("a", "data"), quotaUser("b", "one")},
			"a b | data",
		},
		{
			"what a clone was made of stays", "{storage: 1Gi}",
			[]string{quotaClaim("data", "4Gi"), quotaClone("one", "data"), quotaClone("two", "one"), quotaUser("b", "two")},
			[]string{quotaClaim("data", "4Gi"), quotaClone("one", "data"), quotaClone("two", "one"), quotaUser("b", "two")},
			"b | data",
		},

		{"memory of the Pod", "{memory: 2Gi}", nil, []string{
			quotaVM("a", "memory: {guest: 1Gi}, resources: {requests: {memory: 3Gi}}", ""), quotaVM("b", "memory: {guest: 1Gi}, resources: {limits: {memory: 3Gi}}", ""),
			quotaVM("c", "memory: {guest: 1Gi, reservedOverhead: {addedOverhead: 2Gi}}", ""), quotaVM("d", "memory: {guest: 1Gi, reservedOverhead: {addedOverhead: 1Gi}}", ""),
		}, "d"},
		{"CPUs of the Pod", "{cpus: 2}", nil, []string{
			quotaVM("a", "memory: {guest: 1Gi}, cpu: {cores: 1}, resources: {requests: {cpu: 2100m}}", ""), quotaVM("b", "memory: {guest: 1Gi}, cpu: {cores: 1}, resources: {requests: {cpu: 1}, limits: {cpu: 3}}", ""),
			quotaVM("c", "memory: {guest: 1Gi}, cpu: {cores: 1}, resources: {requests: {cpu: 1100m}}", ""),
		}, "c"},
		{"storage of the Pod's node", "{storage: 2Gi}", nil, []string{quotaVM("a", "memory: {guest: 1Gi}, resources: {requests: {ephemeral-storage: 3Gi}}", ""), quotaVM("b", "memory: {guest: 1Gi}, resources: {limits: {ephemeral-storage: 2Gi}}", "")}, "b"},

		{"a claim that lives grows", "{storage: 10Gi}", []string{quotaClaim("data", "4Gi")}, []string{quotaClaim("data", "11Gi")}, ""},
		{"a claim that lives grows within", "{storage: 10Gi}", []string{quotaClaim("data", "4Gi")}, []string{quotaClaim("data", "10Gi")}, " | data"},
		{"a claim that lives stays", "{storage: 1Gi}", []string{quotaClaim("data", "4Gi")}, []string{quotaClaim("data", "4Gi")}, " | data"},
		{"a claim that lives takes room", "{storage: 10Gi}", []string{quotaClaim("data", "4Gi")}, []string{quotaClaim("data", "4Gi"), quotaClaim("a", "7Gi"), quotaClaim("b", "6Gi")}, " | b data"},
		{"a claim that lives gets a user and grows", "{storage: 10Gi}", []string{quotaClaim("data", "4Gi")}, []string{quotaClaim("data", "11Gi"), quotaUser("a", "data")}, ""},

		{"the claim of a refused one", "{vms: 1}", nil, []string{quotaMemory("a", "1Gi"), quotaClaim("data", "4Gi"), quotaUser("b", "data")}, "a"},
		{"another one uses the claim of a refused one", "{memory: 1Gi, storage: 4Gi}", nil, []string{quotaClaim("data", "4Gi"), strings.Replace(quotaUser("a", "data"), "1Gi", "2Gi", 1), quotaUser("b", "data")}, "b | data"},
		{"the claim of a refused one lives", "{vms: 1}", []string{quotaMemory("a", "1Gi"), quotaClaim("data", "4Gi")}, []string{quotaMemory("a", "1Gi"), quotaClaim("data", "4Gi"), quotaUser("b", "data")}, "a | data"},
		{"a machine is refused as its claim grows", "{storage: 10Gi}", []string{quotaClaim("data", "4Gi"), quotaUser("a", "data")}, []string{quotaClaim("data", "11Gi"), quotaUser("a", "data")}, ""},
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
