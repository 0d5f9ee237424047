package schemas

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// expandSpecs adds an instancetype and a preference, each a spec in YAML or nothing, to a machine's spec, past the support
// table. It returns the template and what was told.
func expandSpecs(t *testing.T, instance, prefer, spec string) (template map[string]any, told Diagnostics) {
	t.Helper()
	text := "spec:\n  template:\n    spec:\n" + indent(spec, "      ")
	from := &source{text: []byte(text)}
	file := &File{Path: "vm.yaml"}
	budget := budgetFor(len(text))
	d := &document{file: file, root: from.tree(), budget: &budget, source: from}
	vm := &kubevirtv1.VirtualMachine{}
	if err := yaml.UnmarshalStrict([]byte(text), vm); err != nil {
		t.Fatal(err)
	}
	x := expander{checker: newChecker(d, Address{KindVirtualMachine, DefaultNamespace, "vm"}, at("spec", "template", "spec")), vm: vm, spec: &vm.Spec.Template.Spec}
	var it, p *object
	if instance != "" {
		value := &instancetype{}
		if err := yaml.UnmarshalStrict([]byte(instance), &value.spec); err != nil {
			t.Fatal(err)
		}
		it = &object{address: Address{KindInstancetype, DefaultNamespace, "it"}, value: value}
	}
	if prefer != "" {
		value := &preference{}
		if err := yaml.UnmarshalStrict([]byte(prefer), &value.spec); err != nil {
			t.Fatal(err)
		}
		p = &object{address: Address{KindPreference, DefaultNamespace, "p"}, value: value}
	}
	x.expand(it, p)
	encoded, err := json.Marshal(vm.Spec.Template)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(encoded, &template); err != nil {
		t.Fatal(err)
	}
	return template, file.Diagnostics
}

func indent(text, by string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	return by + strings.Join(lines, "\n"+by) + "\n"
}

// TestExpandCPU spreads vCPUs as KubeVirt does.
func TestExpandCPU(t *testing.T) {
	for _, test := range []struct {
		reason                  string
		vcpus                   uint32
		prefer                  string
		sockets, cores, threads uint32
		problem                 bool
	}{
		{"sockets without a preference", 6, "", 6, 1, 1, false},
		{"sockets with a preference that does not say", 6, "cpu: {}", 6, 1, 1, false},
		{"cores", 6, "cpu: {preferredCPUTopology: cores}", 1, 6, 1, false},
		{"the deprecated name", 6, "cpu: {preferredCPUTopology: preferCores}", 1, 6, 1, false},
		{"threads", 6, "cpu: {preferredCPUTopology: preferThreads}", 1, 1, 6, false},
		{"any are sockets", 6, "cpu: {preferredCPUTopology: any}", 6, 1, 1, false},
		{"spread over sockets and cores, two by two", 6, "cpu: {preferredCPUTopology: spread}", 3, 2, 1, false},
		{"with a ratio", 6, "{preferSpreadSocketToCoreRatio: 3, cpu: {preferredCPUTopology: spread}}", 2, 3, 1, false},
		{"the ratio of the options wins", 8, "{preferSpreadSocketToCoreRatio: 3, cpu: {preferredCPUTopology: spread, spreadOptions: {ratio: 4}}}", 2, 4, 1, false},
		{"over cores and threads", 6, "cpu: {preferredCPUTopology: spread, spreadOptions: {across: CoresThreads}}", 1, 3, 2, false},
		{"over all three", 12, "cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads, ratio: 3}}", 2, 3, 2, false},
		{"an odd number cannot be spread", 3, "cpu: {preferredCPUTopology: spread}", 0, 0, 0, true},
		{"nor one", 1, "cpu: {preferredCPUTopology: spread}", 0, 0, 0, true},
		{"nor six over threads and three cores", 6, "cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads, ratio: 2}}", 0, 0, 0, true},
	} {
		p := &preference{}
		if err := yaml.UnmarshalStrict([]byte(test.prefer), &p.spec); err != nil {
			t.Fatal(err)
		}
		sockets, cores, threads, problem := cpuTopology(test.vcpus, p)
		if sockets != test.sockets || cores != test.cores || threads != test.threads || (problem != "") != test.problem {
			t.Errorf("%s: %d sockets, %d cores, %d threads, %q", test.reason, sockets, cores, threads, problem)
		}
	}
}

