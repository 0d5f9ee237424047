package domainxml_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// example is a manifest and what a guest notices of the domain that KubeVirt makes of it.
type example struct {
	name, manifest string
	want           facts
	vm             *schemas.VM
	// block says that claims are block devices, pod that it runs in a Pod.
	block, pod bool
}

// machine puts the VM on a host that has everything.
func (e example) machine() domainxml.Machine {
	machine := machineOf(e.vm)
	if e.pod {
		machine = inPod(machine)
	}
	for i := range machine.Volumes {
		switch volume := &machine.Volumes[i]; {
		case !e.block:
		case volume.Kind == "persistentVolumeClaim" || volume.Kind == "dataVolume":
			volume.Path, volume.Block = "/dev/"+volume.Name, true
		case volume.Kind == "ephemeral":
			volume.Backing = "/dev/" + volume.Name
		}
	}
	return machine
}

// difference is a fact in which gitvirt's domain of an example is not KubeVirt's.
type difference struct{ example, fact, reason string }

// differences are all there are; docs/adr/0012-where-the-hardware-differs-from-kubevirt.md argues for them.
func differences() []difference {
	const (
		pool      = "libvirt says before version 10 only one IO thread for a disk, so the threads of the pool are dealt out"
		pages     = "a host may have pages of several sizes, and its default another than the manifest's"
		cells     = "libvirt plugs memory only into a guest that has a NUMA cell"
		queues    = "QEMU's user-mode network has one queue and starts with no more"
		tablet    = "KubeVirt forgets autoattachInputDevice of a VirtualMachineInstance"
		lun       = "libvirt passes no LUN through on SATA"
		readOnly  = "KubeVirt mounts the claim read-only in the Pod, so that writes fail there; a host has no Pod"
		noContext = "KubeVirt writes it once its controller has chosen a number; libvirt chooses one itself"
	)
	out := []difference{
		{"clock-timers-off", "clock@offset", "libvirt's schema refuses a clock without an offset and takes it for UTC"},
		{"cpu-6", "cpu/feature[apic]", "KubeVirt leaves the policy out, which is libvirt's default and which its schema refuses"},
		{"lun-nobus", "disk[1]/target@bus", lun},
		{"lun-nobus on a block device", "disk[1]/target@bus", lun},
		{"dev-vsock", "devices/vsock/virtio-non-transitional", noContext},
		{"arch-s390x-devs", "devices/input/tablet/virtio", tablet},
		{"dev-input-auto", "devices/input/tablet/usb", tablet},
		{"dev-input-auto", "devices/controller/usb/none", tablet},
		{"dev-input-auto", "devices/controller/usb/qemu-xhci", tablet},
		{"mem-huge-memfd-off", "cpu/numa[0]", "the annotation kubevirt.io/memfd works around SELinux in a Pod; guests see the cell without it too"},
		{"mem-max", "cpu/numa[0]", cells},
		{"mem-max-virtio", "cpu/numa[0]", cells},
		{"cpu-dedicated-supplemental", "disk[0]/driver@iothread", pool},
	}
	for i := range 6 {
		out = append(out, difference{"iothreads-pool", fmt.Sprintf("disk[%d]/driver@iothread", i), pool})
	}
	for _, name := range []string{"vol-pvc-ro-implicit", "vol-pvc-ro-sata", "vol-pvc-ro-virtio"} {
		out = append(out, difference{name, "disk[1]/readonly", readOnly}, difference{name + " on a block device", "disk[1]/readonly", readOnly})
	}
	for _, name := range []string{"mem-huge-1g", "mem-huge-2m", "mem-huge-memfd-off"} {
		out = append(out, difference{name, "memoryBacking/hugepages/page", pages})
	}
	for _, name := range []string{"dev-multiqueue", "net-model-virtio", "net-multiqueue", "net-multiqueue-max"} {
		out = append(out, difference{name, "interface[0]/driver@queues", queues})
	}
	return out
}

// corpus returns examples that use nearly every field.
func corpus(t testing.TB) []example {
	t.Helper()
	content, err := os.ReadFile("testdata/corpus.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, file := range txtar.Parse(content).Files {
		files[file.Name] = string(file.Data)
	}
	base := facts{}
	base.read(files["base.facts"])
	var out []example
	for _, file := range slices.Sorted(maps.Keys(files)) {
		name, ok := strings.CutSuffix(file, ".yaml")
		if !ok {
			continue
		}
		want := maps.Clone(base)
		want.read(files[name+".facts"])
		out = append(out, example{name: name, manifest: files[file], want: want, vm: decode(t, files[file])})
		if of, ok := files[name+".block.facts"]; ok {
			want := maps.Clone(base)
			want.read(of)
			out = append(out, example{name: name + " on a block device", manifest: files[file], want: want, vm: decode(t, files[file]), block: true})
		}
	}
	return out
}

