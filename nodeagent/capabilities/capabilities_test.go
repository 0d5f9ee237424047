package capabilities_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/capabilities"
)

// host makes a file system of these files; a value is a file's content.
func host(t *testing.T, files map[string]string) capabilities.Host {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return capabilities.New(root)
}

func spec(change func(*kubevirtv1.VirtualMachineInstanceSpec)) *kubevirtv1.VirtualMachineInstanceSpec {
	out := &kubevirtv1.VirtualMachineInstanceSpec{}
	change(out)
	return out
}

func efi(secure *bool) *kubevirtv1.VirtualMachineInstanceSpec {
	return spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.Domain.Firmware = &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: secure}}}
	})
}

func TestCheck(t *testing.T) {
	no, yes := false, true
	tpm := spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.TPM = &kubevirtv1.TPMDevice{} })
	folder := spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Filesystems = []kubevirtv1.Filesystem{{Name: "a"}}
	})
	sev := spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.Domain.LaunchSecurity = &kubevirtv1.LaunchSecurity{SEV: &kubevirtv1.SEV{}}
	})
	tdx := spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.Domain.LaunchSecurity = &kubevirtv1.LaunchSecurity{TDX: &kubevirtv1.TDX{}}
	})
	vsock := spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.AutoattachVSOCK = &yes })
	for _, test := range []struct {
		reason string
		files  map[string]string
		spec   *kubevirtv1.VirtualMachineInstanceSpec
		want   string // what the error says; empty for none
	}{
		{"nothing special needs nothing", nil, spec(func(*kubevirtv1.VirtualMachineInstanceSpec) {}), ""},
		{"UEFI without firmware", nil, efi(&no), "OVMF_CODE_4M.fd is not there; apt-get install ovmf"},
		{"UEFI without the template of its variables", map[string]string{"usr/share/OVMF/OVMF_CODE_4M.fd": ""}, efi(&no), "OVMF_VARS_4M.fd is not there"},
		{"UEFI", map[string]string{"usr/share/OVMF/OVMF_CODE_4M.fd": "", "usr/share/OVMF/OVMF_VARS_4M.fd": ""}, efi(&no), ""},
		{"Secure Boot is the default and another build", map[string]string{"usr/share/OVMF/OVMF_CODE_4M.fd": "", "usr/share/OVMF/OVMF_VARS_4M.fd": ""}, efi(nil), "OVMF_CODE_4M.ms.fd"},
		{"a TPM without its emulator", nil, tpm, "swtpm is not there; apt-get install swtpm swtpm-tools"},
		{"a TPM without the tool that makes its keys", map[string]string{"usr/bin/swtpm": ""}, tpm, "swtpm_setup"},
		{"a TPM", map[string]string{"usr/bin/swtpm": "", "usr/bin/swtpm_setup": ""}, tpm, ""},
		{"a TPM that is switched off", nil, spec(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.TPM = &kubevirtv1.TPMDevice{Enabled: &no}
		}), ""},
		{"a description without its program", map[string]string{"usr/share/qemu/vhost-user/50.json": `{"type":"fs","binary":"/usr/lib/qemu/virtiofsd"}`}, folder, "virtiofsd"},
		{"another daemon's description", map[string]string{"usr/share/qemu/vhost-user/50.json": `{"type":"gpu","binary":"/x"}`, "x": ""}, folder, "virtiofsd"},
		{"a shared folder", map[string]string{"usr/share/qemu/vhost-user/50.json": `{"type":"fs","binary":"/usr/lib/qemu/virtiofsd"}`, "usr/lib/qemu/virtiofsd": ""}, folder, ""},
		{"vsock", nil, vsock, "modprobe vhost_vsock"},
		{"vsock with its device", map[string]string{"dev/vhost-vsock": ""}, vsock, ""},
		{"SEV that is switched off", map[string]string{"sys/module/kvm_amd/parameters/sev": "N\n"}, sev, "kvm_amd does not offer sev"},
		{"SEV without its firmware", map[string]string{"sys/module/kvm_amd/parameters/sev": "Y\n", "dev/sev": ""}, sev, "OVMF.amdsev.fd is not there"},
		{"SEV", map[string]string{"sys/module/kvm_amd/parameters/sev": "Y\n", "dev/sev": "", "usr/share/ovmf/OVMF.amdsev.fd": ""}, sev, ""},
		{"TDX", nil, tdx, "launchSecurity.tdx"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			err := host(t, test.files).Check(test.spec)
			if test.want == "" {
				if err != nil {
					t.Errorf("Check: %v", err)
				}
				return
			}
			if !errors.Is(err, capabilities.ErrMissing) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Check: %v, want it to say %q", err, test.want)
			}
		})
	}
}

func TestHugepages(t *testing.T) {
	h := host(t, map[string]string{
		"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":                    "64\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages":                 "0\n",
		"sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages":    "40\n",
		"sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages":    "24\n",
		"sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages": "0\n",
	})
	for _, test := range []struct {
		reason       string
		size         string
		memory, held int64
		nodes        []int
		want         string
	}{
		{"enough", "2Mi", 128 << 20, 0, nil, ""},
		{"one too many", "2Mi", 130 << 20, 0, nil, "needs 65 free huge pages of 2Mi, and 64 are"},
		{"what the guest has now comes back", "2Mi", 130 << 20, 2 << 20, nil, ""},
		{"half a page is a page", "2Mi", 128<<20 + 1, 0, nil, "needs 65"},
		{"enough on each node", "2Mi", 96 << 20, 0, []int{0, 1}, ""},
		{"too few on one node", "2Mi", 128 << 20, 0, []int{0, 1}, "needs 32 free huge pages of 2Mi on NUMA node 1, and 24 are"},
		{"none of this size are free", "1Gi", 1 << 30, 0, nil, "and 0 are"},
		{"a size that the host does not have", "64Ki", 1 << 30, 0, nil, "no huge pages of 64Ki; it has 1Gi, 2Mi"},
		{"no size", "many", 1 << 30, 0, nil, `"many" is no size`},
	} {
		t.Run(test.reason, func(t *testing.T) {
			err := h.CheckHugepages(test.size, test.memory, test.held, test.nodes)
			if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, capabilities.ErrMissing) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("CheckHugepages: %v, want %q", err, test.want)
			}
		})
	}
}

func TestList(t *testing.T) {
	for _, capability := range host(t, nil).List() {
		if capability.Problem == "" || capability.Fix == "" || capability.Name == "" || capability.Field == "" {
			t.Errorf("on an empty host: %+v", capability)
		}
	}
}
