package schemas_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/gitvirt/gitvirt/schemas"
)

// around is what the machines of these tests refer to.
const around = `
apiVersion: v1
kind: Secret
metadata: {name: seed}
data: {userdata: aGVsbG8=}
stringData: {networkdata: net}
---
apiVersion: v1
kind: Secret
metadata: {name: site}
stringData: {accessKeyId: me, secretKey: pass}
---
apiVersion: v1
kind: Secret
metadata: {name: pull}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: "{}"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: files}
data: {a.txt: text}
binaryData: {b.bin: AAEC}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, resources: {requests: {storage: 10Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: lun}
spec: {capacity: {storage: 20Gi}, claimRef: {namespace: default, name: data}, local: {path: /dev/vg/lun}}
---
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {name: root}
spec:
  source: {http: {url: "https://example.org/a.img", secretRef: site}}
  storage: {accessModes: [ReadWriteMany], resources: {requests: {storage: 5Gi}}}
`

func assemble(t testing.TB, manifests ...string) *schemas.Desired {
	t.Helper()
	var files []*schemas.File
	for i, text := range manifests {
		files = append(files, schemas.Parse(fmt.Sprintf("%d.yaml", i), []byte(text)))
	}
	return schemas.Assemble(files)
}

// TestRecordHoldsNoCredentialsOfSources: signatures are in the queries of URLs, tokens in headers.
func TestRecordHoldsNoCredentialsOfSources(t *testing.T) {
	const source = `{http: {url: "https://example.org/a.img?signature=hush", extraHeaders: ["Authorization: hush"]}}`
	const machine = "  domain: {memory: {guest: 1Gi}}\n  volumes: [{name: root, dataVolume: {name: root}}]\n"
	made := func(source string) *schemas.VM {
		d := assemble(t, "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: root}\nspec:\n  source: "+source+
			"\n  storage: {resources: {requests: {storage: 5Gi}}}\n", vmi("web", machine))
		if len(d.VMs) != 1 || len(d.Diagnostics) > 0 {
			t.Fatal(d.Diagnostics)
		}
		return d.VMs[0]
	}
	vm := made(source)
	if strings.Contains(string(vm.Record), "hush") {
		t.Errorf("the record shows a credential: %s", vm.Record)
	}
	if http := vm.Claims["root"].Source.HTTP; http.URL != "https://example.org/a.img?signature=hush" || http.ExtraHeaders[0] != "Authorization: hush" {
		t.Errorf("the host is told %+v", http)
	}
	read, err := schemas.ReadRecord(vm.Record, true)
	if err != nil {
		t.Fatal(err)
	}
	if http := read.Claims["root"].Source.HTTP; !strings.HasPrefix(http.URL, "https://example.org/a.img?sha256:") || len(http.ExtraHeaders) != 1 {
		t.Errorf("recorded: %+v", http)
	}
	for _, part := range []string{"signature=hush", "Authorization: hush"} {
		if made(strings.Replace(source, part, part+"2", 1)).Hash == vm.Hash {
			t.Errorf("%s: another value is the same wish", part)
		}
	}
	d := assemble(t, "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: root}\nspec: {source: {http: {url: \"https://example.org/a b?hush\", extraHeaders: {a: hush}}}, storage: {resources: {requests: {storage: 5Gi}}}}\n")
	for _, diagnostic := range d.Diagnostics {
		if strings.Contains(fmt.Sprint(diagnostic), "hush") {
			t.Errorf("a diagnostic shows a credential: %v", diagnostic)
		}
	}
}

// TestResolve checks what references become, and that the record shows it without what is secret.
func TestResolve(t *testing.T) {
	machine := vmi("web", `  domain: {memory: {guest: 1Gi}}
  volumes:
  - {name: seed, cloudInitNoCloud: {secretRef: {name: seed}, networkDataSecretRef: {name: seed}}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: root, dataVolume: {name: root}}
`)
	d := assemble(t, around, machine)
	if len(d.VMs) != 1 || len(d.Diagnostics) > 0 {
		t.Fatal(d.Diagnostics)
	}
	vm := d.VMs[0]
	contents := map[string]schemas.Content{"seed": {"userdata": "hello", "networkdata": "net"}}
	if diff := cmp.Diff(contents, vm.Contents); diff != "" {
		t.Errorf("contents (-want +got)\n%s", diff)
	}
	claims := map[string]schemas.Claim{
		"data": {Namespace: "default", Name: "data", Capacity: 20 << 30, Path: "/dev/vg/lun", Block: true},
		"root": {
			Namespace: "default", Name: "root", Capacity: 5 << 30, Shared: true,
			Source:        &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://example.org/a.img", SecretRef: "site"}},
			SourceContent: schemas.Content{"accessKeyId": "me", "secretKey": "pass"},
		},
	}
	if diff := cmp.Diff(claims, vm.Claims); diff != "" {
		t.Errorf("claims (-want +got)\n%s", diff)
	}
	for _, secret := range []string{"hello", "pass"} {
		if strings.Contains(string(vm.Record), secret) {
			t.Errorf("the record shows %q", secret)
		}
	}
	read, err := schemas.ReadRecord(vm.Record, true)
	if err != nil {
		t.Fatal(err)
	}
	root := claims["root"]
	root.SourceContent = nil
	claims["root"] = root
	if diff := cmp.Diff(claims, read.Claims); diff != "" {
		t.Errorf("claims of the record (-want +got)\n%s", diff)
	}
	if len(read.Secrets) != 1 || !strings.HasPrefix(read.Secrets["seed"], "sha256:") {
		t.Errorf("secrets of the record: %v", read.Secrets)
	}
	changes := []struct {
		reason, before, after string
		changed               bool
	}{
		{"user data", "aGVsbG8=", "aGVsbA==", true},
		{"a larger claim", "storage: 5Gi", "storage: 6Gi", true},
		{"the password of a source, which no guest sees", "secretKey: pass", "secretKey: other", false},
	}
	for _, change := range changes {
		other := assemble(t, strings.Replace(around, change.before, change.after, 1), machine)
		if changed := other.VMs[0].Hash != vm.Hash; changed != change.changed {
			t.Errorf("%s: changed=%v", change.reason, changed)
		}
	}
}

