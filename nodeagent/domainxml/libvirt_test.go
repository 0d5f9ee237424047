package domainxml_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/schemas"
)

// everything has a device or a setting of each kind that libvirt completes in its own way.
const everything = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: everything}
spec:
  runStrategy: Halted
  template:
    spec:
      domain:
        machine: {type: q35}
        memory: {guest: 256Mi}
        cpu: {sockets: 2, cores: 2, threads: 1, model: qemu64, features: [{name: sse4.1, policy: require}]}
        clock: {utc: {}, timer: {hpet: {present: false}, pit: {tickPolicy: delay}, rtc: {tickPolicy: catchup}, hyperv: {}}}
        features:
          acpi: {}
          apic: {}
          smm: {}
          kvm: {hidden: true}
          hyperv: {relaxed: {}, vapic: {}, spinlocks: {spinlocks: 8191}, vpindex: {}, synic: {}, synictimer: {}, reset: {}}
        firmware: {uuid: 5D307CA9-B3EF-428C-8861-06E72D69F223, serial: SER-1}
        chassis: {manufacturer: m, version: v, serial: s, asset: a, sku: k}
        devices:
          blockMultiQueue: true
          rng: {}
          sound: {name: audio}
          watchdog: {name: dog, i6300esb: {action: poweroff}}
          inputs: [{name: tablet, type: tablet, bus: usb}, {name: pen, type: tablet, bus: virtio}]
          disks:
          - {name: a, bootOrder: 1, cache: none, io: native, serial: DISK-A, disk: {bus: virtio}, dedicatedIOThread: true}
          - {name: b, disk: {bus: scsi}}
          - {name: c, disk: {bus: sata}, blockSize: {custom: {logical: 512, physical: 4096}}}
          - {name: d, disk: {bus: usb}, errorPolicy: report}
          - {name: e, cdrom: {bus: sata}}
          - {name: f, cdrom: {bus: scsi, tray: open}}
          interfaces:
          - {name: one, masquerade: {}, model: e1000, macAddress: "02:00:00:00:00:0A", acpiIndex: 7}
          - {name: two, bridge: {}, state: down, bootOrder: 2}
      networks:
      - {name: one, pod: {}}
      - {name: two, multus: {networkName: lan}}
      volumes:
      - {name: a, emptyDisk: {capacity: 1Gi}}
      - {name: b, emptyDisk: {capacity: 1Gi}}
      - {name: c, emptyDisk: {capacity: 1Gi}}
      - {name: d, emptyDisk: {capacity: 1Gi}}
      - {name: e, hostDisk: {path: /isos/e.iso, type: Disk}}
      - {name: f, hostDisk: {path: /isos/f.iso, type: Disk}}
