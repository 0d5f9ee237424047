package main

import (
	"encoding/xml"
	"os"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	cmdv1 "kubevirt.io/kubevirt/pkg/handler-launcher-com/cmd/v1"
	"kubevirt.io/kubevirt/pkg/os/disk"
	kutil "kubevirt.io/kubevirt/pkg/util"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/converter"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/converter/arch"
	convertertypes "kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/converter/types"
)

// convert returns the domain XML that virt-launcher would define on a host with KVM, direct I/O and one NUMA node.
func (c *cluster) convert(vmi *v1.VirtualMachineInstance) (string, error) {
	domain := &api.Domain{}
	if err := converter.Convert_v1_VirtualMachineInstance_To_api_Domain(vmi, domain, c.context(vmi)); err != nil {
		return "", err
	}
	// virt-launcher decides these after the conversion, by looking at the files.
	for i := range domain.Spec.Devices.Disks {
		optimise(&domain.Spec.Devices.Disks[i])
	}
	api.NewDefaulter(vmi.Spec.Architecture).SetObjectDefaults_Domain(domain)
	if err := addFreePorts(vmi, &domain.Spec); err != nil {
		return "", err
	}
	document, err := xml.MarshalIndent(&domain.Spec, "", "  ")
	return string(document), err
}

func optimise(d *api.Disk) {
	empty := d.Source.File == "" && d.Source.Dev == ""
	if d.Driver == nil || (d.Device == "cdrom" && empty) {
		return
	}
	if d.Driver.Cache == "" {
		d.Driver.Cache = string(v1.CacheNone)
	}
	if d.Driver.IO == "" && d.Driver.Cache == string(v1.CacheNone) && d.Source.Dev != "" {
		d.Driver.IO = v1.IONative
	}
}

func (c *cluster) context(vmi *v1.VirtualMachineInstance) *convertertypes.ConverterContext {
	devices := &vmi.Spec.Domain.Devices
	hugepages := vmi.Spec.Domain.Memory != nil && vmi.Spec.Domain.Memory.Hugepages != nil
	out := &convertertypes.ConverterContext{
		Architecture: arch.NewConverter(vmi.Spec.Architecture), HostArchitecture: vmi.Spec.Architecture, VirtualMachine: vmi,
		AllowEmulation: true, HypervisorDeviceAvailable: true,
		CPUSet: cpus(4, 20), Topology: &cmdv1.Topology{NumaCells: []*cmdv1.Cell{cell()}},
		IsBlockPVC: map[string]bool{}, IsBlockDV: map[string]bool{}, DisksInfo: map[string]*disk.DiskInfo{},
		PermanentVolumes: map[string]v1.VolumeStatus{}, DomainAttachmentByInterfaceName: map[string]string{},
		EphemeraldiskCreator: noDisks{}, MemBalloonStatsPeriod: 10, BochsForEFIGuests: true, SerialConsoleLog: true,
		UseVirtioTransitional: devices.UseVirtioTransitional != nil && *devices.UseVirtioTransitional,
		UseLaunchSecuritySEV:  kutil.IsSEVVMI(vmi), UseLaunchSecurityTDX: kutil.IsTDXVMI(vmi), UseLaunchSecurityPV: kutil.IsSecureExecutionVMI(vmi),
		FreePageReporting: !hugepages && !vmi.IsCPUDedicated(),
		SMBios:            &cmdv1.SMBios{Manufacturer: "KubeVirt", Family: "KubeVirt", Product: "None"},
	}
	for _, volume := range vmi.Spec.Volumes {
		out.IsBlockPVC[volume.Name], out.IsBlockDV[volume.Name] = c.block, c.block
		if volume.ContainerDisk != nil {
			out.DisksInfo[volume.Name] = &disk.DiskInfo{Format: "qcow2", BackingFile: "/var/run/kubevirt/container-disks/disk_0.img"}
		}
	}
	if vmi.IsBootloaderEFI() {
		secure := vmi.Spec.Domain.Firmware.Bootloader.EFI.SecureBoot
		out.EFIConfiguration = &convertertypes.EFIConfiguration{
			EFICode: "/usr/share/OVMF/OVMF_CODE.fd", EFIVars: "/usr/share/OVMF/OVMF_VARS.fd",
			SecureLoader: (secure == nil || *secure) && !kutil.IsTDXVMI(vmi),
		}
	}
	hostDevices(vmi, out)
	return out
}

