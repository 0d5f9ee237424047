package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/schemas"
)

// patience bounds every wait of these tests: guests boot in software emulation.
const patience = 10 * time.Minute

// rig is an agent on a libvirt of its own.
type rig struct {
	t     *testing.T
	agent *Agent
	state string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	daemon := libvirttest.Start(t)
	state, err := os.MkdirTemp("", "gitvirt-agent-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(state, 0o755); err != nil { // QEMU's user passes through
		t.Fatal(err)
	}
	hypervisor := libvirt.New(daemon.URI)
	agent, err := New(Config{Node: "host-1", StateDir: state, DomainType: "qemu"}, hypervisor, WithLocalImports(true))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); agent.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
		if err := errors.Join(hypervisor.Close(), os.RemoveAll(state)); err != nil {
			t.Error(err)
		}
	})
	return &rig{t: t, agent: agent, state: state}
}

// guestImage is the test guest as a local container image.
func guestImage(t *testing.T) (dir, image string) {
	t.Helper()
	dir = os.Getenv("GITVIRT_GUEST")
	if dir == "" {
		out, err := exec.Command("../hack/guest/path.sh").Output()
		if err != nil {
			t.Fatal(err)
		}
		dir = strings.TrimSpace(string(out))
	}
	if _, err := os.Stat(filepath.Join(dir, "complete")); err != nil {
		t.Fatalf("there is no guest in %s; build it with: make guest", dir)
	}
	return dir, "oci:" + filepath.Join(dir, "guest.oci") + ":latest"
}

// machineYAML is a VM that boots the guest's kernel and runs a script; its further volumes are virtio disks with their own names as serial numbers.
func machineYAML(t *testing.T, name, script, volumes string, more ...string) *kubevirtv1.VirtualMachine {
	t.Helper()
	_, image := guestImage(t)
	if volumes == "" {
		volumes = "#"
	}
	text := "metadata: {name: " + name + `, namespace: default}
spec:
  runStrategy: Always
  template:
    metadata: {labels: {app: proof}}
    spec:
      terminationGracePeriodSeconds: 20
      domain:
        memory: {guest: 96Mi}
        firmware:
          kernelBoot: {kernelArgs: ` + libvirttest.GuestArguments + `, container: {image: "` + image + `", kernelPath: /boot/vmlinuz, initrdPath: /boot/initramfs.img}}
        devices: {}
      volumes:
      - name: init
        cloudInitNoCloud:
          userData: |
            #!/bin/sh
            by() { for b in /sys/block/vd*; do [ "$(cat $b/serial)" = $1 ] && echo /dev/${b##*/}; done; }
            show() { mount -t iso9660 -o ro $(by $1) /mnt && (cd /mnt; find . -type f | sort | while read f; do echo "$1 ${f#./} $(cat $f | tr '\n' ' ')"; done); umount /mnt; }
` + indent(script, "            ") + "\n" + indent(volumes, "      ") + "\n" + strings.Join(more, "\n")
	object := &kubevirtv1.VirtualMachine{}
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	spec := &object.Spec.Template.Spec
	for _, volume := range spec.Volumes {
		if volume.Name == "slic" || volume.Name == "msdm" {
			continue // ACPI tables
		}
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, kubevirtv1.Disk{
			Name: volume.Name, Serial: volume.Name, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: kubevirtv1.DiskBusVirtio}},
		})
	}
	return object
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

// wire is the message that asks for a VM.
func wire(t *testing.T, object *kubevirtv1.VirtualMachine, contents map[string]*api.Content, claims map[string]*api.Claim) *api.VM {
	t.Helper()
	object.Kind, object.APIVersion = "VirtualMachine", "kubevirt.io/v1"
	encoded, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return &api.VM{Address: address(object.Name).String(), Object: encoded, Record: encoded, Hash: "hash-" + object.Name, Contents: contents, Claims: claims}
}

func address(name string) schemas.Address {
	return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}
}

// execute carries out a step on a VM as it is now.
func (r *rig) execute(request *api.ExecuteRequest) error {
	r.t.Helper()
	if now, err := r.agent.refresh(r.t.Context(), "default_"+strings.TrimPrefix(request.GetAddress(), "VirtualMachine/default/")); err == nil {
		request.Precondition = (&execution{now: now}).fingerprint()
	}
	_, err := r.agent.Execute(r.t.Context(), request, func(string) {})
	return err
}

func (r *rig) must(request *api.ExecuteRequest) {
	r.t.Helper()
	if err := r.execute(request); err != nil {
		r.t.Fatal(err)
	}
}

