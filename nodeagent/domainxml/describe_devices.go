package domainxml

import (
	"path"
	"slices"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// disks describes the disks that are files or block devices of the host on a bus that manifests know.
func (d *describer) disks() {
	for _, disk := range d.domain.child("devices").all("disk") {
		target, driver := disk.child("target"), disk.child("driver")
		format := driver.get("type")
		name, bus := target.get("dev"), kubevirtv1.DiskBus(target.get("bus"))
		known := slices.Contains([]kubevirtv1.DiskBus{kubevirtv1.DiskBusVirtio, kubevirtv1.DiskBusSATA, kubevirtv1.DiskBusSCSI, kubevirtv1.DiskBusUSB}, bus)
		if !known || name == "" || readable(name) == "" || d.arch != "x86_64" && (bus == kubevirtv1.DiskBusSATA || bus == kubevirtv1.DiskBusUSB) {
			continue
		}
		source := disk.child("source").get("file")
		block := disk.get("type") == "block"
		if block {
			source = disk.child("source").get("dev")
		}
		out := kubevirtv1.Disk{Name: name}
		readonly := disk.child("readonly") != nil
		switch disk.get("device") {
		case "cdrom":
			out.CDRom = &kubevirtv1.CDRomTarget{Bus: bus}
			if bus == kubevirtv1.DiskBusVirtio {
				continue
			}
		case "", "disk":
			out.Disk = &kubevirtv1.DiskTarget{Bus: bus, ReadOnly: readonly}
			if readonly && bus == kubevirtv1.DiskBusSATA {
				continue
			}
		default:
			continue // a LUN or a floppy
		}
		if source == "" && out.CDRom == nil {
			continue
		}
		if source != "" && (!path.IsAbs(source) || path.Clean(source) != source || (format != "raw" && format != "qcow2")) {
			continue
		}
		d.tuning(&out, disk, driver)
		d.spec.Domain.Devices.Disks = append(d.spec.Domain.Devices.Disks, out)
		d.targets = append(d.targets, name)
		if source == "" {
			continue // an empty drive
		}
		d.spec.Volumes = append(d.spec.Volumes, kubevirtv1.Volume{Name: name, VolumeSource: kubevirtv1.VolumeSource{
			HostDisk: &kubevirtv1.HostDisk{Path: source, Type: kubevirtv1.HostDiskExists},
		}})
		d.volumes = append(d.volumes, Volume{Name: name, Kind: "hostDisk", Path: source, Block: block, Format: format})
	}
}

func (d *describer) tuning(out *kubevirtv1.Disk, disk, driver *node) {
	switch cache := kubevirtv1.DriverCache(driver.get("cache")); cache {
	case kubevirtv1.CacheNone, kubevirtv1.CacheWriteThrough, kubevirtv1.CacheWriteBack:
		out.Cache = cache
	}
	switch io := kubevirtv1.DriverIO(driver.get("io")); io {
	case kubevirtv1.IONative, kubevirtv1.IOThreads:
		out.IO = io
	}
	switch policy := kubevirtv1.DiskErrorPolicy(driver.get("error_policy")); policy {
	case kubevirtv1.DiskErrorPolicyStop, kubevirtv1.DiskErrorPolicyIgnore, kubevirtv1.DiskErrorPolicyReport, kubevirtv1.DiskErrorPolicyEnospace:
		out.ErrorPolicy = &policy
	}
	if disk.child("shareable") != nil && driver.get("type") == "raw" && out.Disk != nil {
		out.Shareable = on()
	}
	out.Serial = disk.childText("serial")
	out.BootOrder = order(disk)
}

func order(device *node) *uint {
	if n := count(device.child("boot").get("order")); n != 0 {
		order := uint(n)
		return &order
	}
	return nil
}

// interfaces describes cards on QEMU's user-mode network and on libvirt's networks. Bridges and devices of the host have no words.
func (d *describer) interfaces() {
	pod := false
	for i, card := range d.domain.child("devices").all("interface") {
		name := "net" + strconv.Itoa(i)
		out := kubevirtv1.Interface{Name: name, MacAddress: card.child("mac").get("address"), Model: card.child("model").get("type"), BootOrder: order(card)}
		network := kubevirtv1.Network{Name: name}
		if !slices.Contains([]string{"virtio", "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139"}, out.Model) || out.MacAddress == "" {
			continue
		}
		source := card.child("source").get("network")
		switch kind := card.get("type"); {
		case kind == "user" && !pod && card.child("backend") == nil:
			out.Masquerade, network.Pod, pod = &kubevirtv1.InterfaceMasquerade{}, &kubevirtv1.PodNetwork{}, true
		case kind == "network" && source == DefaultNetwork && !pod:
			out.Bridge, network.Pod, pod = &kubevirtv1.InterfaceBridge{}, &kubevirtv1.PodNetwork{}, true
		case kind == "network" && dnsName(source):
			out.Bridge, network.Multus = &kubevirtv1.InterfaceBridge{}, &kubevirtv1.MultusNetwork{NetworkName: source}
		default:
			continue
		}
		if card.child("link").get("state") == "down" {
			out.State = kubevirtv1.InterfaceStateLinkDown
		}
		d.spec.Domain.Devices.Interfaces = append(d.spec.Domain.Devices.Interfaces, out)
		d.spec.Networks = append(d.spec.Networks, network)
	}
	if len(d.spec.Networks) == 0 {
		d.spec.Domain.Devices.AutoattachPodInterface = off()
	}
}

// dnsName reports whether a name of libvirt's can be that of an object.
func dnsName(name string) bool {
	return name != "" && len(name) <= 63 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && name[0] != '-' && name[len(name)-1] != '-'
}

func (d *describer) devices() {
	have, out := d.domain.child("devices"), &d.spec.Domain.Devices
	if len(have.all("serial")) == 0 {
		out.AutoattachSerialConsole = off()
	}
	if len(have.all("graphics")) == 0 {
		out.AutoattachGraphicsDevice = off()
	} else if d.arch == "x86_64" {
		if model := have.child("video").child("model").get("type"); slices.Contains([]string{"vga", "cirrus", "virtio", "ramfb", "bochs"}, model) {
			out.Video = &kubevirtv1.VideoDevice{Type: model}
		}
	}
	if balloon := have.child("memballoon"); balloon == nil || balloon.get("model") == "none" {
		out.AutoattachMemBalloon = off()
	}
	if rng := have.child("rng"); strings.HasPrefix(rng.get("model"), "virtio") && rng.childText("backend") == "/dev/urandom" {
		out.Rng = &kubevirtv1.Rng{}
	}
	if tpm := have.child("tpm"); tpm.child("backend").get("type") == "emulator" && tpm.child("backend").get("version") != "1.2" {
		out.TPM = &kubevirtv1.TPMDevice{}
		if tpm.child("backend").get("persistent_state") == "yes" {
			out.TPM.Persistent = on()
		}
	}
	if watchdog := have.child("watchdog"); watchdog.get("model") == "i6300esb" {
		switch action := kubevirtv1.WatchdogAction(watchdog.get("action")); action {
		case kubevirtv1.WatchdogActionReset, kubevirtv1.WatchdogActionPoweroff, kubevirtv1.WatchdogActionShutdown:
			out.Watchdog = &kubevirtv1.Watchdog{Name: "watchdog", WatchdogDevice: kubevirtv1.WatchdogDevice{I6300ESB: &kubevirtv1.I6300ESBWatchdog{Action: action}}}
		}
	}
	for _, input := range have.all("input") {
		bus := kubevirtv1.InputBus(input.get("bus"))
		if input.get("type") == "tablet" && (bus == kubevirtv1.InputBusUSB || bus == kubevirtv1.InputBusVirtio) && out.AutoattachGraphicsDevice == nil {
			out.Inputs = append(out.Inputs, kubevirtv1.Input{Name: "tablet" + strconv.Itoa(len(out.Inputs)), Type: kubevirtv1.InputTypeTablet, Bus: bus})
		}
	}
	if sounds := have.all("sound"); len(sounds) == 1 && slices.Contains([]string{"ich9", "ac97"}, sounds[0].get("model")) {
		out.Sound = &kubevirtv1.SoundDevice{Name: "sound", Model: sounds[0].get("model")}
	}
}