// TestResolveAgain: a resolution is kept while its objects are the same, and made again when one of them is another.
func TestResolveAgain(t *testing.T) {
	machine := schemas.Parse("vm.yaml", []byte(vmi("web", `  domain: {memory: {guest: 1Gi}}
  volumes: [{name: seed, cloudInitNoCloud: {secretRef: {name: seed}}}]
`)))
	first := schemas.Parse("a.yaml", []byte(around))
	second := schemas.Parse("a.yaml", []byte(strings.Replace(around, "aGVsbG8=", "b3RoZXI=", 1)))
	user := func(files ...*schemas.File) string {
		d := schemas.Assemble(files)
		if len(d.VMs) != 1 {
			return fmt.Sprint(d.Diagnostics)
		}
		return d.VMs[0].Contents["seed"]["userdata"]
	}
	for i, want := range []string{"hello", "hello", "other", "hello"} {
		secrets := first
		if want == "other" {
			secrets = second
		}
		if got := user(machine, secrets); got != want {
			t.Errorf("%d: %q, want %q", i, got, want)
		}
	}
	if got := user(machine); !strings.Contains(got, `no Secret "seed"`) {
		t.Errorf("without the Secret: %s", got)
	}
	if d := schemas.Assemble([]*schemas.File{machine}, schemas.AllowMissing()); len(d.VMs) != 1 || d.Diagnostics.Errors() != 0 || len(d.Diagnostics) != 1 {
		t.Errorf("allowed to be missing: %v", d.Diagnostics)
	}
	if got := user(machine); !strings.Contains(got, `no Secret "seed"`) {
		t.Errorf("not allowed any more: %s", got)
	}
}

const instancetypes = `
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineInstancetype
metadata: {name: small}
spec: {cpu: {guest: 2}, memory: {guest: 1Gi}}
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineClusterPreference
metadata: {name: linux}
spec: {cpu: {preferredCPUTopology: cores}, devices: {preferredDiskBus: virtio}}
`

func typed(name string) string {
	return `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: ` + name + `}
spec:
  runStrategy: Always
  instancetype: {kind: VirtualMachineInstancetype, name: small}
  preference: {name: linux}
  template:
    spec:
      domain: {devices: {}}
      volumes: [{name: root, emptyDisk: {capacity: 1Gi}}]
`
}

// TestExpandAcrossFiles: a changed instancetype changes its machines; one that is the same object is not looked at again.
func TestExpandAcrossFiles(t *testing.T) {
	machine := schemas.Parse("vm.yaml", []byte(typed("web")))
	size, settings, _ := strings.Cut(instancetypes, "---\n")
	types := schemas.Parse("types.yaml", []byte(size))
	preferences := schemas.Parse("preferences.yaml", []byte(settings))
	larger := schemas.Parse("types.yaml", []byte(strings.Replace(size, "guest: 2}", "guest: 4}", 1)))
	first := schemas.Assemble([]*schemas.File{machine, types, preferences})
	if len(first.VMs) != 1 || len(first.Diagnostics) > 0 {
		t.Fatal(first.Diagnostics)
	}
	spec := first.VMs[0].Spec()
	if spec.Domain.CPU.Cores != 2 || spec.Domain.Memory.Guest.String() != "1Gi" || spec.Domain.Devices.Disks[0].Disk.Bus != kubevirtv1.DiskBusVirtio {
		t.Errorf("%+v", spec.Domain)
	}
	if again := schemas.Assemble([]*schemas.File{machine, types, preferences}); again.VMs[0] != first.VMs[0] {
		t.Error("expanded a second time")
	}
	other := schemas.Assemble([]*schemas.File{machine, larger, preferences})
	if other.VMs[0].Spec().Domain.CPU.Cores != 4 || other.VMs[0].Hash == first.VMs[0].Hash {
		t.Errorf("%+v", other.VMs[0].Spec().Domain.CPU)
	}
	if read, err := schemas.ReadRecord(other.VMs[0].Record, false); err != nil || read.Object.Spec.Template.Spec.Domain.CPU.Cores != 4 {
		t.Errorf("the record has the spec before it was expanded: %s, %v", other.VMs[0].Record, err)
	}
	if gone := schemas.Assemble([]*schemas.File{machine, preferences}, schemas.AllowMissing()); len(gone.VMs) != 0 || len(gone.Broken) != 1 {
		t.Errorf("without its instancetype: %v", gone.Diagnostics)
	}
}

