package domainxml

import (
	"fmt"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// DefaultNetwork is the libvirt network that an interface with bridge binding on the pod network joins.
const DefaultNetwork = "default"

func number(n uint) *uint { return &n }

// wanted reports whether an autoattach switch is on: it is, unless the manifest says false.
func wanted(on *bool) bool { return on == nil || *on }

func (r *renderer) devices() (*libvirtxml.DomainDeviceList, error) {
	devices := &r.spec.Domain.Devices
	out := &libvirtxml.DomainDeviceList{Controllers: r.controllers(), Inputs: r.inputs()}
	var err error
	if out.Disks, err = r.disks(); err != nil {
		return nil, err
	}
	if out.Interfaces, err = r.interfaces(); err != nil {
		return nil, err
	}
	out.Channels = []libvirtxml.DomainChannel{{
		Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
		Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: "org.qemu.guest_agent.0"}},
	}}
	if wanted(devices.AutoattachSerialConsole) {
		out.Serials, out.Consoles = r.serial()
	}
	if wanted(devices.AutoattachGraphicsDevice) {
		out.Graphics = []libvirtxml.DomainGraphic{{VNC: &libvirtxml.DomainGraphicVNC{
			Listeners: []libvirtxml.DomainGraphicListener{{Socket: &libvirtxml.DomainGraphicListenerSocket{}}},
		}}}
		out.Videos = []libvirtxml.DomainVideo{{Model: r.video()}}
	}
	out.MemBalloon = r.balloon()
	if devices.Rng != nil {
		out.RNGs = []libvirtxml.DomainRNG{{
			Model: r.virtioModel(),
			Backend: &libvirtxml.DomainRNGBackend{
				Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"},
			},
		}}
	}
	if watchdog := devices.Watchdog; watchdog != nil && watchdog.I6300ESB != nil {
		action := string(watchdog.I6300ESB.Action)
		if action == "" {
			action = string(kubevirtv1.WatchdogActionReset)
		}
		out.Watchdogs = []libvirtxml.DomainWatchdog{{
			Model: "i6300esb", Action: action, Alias: &libvirtxml.DomainAlias{Name: "ua-" + watchdog.Name},
		}}
	}
	if tpm := devices.TPM; tpm != nil && (tpm.Enabled == nil || *tpm.Enabled) {
		out.TPMs = []libvirtxml.DomainTPM{r.tpm(tpm)}
	}
	if sound := devices.Sound; sound != nil {
		model := sound.Model
		if model == "" {
			model = "ich9"
		}
		out.Sounds = []libvirtxml.DomainSound{{Model: model, Alias: &libvirtxml.DomainAlias{Name: "ua-" + sound.Name}}}
	}
	return out, nil
}

func (r *renderer) controllers() []libvirtxml.DomainController {
	usb := "none"
	for i := range r.spec.Domain.Devices.Disks {
		disk := &r.spec.Domain.Devices.Disks[i]
		if (disk.Disk != nil && disk.Disk.Bus == kubevirtv1.DiskBusUSB) || (disk.CDRom != nil && disk.CDRom.Bus == kubevirtv1.DiskBusUSB) {
			usb = "qemu-xhci"
		}
	}
	if len(r.inputs()) > 0 {
		usb = "qemu-xhci"
	}
	out := []libvirtxml.DomainController{{Type: "usb", Index: number(0), Model: usb}}
	if !r.spec.Domain.Devices.DisableHotplug || r.usesBus(kubevirtv1.DiskBusSCSI) {
		out = append(out, libvirtxml.DomainController{Type: "scsi", Index: number(0), Model: r.virtioModel()})
	}
	return append(out, libvirtxml.DomainController{Type: "virtio-serial", Index: number(0), Model: r.virtioModel()})
}