// TestExpand holds the rules of the expansion, field by field.
func TestExpand(t *testing.T) {
	const small = "{cpu: {guest: 1}, memory: {guest: 1Gi}}"
	for _, test := range []struct{ reason, instance, prefer, spec, want string }{
		{
			"an instancetype gives CPU and memory", "{cpu: {guest: 2, model: Haswell, maxSockets: 8}, memory: {guest: 2Gi, maxGuest: 4Gi}}", "", "domain: {}",
			"domain: {cpu: {sockets: 2, cores: 1, threads: 1, model: Haswell, maxSockets: 8}, memory: {guest: 2Gi, maxGuest: 4Gi}, devices: {}, resources: {}}",
		},
		{
			"and all the rest", `
cpu: {guest: 1, dedicatedCPUPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}}, realtime: {mask: "0"}}
memory: {guest: 1Gi, hugepages: {pageSize: 2Mi}}
gpus: [{name: g, deviceName: nvidia.com/T4}]
hostDevices: [{name: h, deviceName: x/y}]
ioThreadsPolicy: shared
ioThreads: {supplementalPoolThreadCount: 2}
launchSecurity: {sev: {}}
nodeSelector: {a: b}
schedulerName: s
`, "", "domain: {}", `
nodeSelector: {a: b}
schedulerName: s
domain:
  cpu: {sockets: 1, cores: 1, threads: 1, dedicatedCpuPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}}, realtime: {mask: "0"}}
  memory: {guest: 1Gi, hugepages: {pageSize: 2Mi}}
  devices: {gpus: [{name: g, deviceName: nvidia.com/T4}], hostDevices: [{name: h, deviceName: x/y}]}
  ioThreadsPolicy: shared
  ioThreads: {supplementalPoolThreadCount: 2}
  launchSecurity: {sev: {}}
  resources: {}
`,
		},
		{
			"overcommitted memory is a smaller request", "{cpu: {guest: 1}, memory: {guest: 1000Mi, overcommitPercent: 25}}", "", "domain: {}",
			"domain: {cpu: {sockets: 1, cores: 1, threads: 1}, memory: {guest: 1000Mi}, devices: {}, resources: {requests: {memory: 750Mi}}}",
		},
		{
			"values that repeat the instancetype are no conflict", "{cpu: {guest: 2, dedicatedCPUPlacement: true}, memory: {guest: 1Gi}, ioThreadsPolicy: auto, nodeSelector: {a: b}}", "",
			"{nodeSelector: {a: b}, domain: {ioThreadsPolicy: auto, cpu: {sockets: 2, dedicatedCpuPlacement: true}, memory: {guest: 1024Mi}, resources: {limits: {cpu: 2000m, memory: 1048576Ki}}}}",
			"{nodeSelector: {a: b}, domain: {ioThreadsPolicy: auto, cpu: {sockets: 2, cores: 1, threads: 1, dedicatedCpuPlacement: true}, memory: {guest: 1Gi}, devices: {}, resources: {limits: {cpu: '2', memory: 1Gi}}}}",
		},
		{
			"preferences speak where the machine says nothing", small, `
devices:
  preferredDiskBus: virtio
  preferredCdromBus: scsi
  preferredDiskCache: none
  preferredDiskDedicatedIoThread: true
  preferredInterfaceModel: e1000e
  preferredInterfaceMasquerade: {}
  preferredTPM: {persistent: true}
  preferredRng: {}
  preferredAutoattachGraphicsDevice: false
  preferredSoundModel: ich9
  preferredPanicDeviceModel: isa
  preferredVideoType: vga
machine: {preferredMachineType: q35}
preferredTerminationGracePeriodSeconds: 180
preferredSubdomain: sub
preferredArchitecture: amd64
clock: {preferredClockOffset: {utc: {}}, preferredTimer: {hpet: {present: false}}}
`, `
subdomain: mine
networks: [{name: net, pod: {}}, {name: m, multus: {networkName: x}}]
volumes: [{name: root, emptyDisk: {capacity: 1Gi}}]
domain:
  clock: {timezone: Europe/Berlin}
  devices:
    autoattachGraphicsDevice: true
    sound: {name: s}
    disks: [{name: sata, disk: {bus: sata}, cache: writeback}, {name: cd, cdrom: {}}]
    interfaces: [{name: net}, {name: m, bridge: {}, model: virtio}]
`, `
subdomain: mine
architecture: amd64
terminationGracePeriodSeconds: 180
networks: [{name: net, pod: {}}, {name: m, multus: {networkName: x}}]
volumes: [{name: root, emptyDisk: {capacity: 1Gi}}]
domain:
  cpu: {sockets: 1, cores: 1, threads: 1}
  memory: {guest: 1Gi}
  machine: {type: q35}
  clock: {timezone: Europe/Berlin, timer: {hpet: {present: false}}}
  resources: {}
  devices:
    autoattachGraphicsDevice: true
    sound: {name: s, model: ich9}
    tpm: {persistent: true}
    rng: {}
    video: {type: vga}
    panicDevices: [{model: isa}]
    disks:
    - {name: sata, disk: {bus: sata}, cache: writeback}
    - {name: cd, cdrom: {bus: scsi}}
    - {name: root, disk: {bus: virtio}, cache: none, dedicatedIOThread: true}
    interfaces: [{name: net, model: e1000e, masquerade: {}}, {name: m, bridge: {}, model: virtio}]
`,
		},
		{
			"features one by one, and what the machine switched off stays off", small,
			"{features: {preferredAcpi: {enabled: true}, preferredSmm: {}, preferredHyperv: {relaxed: {}, vapic: {}, spinlocks: {spinlocks: 8191}}}, devices: {preferredDisableHotplug: true, preferredAutoattachPodInterface: false}}",
			"domain: {devices: {disableHotplug: false}, features: {acpi: {enabled: false}, hyperv: {vapic: {enabled: false}}}}",
			"domain: {cpu: {sockets: 1, cores: 1, threads: 1}, memory: {guest: 1Gi}, resources: {}, devices: {autoattachPodInterface: false}, features: {acpi: {enabled: false}, smm: {}, hyperv: {relaxed: {}, vapic: {enabled: false}, spinlocks: {spinlocks: 8191}}}}",
		},
		{
			"no enlightenments for a machine that passes the host's through", "",
			"features: {preferredHyperv: {relaxed: {}}}", "domain: {features: {hypervPassthrough: {enabled: true}}}",
			"domain: {devices: {}, resources: {}, features: {acpi: {}, hypervPassthrough: {enabled: true}}}",
		},
		{
			"EFI with secure boot, the new way", "", "firmware: {preferredEfi: {persistent: true}, preferredUseSecureBoot: true}", "domain: {}",
			"domain: {devices: {}, resources: {}, firmware: {bootloader: {efi: {persistent: true}}}}",
		},
		{
			"and the old way", "", "firmware: {preferredUseEfi: true, preferredUseSecureBoot: false}", "domain: {firmware: {serial: x}}",
			"domain: {devices: {}, resources: {}, firmware: {serial: x, bootloader: {efi: {secureBoot: false}}}}",
		},
		{
			"a BIOS that the machine names stays", "", "firmware: {preferredEfi: {}, preferredUseBiosSerial: true}", "domain: {firmware: {bootloader: {bios: {}}}}",
			"domain: {devices: {}, resources: {}, firmware: {bootloader: {bios: {useSerial: true}}}}",
		},
		{
			"CPU features by name", "", "cpu: {preferredCPUFeatures: [{name: vmx, policy: require}, {name: avx, policy: disable}]}", "domain: {cpu: {features: [{name: avx}]}}",
			"domain: {devices: {}, resources: {}, cpu: {features: [{name: avx}, {name: vmx, policy: require}]}}",
		},
		{
			"the display of GPUs, and an input device", "{cpu: {guest: 1}, memory: {guest: 1Gi}, gpus: [{name: a, deviceName: x}, {name: b, deviceName: x, virtualGPUOptions: {}}]}",
			"devices: {preferredVirtualGPUOptions: {display: {enabled: false}}, preferredInputBus: virtio, preferredInputType: tablet, preferredAutoattachInputDevice: true, preferredAutoattachPodInterface: false}",
			"domain: {}",
			"domain: {cpu: {sockets: 1, cores: 1, threads: 1}, memory: {guest: 1Gi}, resources: {}, devices: {autoattachPodInterface: false, autoattachInputDevice: true, inputs: [{name: default-0, bus: virtio, type: tablet}], gpus: [{name: a, deviceName: x, virtualGPUOptions: {display: {enabled: false}}}, {name: b, deviceName: x, virtualGPUOptions: {}}]}}",
		},
	} {
		t.Run(test.reason, func(t *testing.T) {
			got, told := expandSpecs(t, test.instance, test.prefer, test.spec)
			if len(told) > 0 {
				t.Error(told)
			}
			var want kubevirtv1.VirtualMachineInstanceTemplateSpec
			if err := yaml.UnmarshalStrict([]byte("spec:\n"+indent(test.want, "  ")), &want); err != nil {
				t.Fatal(err)
			}
			encoded, _ := json.Marshal(want)
			var wanted map[string]any
			_ = json.Unmarshal(encoded, &wanted)
			if diff := cmp.Diff(wanted["spec"], got["spec"]); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestExpandConflicts names every field that both set differently, at the machine's place.
func TestExpandConflicts(t *testing.T) {
	_, told := expandSpecs(t, `
cpu: {guest: 2, model: a, dedicatedCPUPlacement: false, isolateEmulatorThread: true, numa: {}, realtime: {}, maxSockets: 4}
memory: {guest: 2Gi, maxGuest: 4Gi, hugepages: {pageSize: 2Mi}}
gpus: [{name: g, deviceName: x}]
hostDevices: [{name: h, deviceName: x}]
ioThreadsPolicy: shared
ioThreads: {supplementalPoolThreadCount: 2}
launchSecurity: {sev: {}}
nodeSelector: {a: b}
schedulerName: s
`, "", `
nodeSelector: {a: c}
schedulerName: t
domain:
  cpu:
    sockets: 1
    cores: 2
    threads: 2
    model: b
    dedicatedCpuPlacement: true
    isolateEmulatorThread: false
    numa: {guestMappingPassthrough: {}}
    realtime: {mask: "1"}
    maxSockets: 5
  memory:
    guest: 1Gi
    maxGuest: 3Gi
    hugepages: {pageSize: 1Gi}
  devices:
    gpus: [{name: g, deviceName: z}]
    hostDevices: [{name: h, deviceName: z}]
  ioThreadsPolicy: auto
  ioThreads: {supplementalPoolThreadCount: 3}
  launchSecurity: {tdx: {}}
  resources:
    requests: {cpu: 1, memory: 1Gi}
    limits: {cpu: 3, memory: 3Gi}
`)
	var got []string
	for _, d := range told {
		if d.Position.Line == 0 || !strings.Contains(d.Message, KindInstancetype) {
			t.Error(d)
		}
		got = append(got, strings.TrimPrefix(d.Path, "spec.template.spec."))
	}
	want := []string{
		"domain.cpu.sockets", "domain.cpu.cores", "domain.cpu.threads", "domain.resources.requests.cpu", "domain.resources.limits.cpu", "domain.cpu.model",
		"domain.cpu.dedicatedCpuPlacement", "domain.cpu.isolateEmulatorThread", "domain.cpu.numa", "domain.cpu.realtime", "domain.cpu.maxSockets",
		"domain.memory.guest", "domain.resources.requests.memory", "domain.resources.limits.memory", "domain.memory.hugepages", "domain.memory.maxGuest",
		"nodeSelector", "schedulerName", "domain.devices.gpus", "domain.devices.hostDevices", "domain.ioThreadsPolicy", "domain.ioThreads", "domain.launchSecurity",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestExpandRequirements counts vCPUs where the preference wants to see them.
func TestExpandRequirements(t *testing.T) {
	const needs = ", requirements: {cpu: {guest: 4}}}"
	for _, test := range []struct {
		reason, instance, prefer, spec string
		ok                             bool
	}{
		{"enough vCPUs by the instancetype", "{cpu: {guest: 4}, memory: {guest: 1Gi}}", "{cpu: {preferredCPUTopology: cores}" + needs, "domain: {}", true},
		{"too few", "{cpu: {guest: 3}, memory: {guest: 1Gi}}", "{cpu: {preferredCPUTopology: cores}" + needs, "domain: {}", false},
		{"cores that are sockets", "", "{cpu: {preferredCPUTopology: cores}" + needs, "domain: {cpu: {sockets: 4}}", false},
		{"any", "", "{cpu: {preferredCPUTopology: any}" + needs, "domain: {cpu: {sockets: 2, threads: 2}}", true},
		{"spread counts what it spreads over", "", "{cpu: {preferredCPUTopology: spread}" + needs, "domain: {cpu: {sockets: 2, threads: 2}}", false},
		{"and all when it spreads over all", "", "{cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads}}" + needs, "domain: {cpu: {sockets: 2, threads: 2}}", true},
		{"a machine without CPU", "", "{cpu: {}" + needs, "domain: {}", false},
		{"enough memory", "", "requirements: {memory: {guest: 1Gi}}", "domain: {memory: {guest: 1024Mi}}", true},
		{"too little", "", "requirements: {memory: {guest: 1Gi}}", "domain: {memory: {guest: 1G}}", false},
		{"by request", "", "requirements: {memory: {guest: 1Gi}}", "domain: {resources: {requests: {memory: 2Gi}}}", true},
		{"the architecture of the machine", "", "requirements: {architecture: arm64}", "{architecture: arm64, domain: {}}", true},
		{"the preferred one", "", "{preferredArchitecture: arm64, requirements: {architecture: arm64}}", "domain: {}", true},
	} {
		if _, told := expandSpecs(t, test.instance, test.prefer, test.spec); (len(told) == 0) != test.ok {
			t.Errorf("%s: %v", test.reason, told)
		}
	}
}
