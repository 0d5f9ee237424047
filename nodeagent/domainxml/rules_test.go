package domainxml_test

import (
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// manifestOf is a machine with the given lines in spec.domain; volumes a and b are claims.
func manifestOf(domain string) string {
	return `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: m}
spec:
  networks: [{name: default, pod: {}}]
  volumes:
  - {name: a, persistentVolumeClaim: {claimName: a}}
  - {name: b, emptyDisk: {capacity: 1Gi}}
  domain:
` + domain
}

// TestRules holds what no example of KubeVirt's shows.
func TestRules(t *testing.T) {
	two := domainxml.CPUPlacement{VCPUs: []int{4, 5, 12, 13}, Emulator: []int{20, 21}, Nodes: []int{0, 0, 1, 1}}
	spread := domainxml.CPUPlacement{VCPUs: []int{4, 5, 6, 7, 8, 9, 10, 11}}
	for _, test := range []struct {
		reason, domain string
		change         func(*domainxml.Machine)
		want           []string // each is in the document
		absent         []string
	}{
		{
			reason: "NUMA cells of the host, each with its share of whole pages",
			domain: `    cpu: {cores: 4, dedicatedCpuPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}}}
    memory: {guest: 10Mi, hugepages: {pageSize: 2Mi}}
`,
			change: func(m *domainxml.Machine) { m.Host.Assignment.CPUs = &two },
			want: []string{
				`<cell id="0" cpus="0,1" memory="6291456" unit="b">`, `<cell id="1" cpus="2,3" memory="4194304" unit="b">`,
				`<memory mode="strict" nodeset="0-1">`, `<memnode cellid="1" mode="strict" nodeset="1">`,
				`<page size="2048" unit="KiB" nodeset="1">`, `<allocation mode="immediate">`,
				`<vcpupin vcpu="3" cpuset="13">`, `<emulatorpin cpuset="20-21">`, `<vcpu placement="static" cpuset="4-5,12-13,20-21">4</vcpu>`,
			},
		},
		{
			reason: "IO threads share the CPUs of the machine evenly",
			domain: `    cpu: {cores: 8, dedicatedCpuPlacement: true}
    memory: {guest: 64Mi}
    ioThreadsPolicy: supplementalPool
    ioThreads: {supplementalPoolThreadCount: 3}
`,
			change: func(m *domainxml.Machine) { m.Host.Assignment.CPUs = &spread },
			want: []string{
				`<iothreadpin iothread="1" cpuset="4-6">`, `<iothreadpin iothread="2" cpuset="7-9">`, `<iothreadpin iothread="3" cpuset="10-11">`,
			},
		},
		{
			reason: "devices of an encrypted guest use the DMA API",
			domain: `    memory: {guest: 64Mi}
    launchSecurity: {sev: {policy: {encryptedState: true}, dhCert: CERT, session: SESSION}}
    devices:
      rng: {}
      disks: [{name: a, disk: {bus: virtio}}]
      interfaces: [{name: default, masquerade: {}, bootOrder: 1}]
`,
			want: []string{
				`<policy>0x5</policy>`, `<dhCert>CERT</dhCert>`, `<session>SESSION</session>`, `discard="unmap" iommu="on">`,
				`<driver name="vhost" iommu="on">`, `<rom enabled="no">`,
				"<controller type=\"scsi\" index=\"0\" model=\"virtio-non-transitional\">\n      <driver iommu=\"on\">",
				"<backend model=\"random\">/dev/urandom</backend>\n      <driver iommu=\"on\">",
				"<stats period=\"10\"></stats>\n      <driver iommu=\"on\">",
			},
		},
		{
			reason: "commas in a path are doubled for QEMU",
			domain: `    memory: {guest: 64Mi}
    firmware: {acpi: {msdmNameRef: a, slicNameRef: b}}
`,
			change: func(m *domainxml.Machine) { m.Volumes[0].Path = "/vms/a,b.acpi" },
			want: []string{
				`xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0"`, `<table type="slic">/disks/b</table>`,
				`<qemu:arg value="sig=MSDM,file=/vms/a,,b.acpi">`,
			},
		},
		{
			reason: "block sizes are those of the device",
			domain: `    memory: {guest: 64Mi}
    devices: {disks: [{name: a, disk: {bus: virtio}, blockSize: {matchVolume: {}}}]}
`,
			change: func(m *domainxml.Machine) {
				m.Volumes[0].Block, m.Volumes[0].LogicalBlock, m.Volumes[0].PhysicalBlock = true, 512, 4096
			},
			want: []string{`<blockio logical_block_size="512" physical_block_size="4096">`, `io="native"`, `<source dev="/disks/a">`},
		},
		{
			reason: "a file system without direct I/O",
			domain: `    memory: {guest: 64Mi}
    devices: {disks: [{name: a, disk: {bus: virtio}}]}
`,
			change: func(m *domainxml.Machine) { m.Volumes[0].Cached = true },
			want:   []string{`cache="writethrough"`},
		},
		{
			reason: "the user-mode network has the addresses that the manifest says",
			domain: `    memory: {guest: 64Mi}
    devices: {interfaces: [{name: default, masquerade: {}}]}
`,
			change: func(m *domainxml.Machine) {
				m.Spec.Networks[0].Pod.VMNetworkCIDR, m.Spec.Networks[0].Pod.VMIPv6NetworkCIDR = "10.11.12.13/24", "fd10:0:2::2/120"
			},
			want: []string{`<ip address="10.11.12.0" family="ipv4" prefix="24">`, `<ip address="fd10:0:2::" family="ipv6" prefix="120">`},
		},
		{
			reason: "no log of the console",
			domain: `    memory: {guest: 64Mi}
    devices: {logSerialConsole: false}
`,
			want:   []string{`<serial type="pty">`},
			absent: []string{"<log "},
		},
	} {
		machine := machineOf(decode(t, manifestOf(test.domain)))
		if test.change != nil {
			test.change(&machine)
		}
		machine.Record = nil
		document, err := domainxml.Render(machine)
		if err != nil {
			t.Errorf("%s: %v", test.reason, err)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(document, want) {
				t.Errorf("%s: %s is not in\n%s", test.reason, want, document)
			}
		}
		for _, absent := range test.absent {
			if strings.Contains(document, absent) {
				t.Errorf("%s: %s is in\n%s", test.reason, absent, document)
			}
		}
	}
}

// TestWhatCannotBeRenderedIsSaid holds that nobody gets a machine that is not the one asked for.
func TestWhatCannotBeRenderedIsSaid(t *testing.T) {
	for _, test := range []struct {
		reason, domain string
		change         func(*domainxml.Machine)
		want           string
	}{
		{"a volume without a place", "    devices: {disks: [{name: a, disk: {}}]}\n", func(m *domainxml.Machine) { m.Volumes = m.Volumes[1:] }, "disk a: its volume was not prepared"},
		{"a share without a place", "    devices: {filesystems: [{name: a, virtiofs: {}}]}\n", func(m *domainxml.Machine) { m.Volumes = m.Volumes[1:] }, "filesystem a: its volume was not prepared"},
		{"no such architecture", "    memory: {guest: 1Gi}\n", func(m *domainxml.Machine) { m.Spec.Architecture = "ppc64le" }, `architecture "ppc64le" is none of`},
		{"two writers of one image", "    devices: {disks: [{name: b, disk: {}, shareable: true}]}\n", nil, "disk b: shareable: two machines that write one qcow2 image destroy it"},
		{"no device", "    devices: {gpus: [{name: g, deviceName: x/y}]}\n", func(m *domainxml.Machine) { m.Host.Assignment.Devices = nil }, "device g: the host has not assigned one"},
		{"no CPUs", "    cpu: {cores: 2, dedicatedCpuPlacement: true}\n", func(m *domainxml.Machine) { m.Host.Assignment.CPUs.VCPUs = []int{1} }, "the host has not assigned 2 CPUs"},
		{"an address", "    devices: {interfaces: [{name: default, masquerade: {}, pciAddress: '1:2'}]}\n", nil, `interface default: PCI address "1:2": want DOMAIN:BUS:SLOT.FUNCTION`},
		{"a network", "    devices: {interfaces: [{name: default, masquerade: {}}]}\n", func(m *domainxml.Machine) { m.Spec.Networks[0].Pod.VMNetworkCIDR = "10.0.0.0" }, `network "10.0.0.0": want an address and a prefix`},
		{"an address of letters", "    devices: {disks: [{name: a, disk: {bus: virtio, pciAddress: '0000:0g:01.0'}}]}\n", nil, `"0g" is not a hexadecimal number`},
		{"more vCPUs than there are", "    cpu: {sockets: 4000000000, cores: 4000000000, threads: 4000000000}\n", nil, "more than the 4096 vCPUs"},
		{"vCPUs that overflow", "    cpu: {sockets: 2147483648, cores: 2147483648, threads: 4}\n", nil, "more than the 4096 vCPUs"},
		{"more IO threads than there are", "    ioThreadsPolicy: supplementalPool\n    ioThreads: {supplementalPoolThreadCount: 4000000000}\n", nil, "IO threads are more than 4096"},
		{"a mask of nobody", "    cpu: {cores: 2, dedicatedCpuPlacement: true, realtime: {mask: '7'}}\n", nil, "names none of the guest's 2 vCPUs"},
		{"a mask that is none", "    cpu: {cores: 2, dedicatedCpuPlacement: true, realtime: {mask: 'all'}}\n", nil, `"all" is no vCPU`},
		{"the kernel", "    firmware: {kernelBoot: {container: {image: x, kernelPath: /k}}}\n", func(m *domainxml.Machine) { m.Volumes = nil }, "the files of kernelBoot are not there"},
	} {
		machine := machineOf(decode(t, manifestOf(test.domain)))
		if test.change != nil {
			test.change(&machine)
		}
		_, err := domainxml.Render(machine)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "VirtualMachineInstance/default/m") {
			t.Errorf("%s: got %v, want %q", test.reason, err, test.want)
		}
	}
}
