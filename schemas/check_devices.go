package schemas

import (
	"fmt"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// checkSmallDevices checks what is neither a disk nor an interface.
func (c *checker) checkSmallDevices(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	for i, input := range devices.Inputs {
		c.checkDeviceName("inputs", i, input.Name, func(j int) string { return devices.Inputs[j].Name })
		in := func(field string) func() []any {
			return func() []any { return c.in("domain", "devices", "inputs", i, field) }
		}
		oneOf(c, in("bus"), input.Bus, "virtio", "usb")
		oneOf(c, in("type"), input.Type, "tablet", "keyboard")
	}
	if sound := devices.Sound; sound != nil {
		oneOf(c, func() []any { return c.in("domain", "devices", "sound", "model") }, sound.Model, "ich9", "ac97")
		if sound.Name == "" {
			c.fail(c.in("domain", "devices", "sound", "name"), "no name", "give the sound device a name")
		}
	}
	c.checkWatchdog(spec)
	c.checkPanicDevices(spec)
	if devices.Video != nil && !isTrueOr(devices.AutoattachGraphicsDevice, true) {
		c.fail(c.in("domain", "devices", "video"), "a video device, and autoattachGraphicsDevice is false", "remove one of the two")
	}
	if video := devices.Video; video != nil && !isForeign(spec.Architecture) {
		oneOf(c, func() []any { return c.in("domain", "devices", "video", "type") }, video.Type, "vga", "cirrus", "virtio", "ramfb", "bochs")
	}
	c.checkHostDevices(devices)
	c.checkFilesystems(spec)
	c.checkIOThreads(spec)
}

// checkDeviceName wants a name for a device, and another one than those before it in the list.
func (c *checker) checkDeviceName(list string, i int, name string, other func(int) string) {
	path := func() []any { return c.in("domain", "devices", list, i, "name") }
	switch {
	case name == "":
		c.fail(path(), "no name", "give it a name")
		return
	case !isDeviceName(name):
		c.fail(path(), quoteValue(name)+" is not the name of a device", "use up to 63 letters, digits, dashes, dots and underscores")
		return
	}
	for j := range i {
		if other(j) == name {
			first := locate(c.root, c.in("domain", "devices", list, j, "name"))
			c.fail(path(), fmt.Sprintf("two %s are named %s; the first is at line %d", list, quoteValue(name), c.position(first).Line), "rename one")
			return
		}
	}
}

// isDeviceName tells names that can be part of a libvirt alias.
func isDeviceName(name string) bool {
	for i := range len(name) {
		if name[i] == '+' {
			return false
		}
	}
	return len(name) <= 63 && isToken(name)
}

func (c *checker) checkWatchdog(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	watchdog := spec.Domain.Devices.Watchdog
	if watchdog == nil {
		return
	}
	in := func(parts ...any) []any { return c.in(append(at("domain", "devices", "watchdog"), parts...)...) }
	if watchdog.Name == "" {
		c.fail(in("name"), "no name", "give the watchdog a name")
	}
	switch {
	case watchdog.I6300ESB != nil && watchdog.Diag288 != nil:
		c.fail(in(), "i6300esb and diag288 exclude each other", "keep one")
	case spec.Architecture == archARM64:
		c.fail(in(), "there is no watchdog on arm64", "remove it")
	case watchdog.Diag288 != nil && !isForeign(spec.Architecture):
		c.fail(in("diag288"), "diag288 is the watchdog of s390x", "use i6300esb")
	case watchdog.I6300ESB != nil && spec.Architecture == archS390X:
		c.fail(in("i6300esb"), "there is no i6300esb on s390x", "use diag288")
	}
	if watchdog.I6300ESB != nil {
		oneOf(c, func() []any { return in("i6300esb", "action") }, watchdog.I6300ESB.Action, "poweroff", "reset", "shutdown")
	}
	if watchdog.Diag288 != nil {
		oneOf(c, func() []any { return in("diag288", "action") }, watchdog.Diag288.Action, "poweroff", "reset", "shutdown")
	}
}

// panicModel is the model of a panic device: the manifest's, or the one that libvirt takes.
func panicModel(device *kubevirtv1.PanicDevice, architecture string) kubevirtv1.PanicDeviceModel {
	switch {
	case device.Model != nil:
		return *device.Model
	case architecture == archARM64:
		return kubevirtv1.Pvpanic
	case architecture == archS390X:
		return ""
	}
	return kubevirtv1.Isa
}

func (c *checker) checkPanicDevices(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	devices := spec.Domain.Devices.PanicDevices
	for i := range devices {
		path := func() []any { return c.in("domain", "devices", "panicDevices", i, "model") }
		model := panicModel(&devices[i], spec.Architecture)
		switch spec.Architecture {
		case archS390X:
			if model == "" {
				continue
			}
			c.fail(path(), "an s390x machine always tells that it panicked", "remove it")
		case archARM64:
			oneOf(c, path, model, kubevirtv1.Pvpanic)
		default:
			oneOf(c, path, model, kubevirtv1.Hyperv, kubevirtv1.Isa, kubevirtv1.Pvpanic)
		}
		for j := range i {
			if panicModel(&devices[j], spec.Architecture) == model {
				c.fail(path(), fmt.Sprintf("two panic devices are of the model %s", quoteValue(string(model))), "remove one of them")
				break
			}
		}
	}
}

// checkHostDevices checks devices of the host that are handed over to the guest.
func (c *checker) checkHostDevices(devices *kubevirtv1.Devices) {
	framebuffer := -1
	for i := range devices.GPUs {
		gpu := &devices.GPUs[i]
		c.checkDeviceName("gpus", i, gpu.Name, func(j int) string { return devices.GPUs[j].Name })
		c.checkResourceName("gpus", i, gpu.DeviceName)
		if gpu.VirtualGPUOptions == nil || gpu.VirtualGPUOptions.Display == nil {
			continue
		}
		path := func() []any {
			return c.in("domain", "devices", "gpus", i, "virtualGPUOptions", "display", "ramFB")
		}
		display := gpu.VirtualGPUOptions.Display
		switch {
		case !isTrueOr(display.Enabled, true):
			if display.RamFB != nil && isTrueOr(display.RamFB.Enabled, true) {
				c.fail(path(), "a frame buffer for a display that is switched off", "remove it, or enabled: false above")
			}
		case display.RamFB != nil && !isTrueOr(display.RamFB.Enabled, true):
		case framebuffer >= 0:
			c.fail(path(), fmt.Sprintf("two displays have a boot frame buffer; the other is that of %s", quoteValue(devices.GPUs[framebuffer].Name)), "write ramFB: {enabled: false} for one")
		default:
			framebuffer = i
		}
	}
	for i := range devices.HostDevices {
		c.checkDeviceName("hostDevices", i, devices.HostDevices[i].Name, func(j int) string { return devices.HostDevices[j].Name })
		c.checkResourceName("hostDevices", i, devices.HostDevices[i].DeviceName)
		for j := range devices.GPUs {
			if name := devices.GPUs[j].Name; name != "" && name == devices.HostDevices[i].Name {
				c.fail(c.in("domain", "devices", "hostDevices", i, "name"), fmt.Sprintf("a GPU is named %s, too", quoteValue(name)), "rename one")
			}
		}
	}
}

// checkResourceName checks the name under which the Fleet permits devices.
func (c *checker) checkResourceName(list string, i int, name string) {
	path := func() []any { return c.in("domain", "devices", list, i, "deviceName") }
	claimed := c.misread(c.in("domain", "devices", list, i, "claimName")) || c.misread(c.in("domain", "devices", list, i, "requestName"))
	if name == "" && claimed {
		return // as was said
	}
	if name == "" {
		c.fail(path(), "no deviceName", "name the resource that permittedHostDevices of the Fleet lists, such as nvidia.com/GA102")
	} else if problem := labelKeyProblem(name); problem != "" {
		c.fail(path(), problem, "write it as vendor.com/device")
	}
}

// checkFilesystems checks folders that are shared with the guest, and the volumes that become them.
func (c *checker) checkFilesystems(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	filesystems := spec.Domain.Devices.Filesystems
	for i := range filesystems {
		name := filesystems[i].Name
		in := func(field string) []any { return c.in("domain", "devices", "filesystems", i, field) }
		c.checkDeviceName("filesystems", i, name, func(j int) string { return filesystems[j].Name })
		if filesystems[i].Virtiofs == nil {
			c.fail(in("virtiofs"), "nothing says how the folder is shared", "write virtiofs: {}")
		}
		for j := range spec.Domain.Devices.Disks {
			if name != "" && spec.Domain.Devices.Disks[j].Name == name {
				c.fail(in("name"), fmt.Sprintf("the volume %s is a disk, too", quoteValue(name)), "remove the disk or the filesystem")
			}
		}
		volume := volumeNamed(spec, name)
		switch {
		case name == "":
		case volume == nil && !c.listMisread(c.in("volumes")):
			fix := "add a volume of this name, or remove the filesystem"
			if near := closest(name, volumeNames(spec)); near != "" {
				fix = fmt.Sprintf("did you mean %q?", near)
			}
			c.fail(in("name"), "no volume is named "+quoteValue(name), fix)
		case volume != nil && !holdsFiles(volume):
			c.fail(in("name"), fmt.Sprintf("the volume %s is a disk image, which has no files to share", quoteValue(name)),
				"share a configMap, secret, downwardAPI, persistentVolumeClaim or dataVolume")
		case onlyRead(volume):
			c.fail(in("name"), fmt.Sprintf("the claim of the volume %s is only read, and virtiofs shares no folder so", quoteValue(name)),
				"remove readOnly and mount it read-only within the guest, or use a disk")
		}
	}
}

// holdsFiles tells volumes that can be shared as a folder; one that has no source is told elsewhere.
func holdsFiles(v *kubevirtv1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.ServiceAccount != nil || v.DownwardAPI != nil ||
		v.PersistentVolumeClaim != nil || v.DataVolume != nil || len(volumeSources(v)) == 0
}

// maxIOThreads bounds a pool of IO threads; more than a thread per disk is of no use.
const maxIOThreads = maxItems

func (c *checker) checkIOThreads(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	policy, threads := spec.Domain.IOThreadsPolicy, spec.Domain.IOThreads
	if policy != nil {
		oneOf(c, func() []any { return c.in("domain", "ioThreadsPolicy") }, *policy,
			kubevirtv1.IOThreadsPolicyShared, kubevirtv1.IOThreadsPolicyAuto, kubevirtv1.IOThreadsPolicySupplementalPool)
	}
	pool := policy != nil && *policy == kubevirtv1.IOThreadsPolicySupplementalPool
	path := func() []any { return c.in("domain", "ioThreads", "supplementalPoolThreadCount") }
	if threads == nil || threads.SupplementalPoolThreadCount == nil {
		if pool {
			c.fail(path(), "a pool of how many threads?", "write ioThreads: {supplementalPoolThreadCount: 4}")
		}
		return
	}
	switch count := *threads.SupplementalPoolThreadCount; {
	case count < 1 || count > maxIOThreads:
		c.fail(path(), fmt.Sprintf("%d is not between 1 and %d", count, maxIOThreads), "use a number from 1 on")
	case !pool:
		c.warn(path(), "only the policy supplementalPool has a pool", "write ioThreadsPolicy: supplementalPool, or remove it")
	}
}
