package pods_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
)

var update = flag.Bool("update", false, "write the golden files anew")

var options = pods.Options{Fleet: "demo", Revision: "4fa1c7e", Image: "gitvirt-launcher:devel"}

// machines reads manifests.
func machines(t *testing.T, paths ...string) []*schemas.VM {
	t.Helper()
	var files []*schemas.File
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, schemas.Parse(filepath.Base(path), content))
	}
	desired := schemas.Assemble(files, schemas.AllowMissing())
	for _, diagnostic := range desired.Diagnostics {
		if diagnostic.Severity == schemas.SeverityError {
			t.Fatal(diagnostic)
		}
	}
	return desired.VMs
}

// TestPods compares the Pods of manifests with what is kept of them: every field that is for a Pod, and every kind of volume.
func TestPods(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal("no manifests", err)
	}
	for _, path := range paths {
		var out bytes.Buffer
		for _, vm := range machines(t, path) {
			pod, err := pods.Pod(vm, options)
			if err != nil {
				t.Fatal(err)
			}
			pod.Annotations[podapi.AnnotationRecord], pod.Annotations[podapi.AnnotationHash] = "(record)", "(hash)"
			text, err := yaml.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			out.WriteString("---\n")
			out.Write(text)
		}
		isGolden(t, strings.TrimSuffix(path, ".yaml")+".golden", out.Bytes())
	}
}

func isGolden(t *testing.T, golden string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
}

// TestImageContainers compares what Pods are made of where the cluster has no image volumes: containers of the images, which hand their file
// systems to the launcher; and that no machine without images has any of it.
func TestImageContainers(t *testing.T) {
	with := options
	with.ImageContainers = true
	var out bytes.Buffer
	for _, vm := range machines(t, "testdata/images.yaml") {
		pod, err := pods.Pod(vm, with)
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(pod.Spec)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	isGolden(t, "testdata/images.containers.golden", out.Bytes())
}

// TestKubeVirtsExamples: each of KubeVirt's examples becomes a Pod, or is refused by the field.
func TestKubeVirtsExamples(t *testing.T) {
	refused := map[string]string{
		"vmi-host-disk.yaml":        "spec.template.spec.volumes[host-disk].hostDisk",
		"vm-alpine-datavolume.yaml": "spec.template.spec.volumes[datavolumedisk1].dataVolume",
		"vmi-usb.yaml":              "spec.template.spec.domain.devices.hostDevices[node-usb-to-vmi-storage]",
		"vmi-sriov.yaml":            "spec.template.spec.domain.devices.interfaces[sriov-net].sriov",
	}
	const dir = "../../../schemas/testdata/conformance"
	paths, err := filepath.Glob(dir + "/vm*.yaml")
	if err != nil || len(paths) < 20 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		for _, vm := range machines(t, path, dir+"/csmall.yaml") {
			field, name := refused[filepath.Base(path)], filepath.Base(path)
			switch pod, err := pods.Pod(vm, options); {
			case field == "" && err != nil:
				t.Errorf("%s: %v", name, err)
			case field != "" && (err == nil || !strings.Contains(err.Error(), field)):
				t.Errorf("%s: %v, want a complaint about %s", name, err, field)
			case field == "":
				again, _ := pods.Pod(vm, options)
				if diff := cmp.Diff(pod, again); diff != "" {
					t.Errorf("%s: another Pod the second time: %s", name, diff)
				}
			}
		}
	}
}

