package schemas

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// everything is a machine with what is sensitive, what records leave out and what it refers to.
const everything = `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: all
  labels: {app: web}
  annotations: {gitvirt.io/adopt: old, example.org/note: "yes"}
spec:
  runStrategy: Manual
  template:
    metadata: {labels: {tier: front}}
    spec:
      domain:
        firmware: {uuid: 5D307CA9-B3EF-428C-8861-06E72D69F223}
        memory: {guest: 1024Mi}
        devices:
          disks:
          - {name: one, disk: {bus: virtio}}
          - {name: two, disk: {}}
          - {name: keys, disk: {}}
          - {name: root, disk: {}}
      volumes:
      - {name: one, cloudInitNoCloud: {userData: marker-1, networkDataBase64: bWFya2VyLTI=}}
      - {name: two, cloudInitConfigDrive: {userDataBase64: bWFya2VyLTM=, networkData: marker-4}}
      - {name: keys, secret: {secretName: keys}}
      - {name: root, persistentVolumeClaim: {claimName: root}}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {key: marker-5}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: root}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
`

// TestRecordReader: one reader finds in many records, and in the machines that they are of, what ReadRecord finds.
func TestRecordReader(t *testing.T) {
	machines := slices.Concat(Assemble([]*File{Parse("all.yaml", []byte(everything))}).VMs, machinesBelow(t, "../examples", "testdata/conformance"))
	if len(machines) < 20 || machines[0].Address.Name != "all" || len(machines[0].Claims) == 0 || len(machines[0].Contents) == 0 {
		t.Fatalf("%d machines", len(machines))
	}
	var reader RecordReader
	for range 2 { // what was read before is nowhere in what is read later
		for i, vm := range machines {
			want, err := ReadRecord(vm.Record, true)
			if err != nil {
				t.Fatal(err)
			}
			read, err := reader.Read(vm.Record)
			if err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(read, want) {
				t.Errorf("%s: another record was read", vm.Address)
			}
			of, err := reader.Of(vm)
			if err != nil {
				t.Fatal(err)
			}
			for _, differences := range [][]Difference{Compare(of, want), Compare(want, of), Compare(read, of)} {
				if len(differences) > 0 {
					t.Errorf("%s: the machine is not its record: %v", vm.Address, differences)
				}
			}
			other := machines[(i+1)%len(machines)]
			was, err := ReadRecord(other.Record, true)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := Compare(was, of), Compare(was, want); !reflect.DeepEqual(got, want) {
				t.Errorf("%s compared with %s:\n%v\nwant:\n%v", vm.Address, other.Address, got, want)
			}
		}
		slices.Reverse(machines)
	}
}

// TestRecordReaderShowsNothingSensitive: what differs of a machine has digests in place of what is sensitive.
func TestRecordReaderShowsNothingSensitive(t *testing.T) {
	vm := Assemble([]*File{Parse("all.yaml", []byte(everything))}).VMs[0]
	var reader RecordReader
	of, err := reader.Of(vm)
	if err != nil {
		t.Fatal(err)
	}
	empty, err := ReadRecord([]byte(`{"metadata":{"name":"all"},"spec":{"runStrategy":"Always","template":{"spec":{"domain":{"devices":{}}}}}}`), true)
	if err != nil {
		t.Fatal(err)
	}
	digests := 0
	for _, difference := range Compare(empty, of) {
		encoded, _ := json.Marshal(difference)
		if text := string(encoded); strings.Contains(text, "marker-") || strings.Contains(text, "bWFya2Vy") {
			t.Errorf("%s", text)
		}
		digests += strings.Count(string(encoded), digestPrefix)
	}
	if digests != 5 {
		t.Errorf("%d digests", digests)
	}
}

// TestSensitiveFieldsOfMachines: a RecordReader hides what the encoder of records hides. A later KubeVirt API with more shows here.
func TestSensitiveFieldsOfMachines(t *testing.T) {
	var found []string
	var walk func(path string, info *typeInfo, above []*typeInfo)
	walk = func(path string, info *typeInfo, above []*typeInfo) {
		for info.elem != nil {
			info = info.elem
		}
		if slices.Contains(above, info) {
			return
		}
		for i := range info.fields {
			field := &info.fields[i]
			if field.sensitive || field.query {
				found = append(found, path+"."+field.name)
			}
			walk(path+"."+field.name, field.info, append(above, info))
		}
	}
	walk("spec", infoOf(reflect.TypeFor[kubevirtv1.VirtualMachineSpec]()), nil)
	found = slices.DeleteFunc(found, func(path string) bool { return strings.HasPrefix(path, "spec.dataVolumeTemplates.") })
	var want []string
	for _, volume := range []string{"cloudInitConfigDrive", "cloudInitNoCloud"} {
		for _, field := range []string{"networkData", "networkDataBase64", "userData", "userDataBase64"} {
			want = append(want, "spec.template.spec.volumes."+volume+"."+field)
		}
	}
	if !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}