// hostDevices plugs in devices as the device plugins would: every one is a PCI device but those of KubeVirt's own USB
// resources.
func hostDevices(vmi *v1.VirtualMachineInstance, out *convertertypes.ConverterContext) {
	devices := &vmi.Spec.Domain.Devices
	for _, iface := range devices.Interfaces {
		if iface.SRIOV == nil {
			if iface.Binding == nil {
				out.DomainAttachmentByInterfaceName[iface.Name] = "tap"
			}
			continue
		}
		device := pciDevice("sriov-"+iface.Name, "0x01")
		if iface.BootOrder != nil {
			device.BootOrder = &api.BootOrder{Order: *iface.BootOrder}
		}
		out.SRIOVDevices = append(out.SRIOVDevices, device)
	}
	for _, gpu := range devices.GPUs {
		out.GPUHostDevices = append(out.GPUHostDevices, pciDevice("gpu-"+gpu.Name, "0x02"))
	}
	for _, device := range devices.HostDevices {
		if !strings.HasPrefix(device.DeviceName, "kubevirt.io/") {
			out.GenericHostDevices = append(out.GenericHostDevices, pciDevice("hostdevice-"+device.Name, "0x03"))
			continue
		}
		// The converter looks for USB resources in virt-launcher's environment.
		_ = os.Setenv(kutil.ResourceNameToEnvVar(v1.USBResourcePrefix, device.DeviceName), "1:2")
		out.GenericHostDevices = append(out.GenericHostDevices, api.HostDevice{
			Type: "usb", Mode: "subsystem", Alias: api.NewUserDefinedAlias("usb-host-" + device.Name),
			Source: api.HostDeviceSource{Address: &api.Address{Bus: "1", Device: "2"}},
		})
	}
}

func pciDevice(name, slot string) api.HostDevice {
	return api.HostDevice{
		Type: api.HostDevicePCI, Managed: "no", Alias: api.NewUserDefinedAlias(name),
		Source: api.HostDeviceSource{Address: &api.Address{Type: api.AddressPCI, Domain: "0x0000", Bus: "0x81", Slot: slot, Function: "0x0"}},
	}
}

func cpus(from, to int) (set []int) {
	for cpu := from; cpu < to; cpu++ {
		set = append(set, cpu)
	}
	return set
}

// cell is the one NUMA node: 32 CPUs, two threads to a core.
func cell() *cmdv1.Cell {
	out := &cmdv1.Cell{
		Memory: &cmdv1.Memory{Amount: 64 << 20, Unit: "KiB"},
		Pages:  []*cmdv1.Pages{{Count: 512, Size: 2048, Unit: "KiB"}},
	}
	for cpu := uint32(0); cpu < 32; cpu++ {
		out.Cpus = append(out.Cpus, &cmdv1.CPU{Id: cpu, Siblings: []uint32{cpu &^ 1, cpu | 1}})
	}
	return out
}

// noDisks makes no overlays.
type noDisks struct{}

func (noDisks) CreateBackedImageForVolume(v1.Volume, string, string) error          { return nil }
func (noDisks) CreateEphemeralImages(*v1.VirtualMachineInstance, *api.Domain) error { return nil }
func (noDisks) GetFilePath(name string) string                                      { return "/var/run/ephemeral/" + name + "/disk.qcow2" }
func (noDisks) Init() error                                                         { return nil }
