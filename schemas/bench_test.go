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
