package domainxml

import (
	"fmt"
	"path"
	"strconv"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

func (r *renderer) devices() error {
	devices := &r.spec.Domain.Devices
	r.start("devices")
	if err := r.disks(); err != nil {
		return err
	}
	r.controllers()
	if err := r.filesystems(); err != nil {
		return err
	}
	if err := r.interfaces(); err != nil {
		return err
	}
	if notFalse(devices.AutoattachSerialConsole) {
		r.serial()
	}
	r.channels()
	r.inputs()
	r.tpm()
	r.graphics()
	if sound := devices.Sound; sound != nil {
		model := "ich9"
		if sound.Model == "ac97" {
			model = sound.Model
		}
		r.start("sound", "model", model)
		r.leaf("alias", "name", r.alias(sound.Name))
		r.end("sound")
	}
	if err := r.hostDevices(); err != nil {
		return err
	}
	if devices.ClientPassthrough != nil {
		for i := range kubevirtv1.UsbClientPassthroughMaxNumberOf {
			r.start("redirdev", "bus", "usb", "type", "unix")
			r.leaf("source", "mode", "bind", "path", path.Join(r.host.Dir, "usbredir"+strconv.Itoa(i)+".sock"))
			r.end("redirdev")
		}
	}
	r.watchdog()
	r.balloon()
	if devices.Rng != nil {
		r.start("rng", "model", r.virtio)
		r.text("backend", "/dev/urandom", "model", "random")
		r.iommuDriver()
		r.end("rng")
	}
	for _, device := range devices.PanicDevices {
		model := ""
		if device.Model != nil {
			model = string(*device.Model)
		}
		r.leaf("panic", "model", model)
	}
	if isTrue(devices.AutoattachVSOCK) {
		model := "virtio-non-transitional" // vhost-vsock has no other, whatever useVirtioTransitional says
		if !r.arch.pci {
			model = r.virtio
		}
		r.start("vsock", "model", model)
		r.leaf("cid", "auto", "yes")
		r.end("vsock")
	}
	r.end("devices")
	return nil
}

func (r *renderer) iommuDriver() {
	if iommu := r.iommu(); iommu != "" {
		r.leaf("driver", "iommu", iommu)
	}
}

// usb reports whether the guest has a USB controller: only one that something is plugged into.
func (r *renderer) usb() bool {
	devices := &r.spec.Domain.Devices
	if r.arch.name == "aarch64" {
		return true // keyboard and tablet
	}
	if devices.ClientPassthrough != nil || r.usbAssigned() || r.usesBus(kubevirtv1.DiskBusUSB) {
		return true
	}
	for _, input := range devices.Inputs {
		if input.Bus == kubevirtv1.InputBusUSB || input.Bus == "" {
			return true
		}
	}
	return r.arch.pci && len(devices.Inputs) == 0 && isTrue(devices.AutoattachInputDevice)
}

func (r *renderer) controllers() {
	usb := "none"
	if r.usb() {
		usb = "qemu-xhci"
	}
	r.leaf("controller", "type", "usb", "index", "0", "model", usb)
	devices := &r.spec.Domain.Devices
	scsi := r.usesBus(kubevirtv1.DiskBusSCSI)
	if !devices.DisableHotplug || scsi {
		r.scsiController(scsi)
	}
	if notFalse(devices.AutoattachSerialConsole) {
		r.controller("virtio-serial", r.virtio, "", "")
	}
	r.rootPorts()
}

func (r *renderer) controller(kind, model, queues, iothread string) {
	iommu := r.iommu()
	if iommu == "" && queues == "" && iothread == "" {
		r.leaf("controller", "type", kind, "index", "0", "model", model)
		return
	}
	r.start("controller", "type", kind, "index", "0", "model", model)
	r.leaf("driver", "queues", queues, "iothread", iothread, "iommu", iommu)
	r.end("controller")
}

// scsiController has one IO thread for all its disks; with several threads KubeVirt gives it all, which libvirt 9 cannot say.
func (r *renderer) scsiController(used bool) {
	model, queues, thread := r.virtio, "", ""
	if !r.arch.pci {
		model = "virtio-scsi"
	}
	if used && r.threads.policy && r.threads.count > 0 {
		queues, thread = decimal(r.topology.vcpus()), "1"
	}
	r.controller("scsi", model, queues, thread)
}

// filesystems are served by a virtiofsd that libvirt starts.
func (r *renderer) filesystems() error {
	for i := range r.spec.Domain.Devices.Filesystems {
		in := &r.spec.Domain.Devices.Filesystems[i]
		if in.Virtiofs == nil {
			continue
		}
		source := ""
		if volume := r.volume(in.Name); volume != nil {
			source = volume.Path
		}
		if source == "" {
			return fmt.Errorf("filesystem %s: its volume was not prepared", in.Name)
		}
		r.start("filesystem", "type", "mount", "accessmode", "passthrough")
		r.leaf("driver", "type", "virtiofs", "queue", "1024")
		r.leaf("source", "dir", source)
		r.leaf("target", "dir", in.Name)
		r.end("filesystem")
	}
	return nil
}

func (r *renderer) serial() {
	r.start("serial", "type", "pty")
	r.leaf("target", "port", "0")
	if r.host.ConsoleLog != "" && notFalse(r.spec.Domain.Devices.LogSerialConsole) {
		r.leaf("log", "file", r.host.ConsoleLog, "append", "on")
	}
	r.end("serial")
	r.start("console", "type", "pty")
	r.leaf("target", "type", "serial", "port", "0")
	r.end("console")
}

func (r *renderer) channels() {
	r.start("channel", "type", "unix")
	r.leaf("target", "type", "virtio", "name", "org.qemu.guest_agent.0")
	r.end("channel")
	if r.spec.Domain.Devices.DownwardMetrics != nil {
		r.start("channel", "type", "unix")
		r.leaf("source", "mode", "bind", "path", path.Join(r.host.Dir, "downward-metrics.sock"))
		r.leaf("target", "type", "virtio", "name", "org.github.vhostmd.1")
		r.end("channel")
	}
}

// inputs writes the named inputs, or a tablet when autoattachInputDevice asks for one, and what a screen needs on machines
// without a keyboard of their own.
func (r *renderer) inputs() {
	devices := &r.spec.Domain.Devices
	tablet := false
	for _, input := range devices.Inputs {
		bus, model := string(input.Bus), ""
		if bus == "" {
			bus = string(kubevirtv1.InputBusUSB)
		}
		if input.Bus == kubevirtv1.InputBusVirtio {
			model = kubevirtv1.VirtIO // inputs have no other models
		}
		kind := string(input.Type)
		if kind == "" {
			kind = string(kubevirtv1.InputTypeTablet)
		}
		tablet = tablet || kind == string(kubevirtv1.InputTypeTablet)
		r.input(kind, bus, model, input.Name)
	}
	if len(devices.Inputs) == 0 && isTrue(devices.AutoattachInputDevice) {
		tablet = true
		if r.arch.pci {
			r.input("tablet", "usb", "", "default-0")
		} else {
			r.input("tablet", "virtio", "virtio", "default-0")
		}
	}
	if !notFalse(devices.AutoattachGraphicsDevice) {
		return
	}
	switch r.arch.name {
	case "aarch64":
		if !tablet {
			r.input("tablet", "usb", "", "")
		}
		r.input("keyboard", "usb", "", "")
	case "s390x":
		r.input("keyboard", "virtio", "", "")
	}
}

func (r *renderer) input(kind, bus, model, name string) {
	if name == "" {
		r.leaf("input", "type", kind, "bus", bus, "model", model)
		return
	}
	r.start("input", "type", kind, "bus", bus, "model", model)
	r.leaf("alias", "name", r.alias(name))
	r.end("input")
}

func (r *renderer) tpm() {
	in := r.spec.Domain.Devices.TPM
	if in == nil || !notFalse(in.Enabled) {
		return
	}
	model, persistent := "tpm-tis", ""
	if isTrue(in.Persistent) {
		model, persistent = "tpm-crb", "yes"
	}
	r.start("tpm", "model", model)
	r.leaf("backend", "type", "emulator", "version", "2.0", "persistent_state", persistent)
	r.end("tpm")
}

// graphics writes a screen. The card is what KubeVirt gives: VGA for BIOS guests, bochs for UEFI ones, virtio elsewhere.
func (r *renderer) graphics() {
	if !notFalse(r.spec.Domain.Devices.AutoattachGraphicsDevice) {
		return
	}
	r.start("graphics", "type", "vnc")
	r.leaf("listen", "type", "socket")
	r.end("graphics")
	model, heads, vram := "vga", "1", "16384"
	firmware := r.spec.Domain.Firmware
	switch video := r.spec.Domain.Devices.Video; {
	case video != nil && video.Type != "":
		model = video.Type
		if model == "none" {
			heads = ""
		}
		if model != "vga" {
			vram = "" // the others have their own sizes
		}
	case r.arch.name != "x86_64":
		model, vram = kubevirtv1.VirtIO, ""
	case firmware != nil && firmware.Bootloader != nil && firmware.Bootloader.EFI != nil:
		model, vram = "bochs", ""
	}
	r.start("video")
	r.leaf("model", "type", model, "vram", vram, "heads", heads)
	r.end("video")
}

func (r *renderer) watchdog() {
	in := r.spec.Domain.Devices.Watchdog
	if in == nil {
		return
	}
	model, action := "i6300esb", kubevirtv1.WatchdogAction("")
	switch {
	case in.Diag288 != nil && (r.arch.name == "s390x" || in.I6300ESB == nil):
		model, action = "diag288", in.Diag288.Action
	case in.I6300ESB != nil:
		action = in.I6300ESB.Action
	case r.arch.name == "s390x":
		model = "diag288"
	}
	if action == "" {
		action = kubevirtv1.WatchdogActionReset
	}
	r.start("watchdog", "model", model, "action", string(action))
	r.leaf("alias", "name", r.alias(in.Name))
	r.end("watchdog")
}

func (r *renderer) balloon() {
	if !notFalse(r.spec.Domain.Devices.AutoattachMemBalloon) {
		r.leaf("memballoon", "model", "none")
		return
	}
	// Pages that belong to the guest alone are never given back.
	reporting := onOff(!r.dedicatedCPUs() && r.hugepages() == nil)
	r.start("memballoon", "model", r.virtio, "freePageReporting", reporting)
	r.leaf("stats", "period", "10")
	r.iommuDriver()
	r.end("memballoon")
}
