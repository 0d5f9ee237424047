package domainxml

import (
	"errors"
	"fmt"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// The types of a HostDevice.
const (
	DevicePCI  = "pci"
	DeviceMDev = "mdev"
	DeviceUSB  = "usb"
)

// wantedDevice is a device of the host that the manifest asks for.
type wantedDevice struct {
	name, alias string
	gpu         *kubevirtv1.GPU
	card        *kubevirtv1.Interface
}

// hostDevices writes the devices of the host in KubeVirt's order, which is that of the guest's bus: other devices, GPUs,
// network cards; of the first two the PCI devices before the mediated ones before USB.
func (r *renderer) hostDevices() error {
	devices := &r.spec.Domain.Devices
	var others, gpus, cards []wantedDevice
	for i := range devices.HostDevices {
		others = append(others, wantedDevice{name: devices.HostDevices[i].Name, alias: "hostdevice-"})
	}
	for i := range devices.GPUs {
		gpus = append(gpus, wantedDevice{name: devices.GPUs[i].Name, alias: "gpu-", gpu: &devices.GPUs[i]})
	}
	for i := range devices.Interfaces {
		if card := &devices.Interfaces[i]; card.SRIOV != nil && card.State != kubevirtv1.InterfaceStateAbsent {
			cards = append(cards, wantedDevice{name: card.Name, alias: "sriov-", card: card})
		}
	}
	for _, group := range [][]wantedDevice{others, gpus, cards} {
		for _, wanted := range group {
			if !r.assigned(wanted.name) {
				return fmt.Errorf("device %s: the host has not assigned one", wanted.name)
			}
		}
		for _, kind := range []string{DevicePCI, DeviceMDev, DeviceUSB} {
			for _, wanted := range group {
				if err := r.hostDevicesOf(wanted, kind); err != nil {
					return fmt.Errorf("device %s: %w", wanted.name, err)
				}
			}
		}
	}
	return nil
}

func (r *renderer) assigned(name string) bool {
	for i := range r.host.Assignment.Devices {
		switch device := &r.host.Assignment.Devices[i]; device.Type {
		case DevicePCI, DeviceMDev, DeviceUSB:
			if device.Name == name {
				return true
			}
		}
	}
	return false
}

// usbAssigned reports whether a device of the host needs a USB controller.
func (r *renderer) usbAssigned() bool {
	for i := range r.host.Assignment.Devices {
		if r.host.Assignment.Devices[i].Type == DeviceUSB {
			return true
		}
	}
	return false
}

func (r *renderer) hostDevicesOf(wanted wantedDevice, kind string) error {
	for i := range r.host.Assignment.Devices {
		device := &r.host.Assignment.Devices[i]
		if device.Name != wanted.name || device.Type != kind {
			continue
		}
		var err error
		switch kind {
		case DevicePCI:
			err = r.pciDevice(wanted, device.Address)
		case DeviceMDev:
			r.mediatedDevice(wanted, device.Address)
		default:
			err = r.usbDevice(wanted, device.Address)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pciDevice leaves it to libvirt to take the device from its driver and to give it back.
func (r *renderer) pciDevice(wanted wantedDevice, address string) error {
	r.start("hostdev", "type", "pci", "managed", "yes")
	r.start("source")
	if err := r.pciAddress(address, ""); err != nil {
		return err
	}
	r.end("source")
	if wanted.card != nil && wanted.card.BootOrder != nil {
		r.leaf("boot", "order", decimal(*wanted.card.BootOrder))
	}
	r.leaf("alias", "name", r.alias(wanted.alias+wanted.name))
	if wanted.card != nil && wanted.card.PciAddress != "" {
		if err := r.pciAddress(wanted.card.PciAddress, "pci"); err != nil {
			return err
		}
	}
	r.end("hostdev")
	return nil
}

// mediatedDevice gives a virtual GPU a display unless the manifest says otherwise, where there is somebody to look at it.
func (r *renderer) mediatedDevice(wanted wantedDevice, uuid string) {
	display, ramFB := "", ""
	if wanted.gpu != nil && notFalse(r.spec.Domain.Devices.AutoattachGraphicsDevice) {
		options := wanted.gpu.VirtualGPUOptions
		switch {
		case options == nil:
			display, ramFB = "on", "on"
		case options.Display != nil && notFalse(options.Display.Enabled):
			display = "on"
			if options.Display.RamFB == nil || notFalse(options.Display.RamFB.Enabled) {
				ramFB = "on"
			}
		}
	}
	r.start("hostdev", "type", "mdev", "mode", "subsystem", "model", "vfio-pci", "display", display, "ramfb", ramFB)
	r.start("source")
	r.leaf("address", "uuid", uuid)
	r.end("source")
	r.leaf("alias", "name", r.alias(wanted.alias+wanted.name))
	r.end("hostdev")
}

func (r *renderer) usbDevice(wanted wantedDevice, address string) error {
	bus, device, ok := strings.Cut(address, ":")
	if !ok || bus == "" || device == "" {
		return errors.New("USB address " + address + ": want BUS:DEVICE, such as 1:2")
	}
	r.start("hostdev", "type", "usb", "mode", "subsystem")
	r.start("source")
	r.leaf("address", "bus", bus, "device", device)
	r.end("source")
	r.leaf("alias", "name", r.alias("usb-host-"+wanted.name))
	r.end("hostdev")
	return nil
}
