package domainxml

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// field is a field of the manifest that a part of domain XML stands for.
type field struct {
	// path is below spec.template.spec. {name} is the manifest's name of the device, {key} that of the innermost element, {kind}
	// what a disk is to the guest, {list} where a device of the host stands.
	path string
	// value puts a value of domain XML in the field's terms; nil leaves it as it is.
	value func(a *attribution, value string) any
	// rank decides which of several differences speaks for a field: the lowest.
	rank int
}

// fields is the whole table, by the path of an element or attribute without its keys, but for the last one where that decides. "/..." stands for an element with all that
// is in it. What has no row here is told by its path.
var fields = map[string]field{
	"uuid":                 {path: "domain.firmware.uuid"},
	"memory":               {path: "domain.memory.guest", value: size, rank: 1},
	"currentMemory":        {path: "domain.memory.guest", value: size},
	"maxMemory/...":        {path: "domain.memory.maxGuest", value: size},
	"cpu/numa/cell@memory": {path: "domain.memory.guest", value: size, rank: 3},
	"vcpu":                 {path: "domain.cpu.sockets", value: sockets, rank: 1},
	"vcpu@current":         {path: "domain.cpu.sockets", value: sockets},
	"vcpus/...":            {path: "domain.cpu.sockets", rank: 3},

	"vcpu@cpuset":                 {path: "domain.cpu.dedicatedCpuPlacement", rank: 1},
	"cputune/vcpupin/...":         {path: "domain.cpu.dedicatedCpuPlacement"},
	"cputune/emulatorpin/...":     {path: "domain.cpu.isolateEmulatorThread"},
	"cputune/vcpusched/...":       {path: "domain.cpu.realtime"},
	"iothreads":                   {path: "domain.ioThreadsPolicy", value: number64Or},
	"cpu@mode":                    {path: "domain.cpu.model"},
	"cpu/model":                   {path: "domain.cpu.model"},
	"cpu/topology@sockets":        {path: "domain.cpu.sockets", value: number64Or, rank: 2},
	"cpu/topology@cores":          {path: "domain.cpu.cores", value: number64Or},
	"cpu/topology@threads":        {path: "domain.cpu.threads", value: number64Or},
	"cpu/feature@policy":          {path: "domain.cpu.features[{key}].policy"},
	"cpu/numa/...":                {path: "domain.cpu.numa"},
	"numatune/...":                {path: "domain.cpu.numa", rank: 1},
	"memoryBacking/hugepages/...": {path: "domain.memory.hugepages"},

	"os/type@machine":   {path: "domain.machine.type"},
	"os/type@arch":      {path: "architecture"},
	"os/loader/...":     {path: "domain.firmware.bootloader"},
	"os/nvram/...":      {path: "domain.firmware.bootloader", rank: 1},
	"os/firmware/...":   {path: "domain.firmware.bootloader", rank: 2},
	"os@firmware":       {path: "domain.firmware.bootloader", rank: 2},
	"os/bios@useserial": {path: "domain.firmware.bootloader.bios.useSerial", value: truth},
	"os/kernel":         {path: "domain.firmware.kernelBoot.container.kernelPath"},
	"os/initrd":         {path: "domain.firmware.kernelBoot.container.initrdPath"},
	"os/cmdline":        {path: "domain.firmware.kernelBoot.kernelArgs"},
	"os/acpi/...":       {path: "domain.firmware.acpi"},
	"on_reboot":         {path: "domain.rebootPolicy"},

	"sysinfo/system/entry[serial]": {path: "domain.firmware.serial"},
	"sysinfo/system/entry[uuid]":   {path: "domain.firmware.uuid", rank: 1},
	"sysinfo/chassis/entry":        {path: "domain.chassis.{key}"},

	"features/acpi/...":       {path: "domain.features.acpi"},
	"features/apic/...":       {path: "domain.features.apic"},
	"features/pvspinlock/...": {path: "domain.features.pvspinlock.enabled", value: truth},
	"features/smm/...":        {path: "domain.features.smm.enabled", value: truth},
	"features/kvm/hidden/...": {path: "domain.features.kvm.hidden", value: truth},

	"features/hyperv@mode":                {path: "domain.features.hypervPassthrough"},
	"features/hyperv/relaxed/...":         {path: "domain.features.hyperv.relaxed.enabled", value: truth},
	"features/hyperv/vapic/...":           {path: "domain.features.hyperv.vapic.enabled", value: truth},
	"features/hyperv/vpindex/...":         {path: "domain.features.hyperv.vpindex.enabled", value: truth},
	"features/hyperv/runtime/...":         {path: "domain.features.hyperv.runtime.enabled", value: truth},
	"features/hyperv/synic/...":           {path: "domain.features.hyperv.synic.enabled", value: truth},
	"features/hyperv/reset/...":           {path: "domain.features.hyperv.reset.enabled", value: truth},
	"features/hyperv/frequencies/...":     {path: "domain.features.hyperv.frequencies.enabled", value: truth},
	"features/hyperv/reenlightenment/...": {path: "domain.features.hyperv.reenlightenment.enabled", value: truth},
	"features/hyperv/ipi/...":             {path: "domain.features.hyperv.ipi.enabled", value: truth},
	"features/hyperv/evmcs/...":           {path: "domain.features.hyperv.evmcs.enabled", value: truth},
	"features/hyperv/spinlocks@state":     {path: "domain.features.hyperv.spinlocks.enabled", value: truth},
	"features/hyperv/spinlocks@retries":   {path: "domain.features.hyperv.spinlocks.spinlocks", value: number64Or},
	"features/hyperv/stimer/...":          {path: "domain.features.hyperv.synictimer.enabled", value: truth},
	"features/hyperv/stimer/direct/...":   {path: "domain.features.hyperv.synictimer.direct.enabled", value: truth},
	"features/hyperv/tlbflush/...":        {path: "domain.features.hyperv.tlbflush.enabled", value: truth},
	"features/hyperv/vendor_id@state":     {path: "domain.features.hyperv.vendorid.enabled", value: truth},
	"features/hyperv/vendor_id@value":     {path: "domain.features.hyperv.vendorid.vendorid"},
	"clock@timezone":                      {path: "domain.clock.timezone"},
	"clock@offset":                        {path: "domain.clock", rank: 1},
	"clock@adjustment":                    {path: "domain.clock.utc.offsetSeconds", value: number64Or},
	"clock@basis":                         {path: "domain.clock", rank: 2},
	"clock/timer[rtc]/...":                {path: "domain.clock.timer.rtc"},
	"clock/timer[pit]/...":                {path: "domain.clock.timer.pit"},
	"clock/timer[kvmclock]/...":           {path: "domain.clock.timer.kvm"},
	"clock/timer[hpet]/...":               {path: "domain.clock.timer.hpet"},
	"clock/timer[hypervclock]/...":        {path: "domain.clock.timer.hyperv"},
	"launchSecurity/...":                  {path: "domain.launchSecurity"},
	"devices/disk":                        {path: "domain.devices.disks[{name}]"},
	"devices/disk@device":                 {path: "domain.devices.disks[{name}].{kind}"},
	"devices/disk@type":                   {path: "volumes[{name}]", rank: 1},
	"devices/disk/source/...":             {path: "volumes[{name}]"},
	"devices/disk/backingStore/...":       {path: "volumes[{name}]", rank: 2},
	"devices/disk/driver@type":            {path: "volumes[{name}]", rank: 3},
	"devices/disk/driver@cache":           {path: "domain.devices.disks[{name}].cache"},
	"devices/disk/driver@io":              {path: "domain.devices.disks[{name}].io"},
	"devices/disk/driver@error_policy":    {path: "domain.devices.disks[{name}].errorPolicy"},
	"devices/disk/driver@iothread":        {path: "domain.devices.disks[{name}].dedicatedIOThread", value: thread},
	"devices/disk/driver@queues":          {path: "domain.devices.blockMultiQueue", value: queues},
	"devices/disk/target@bus":             {path: "domain.devices.disks[{name}].{kind}.bus"},
	"devices/disk@model":                  {path: "domain.devices.disks[{name}].{kind}.bus", rank: 1},
	"devices/disk/target@tray":            {path: "domain.devices.disks[{name}].cdrom.tray", value: tray},
	"devices/disk/readonly":               {path: "domain.devices.disks[{name}].{kind}.readonly", value: present},
	"devices/disk/shareable":              {path: "domain.devices.disks[{name}].shareable", value: present},
	"devices/disk/serial":                 {path: "domain.devices.disks[{name}].serial"},
	"devices/disk/boot@order":             {path: "domain.devices.disks[{name}].bootOrder", value: number64Or},
	"devices/disk/blockio/...":            {path: "domain.devices.disks[{name}].blockSize"},
	"devices/interface":                   {path: "domain.devices.interfaces[{name}]"},
	"devices/interface@type":              {path: "networks[{name}]", rank: 1},
	"devices/interface/source/...":        {path: "networks[{name}]"},
	"devices/interface/ip/...":            {path: "networks[{name}]", rank: 2},
	"devices/interface/target/...":        {path: "networks[{name}]", rank: 3},
	"devices/interface/mtu/...":           {path: "networks[{name}]", rank: 4},
	"devices/interface/model@type":        {path: "domain.devices.interfaces[{name}].model", value: cardModel},
	"devices/interface/link@state":        {path: "domain.devices.interfaces[{name}].state", value: link},
	"devices/interface/boot@order":        {path: "domain.devices.interfaces[{name}].bootOrder", value: number64Or},
	"devices/interface/acpi@index":        {path: "domain.devices.interfaces[{name}].acpiIndex", value: number64Or},
	"devices/interface/driver@queues":     {path: "domain.devices.networkInterfaceMultiqueue", value: queues},
	"devices/filesystem":                  {path: "domain.devices.filesystems[{name}]"},
	"devices/filesystem/source/...":       {path: "volumes[{name}]"},
	"devices/hostdev":                     {path: "domain.devices.{list}[{name}]"},
	"devices/hostdev/boot@order":          {path: "domain.devices.{list}[{name}].bootOrder", value: number64Or},
	"devices/input":                       {path: "domain.devices.inputs[{name}]"},
	"devices/rng/...":                     {path: "domain.devices.rng"},
	"devices/tpm/...":                     {path: "domain.devices.tpm"},
	"devices/sound/...":                   {path: "domain.devices.sound"},
	"devices/watchdog":                    {path: "domain.devices.watchdog"},
	"devices/watchdog@model":              {path: "domain.devices.watchdog"},
	"devices/watchdog@action":             {path: "domain.devices.watchdog.i6300esb.action"},
	"devices/panic/...":                   {path: "domain.devices.panicDevices"},
	"devices/vsock/...":                   {path: "domain.devices.autoattachVSOCK"},
	"devices/redirdev/...":                {path: "domain.devices.clientPassthrough"},
	"devices/graphics":                    {path: "domain.devices.autoattachGraphicsDevice", value: present},
	"devices/video/model@type":            {path: "domain.devices.video.type"},
	"devices/serial":                      {path: "domain.devices.autoattachSerialConsole", value: present},
	"devices/serial/log/...":              {path: "domain.devices.logSerialConsole"},
	"devices/memballoon@model":            {path: "domain.devices.autoattachMemBalloon", value: balloon},
	"devices/memory/...":                  {path: "domain.memory.guest", value: size, rank: 4},
}