`

// undefinable are examples that this host's libvirt cannot define, by a part of what it says. Of arm64 and s390x there is no
// emulator here.
func undefinable(name string) string {
	switch {
	case strings.HasPrefix(name, "arch-arm64"), strings.HasPrefix(name, "arch-s390x"):
		return "No emulator found"
	case strings.HasPrefix(name, "sec-sev"):
		return "SEV launch security is not supported with this QEMU binary"
	case strings.HasPrefix(name, "vol-pvc-ro-sata"), strings.HasPrefix(name, "vol-pvc-ro-implicit"):
		return "readonly sata disks are not supported" // the checks refuse them
	}
	return map[string]string{
		"disk-pci":          "slot must be", // nothing but slot 0 is on a PCI bus behind a root port
		"net-pci":           "slot must be",
		"sec-snp":           "failed to validate", // libvirt 10.5
		"sec-tdx":           "failed to validate", // libvirt 11.6
		"hyperv-tlb-ext":    "failed to validate", // tlbflush direct, extended: libvirt 11.0
		"dev-panic-pvpanic": "failed to validate", // libvirt 9.1
	}[name]
}

// more has what no example has: virtual GPUs, queues on a network that has them, names that two devices share, blocks as
// large as those of the volume, an SR-IOV card with an address, several SCSI disks.
const more = `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: more}
spec:
  startStrategy: Paused
  domain:
    memory: {guest: 256Mi}
    cpu: {cores: 2, dedicatedCpuPlacement: true, isolateEmulatorThread: true, realtime: {mask: "0-1,^0"}}
    rebootPolicy: Terminate
    ioThreadsPolicy: auto
    resources: {requests: {cpu: 2}}
    devices:
      networkInterfaceMultiqueue: true
      blockMultiQueue: true
      downwardMetrics: {}
      clientPassthrough: {}
      disks:
      - {name: default, disk: {bus: virtio}, blockSize: {matchVolume: {}}, dedicatedIOThread: true}
      - {name: b, disk: {bus: scsi}, blockSize: {custom: {logical: 512, physical: 4096, discardGranularity: 8192}}}
      - {name: c, disk: {bus: scsi}, shareable: true}
      - {name: d, cdrom: {bus: scsi}, bootOrder: 1}
      - {name: e, cdrom: {bus: usb}}
      gpus:
      - {name: vgpu, deviceName: nvidia.com/GRID_T4, virtualGPUOptions: {display: {ramFB: {enabled: true}}}}
      - {name: plain, deviceName: nvidia.com/GRID_T4, virtualGPUOptions: {display: {enabled: false}}}
      hostDevices:
      - {name: stick, deviceName: kubevirt.io/stick}
      - {name: card, deviceName: intel.com/qat}
      interfaces:
      - {name: default, bridge: {}}
      - {name: lan, bridge: {}, model: e1000e, acpiIndex: 4}
      - {name: fast, sriov: {}, bootOrder: 2}
      - {name: gone, bridge: {}, state: absent}
  networks:
  - {name: default, pod: {}}
  - {name: lan, multus: {networkName: ns/lan}}
  - {name: fast, multus: {networkName: ns/fast}}
  - {name: gone, multus: {networkName: ns/gone}}
  volumes:
  - {name: default, persistentVolumeClaim: {claimName: a}}
  - {name: b, emptyDisk: {capacity: 1Gi}}
  - {name: c, persistentVolumeClaim: {claimName: c}}
  - {name: d, containerDisk: {image: x}}
  - {name: e, containerDisk: {image: x}}
