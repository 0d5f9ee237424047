package schemastest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// manifest writes the machine and the objects that it refers to.
func (v *vm) manifest(name, image string) string {
	var b strings.Builder
	line := func(indent int, format string, args ...any) {
		b.WriteString(strings.Repeat(" ", indent))
		fmt.Fprintf(&b, format+"\n", args...)
	}
	if v.fromSecret {
		line(0, "apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\nstringData: {userdata: \"%s\"}\n---", name, v.secret)
	}
	if v.settings != "" {
		line(0, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {settings: \"%s\"}\n---", name, v.settings)
	}
	line(0, "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata:\n  name: %s\n  labels: {app: \"%s\"}\n  annotations:\n    example.com/note: \"%s\"", name, v.label, v.annotation)
	if v.protect {
		line(4, "gitvirt.io/protect: \"true\"")
	}
	line(0, "spec:\n  runStrategy: %s\n  template:\n    spec:\n      terminationGracePeriodSeconds: %d", v.strategy, v.grace)
	if v.hostname != "" {
		line(6, "hostname: %s", v.hostname)
	}
	line(6, "domain:")
	line(8, "cpu: {sockets: %d, cores: 1, threads: 1%s}", v.sockets, optional(v.maxSockets > 0, ", maxSockets: %d", v.maxSockets))
	line(8, "memory: {guest: %dMi%s}", v.memory, optional(v.maxMemory > 0, ", maxGuest: %dMi", v.maxMemory))
	if v.bootMenu || image != "" {
		line(8, "firmware:")
	}
	if v.bootMenu {
		line(10, "bootloader: {bios: {useSerial: true}}")
	}
	if image != "" {
		line(10, "kernelBoot:\n            kernelArgs: console=ttyS0 quiet no_timer_check swiotlb=noforce\n            container: {image: \"%s\", kernelPath: /boot/vmlinuz, initrdPath: /boot/initramfs.img}", image)
	}
	v.devices(line)
	v.volumes(line, name)
	return b.String()
}

func optional(on bool, format string, args ...any) string {
	if !on {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

func (v *vm) devices(line func(int, string, ...any)) {
	line(8, "devices:")
	if v.rng {
		line(10, "rng: {}")
	}
	if v.watchdog {
		line(10, "watchdog: {name: dog, i6300esb: {action: reset}}")
	}
	if !v.noTablet {
		line(10, "inputs: [{name: tablet, type: tablet, bus: usb}]")
	}
	line(10, "disks:")
	line(10, "- name: init\n            disk: {bus: virtio}")
	for _, name := range slices.Sorted(maps.Keys(v.disks)) {
		d := v.disks[name]
		line(10, "- name: %s%s\n            disk: {bus: %s}", name, optional(d.serial != "", "\n            serial: %s", d.serial), d.bus)
	}
	if v.settings != "" {
		line(10, "- name: settings\n            cdrom: {bus: sata}")
	}
	if v.nic == nil {
		line(10, "autoattachPodInterface: false")
		return
	}
	line(10, "interfaces:\n          - {name: default, masquerade: {}, model: %s%s}", v.nic.model, optional(v.nic.down, ", state: down"))
}

func (v *vm) volumes(line func(int, string, ...any), name string) {
	if v.nic != nil {
		line(6, "networks: [{name: default, pod: {}}]")
	}
	line(6, "volumes:")
	if v.fromSecret {
		line(6, "- {name: init, cloudInitNoCloud: {secretRef: {name: %s}}}", name)
	} else {
		line(6, "- {name: init, cloudInitNoCloud: {userData: \"%s\"}}", v.secret)
	}
	for _, volume := range slices.Sorted(maps.Keys(v.disks)) {
		line(6, "- {name: %s, emptyDisk: {capacity: %dMi}}", volume, v.disks[volume].mib)
	}
	if v.settings != "" {
		line(6, "- {name: settings, configMap: {name: %s}}", name)
	}
}