// read applies lines of "fact<TAB>value" and "-fact".
func (f facts) read(lines string) {
	for line := range strings.Lines(lines) {
		line = strings.TrimSuffix(line, "\n")
		if gone, ok := strings.CutPrefix(line, "-"); ok {
			delete(f, gone)
		} else if fact, value, ok := strings.Cut(line, "\t"); ok {
			f[fact] = value
		}
	}
}

// examples returns KubeVirt's own examples.
func examples(t testing.TB) []example {
	t.Helper()
	paths, err := filepath.Glob("testdata/kubevirt/*.xml")
	if err != nil || len(paths) == 0 {
		t.Fatal("no domains of KubeVirt", err)
	}
	var out []example
	for _, path := range paths {
		document, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".xml")
		manifest, err := os.ReadFile(filepath.Join("../../schemas/testdata/conformance", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, example{name: name, manifest: string(manifest), want: factsOf(t, string(document)), vm: decode(t, string(manifest))})
	}
	return out
}

// decode reads a manifest without asking whether it is right: what is refused is another package's matter.
func decode(t testing.TB, manifest string) *schemas.VM {
	t.Helper()
	var meta struct {
		Kind     string
		Metadata struct{ Name string }
	}
	if err := yaml.Unmarshal([]byte(manifest), &meta); err != nil {
		t.Fatal(err)
	}
	var spec kubevirtv1.VirtualMachineInstanceSpec
	switch meta.Kind {
	case "VirtualMachineInstance":
		var vmi kubevirtv1.VirtualMachineInstance
		if err := yaml.Unmarshal([]byte(manifest), &vmi); err != nil {
			t.Fatal(err)
		}
		spec = vmi.Spec
	case "VirtualMachineInstanceReplicaSet":
		var set kubevirtv1.VirtualMachineInstanceReplicaSet
		if err := yaml.Unmarshal([]byte(manifest), &set); err != nil {
			t.Fatal(err)
		}
		spec = set.Spec.Template.Spec
	default:
		var vm kubevirtv1.VirtualMachine
		if err := yaml.Unmarshal([]byte(manifest), &vm); err != nil {
			t.Fatal(err)
		}
		spec = vm.Spec.Template.Spec
	}
	once := kubevirtv1.RunStrategyOnce
	object := &kubevirtv1.VirtualMachine{}
	object.Kind, object.Name, object.Namespace = meta.Kind, meta.Metadata.Name, "default"
	object.Spec = kubevirtv1.VirtualMachineSpec{RunStrategy: &once, Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: spec}}
	record, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if object, _, err = schemas.ParseRecord(record, true); err != nil {
		t.Fatal(err)
	}
	return &schemas.VM{
		Address: schemas.Address{Kind: meta.Kind, Namespace: "default", Name: meta.Metadata.Name},
		Object:  object, Record: record, Hash: "hash",
	}
}

// machineOf puts a VM on a host that has everything.
func machineOf(vm *schemas.VM) domainxml.Machine {
	selectors := map[string]schemas.HostDeviceSelector{}
	for _, device := range vm.Spec().Domain.Devices.HostDevices {
		if strings.HasPrefix(device.DeviceName, "kubevirt.io/") {
			selectors[device.Name] = schemas.HostDeviceSelector{USB: []kubevirtv1.USBSelector{{Vendor: "1", Product: "2"}}}
		}
	}
	for _, gpu := range vm.Spec().Domain.Devices.GPUs {
		if strings.HasPrefix(gpu.DeviceName, "nvidia.com/GRID") {
			selectors[gpu.Name] = schemas.HostDeviceSelector{Mediated: []string{"GRID"}}
		}
	}
	placed := host
	placed.DomainType = "kvm"
	placed.Assignment = domainxml.PlannedAssignment(vm.Spec(), selectors)
	record := recordOf(vm)
	record.Assignment = placed.Assignment
	return domainxml.Machine{Address: vm.Address, Spec: vm.Spec(), Host: placed, Volumes: record.Volumes, Record: record}
}

func TestHardwareIsKubeVirts(t *testing.T) {
	used, known := map[int]bool{}, differences()
	for _, example := range append(examples(t), corpus(t)...) {
		document, err := domainxml.Render(example.machine())
		if err != nil {
			t.Errorf("%s: %v", example.name, err)
			continue
		}
		got := factsOf(t, document)
		delete(got, freeSlots)
		delete(example.want, freeSlots) // TestRealLibvirtSeesNoDrift has counted them
		for _, fact := range slices.Sorted(maps.Keys(union(got, example.want))) {
			if got[fact] == example.want[fact] {
				continue
			}
			at := slices.IndexFunc(known, func(d difference) bool { return d.example == example.name && d.fact == fact })
			if at >= 0 {
				used[at] = true
				continue
			}
			t.Errorf("%s: %s: KubeVirt has %q, gitvirt %q", example.name, fact, example.want[fact], got[fact])
		}
	}
	for i, d := range known {
		if !used[i] {
			t.Errorf("%s does not differ in %s any more (%s)", d.example, d.fact, d.reason)
		}
	}
}

func union(a, b facts) facts {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
