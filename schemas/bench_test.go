package schemas_test

import (
	"fmt"
	"os"
	"strings"
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
		files = append(files, schemas.Parse(name+".yaml", []byte(typedMachine(name))))
	}
	return files
}

// typedMachine is one of them.
func typedMachine(name string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
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
`, name)
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

// BenchmarkAssemble5000 puts 5,000 machines with an instancetype, a preference, a Secret and a claim each together, none of which changed:
// of one repository, and of fifty sources with a quota each, without and with knowing what lives.
func BenchmarkAssemble5000(b *testing.B) {
	const machines, sources = 5_000, 50
	one := typedFiles(machines)
	fleet := "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: shop}\nspec:\n  sources:\n"
	for s := range sources {
		fleet += fmt.Sprintf("  - {name: team-%d, git: {url: \"https://git.example.com/%d.git\"}, namespaces: [team-%d], hostPaths: [/srv/%d], networks: [lan], quota: {vms: 1000, memory: 10Ti}}\n", s, s, s, s)
	}
	ofSource, ofFleet, _ := strings.Cut(instancetypes, "---\n") // preferences for all namespaces are the Fleet's
	files := []*schemas.File{schemas.Parse("gitvirt.yaml", []byte(fleet)), schemas.Parse("types.yaml", []byte(ofFleet))}
	for s := range sources {
		source := fmt.Sprintf("team-%d", s)
		types := strings.ReplaceAll(ofSource, "{name: small}", "{name: small, namespace: "+source+"}")
		files = append(files, schemas.ParseFrom(source, "types.yaml", []byte(types)))
		for i := range machines / sources {
			text := strings.ReplaceAll(typedMachine(fmt.Sprintf("vm-%05d", i)), "\nmetadata:\n", "\nmetadata:\n  namespace: "+source+"\n")
			files = append(files, schemas.ParseFrom(source, fmt.Sprintf("vm-%05d.yaml", i), []byte(text)))
		}
	}
	held := living{}
	for _, vm := range schemas.Assemble(files).VMs {
		held[vm.Address] = schemas.Held{Source: vm.Position.Source, Record: vm.Record}
	}
	holding := schemas.Holding(held)
	for _, c := range []struct {
		name    string
		files   []*schemas.File
		options []schemas.Option
	}{{"one", one, nil}, {"sources", files, nil}, {"holding", files, []schemas.Option{holding}}} {
		b.Run(c.name, func(b *testing.B) {
			schemas.Assemble(c.files, c.options...)
			b.ReportAllocs()
			for b.Loop() {
				if d := schemas.Assemble(c.files, c.options...); len(d.VMs) != machines {
					b.Fatal(d.Diagnostics[0])
				}
			}
		})
	}
}
