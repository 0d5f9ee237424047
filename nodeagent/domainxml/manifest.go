package domainxml

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// Manifest is a domain in the words of a manifest, as far as it has words for it.
type Manifest struct {
	// Object is the VirtualMachine, with the annotation that adopts the domain.
	Object *kubevirtv1.VirtualMachine
	// Volumes are the disks of Object as the domain has them, Targets their names in the domain ("hdc"), in the order of Object's.
	Volumes []Volume
	Targets []string

	definition string
	domainType string
}

// Describe reads the definition of any domain as a manifest for a VM at address. It says of the domain only what the
// manifest's fields mean without doubt; everything else is left to Manifest.Unexpressed. An error means that the domain is of a
// kind that no manifest describes.
func Describe(address schemas.Address, definition string) (*Manifest, error) {
	domain, err := parseFast(definition)
	if err != nil {
		return nil, fmt.Errorf("reading domain XML: %w", err)
	}
	d := describer{domain: domain, spec: &kubevirtv1.VirtualMachineInstanceSpec{}}
	if err := d.machine(); err != nil {
		return nil, fmt.Errorf("domain %s: %w", domain.childText("name"), err)
	}
	d.cpu()
	if err := d.memory(); err != nil {
		return nil, fmt.Errorf("domain %s: %w", domain.childText("name"), err)
	}
	d.firmware()
	d.features()
	d.clock()
	d.disks()
	d.interfaces()
	d.devices()
	grace := int64(importedGraceSeconds)
	d.spec.TerminationGracePeriodSeconds = &grace
	strategy := kubevirtv1.RunStrategyManual
	object := &kubevirtv1.VirtualMachine{
		TypeMeta: metav1.TypeMeta{APIVersion: kubevirtv1.GroupVersion.String(), Kind: schemas.KindVirtualMachine},
		ObjectMeta: metav1.ObjectMeta{
			Name: address.Name, Namespace: address.Namespace,
			Annotations: map[string]string{schemas.AnnotationAdopt: domain.childText("name")},
		},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: &strategy, Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: *d.spec},
		},
	}
	return &Manifest{Object: object, Volumes: d.volumes, Targets: d.targets, definition: definition, domainType: domain.get("type")}, nil
}

// importedGraceSeconds is how long an adopted guest may take to shut down: as long as KubeVirt's own examples give guests that nobody
// knows.
const importedGraceSeconds = 180

// VM returns what git holds when the manifest is committed as it is, and JSON of the manifest without what is empty.
func (m *Manifest) VM() (*schemas.VM, []byte, error) {
	encoded, err := json.Marshal(m.Object)
	if err != nil {
		return nil, nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(encoded, &tree); err != nil {
		return nil, nil, err
	}
	if encoded, err = json.Marshal(withoutNothing(tree)); err != nil {
		return nil, nil, err
	}
	file := schemas.Parse("domain.yaml", encoded)
	desired := schemas.Assemble([]*schemas.File{file}, schemas.AllowMissing())
	if len(desired.VMs) == 1 {
		return desired.VMs[0], encoded, nil
	}
	for _, diagnostic := range desired.Diagnostics {
		if diagnostic.Severity == schemas.SeverityError {
			return nil, nil, fmt.Errorf("no manifest describes it: %s: %s", diagnostic.Path, diagnostic.Message)
		}
	}
	return nil, nil, errors.New("no manifest describes it")
}

// withoutNothing leaves out what encoding/json writes of what is not there.
func withoutNothing(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = withoutNothing(v[i])
		}
	case map[string]any:
		for name, child := range v {
			child = withoutNothing(child)
			empty, isObject := child.(map[string]any)
			nothing := isObject && len(empty) == 0 && slices.Contains([]string{"metadata", "resources", "status"}, name)
			if child == nil || nothing || name == "creationTimestamp" || name == "capacity" && child == "0" {
				delete(v, name)
				continue
			}
			v[name] = child
		}
	}
	return value
}

// Kept is what the domain's record keeps of it when it is adopted. spec is the record of a manifest that describes it, volumes are its
// disks under the names that they have there.
func (m *Manifest) Kept(spec []byte, volumes []Volume) *Kept {
	return &Kept{Definition: WithoutRecord(m.definition), Spec: spec, Volumes: volumes, Targets: m.Targets}
}