// TestNothingSensitive: what is sensitive is in the Secret, which the agent reads, and nowhere else.
func TestNothingSensitive(t *testing.T) {
	const password = "correct horse battery staple"
	files := []*schemas.File{schemas.Parse("vm.yaml", []byte(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: 64Mi}
        devices: {disks: [{name: init, disk: {bus: virtio}}, {name: keys, disk: {bus: virtio}}]}
      volumes:
      - {name: init, cloudInitNoCloud: {userData: "`+password+` one"}}
      - {name: keys, secret: {secretName: keys}}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {key: "`+password+` two"}
`))}
	vm := schemas.Assemble(files).VMs[0]
	pod, err := pods.Pod(vm, options)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := pods.Secret(vm, []byte("content"), options)
	if err != nil {
		t.Fatal(err)
	}
	open, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(open), password) {
		t.Errorf("the Pod says it:\n%s", open)
	}
	if string(secret.Data[podapi.SecretKey]) != "content" || secret.Name != pod.Name || pod.Spec.Volumes[2].Secret.SecretName != secret.Name {
		t.Errorf("the agent does not get it: %+v, %+v", secret.Data, pod.Spec.Volumes)
	}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		if mount.Name == pod.Spec.Volumes[2].Name && mount.SubPath != podapi.SecretMarker {
			t.Error("the launcher can read it")
		}
	}
	if _, err := pods.Secret(vm, make([]byte, 1<<20+1), options); err == nil || !strings.Contains(err.Error(), "vm.yaml:3") {
		t.Errorf("more than a Secret holds: %v", err)
	}
}

// TestOwnAnnotations: a manifest cannot say what only gitvirt says.
func TestOwnAnnotations(t *testing.T) {
	vm := schemas.Assemble([]*schemas.File{schemas.Parse("vm.yaml", []byte(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web}
spec:
  runStrategy: Always
  template:
    metadata:
      labels: {app: web, gitvirt.io/vm: another}
      annotations: {note: fine, gitvirt.io/observed: "{}", gitvirt.io/step: "{}"}
    spec: {domain: {memory: {guest: 64Mi}, devices: {}}}
`))}).VMs[0]
	pod, err := pods.Pod(vm, options)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{podapi.AnnotationObserved, podapi.AnnotationStep} {
		if value, said := pod.Annotations[name]; said {
			t.Errorf("%s is %q", name, value)
		}
	}
	if pod.Labels["app"] != "web" || pod.Labels[podapi.LabelVM] != "web" || pod.Annotations["note"] != "fine" {
		t.Errorf("%+v %+v", pod.Labels, pod.Annotations)
	}
}

// TestMembersAreLabelled: the labels of a set's template are those of its members' Pods, so that Services find them.
func TestMembersAreLabelled(t *testing.T) {
	for _, vm := range schemas.Assemble([]*schemas.File{schemas.Parse("set.yaml", []byte(`apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceReplicaSet
metadata: {name: set}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {team: shop}}
    spec: {domain: {memory: {guest: 64Mi}, devices: {}}}
`))}).VMs {
		pod, err := pods.Pod(vm, options)
		if err != nil || pod.Labels["app"] != "web" || pod.Annotations["team"] != "shop" {
			t.Errorf("%s: %+v %+v, %v", vm.Address, pod.Labels, pod.Annotations, err)
		}
	}
}

// TestOverhead: every part of a machine that takes memory beside its guest's counts.
func TestOverhead(t *testing.T) {
	const mebi = 1 << 20
	base := func() *kubevirtv1.VirtualMachineInstanceSpec {
		spec := machines(t, "testdata/plain.yaml")[0].Spec().DeepCopy()
		return spec
	}
	plain := pods.Overhead(base())
	for _, test := range []struct {
		name string
		edit func(*kubevirtv1.DomainSpec)
		more int64
	}{
		{"a vCPU", func(d *kubevirtv1.DomainSpec) { d.CPU.Sockets++ }, 8},
		{"no screen", func(d *kubevirtv1.DomainSpec) { d.Devices.AutoattachGraphicsDevice = new(bool) }, -32},
		{"a TPM", func(d *kubevirtv1.DomainSpec) { d.Devices.TPM = &kubevirtv1.TPMDevice{} }, 53},
		{"UEFI", func(d *kubevirtv1.DomainSpec) {
			d.Firmware = &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{}}}
		}, 16},
		{"an I/O thread for all", func(d *kubevirtv1.DomainSpec) {
			d.IOThreadsPolicy = new(kubevirtv1.IOThreadsPolicy)
		}, 8},
	} {
		spec := base()
		test.edit(&spec.Domain)
		if got := int64(pods.Overhead(spec)) - int64(plain); got != test.more*mebi {
			t.Errorf("%s: %d more, want %d MiB", test.name, got, test.more)
		}
	}
	if want := uint64(64+96+1+2*8+32) * mebi; plain != want {
		t.Errorf("a guest of 512 MiB and two vCPUs: %d, want %d", plain, want)
	}
}

// TestCPUModel: a guest with a CPU of a certain model goes where there is one; whatever the node has suits all others.
func TestCPUModel(t *testing.T) {
	for model, want := range map[string]string{"Haswell": "true", "host-model": "", "host-passthrough": "", "": ""} {
		vm := machines(t, "testdata/plain.yaml")[0]
		vm.Spec().NodeSelector = map[string]string{"disk": "ssd"}
		vm.Spec().Domain.CPU.Model = model
		pod, err := pods.Pod(vm, options)
		if err != nil {
			t.Fatal(err)
		}
		if got := pod.Spec.NodeSelector["cpu-model.node.gitvirt.io/"+model]; got != want || pod.Spec.NodeSelector["disk"] != "ssd" {
			t.Errorf("%q: %v", model, pod.Spec.NodeSelector)
		}
		if len(vm.Spec().NodeSelector) != 1 {
			t.Errorf("%q: the manifest was changed: %v", model, vm.Spec().NodeSelector)
		}
	}
}