// size reads "524288 KiB" as manifests write it: "512Mi".
func size(_ *attribution, value string) any {
	if kibs := kibOf(value); kibs > 0 && kibs < 1<<50 {
		return resource.NewQuantity(int64(kibs)<<10, resource.BinarySI).String()
	}
	return plain(value)
}

// sockets reads a number of vCPUs as sockets, where they are whole.
func sockets(a *attribution, value string) any {
	vcpus, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return plain(value)
	}
	t := topologyOf(a.machine.Spec)
	if each := uint64(t.cores) * uint64(t.threads); each > 0 && vcpus%each == 0 {
		return vcpus / each
	}
	return fmt.Sprintf("%d vCPUs", vcpus)
}

// number64Or reads a number.
func number64Or(_ *attribution, value string) any {
	if number, err := strconv.ParseInt(value, 10, 64); err == nil {
		return number
	}
	return plain(value)
}

// truth reads what libvirt switches on and off.
func truth(_ *attribution, value string) any {
	switch value {
	case "on", "yes":
		return true
	case "off", "no":
		return false
	}
	return plain(value)
}

// present reads an element that says by being there.
func present(_ *attribution, value string) any { return value != "" }

func queues(_ *attribution, value string) any { return value != "" && value != "1" }

func thread(_ *attribution, value string) any {
	if value == "" {
		return nil
	}
	return "IO thread " + value
}

func tray(_ *attribution, value string) any {
	if value == "" {
		return "closed"
	}
	return value
}

func link(_ *attribution, value string) any {
	if value == "" {
		return "up"
	}
	return value
}

// cardModel leaves out which standards of virtio a card keeps to: that is another field's, and the architecture's.
func cardModel(_ *attribution, value string) any {
	for _, suffix := range []string{"-non-transitional", "-transitional"} {
		value = strings.TrimSuffix(value, suffix)
	}
	return plain(value)
}

func balloon(_ *attribution, value string) any { return value != "" && value != "none" }