func (r *renderer) usesBus(bus kubevirtv1.DiskBus) bool {
	for i := range r.spec.Domain.Devices.Disks {
		disk := &r.spec.Domain.Devices.Disks[i]
		if (disk.Disk != nil && disk.Disk.Bus == bus) || (disk.LUN != nil && disk.LUN.Bus == bus) || (disk.CDRom != nil && disk.CDRom.Bus == bus) {
			return true
		}
	}
	return false
}

// inputs returns the named inputs, or a tablet when autoattachInputDevice asks for one.
func (r *renderer) inputs() []libvirtxml.DomainInput {
	var out []libvirtxml.DomainInput
	for _, input := range r.spec.Domain.Devices.Inputs {
		rendered := libvirtxml.DomainInput{
			Type: string(input.Type), Bus: string(input.Bus), Alias: &libvirtxml.DomainAlias{Name: "ua-" + input.Name},
		}
		if input.Bus == kubevirtv1.InputBusVirtio {
			rendered.Model = "virtio" // inputs have no other models
		}
		out = append(out, rendered)
	}
	if auto := r.spec.Domain.Devices.AutoattachInputDevice; len(out) == 0 && auto != nil && *auto {
		out = append(out, libvirtxml.DomainInput{
			Type: "tablet", Bus: "usb", Alias: &libvirtxml.DomainAlias{Name: "ua-default-0"},
		})
	}
	return out
}

func (r *renderer) serial() ([]libvirtxml.DomainSerial, []libvirtxml.DomainConsole) {
	serial := libvirtxml.DomainSerial{
		Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
		Target: &libvirtxml.DomainSerialTarget{Port: number(0)},
	}
	if r.host.ConsoleLog != "" {
		serial.Log = &libvirtxml.DomainChardevLog{File: r.host.ConsoleLog, Append: "on"}
	}
	console := libvirtxml.DomainConsole{
		Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
		Target: &libvirtxml.DomainConsoleTarget{Type: "serial", Port: number(0)},
	}
	return []libvirtxml.DomainSerial{serial}, []libvirtxml.DomainConsole{console}
}

// video is what KubeVirt gives: VGA for BIOS guests, bochs for UEFI ones.
func (r *renderer) video() libvirtxml.DomainVideoModel {
	if video := r.spec.Domain.Devices.Video; video != nil && video.Type != "" {
		if video.Type == "none" {
			return libvirtxml.DomainVideoModel{Type: video.Type}
		}
		return libvirtxml.DomainVideoModel{Type: video.Type, Heads: 1}
	}
	if firmware := r.spec.Domain.Firmware; firmware != nil && firmware.Bootloader != nil && firmware.Bootloader.EFI != nil {
		return libvirtxml.DomainVideoModel{Type: "bochs", Heads: 1}
	}
	return libvirtxml.DomainVideoModel{Type: "vga", Heads: 1, VRam: 16384}
}

func (r *renderer) balloon() *libvirtxml.DomainMemBalloon {
	if !wanted(r.spec.Domain.Devices.AutoattachMemBalloon) {
		return &libvirtxml.DomainMemBalloon{Model: "none"}
	}
	return &libvirtxml.DomainMemBalloon{
		Model: r.virtioModel(), FreePageReporting: "on", Stats: &libvirtxml.DomainMemBalloonStats{Period: 10},
	}
}

func (r *renderer) tpm(in *kubevirtv1.TPMDevice) libvirtxml.DomainTPM {
	emulator := &libvirtxml.DomainTPMBackendEmulator{Version: "2.0"}
	model := "tpm-tis"
	if in.Persistent != nil && *in.Persistent {
		emulator.PersistentState, model = "yes", "tpm-crb"
	}
	return libvirtxml.DomainTPM{Model: model, Backend: &libvirtxml.DomainTPMBackend{Emulator: emulator}}
}