// Fits reports whether a manifest means the same hardware as the one that VM returned, whatever it calls its parts, and returns the
// disks under the names that they have in it.
func (m *Manifest) Fits(described *schemas.VM, spec *kubevirtv1.VirtualMachineInstanceSpec) (volumes []Volume, fits bool) {
	for _, source := range spec.Volumes {
		at := slices.IndexFunc(m.Volumes, func(volume Volume) bool { return source.HostDisk != nil && source.HostDisk.Path == volume.Path })
		if at < 0 {
			return nil, false
		}
		volume := m.Volumes[at]
		volume.Name = source.Name
		volumes = append(volumes, volume)
	}
	render := func(spec *kubevirtv1.VirtualMachineInstanceSpec, volumes []Volume) *node {
		tree, err := Machine{Address: described.Address, Spec: spec, Host: Host{DomainType: m.domainType}, Volumes: volumes}.rendered()
		if err != nil {
			return nil
		}
		for _, device := range tree.child("devices").children {
			device.removeChild(device.child("alias")) // made of the names
		}
		return tree
	}
	ours, theirs := render(described.Spec(), m.Volumes), render(spec, volumes)
	return volumes, ours != nil && theirs != nil && same(ours, theirs)
}

// Unexpressed returns the paths of what the domain has and the manifest does not say, ordered. It stays in the domain.
func (m *Manifest) Unexpressed(vm *schemas.VM) ([]string, error) {
	want, err := Machine{Address: vm.Address, Spec: vm.Spec(), Host: Host{DomainType: m.domainType}, Volumes: m.Volumes}.rendered()
	if err != nil {
		return nil, err
	}
	have, err := raw(m.definition)
	if err != nil {
		return nil, err
	}
	paths := loose(have)
	disks := 0
	for _, device := range want.child("devices").children {
		if device.name == "disk" && disks < len(m.Targets) {
			device.child("target").set("dev", m.Targets[disks])
			disks++
		}
	}
	for _, difference := range compare(want, have) {
		virtio := strings.HasPrefix(difference.Want, "virtio") && strings.HasPrefix(difference.Have, "virtio")
		if difference.Have != "" && !virtio && difference.Path != "name" && difference.Path != "uuid" {
			paths = append(paths, difference.Path)
		}
	}
	return topmost(paths), nil
}

// loose are the parts of a definition that a comparison of machines passes over.
func loose(have *node) (paths []string) {
	for _, child := range have.children {
		switch child.name {
		case "title", "description":
			paths = append(paths, child.name)
		case "metadata":
			for _, element := range child.children {
				if element.space != MetadataPrefix {
					paths = append(paths, "metadata/"+prefixed(element.space, element.name))
				}
			}
		}
	}
	return paths
}

// WithoutRecord returns a definition without gitvirt's record in its metadata.
func WithoutRecord(definition string) string {
	tree, err := raw(definition)
	if err != nil {
		return definition
	}
	metadata := tree.child("metadata")
	if metadata == nil {
		return definition
	}
	before := len(metadata.children)
	metadata.children = slices.DeleteFunc(metadata.children, func(child *node) bool { return child.space == MetadataPrefix })
	if len(metadata.children) == before {
		return definition
	}
	if len(metadata.children) == 0 {
		tree.removeChild(metadata)
	}
	var out strings.Builder
	tree.writeRaw(&out)
	return out.String()
}

// describer fills a spec from a definition.
type describer struct {
	domain  *node
	spec    *kubevirtv1.VirtualMachineInstanceSpec
	volumes []Volume
	targets []string
	// arch is libvirt's name of the architecture.
	arch string
}

func (n *node) childText(name string) string {
	if child := n.child(name); child != nil {
		return child.text
	}
	return ""
}

// all returns the children of a name; a nil element has none.
func (n *node) all(name string) []*node {
	if n == nil {
		return nil
	}
	var out []*node
	for _, child := range n.children {
		if child.name == name {
			out = append(out, child)
		}
	}
	return out
}

