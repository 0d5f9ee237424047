package schemas_test

import (
	"os"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// admissionCase is a line of testdata/admission.tsv.
type admissionCase struct {
	name     string
	accepted bool
	manifest []byte
}

func admissionCases(t testing.TB) []admissionCase {
	t.Helper()
	text, err := os.ReadFile("testdata/admission.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var cases []admissionCase
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSpace(line), "\t"); len(fields) == 3 {
			manifest := strings.Replace(fields[2], "{", `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance",`, 1)
			if !strings.Contains(manifest, `"metadata":{`) {
				manifest = strings.TrimSuffix(manifest, "}") + `,"metadata":{}}`
			}
			manifest = strings.Replace(manifest, `"metadata":{`, `"metadata":{"name":"web",`, 1)
			cases = append(cases, admissionCase{fields[0], fields[1] == "accepted", []byte(strings.Replace(manifest, ",}", "}", 1))})
		}
	}
	return cases
}

// TestAdmission holds the checks against KubeVirt's own admission: what it accepts must work unchanged, and what it
// refuses must not slip through, but for what admissionExceptions gives a reason for.
func TestAdmission(t *testing.T) {
	cases, exceptions, used := admissionCases(t), admissionExceptions(), map[string]bool{}
	if len(cases) < 600 {
		t.Fatalf("%d cases", len(cases))
	}
	differ := 0
	for _, test := range cases {
		file := schemas.Parse("vm.json", test.manifest)
		for _, d := range file.Diagnostics {
			if d.Position.Line < 1 || d.Position.Column < 1 {
				t.Errorf("%s: no place: %v", test.name, d)
			}
		}
		if accepted := file.Diagnostics.Errors() == 0; accepted == test.accepted {
			continue
		}
		differ++
		if _, ok := exceptions[test.name]; !ok {
			t.Errorf("%s: KubeVirt accepts it: %v; we say %v", test.name, test.accepted, file.Diagnostics)
		}
		used[test.name] = true
	}
	for name := range exceptions {
		if !used[name] {
			t.Errorf("%s: no exception any more", name)
		}
	}
	t.Logf("%d of %d cases as KubeVirt decides, %d otherwise for a reason", len(cases)-differ, len(cases), differ)
}

// admissionExceptions are the cases that are decided otherwise than KubeVirt decides, with the reason.
func admissionExceptions() map[string]string {
	all := map[string]string{}
	for _, group := range []struct{ reason, cases string }{
		{"no Pod mounts the claim read-only, and QEMU has no read-only disk on sata", "vol-pvc-ro-implicit vol-pvc-ro-sata"},
		{"user data goes onto a disk, not into etcd: there is room for more than 2048 bytes", "ci-big"},
		{"libvirt has keyboards", "input-type"},
		{"former versions of KubeVirt had it, and libvirt has it still", "net-macvtap net-passt-old net-slirp"},
		{"the disk goes to the bus that carries it when the manifest names none", "vol-downwardmetrics-implicit"},
		{"binding plugins are containers of KubeVirt's", "net-binding-unknown"},

		{"libvirt refuses it", `arch-arm64-secure arm64-secure arm64-smm arm64-panic panic-s390 cdrom-tray clock-policy clock-rtc-track
			cpu-dup-feature cpu-feature-noname disk-native-cache fw-uuid gpu-dup hostdev-dup hv-spin-low hv-vendor-long
			lun-reservation-sata net-acpi-neg net-cidr-bad net-cidr-small net-cidr6-bad net-mac-multicast net-pci-dup
			watchdog-action realtime-mask`},
		{"an s390x machine has neither such a board nor PCI or USB, and QEMU does not start", `arch-s390x-hyperv arch-s390x-sata arch-s390x-tpm
			s390x-acpi s390x-client s390x-efi s390x-hyperv s390x-input s390x-sata-cdrom s390x-smm s390x-sound s390x-tpm s390x-usb`},
		{"QEMU does not start with one and without the other", "hv-evmcs-novapic hv-ipi-novp hv-stimer-off hv-tlb-novp gpu-ramfb"},
		{"QEMU does not start with two of them", "net-acpi-dup"},
		{"KubeVirt refuses it, too, where memory may grow", "maxguest-align maxguest-arm maxguest-huge-align maxguest-lt"},
		{"the API server refuses it before KubeVirt is asked", `fs-noname fs-novirtiofs gpu-noname hostdev-noname input-noname
			memlock-bad pvc-noclaim eph-noclaim reboot-bad watchdog-noname`},
		{"the Pod that KubeVirt makes of it is refused or never starts", `cd-noimage da-badpath da-nofield eph-none nodeselector-bad
			nodeselector-value toleration-bad probe-exec-empty res-unknown grace-negative mem-frac mem-small mem-zero
			ed-neg ed-nocap ed-zero hd-nocap sysprep-none net-sriov-pod`},
		{"nobody can tell which of the two counts", "clock-both sysprep-both"},
		{"it does nothing, which cannot be what is meant", "fs-containerdisk fs-novolume probe-neg"},
		{"two devices of a host are told apart by their names", "gpu-hostdev-same"},
		{"two interfaces of one address disturb each other", "net-mac-dup"},
	} {
		for name := range strings.FieldsSeq(group.cases) {
			all[name] = group.reason
		}
	}
	return all
}