// console waits for the guest to be ready for the n-th time and returns all that it said.
func (r *rig) console(name string, n int) string {
	r.t.Helper()
	var said []byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		said, _ = os.ReadFile(r.agent.local.files.VM(address(name)) + "/console.log")
		if bytes.Count(said, []byte("gitvirt-guest: ready")) >= n {
			return strings.ReplaceAll(string(said), "\r", "")
		}
	}
	r.t.Fatalf("%s did not get ready:\n%s", name, said)
	return ""
}

func keysOf(values map[string]string) *api.Content {
	out := &api.Content{Values: map[string][]byte{}}
	for key, value := range values {
		out.Values[key] = []byte(value)
	}
	return out
}

// acpiTable is a table with the header that every table has.
func acpiTable(signature, content string) string {
	header := make([]byte, 36)
	copy(header, signature)
	header[4], header[8] = byte(len(header)+len(content)), 1
	copy(header[10:], "GTVIRTPROOF   ")
	return string(header) + content
}

// checkPlanned compares where the volumes are with where they are said to be without looking at the host.
func (r *rig) checkPlanned(object *kubevirtv1.VirtualMachine, vm *api.VM) {
	r.t.Helper()
	m, err := readMachine(address(object.Name), vm)
	if err != nil {
		r.t.Fatal(err)
	}
	for i, source := range object.Spec.Template.Spec.Volumes {
		planned := r.agent.local.files.Volume(m.address, m.spec(), source, m.claim(source.Name))
		real := r.agent.view.get("default_" + object.Name).record.Volumes[i]
		if planned.Path != real.Path || planned.Format != real.Format || planned.Backing != real.Backing || planned.Kind != real.Kind {
			r.t.Errorf("planned %+v, and it is %+v", planned, real)
		}
	}
}

// TestGuestWritesToABlockDevice has a guest use a device of the host by a hostDisk and by a claim.
func TestGuestWritesToABlockDevice(t *testing.T) {
	backing := filepath.Join(t.TempDir(), "device.img")
	if err := os.WriteFile(backing, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", backing).CombinedOutput()
	if err != nil {
		t.Skipf("this machine has no loop devices: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	r := newRig(t)
	object := machineYAML(t, "block", "printf proof-of-disk | dd of=$(by host) conv=notrunc 2>/dev/null; sync; head -c 13 $(by claim)",
		"- {name: host, hostDisk: {path: "+device+", type: Disk, shared: true}}\n- {name: claim, persistentVolumeClaim: {claimName: device, readOnly: true}}")
	share := true
	for i := range object.Spec.Template.Spec.Domain.Devices.Disks[1:] {
		object.Spec.Template.Spec.Domain.Devices.Disks[i+1].Shareable = &share
	}
	vm := wire(t, object, nil, map[string]*api.Claim{"claim": {Namespace: "default", Name: "device", Path: device, Block: true, Shared: true}})
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Power: "on", Vm: vm})
	if said := r.console("block", 1); !strings.Contains(said, "proof-of-disk") {
		t.Errorf("the guest did not read what it wrote:\n%s", said)
	}
	if domain, err := r.agent.hypervisor.Domain(t.Context(), "default_block"); err != nil || strings.Count(domain.Config, "<disk type='block'") != 2 {
		t.Errorf("%v:\n%s", err, domain.Config)
	}
}

// TestGuestReadsItsVolumes has a guest read and write every kind of volume that is a disk.
func TestGuestReadsItsVolumes(t *testing.T) {
	r := newRig(t)
	golden := filepath.Join(t.TempDir(), "golden.qcow2")
	raw := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(raw, append([]byte("proof-of-import\n"), make([]byte, 4<<20)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, golden).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(golden))))
	defer server.Close()
	object := machineYAML(t, "all", `
ls /sys/firmware/acpi/tables; tail -c 16 /sys/firmware/acpi/tables/MSDM; show conf; show sec; show drive; show api; show answers
dd if=$(by dv) bs=16 count=1 2>/dev/null
dd if=$(by copy) bs=16 count=1 2>/dev/null
echo "data $(head -c 13 $(by data))"; printf proof-of-data | dd of=$(by data) conv=notrunc 2>/dev/null
echo "eph $(head -c 9 $(by eph))"; printf overwrite | dd of=$(by eph) conv=notrunc 2>/dev/null
sync
until echo 3 >/proc/sys/vm/drop_caches; dd if=$(by metrics) bs=16 skip=1 2>/dev/null | tr -d '\0' >/tmp/metrics; grep -q HostName /tmp/metrics; do sleep 1; done
grep -A1 -E 'HostName|TotalCPUTime|ResourceMemoryLimit' /tmp/metrics
`, `
- {name: data, persistentVolumeClaim: {claimName: data}}
- {name: copy, dataVolume: {name: copy}}
- {name: dv, dataVolume: {name: dv}}
- {name: eph, ephemeral: {persistentVolumeClaim: {claimName: base}}}
- {name: conf, configMap: {name: c}}
- {name: sec, secret: {secretName: s, volumeLabel: keys}}
- {name: drive, cloudInitConfigDrive: {userData: proof-of-drive}}
- {name: api, downwardAPI: {fields: [{path: meta/labels, fieldRef: {fieldPath: metadata.labels}}]}}
- {name: answers, sysprep: {secret: {name: s}}}
- {name: metrics, downwardMetrics: {}}
- {name: slic, secret: {secretName: licence}}
- {name: msdm, secret: {secretName: licence}}
`)
	object.Spec.Template.Spec.Domain.Firmware.ACPI = &kubevirtv1.ACPI{SlicNameRef: "slic", MsdmNameRef: "msdm"}
	object.Spec.Template.Spec.Domain.Devices.Disks[1].Tag = "database"
	claim := func(name string, size int64, source string) *api.Claim {
		return &api.Claim{Namespace: "default", Name: name, CapacityBytes: size, Source: []byte(source)}
	}
	vm := wire(t, object, map[string]*api.Content{
		"conf": keysOf(map[string]string{"app.conf": "proof-of-conf"}), "sec": keysOf(map[string]string{"token": "proof-of-secret"}),
		"slic": keysOf(map[string]string{"slic.bin": acpiTable("SLIC", "licence")}), "msdm": keysOf(map[string]string{"msdm.bin": acpiTable("MSDM", "proof-of-licence")}),
		"answers": keysOf(map[string]string{"unattend.xml": "<proof-of-answers/>"}),
	}, map[string]*api.Claim{
		"data": claim("data", 8<<20, ""), "dv": claim("dv", 8<<20, `{"http":{"url":"`+server.URL+`/golden.qcow2"}}`),
		"copy": claim("copy", 0, `{"pvc":{"namespace":"default","name":"dv"}}`), "eph": claim("base", 4<<20, ""),
	})
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Power: "on", Vm: vm})
	r.checkPlanned(object, vm)
	said := r.console("all", 1)
	for _, want := range []string{
		"SLIC", "proof-of-licence",
		"conf app.conf proof-of-conf", "sec token proof-of-secret", "drive openstack/latest/user_data proof-of-drive",
		`"devices":[{"type":"disk","bus":"pci","address":"0000:`, `"serial":"data","tags":["database"]}`, `api meta/labels app="proof"`,
		"answers unattend.xml <proof-of-answers/>", "<name>HostName</name>\n    <value>host-1</value>", "<name>ResourceMemoryLimit</name>\n    <value>98304</value>",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the guest did not say %q", want)
		}
	}
	if n := strings.Count(said, "proof-of-import"); n != 2 {
		t.Errorf("the guest found the image %d times, want it imported and copied", n)
	}
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Power: "cycle", Vm: vm})
	second := strings.TrimPrefix(r.console("all", 2), said)
	if !strings.Contains(second, "data proof-of-data") || strings.Contains(second, "eph overwrite") {
		t.Error("a claim lost its data, or an ephemeral volume kept some")
	}
	if t.Failed() {
		t.Log(second)
	}
	r.checkLife(vm)
}