func (d *describer) machine() error {
	if kind := d.domain.get("type"); kind != "kvm" && kind != "qemu" {
		return fmt.Errorf("it is of type %q; only kvm and qemu domains are described by manifests", kind)
	}
	system := d.domain.child("os").child("type")
	if system == nil || system.text != "hvm" {
		return errors.New("it is no virtual machine (os type hvm)")
	}
	d.arch = system.get("arch")
	var prefix string
	switch d.arch {
	case "x86_64":
		prefix = "pc-q35-"
	case "aarch64":
		d.spec.Architecture, prefix = "arm64", "virt-"
	case "s390x":
		d.spec.Architecture, prefix = "s390x", "s390-ccw-virtio-"
	default:
		return fmt.Errorf("its architecture is %q; manifests describe x86_64, aarch64 and s390x", d.arch)
	}
	if machine := system.get("machine"); strings.HasPrefix(machine, prefix) || machine == strings.TrimPrefix(strings.TrimSuffix(prefix, "-"), "pc-") {
		d.spec.Domain.Machine = &kubevirtv1.Machine{Type: machine}
	}
	return nil
}

func count(text string) uint32 {
	value, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(value)
}

func (d *describer) cpu() {
	out := &kubevirtv1.CPU{Sockets: 1, Cores: 1, Threads: 1}
	d.spec.Domain.CPU = out
	vcpu := d.domain.child("vcpu")
	total := max(count(d.domain.childText("vcpu")), 1)
	cpu := d.domain.child("cpu")
	if topology := cpu.child("topology"); topology != nil {
		out.Cores, out.Threads = max(count(topology.get("cores")), 1), max(count(topology.get("threads")), 1)
	}
	core := out.Cores * out.Threads
	out.Sockets = max(total/core, 1)
	if current := count(vcpu.get("current")); current != 0 && current < total && current%core == 0 && d.domain.child("vcpus") != nil {
		out.Sockets, out.MaxSockets = current/core, total/core
	}
	switch mode := cpu.get("mode"); mode {
	case kubevirtv1.CPUModeHostModel, kubevirtv1.CPUModeHostPassthrough:
		out.Model = mode
	case "custom", "":
		if model := cpu.childText("model"); cpu != nil {
			out.Model = model
		}
	}
	for _, feature := range cpu.all("feature") {
		if name := feature.get("name"); readable(name) != "" && !strings.Contains(name, "+") {
			out.Features = append(out.Features, kubevirtv1.CPUFeature{Name: name, Policy: feature.get("policy")})
		}
	}
}

func (d *describer) memory() error {
	memory := d.domain.child("memory")
	if memory == nil {
		return errors.New("it has no memory")
	}
	size := kibOf(kib(memory.text, memory.get("unit")))
	if size == 0 || size > 1<<50 {
		return fmt.Errorf("its memory is %q %s", memory.text, memory.get("unit"))
	}
	d.spec.Domain.Memory = &kubevirtv1.Memory{Guest: resource.NewQuantity(int64(size)<<10, resource.BinarySI)}
	return nil
}

func on() *bool {
	yes := true
	return &yes
}

func off() *bool { return new(bool) }

func (d *describer) firmware() {
	firmware := &kubevirtv1.Firmware{UUID: types.UID(strings.ToLower(d.domain.childText("uuid")))}
	d.spec.Domain.Firmware = firmware
	for _, info := range d.domain.all("sysinfo") {
		for _, entry := range info.child("system").all("entry") {
			if info.get("type") == "smbios" && entry.get("name") == "serial" {
				firmware.Serial = entry.text
			}
		}
	}
	system := d.domain.child("os")
	loader := system.child("loader")
	uefi := system.get("firmware") == "efi" || loader.get("type") == "pflash"
	if !uefi {
		if system.child("bios").get("useserial") == "yes" {
			firmware.Bootloader = &kubevirtv1.Bootloader{BIOS: &kubevirtv1.BIOS{UseSerial: on()}}
		}
		return
	}
	secure := loader.get("secure") == "yes" && d.domain.child("features").child("smm").get("state") == "on"
	firmware.Bootloader = &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: &secure, Persistent: on()}}
}

// state reads libvirt's on/off element; nil when it is not there.
func state(element *node) *kubevirtv1.FeatureState {
	if element == nil {
		return nil
	}
	enabled := element.get("state") != "off"
	return &kubevirtv1.FeatureState{Enabled: &enabled}
}