`

// TestDocumentsFitLibvirtsSchema holds it also for machines of which there is no emulator here.
func TestDocumentsFitLibvirtsSchema(t *testing.T) {
	const schema = "/usr/share/libvirt/schemas/domain.rng"
	xmllint, err := exec.LookPath("xmllint")
	if err != nil {
		t.Skip("needs xmllint, package libxml2-utils")
	}
	dir := t.TempDir()
	arguments := []string{"--noout", "--relaxng", schema}
	for _, example := range append(examples(t), corpus(t)...) {
		document, err := domainxml.Render(example.machine())
		if err != nil {
			t.Errorf("%s: %v", example.name, err)
			continue
		}
		path := filepath.Join(dir, strings.ReplaceAll(example.name, " ", "-")+".xml")
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		if undefinable(example.name) != "failed to validate" {
			arguments = append(arguments, path)
		}
	}
	if said, err := exec.Command(xmllint, arguments...).CombinedOutput(); err != nil {
		for line := range strings.Lines(string(said)) {
			if !strings.HasSuffix(line, "validates\n") {
				t.Errorf("%s", line)
			}
		}
	}
}

// TestRealLibvirtSeesNoDrift defines every VM on a real libvirt, validated against its schema, and compares what it made
// of the definition with what was rendered. Nothing that libvirt prints is lost in reading.
func TestRealLibvirtSeesNoDrift(t *testing.T) {
	file := schemas.Parse("everything.yaml", []byte(everything))
	if len(file.VMs) != 1 {
		t.Fatal(file.Diagnostics)
	}
	daemon := libvirttest.Start(t)
	all := append(examples(t), corpus(t)...)
	all = append(all, example{name: "more", vm: decode(t, more)}, example{name: "more in a Pod", vm: decode(t, more), pod: true})
	for _, vm := range file.VMs {
		all = append(all, example{name: vm.Address.Name, vm: vm})
	}
	path := filepath.Join(t.TempDir(), "domain.xml")
	for _, example := range all {
		machine := example.machine()
		machine.Host.DomainType = "qemu"
		document, err := domainxml.Render(machine)
		if err != nil {
			t.Errorf("%s: %v", example.name, err)
			continue
		}
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		name := domainxml.DomainName(example.vm.Address)
		// All in one virsh: starting it takes longer than what it does.
		said, err := exec.Command("virsh", "-q", "-c", daemon.URI,
			"define --validate "+path+"; dumpxml --inactive "+name+"; undefine --nvram "+name).CombinedOutput()
		if reason := undefinable(example.name); reason != "" {
			if err == nil || !strings.Contains(string(said), reason) {
				t.Errorf("%s: libvirt says %q, want %q", example.name, said, reason)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %s", example.name, said)
			continue
		}
		noDrift(t, example.name, document, string(said))
		wanted, known := example.want[freeSlots]
		if headroom, err := domainxml.HeadroomOf(string(said)); err != nil || known && strconv.Itoa(headroom.FreeSlots) != wanted {
			t.Errorf("%s: %d PCI slots are free, KubeVirt leaves %s: %v", example.name, headroom.FreeSlots, wanted, err)
		}
	}
	for name, document := range definitions(t) {
		noDrift(t, name, document, define(t, daemon, name, document))
	}
}

// noDrift fails when what libvirt has differs from what was rendered, or when reading it would lose something.
func noDrift(t *testing.T, name, rendered, defined string) {
	t.Helper()
	differences, err := domainxml.Compare(rendered, defined)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, difference := range differences {
		t.Errorf("%s: %s: rendered %q, libvirt has %q", name, difference.Path, difference.Want, difference.Have)
	}
	if _, unread, err := domainxml.Read(defined); err != nil || len(unread) > 0 {
		t.Errorf("%s: unread %q, %v", name, unread, err)
	}
}

// definitions returns the domains of testdata/defined by their names: together they have whatever gitvirt renders, as it
// would be written.
func definitions(t testing.TB) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("testdata/defined/*.xml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no definitions: %v", err)
	}
	documents := map[string]string{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		documents[strings.TrimSuffix(filepath.Base(path), ".xml")] = string(content)
	}
	return documents
}

// define defines a domain and returns what libvirt made of it.
func define(t testing.TB, daemon *libvirttest.Daemon, name, document string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "domain.xml")
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon.Virsh("define", "--validate", path)
	return daemon.Virsh("dumpxml", "--inactive", name)
}

// TestRealLiveXML starts a guest with what this host can start. Nothing of its XML is lost in reading, and while it runs
// its definition shows no drift.
func TestRealLiveXML(t *testing.T) {
	daemon := libvirttest.Start(t)
	dir, err := os.MkdirTemp("", "live") // not t.TempDir: the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, command := range []string{
		"cp " + libvirttest.GuestIdle.Kernel(t) + " " + dir + "/kernel",
		"truncate -s 1M " + dir + "/base.raw " + dir + "/data.raw",
		"qemu-img create -q -f qcow2 -F raw -b " + dir + "/base.raw " + dir + "/root.qcow2",
	} {
		words := strings.Fields(command)
		if output, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, output)
		}
	}
	content, err := os.ReadFile("testdata/live.xml")
	if err != nil {
		t.Fatal(err)
	}
	document := strings.ReplaceAll(string(content), "DIR", dir)
	off := define(t, daemon, "live", document)
	daemon.Virsh("start", "live")
	for what, xml := range map[string]string{
		"shut off":         off,
		"running":          daemon.Virsh("dumpxml", "live"),
		"running, its own": daemon.Virsh("dumpxml", "--inactive", "live"),
		"migratable":       daemon.Virsh("dumpxml", "--migratable", "live"),
		"with secrets":     daemon.Virsh("dumpxml", "--security-info", "live"),
	} {
		domain, unread, err := domainxml.Read(xml)
		if err != nil || len(unread) > 0 {
			t.Errorf("%s: unread %q, %v", what, unread, err)
			continue
		}
		if domain.Metadata == nil || !strings.Contains(domain.Metadata.XML, `kept="yes"`) {
			t.Errorf("%s: another tool's metadata is lost", what)
		}
		if what == "shut off" || what == "running, its own" {
			if differences, err := domainxml.Compare(document, xml); err != nil || len(differences) > 0 {
				t.Errorf("%s: drift %v, %v", what, differences, err)
			}
		}
		if what == "running" {
			if differences, err := domainxml.CompareRunning(document, xml); err != nil || len(differences) > 0 {
				t.Errorf("%s: drift %v, %v", what, differences, err)
			}
		}
	}
}