func (r *renderer) interfaces() ([]libvirtxml.DomainInterface, error) {
	networks := make(map[string]kubevirtv1.NetworkSource, len(r.spec.Networks))
	for _, network := range r.spec.Networks {
		networks[network.Name] = network.NetworkSource
	}
	var out []libvirtxml.DomainInterface
	for i := range r.spec.Domain.Devices.Interfaces {
		in := &r.spec.Domain.Devices.Interfaces[i]
		network, ok := networks[in.Name]
		if !ok {
			return nil, fmt.Errorf("rendering %s: interface %s has no network", r.address, in.Name)
		}
		rendered, err := r.networkInterface(in, network)
		if err != nil {
			return nil, err
		}
		out = append(out, *rendered)
	}
	return out, nil
}

func (r *renderer) networkInterface(in *kubevirtv1.Interface, network kubevirtv1.NetworkSource) (*libvirtxml.DomainInterface, error) {
	out := &libvirtxml.DomainInterface{
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: r.mac(in)},
		Source: networkSource(in, network),
		Model:  &libvirtxml.DomainInterfaceModel{Type: r.interfaceModel(in)},
		Alias:  &libvirtxml.DomainAlias{Name: "ua-" + in.Name},
	}
	if in.BootOrder != nil {
		out.Boot = &libvirtxml.DomainDeviceBoot{Order: *in.BootOrder}
	} else {
		out.ROM = &libvirtxml.DomainROM{Enabled: "no"}
	}
	if multi := r.spec.Domain.Devices.NetworkInterfaceMultiQueue; multi != nil && *multi && strings.HasPrefix(out.Model.Type, "virtio") && r.vcpus() > 1 && out.Source.User == nil {
		out.Driver = &libvirtxml.DomainInterfaceDriver{Name: "vhost", Queues: r.vcpus()}
	}
	if in.ACPIIndex > 0 {
		out.ACPI = &libvirtxml.DomainDeviceACPI{Index: uint(in.ACPIIndex)}
	}
	if in.State == kubevirtv1.InterfaceStateLinkDown {
		out.Link = &libvirtxml.DomainInterfaceLink{State: "down"}
	}
	if in.PciAddress != "" {
		address, err := pciAddress(in.PciAddress)
		if err != nil {
			return nil, fmt.Errorf("rendering %s: interface %s: %w", r.address, in.Name, err)
		}
		out.Address = address
	}
	return out, nil
}

// networkSource says what an interface is plugged into on a host without Kubernetes: masquerade is QEMU's user-mode
// NAT, bridge on the pod network is libvirt's default network, and a Multus network names a libvirt network.
func networkSource(in *kubevirtv1.Interface, network kubevirtv1.NetworkSource) *libvirtxml.DomainInterfaceSource {
	name := DefaultNetwork
	switch {
	case network.Multus != nil:
		name = network.Multus.NetworkName
		if _, last, ok := strings.Cut(name, "/"); ok {
			name = last
		}
	case in.Bridge == nil:
		return &libvirtxml.DomainInterfaceSource{User: &libvirtxml.DomainInterfaceSourceUser{}}
	}
	return &libvirtxml.DomainInterfaceSource{Network: &libvirtxml.DomainInterfaceSourceNetwork{Network: name}}
}

func (r *renderer) interfaceModel(in *kubevirtv1.Interface) string {
	if in.Model == "" || in.Model == "virtio" {
		return r.virtioModel()
	}
	return in.Model
}

// pciAddress reads "0000:81:01.0": domain, bus, slot, function, in hexadecimal.
func pciAddress(text string) (*libvirtxml.DomainAddress, error) {
	fields := strings.FieldsFunc(text, func(c rune) bool { return c == ':' || c == '.' })
	if len(fields) != 4 {
		return nil, fmt.Errorf("PCI address %q: want DOMAIN:BUS:SLOT.FUNCTION, such as 0000:81:01.0", text)
	}
	var numbers [4]*uint
	for i, field := range fields {
		value, err := strconv.ParseUint(field, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("PCI address %q: %q is not a hexadecimal number", text, field)
		}
		numbers[i] = number(uint(value))
	}
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{
		Domain: numbers[0], Bus: numbers[1], Slot: numbers[2], Function: numbers[3],
	}}, nil
}
