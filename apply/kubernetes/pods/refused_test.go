package pods_test

import (
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestRefused: what a Pod cannot carry out is refused by its field, and nothing else.
func TestRefused(t *testing.T) {
	yes := true
	volume := func(source kubevirtv1.VolumeSource) func(*schemas.VM) {
		return func(vm *schemas.VM) {
			vm.Spec().Volumes = append(vm.Spec().Volumes, kubevirtv1.Volume{Name: "v", VolumeSource: source})
		}
	}
	claim := func(source *cdiv1.DataVolumeSource) func(*schemas.VM) {
		return func(vm *schemas.VM) {
			volume(kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: "dv"}})(vm)
			vm.Claims = map[string]schemas.Claim{"v": {Name: "dv", Source: source}}
		}
	}
	devices := func(edit func(*kubevirtv1.Devices)) func(*schemas.VM) {
		return func(vm *schemas.VM) { edit(&vm.Spec().Domain.Devices) }
	}
	for field, edit := range map[string]func(*schemas.VM){
		"":                           func(*schemas.VM) {},
		"volumes[v].hostDisk":        volume(kubevirtv1.VolumeSource{HostDisk: &kubevirtv1.HostDisk{Path: "/etc/shadow"}}),
		"volumes[v].serviceAccount":  volume(kubevirtv1.VolumeSource{ServiceAccount: &kubevirtv1.ServiceAccountVolumeSource{}}),
		"volumes[v].downwardMetrics": volume(kubevirtv1.VolumeSource{DownwardMetrics: &kubevirtv1.DownwardMetricsVolumeSource{}}),
		"volumes[v].dataVolume":      claim(&cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://example.com/disk.img"}}),
		"volumes[kernel-boot].containerDisk": func(vm *schemas.VM) {
			vm.Spec().Volumes = append(vm.Spec().Volumes, kubevirtv1.Volume{Name: "kernel-boot", VolumeSource: kubevirtv1.VolumeSource{ContainerDisk: &kubevirtv1.ContainerDiskSource{}}})
			vm.Spec().Domain.Firmware = &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{Container: &kubevirtv1.KernelBootContainer{Image: "kernel"}}}
		},
		"domain.devices.interfaces[i].sriov": devices(func(d *kubevirtv1.Devices) {
			d.Interfaces = []kubevirtv1.Interface{{Name: "i", InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{SRIOV: &kubevirtv1.InterfaceSRIOV{}}}}
		}),
		"domain.devices.gpus[g]":        devices(func(d *kubevirtv1.Devices) { d.GPUs = []kubevirtv1.GPU{{Name: "g"}} }),
		"domain.devices.hostDevices[h]": devices(func(d *kubevirtv1.Devices) { d.HostDevices = []kubevirtv1.HostDevice{{Name: "h"}} }),
		"domain.devices.filesystems[f]": devices(func(d *kubevirtv1.Devices) { d.Filesystems = []kubevirtv1.Filesystem{{Name: "f"}} }),
		"domain.devices.disks[d].lun.reservation": devices(func(d *kubevirtv1.Devices) {
			d.Disks = append(d.Disks, kubevirtv1.Disk{Name: "d", DiskDevice: kubevirtv1.DiskDevice{LUN: &kubevirtv1.LunTarget{Reservation: true}}})
		}),
		"domain.devices.downwardMetrics": devices(func(d *kubevirtv1.Devices) { d.DownwardMetrics = &kubevirtv1.DownwardMetrics{} }),
		"domain.devices.autoattachVSOCK": devices(func(d *kubevirtv1.Devices) { d.AutoattachVSOCK = &yes }),
		"domain.devices.tpm.persistent":  devices(func(d *kubevirtv1.Devices) { d.TPM = &kubevirtv1.TPMDevice{Persistent: &yes} }),
		"domain.firmware.bootloader.efi.persistent": func(vm *schemas.VM) {
			vm.Spec().Domain.Firmware = &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{Persistent: &yes}}}
		},
		"domain.memory.hugepages": func(vm *schemas.VM) {
			vm.Spec().Domain.Memory = &kubevirtv1.Memory{Hugepages: &kubevirtv1.Hugepages{PageSize: "2Mi"}}
		},
		"domain.cpu.dedicatedCpuPlacement": func(vm *schemas.VM) { vm.Spec().Domain.CPU = &kubevirtv1.CPU{DedicatedCPUPlacement: true} },
		"domain.launchSecurity":            func(vm *schemas.VM) { vm.Spec().Domain.LaunchSecurity = &kubevirtv1.LaunchSecurity{} },
	} {
		vm := machines(t, "testdata/plain.yaml")[0]
		edit(vm)
		_, err := pods.Pod(vm, options)
		if field == "" {
			if err != nil {
				t.Errorf("a plain machine: %v", err)
			}
			continue
		}
		if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), ": spec.template.spec."+field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	blank := machines(t, "testdata/plain.yaml")[0]
	claim(&cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}})(blank)
	if err := pods.Refused(blank); err != nil {
		t.Errorf("a blank data volume: %v", err)
	}
}