// checkLife asks which disks outlive the VM.
func (r *rig) checkLife(vm *api.VM) {
	t := r.t
	t.Helper()
	ctx := t.Context()
	if _, err := r.agent.DeleteDisks(ctx, []string{"default/data"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("DeleteDisks() of a claim in use = %v", err)
	}
	if _, err := r.agent.DeleteDisks(ctx, []string{"default/base"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("DeleteDisks() of an ephemeral volume's claim = %v", err)
	}
	other := wire(t, machineYAML(t, "other", "", "- {name: data, persistentVolumeClaim: {claimName: data}}"), nil, map[string]*api.Claim{
		"data": {Namespace: "default", Name: "data", CapacityBytes: 8 << 20},
	})
	if err := r.execute(&api.ExecuteRequest{Address: other.GetAddress(), Define: true, Power: "on", Vm: other}); err == nil || !strings.Contains(err.Error(), "in use by") {
		t.Errorf("a second VM got the claim: %v", err)
	}
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Destroy: true})
	if err := r.agent.refreshAll(ctx); err != nil {
		t.Fatal(err)
	}
	listed, err := r.agent.Disks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, disk := range listed {
		if disk.GetInUse() {
			t.Errorf("%s counts as in use", disk.GetId())
		}
		ids = append(ids, disk.GetId())
	}
	if got := strings.Join(ids, " "); got != "default/base default/copy default/data default/dv" {
		t.Errorf("listed are %s", got)
	}
	if deleted, err := r.agent.DeleteDisks(ctx, ids); err != nil || len(deleted) != len(ids) {
		t.Errorf("DeleteDisks() = %v, %v", deleted, err)
	}
	if _, err := os.Stat(r.agent.local.files.VM(address("all"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what goes with the VM is left: %v", err)
	}
}