// TestMembers checks the machines of sets.
func TestMembers(t *testing.T) {
	pool := `apiVersion: pool.kubevirt.io/v1beta1
kind: VirtualMachinePool
metadata: {name: db, namespace: prod, annotations: {gitvirt.io/protect: "true", other: x}}
spec:
  replicas: 3
  selector: {matchLabels: {app: db}}
  nameGeneration: {appendIndexToConfigMapRefs: false, appendIndexToSecretRefs: true}
  virtualMachineTemplate:
    metadata: {labels: {app: db}}
    spec:
      runStrategy: Manual
      dataVolumeTemplates:
      - metadata: {name: data}
        spec: {source: {blank: {}}, pvc: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
      template:
        spec:
          domain: {memory: {guest: 1Gi}}
          volumes:
          - {name: data, persistentVolumeClaim: {claimName: data}}
          - {name: seed, cloudInitNoCloud: {secretRef: {name: seed}}}
`
	for i := range 3 {
		pool += fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {name: seed-%d, namespace: prod}\nstringData: {userdata: u%d}\n", i, i)
	}
	d := assemble(t, pool)
	if len(d.VMs) != 3 || len(d.Diagnostics) > 0 {
		t.Fatal(d.Diagnostics)
	}
	hashes := map[string]bool{}
	for i, vm := range d.VMs {
		hashes[vm.Hash] = true
		name := fmt.Sprintf("db-%d", i)
		if want := (schemas.Address{Kind: "VirtualMachine", Namespace: "prod", Name: name}); vm.Address != want || vm.Object.Name != name {
			t.Errorf("%s is named %s", vm.Address, vm.Object.Name)
		}
		if vm.Owner.String() != "VirtualMachinePool/prod/db" || vm.RunStrategy != kubevirtv1.RunStrategyManual {
			t.Errorf("%s is of %s and runs %s", vm.Address, vm.Owner, vm.RunStrategy)
		}
		if diff := cmp.Diff(map[string]string{schemas.AnnotationProtect: "true"}, vm.Object.Annotations); diff != "" {
			t.Errorf("annotations (-want +got)\n%s", diff)
		}
		if claim := vm.Claims["data"]; claim.Name != fmt.Sprintf("data-%d", i) || claim.Capacity != 1<<30 || claim.Source.Blank == nil {
			t.Errorf("%s has %+v", vm.Address, claim)
		}
		if got := vm.Object.Spec.DataVolumeTemplates[0].Name; got != fmt.Sprintf("data-%d", i) {
			t.Errorf("%s has the template %s", vm.Address, got)
		}
		if got, want := vm.Contents["seed"]["userdata"], fmt.Sprintf("u%d", i); got != want {
			t.Errorf("%s has user data %q", vm.Address, got)
		}
	}
	if len(hashes) != 3 {
		t.Error("records are equal")
	}
	for name, want := range map[string]bool{"db-0": true, "db-12": true, "db": false, "db-": false, "db-x": false, "db-1-2": false, "other-1": false, "db-1234567890": false} {
		address := schemas.Address{Kind: "VirtualMachine", Namespace: "prod", Name: name}
		if got := address.IsMemberOf(d.VMs[0].Owner); got != want {
			t.Errorf("%s is a member: %v", name, got)
		}
	}
}

// TestChecksAfterExpansion: a machine is checked with its instancetype, and mistakes are told at the right place.
func TestChecksAfterExpansion(t *testing.T) {
	d := assemble(t, instancetypes, strings.Replace(typed("web"), "{name: root, emptyDisk: {capacity: 1Gi}}", "{name: root, emptyDisk: {capacity: 0}}", 1))
	if len(d.VMs) != 0 || len(d.Diagnostics) != 1 || d.Diagnostics[0].Position.String() != "1.yaml:11:52" {
		t.Errorf("%v", d.Diagnostics)
	}
}

// TestExamples: the example repositories are in order.
func TestExamples(t *testing.T) {
	for folder, machines := range map[string]int{"quickstart": 3, "kinds": 4} {
		var files []*schemas.File
		err := filepath.WalkDir(filepath.Join("../examples", folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".yaml" {
				return err
			}
			content, err := os.ReadFile(path)
			files = append(files, schemas.Parse(path, content))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if d := schemas.Assemble(files); len(d.VMs) != machines || len(d.Diagnostics) > 0 {
			t.Errorf("%s: %d machines: %v", folder, len(d.VMs), d.Diagnostics)
		}
	}
}