func (d *describer) features() {
	have := d.domain.child("features")
	out := &kubevirtv1.Features{}
	d.spec.Domain.Features = out
	if have.child("acpi") == nil {
		out.ACPI.Enabled = off()
	}
	if apic := have.child("apic"); apic != nil {
		out.APIC = &kubevirtv1.FeatureAPIC{EndOfInterrupt: apic.get("eoi") == "on"}
	}
	if smm := have.child("smm"); smm != nil {
		out.SMM = state(smm)
	}
	out.Pvspinlock = state(have.child("pvspinlock"))
	if hidden := have.child("kvm").child("hidden"); hidden != nil {
		out.KVM = &kubevirtv1.FeatureKVM{Hidden: hidden.get("state") == "on"}
	}
	if hyperv := have.child("hyperv"); hyperv != nil && hyperv.get("mode") != "passthrough" {
		d.hyperV(hyperv, out)
	}
}

func (d *describer) hyperV(have *node, out *kubevirtv1.Features) {
	h := &kubevirtv1.FeatureHyperv{
		Relaxed: state(have.child("relaxed")), VAPIC: state(have.child("vapic")), VPIndex: state(have.child("vpindex")),
		Runtime: state(have.child("runtime")), SyNIC: state(have.child("synic")), Reset: state(have.child("reset")),
		Frequencies: state(have.child("frequencies")), Reenlightenment: state(have.child("reenlightenment")),
		IPI: state(have.child("ipi")), EVMCS: state(have.child("evmcs")),
	}
	if spinlocks := have.child("spinlocks"); spinlocks != nil {
		h.Spinlocks = &kubevirtv1.FeatureSpinlocks{FeatureState: *state(spinlocks)}
		if retries := count(spinlocks.get("retries")); retries != 0 {
			h.Spinlocks.Retries = &retries
		}
	}
	if timer := have.child("stimer"); timer != nil {
		h.SyNICTimer = &kubevirtv1.SyNICTimer{FeatureState: *state(timer), Direct: state(timer.child("direct"))}
	}
	if flush := have.child("tlbflush"); flush != nil {
		h.TLBFlush = &kubevirtv1.TLBFlush{FeatureState: *state(flush), Direct: state(flush.child("direct")), Extended: state(flush.child("extended"))}
	}
	if vendor := have.child("vendor_id"); vendor != nil {
		h.VendorID = &kubevirtv1.FeatureVendorID{FeatureState: *state(vendor), VendorID: vendor.get("value")}
	}
	if *h != (kubevirtv1.FeatureHyperv{}) {
		out.Hyperv = h
	}
}

func (d *describer) clock() {
	have := d.domain.child("clock")
	if have == nil {
		return
	}
	out := &kubevirtv1.Clock{}
	switch have.get("offset") {
	case "utc":
		out.UTC = &kubevirtv1.ClockOffsetUTC{}
	case "timezone":
		zone := kubevirtv1.ClockOffsetTimezone(have.get("timezone"))
		out.Timezone = &zone
	default:
		return
	}
	timer := &kubevirtv1.Timer{}
	for _, t := range have.all("timer") {
		present := off()
		if t.get("present") != "no" {
			present = nil
		}
		policy := t.get("tickpolicy")
		switch t.get("name") {
		case "rtc":
			timer.RTC = &kubevirtv1.RTCTimer{Enabled: present, TickPolicy: kubevirtv1.RTCTickPolicy(policy), Track: kubevirtv1.RTCTimerTrack(t.get("track"))}
		case "pit":
			timer.PIT = &kubevirtv1.PITTimer{Enabled: present, TickPolicy: kubevirtv1.PITTickPolicy(policy)}
		case "kvmclock":
			timer.KVM = &kubevirtv1.KVMTimer{Enabled: present}
		case "hpet":
			timer.HPET = &kubevirtv1.HPETTimer{Enabled: present, TickPolicy: kubevirtv1.HPETTickPolicy(policy)}
		case "hypervclock":
			timer.Hyperv = &kubevirtv1.HypervTimer{Enabled: present}
		}
	}
	if *timer != (kubevirtv1.Timer{}) {
		out.Timer = timer
	}
	d.spec.Domain.Clock = out
}

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
