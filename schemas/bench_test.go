package schemas_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// BenchmarkParse reads one small machine of about 1 KB.
func BenchmarkParse(b *testing.B) {
	content, err := os.ReadFile("testdata/conformance/vmi-masquerade.yaml")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for b.Loop() {
		if file := schemas.Parse("vm.yaml", content); len(file.VMs) != 1 {
			b.Fatal(file.Diagnostics)
		}
	}
}

// BenchmarkAssemble20000 puts 20,000 files together that were read before.
func BenchmarkAssemble20000(b *testing.B) {
	files := make([]*schemas.File, 20_000)
	for i := range files {
		name := fmt.Sprintf("vm-%05d", i)
		files[i] = schemas.Parse(name+".yaml", fmt.Appendf(nil, `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s}
spec:
  domain:
    memory: {guest: 1Gi}
    devices: {interfaces: [{name: default, masquerade: {}, macAddress: "02:00:00:00:%02x:%02x"}]}
  networks: [{name: default, pod: {}}]
  volumes: [{name: root, hostDisk: {path: /srv/%s.img, type: Disk}}]
`, name, i/256, i%256, name))
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := schemas.Assemble(files); len(d.VMs) != len(files) {
			b.Fatal(d.Diagnostics[0])
		}
	}
}

// typedFiles are n machines with an instancetype, a preference, a Secret and a claim each.
func typedFiles(n int) []*schemas.File {
	files := []*schemas.File{schemas.Parse("types.yaml", []byte(instancetypes))}
	for i := range n {
		name := fmt.Sprintf("vm-%05d", i)
		files = append(files, schemas.Parse(name+".yaml", fmt.Appendf(nil, `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: %[1]s
spec:
  runStrategy: Always
  instancetype:
    kind: VirtualMachineInstancetype
    name: small
  preference:
    name: linux
  dataVolumeTemplates:
  - metadata:
      name: %[1]s
    spec:
      source:
        blank: {}
      storage:
        resources:
          requests:
            storage: 1Gi
  template:
    spec:
      domain:
        devices:
          interfaces:
          - name: default
            masquerade: {}
      networks:
      - name: default
        pod: {}
      volumes:
      - name: root
        dataVolume:
          name: %[1]s
      - name: seed
        cloudInitNoCloud:
          secretRef:
            name: %[1]s
---
apiVersion: v1
kind: Secret
metadata:
  name: %[1]s
stringData:
  userdata: "cloud-config"
`, name)))
	}
	return files
}

// BenchmarkAssembleTyped20000 puts 20,000 machines together that have an instancetype, none of which changed.
func BenchmarkAssembleTyped20000(b *testing.B) {
	files := typedFiles(20_000)
	schemas.Assemble(files)
	b.ReportAllocs()
	for b.Loop() {
		if d := schemas.Assemble(files); len(d.VMs) != 20_000 {
			b.Fatal(d.Diagnostics[0])
		}
	}
}

// BenchmarkAssembleTypedCold10000 expands 10,000 machines that were only read before.
func BenchmarkAssembleTypedCold10000(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		files := typedFiles(10_000)
		b.StartTimer()
		if d := schemas.Assemble(files); len(d.VMs) != 10_000 {
			b.Fatal(d.Diagnostics[0])
		}
	}
}
