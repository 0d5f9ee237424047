package schemas

import (
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	poolv1 "kubevirt.io/api/pool/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// fieldRule is what the Go types do not say about a field: what may be written, and what holds when nothing is.
type fieldRule struct {
	// values are all that may be written; nil for anything of the type.
	values []string
	// fallback is the default.
	fallback string
	// pattern is a regular expression (ECMA 262, which Go reads as well) that text has to match.
	pattern string
	// wanted says what the pattern asks for.
	wanted string
	// least is the smallest number, when it is not that of the type.
	least int
	// anyCase says that the values are taken in any case, which a schema cannot say.
	anyCase bool
	// unchecked rows have values that Parse does not hold anybody to.
	unchecked bool
	// required and optional overrule what the Go type says by its tag.
	required, optional bool
	// doc is the description of a field whose type carries none.
	doc string
}

// fieldKey names a field by the struct that declares it, so that a row holds wherever the struct is used.
type fieldKey struct {
	owner reflect.Type
	field string
}

func of[T any](field string) fieldKey { return fieldKey{reflect.TypeFor[T](), field} }

// rule returns the row of the field; an empty one when the table has none.
func (p *fieldPlace) rule() fieldRule {
	if p.field == nil {
		return fieldRule{}
	}
	rule := fieldRules()[fieldKey{p.owner, p.field.name}]
	if strings.HasSuffix(p.path, ".matchFields.operator") { // fewer than the same struct takes for matchExpressions
		rule.values = []string{"In", "NotIn"}
	}
	return rule
}

// oneFrom is a row with values that are written with spaces between them.
func oneFrom(values, fallback string) fieldRule {
	return fieldRule{values: strings.Fields(values), fallback: fallback}
}

// uncheckedFrom is a row with values that Parse does not hold anybody to: only Kubernetes looks at them, or another check does.
func uncheckedFrom(values string) fieldRule {
	return fieldRule{values: strings.Fields(values), unchecked: true}
}

// inAnyCase is a row with kinds, the default first.
func inAnyCase(kinds ...string) fieldRule {
	return fieldRule{values: kinds, fallback: kinds[0], anyCase: true}
}

func by(fallback string) fieldRule { return fieldRule{fallback: fallback} }

const (
	patternMAC = `^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$`
	patternPCI = `^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.[0-7]$`
)

// fieldRules is the table. What it says is held against the checks by a test, field by field and value by value.
var fieldRules = sync.OnceValue(func() map[fieldKey]fieldRule {
	rules := map[fieldKey]fieldRule{}
	for _, table := range []map[fieldKey]fieldRule{machineRules(), deviceRules(), podRules(), aroundRules(), fleetRules(), sourceRules(), policyRules()} {
		for key, rule := range table {
			rules[key] = rule
		}
	}
	return rules
})

// machineRules are for the machine and its board.
func machineRules() map[fieldKey]fieldRule {
	on := by("true")
	return map[fieldKey]fieldRule{
		of[kubevirtv1.VirtualMachineSpec]("runStrategy"): oneFrom("Always RerunOnFailure Manual Halted Once", ""),
		of[kubevirtv1.VirtualMachineSpec]("running"):     {doc: "The older way to say it: true is runStrategy Always, false is Halted. It excludes runStrategy."},
		of[kubevirtv1.VirtualMachineSpec]("template"):    {required: true},

		of[kubevirtv1.VirtualMachineInstanceSpec]("architecture"):                  oneFrom("amd64 arm64 s390x", "amd64"),
		of[kubevirtv1.VirtualMachineInstanceSpec]("evictionStrategy"):              oneFrom("None LiveMigrate LiveMigrateIfPossible External", ""),
		of[kubevirtv1.VirtualMachineInstanceSpec]("startStrategy"):                 oneFrom("Paused", ""),
		of[kubevirtv1.VirtualMachineInstanceSpec]("terminationGracePeriodSeconds"): by("30"),
		of[kubevirtv1.VirtualMachineInstanceSpec]("domain"):                        {required: true},

		of[kubevirtv1.CPU]("cores"):         {fallback: "1", least: 1},
		of[kubevirtv1.CPU]("sockets"):       {fallback: "1", least: 1},
		of[kubevirtv1.CPU]("threads"):       {fallback: "1", least: 1},
		of[kubevirtv1.CPUFeature]("policy"): oneFrom("force require optional disable forbid", "require"),

		of[kubevirtv1.ReservedOverhead]("memLock"):   oneFrom("NotRequired Required", ""),
		of[kubevirtv1.DomainSpec]("ioThreadsPolicy"): oneFrom("shared auto supplementalPool", ""),
		of[kubevirtv1.DomainSpec]("rebootPolicy"):    oneFrom("Reboot Terminate", "Reboot"),
		of[kubevirtv1.Machine]("type"):               {fallback: "q35", optional: true},
		of[kubevirtv1.EFI]("secureBoot"):             on,
		of[kubevirtv1.EFI]("persistent"):             by("false"),
		of[kubevirtv1.Firmware]("uuid"):              {doc: "The SMBIOS UUID. Derived from namespace and name when it is left out, so it stays the same everywhere."},

		of[kubevirtv1.HPETTimer]("tickPolicy"): oneFrom("delay catchup merge discard", ""),
		of[kubevirtv1.PITTimer]("tickPolicy"):  oneFrom("delay catchup discard", ""),
		of[kubevirtv1.RTCTimer]("tickPolicy"):  oneFrom("delay catchup", ""),
		of[kubevirtv1.RTCTimer]("track"):       oneFrom("guest wall", ""),
		of[kubevirtv1.HPETTimer]("present"):    on, of[kubevirtv1.PITTimer]("present"): on, of[kubevirtv1.RTCTimer]("present"): on,
		of[kubevirtv1.KVMTimer]("present"): on, of[kubevirtv1.HypervTimer]("present"): on,
		of[kubevirtv1.FeatureState]("enabled"): on, of[kubevirtv1.FeatureAPIC]("enabled"): on,
		of[kubevirtv1.FeatureSpinlocks]("spinlocks"): by("4096"),

		of[kubevirtv1.KernelBootContainer]("imagePullPolicy"): oneFrom("Always IfNotPresent Never", ""),
	}
}

// deviceRules are for devices, and for the volumes and networks behind them.
func deviceRules() map[fieldKey]fieldRule {
	on, off := by("true"), by("false")
	pciAddress := fieldRule{pattern: patternPCI, wanted: "wanted a PCI address such as 0000:81:00.1"}
	return map[fieldKey]fieldRule{
		of[kubevirtv1.Devices]("autoattachGraphicsDevice"): on, of[kubevirtv1.Devices]("autoattachMemBalloon"): on,
		of[kubevirtv1.Devices]("autoattachPodInterface"): on, of[kubevirtv1.Devices]("autoattachSerialConsole"): on,
		of[kubevirtv1.Devices]("autoattachInputDevice"): off, of[kubevirtv1.Devices]("autoattachVSOCK"): off,
		of[kubevirtv1.Devices]("blockMultiQueue"): off, of[kubevirtv1.Devices]("networkInterfaceMultiqueue"): off,
		of[kubevirtv1.Devices]("useVirtioTransitional"): off, of[kubevirtv1.Devices]("disableHotplug"): off,
		of[kubevirtv1.DomainSpec]("devices"): {optional: true},

		of[kubevirtv1.DiskTarget]("bus"):           oneFrom("virtio scsi sata usb", "sata"),
		of[kubevirtv1.DiskTarget]("pciAddress"):    pciAddress,
		of[kubevirtv1.LunTarget]("bus"):            oneFrom("virtio scsi", "scsi"),
		of[kubevirtv1.CDRomTarget]("bus"):          oneFrom("scsi sata usb", "sata"),
		of[kubevirtv1.CDRomTarget]("tray"):         oneFrom("open closed", "closed"),
		of[kubevirtv1.CDRomTarget]("readonly"):     on,
		of[kubevirtv1.Disk]("cache"):               oneFrom("none writethrough writeback", ""),
		of[kubevirtv1.Disk]("io"):                  oneFrom("native threads", ""),
		of[kubevirtv1.Disk]("errorPolicy"):         oneFrom("stop ignore report enospace", "stop"),
		of[kubevirtv1.Disk]("bootOrder"):           {least: 1},
		of[kubevirtv1.Interface]("bootOrder"):      {least: 1},
		of[kubevirtv1.Interface]("macAddress"):     {pattern: patternMAC, wanted: "wanted a MAC address such as 02:00:00:00:00:01"},
		of[kubevirtv1.Interface]("pciAddress"):     pciAddress,
		of[kubevirtv1.Interface]("model"):          oneFrom("virtio e1000 e1000e igb ne2k_pci pcnet rtl8139", "virtio"),
		of[kubevirtv1.Interface]("state"):          oneFrom("up down absent", "up"),
		of[kubevirtv1.PortRange]("protocol"):       {values: []string{"TCP", "UDP"}, required: true},
		of[kubevirtv1.VideoDevice]("type"):         oneFrom("vga cirrus virtio ramfb bochs", ""),
		of[kubevirtv1.Diag288Watchdog]("action"):   oneFrom("poweroff reset shutdown", ""),
		of[kubevirtv1.Port]("protocol"):            oneFrom("TCP UDP", "TCP"),
		of[kubevirtv1.Input]("bus"):                oneFrom("virtio usb", "usb"),
		of[kubevirtv1.Input]("type"):               {values: []string{"tablet", "keyboard"}, required: true},
		of[kubevirtv1.SoundDevice]("model"):        oneFrom("ich9 ac97", "ich9"),
		of[kubevirtv1.I6300ESBWatchdog]("action"):  oneFrom("poweroff reset shutdown", "reset"),
		of[kubevirtv1.PanicDevice]("model"):        oneFrom("hyperv isa pvpanic", ""),
		of[kubevirtv1.ContainerDiskSource]("path"): {doc: "Where the image lies in the container; the only file below /disk when it is left out."},

		of[kubevirtv1.ContainerDiskSource]("imagePullPolicy"): oneFrom("Always IfNotPresent Never", ""),
		of[kubevirtv1.HostDisk]("type"):                       {values: []string{"Disk", "DiskOrCreate"}, required: true},
	}
}

// podRules are for what Kubernetes looks at.
func podRules() map[fieldKey]fieldRule {
	operators := "In NotIn Exists DoesNotExist"
	return map[fieldKey]fieldRule{
		of[kubevirtv1.VirtualMachineInstanceSpec]("dnsPolicy"): oneFrom("ClusterFirst ClusterFirstWithHostNet Default None", ""),

		of[corev1.Toleration]("operator"):                         oneFrom("Exists Equal Lt Gt", ""),
		of[corev1.Toleration]("effect"):                           oneFrom("NoSchedule PreferNoSchedule NoExecute", ""),
		of[corev1.TopologySpreadConstraint]("whenUnsatisfiable"):  {values: []string{"DoNotSchedule", "ScheduleAnyway"}, required: true},
		of[corev1.TopologySpreadConstraint]("nodeAffinityPolicy"): oneFrom("Ignore Honor", ""),
		of[corev1.TopologySpreadConstraint]("nodeTaintsPolicy"):   oneFrom("Ignore Honor", ""),
		of[corev1.NodeSelectorRequirement]("operator"):            {values: strings.Fields(operators + " Gt Lt"), required: true, unchecked: true},
		of[metav1.LabelSelectorRequirement]("operator"):           {values: strings.Fields(operators), required: true, unchecked: true},
		of[corev1.HTTPGetAction]("scheme"):                        oneFrom("HTTP HTTPS", ""),

		of[corev1.PersistentVolumeClaimSpec]("accessModes"): oneFrom("ReadWriteOnce ReadOnlyMany ReadWriteMany ReadWriteOncePod", ""),
		of[corev1.PersistentVolumeClaimSpec]("volumeMode"):  oneFrom("Filesystem Block", ""),
		of[corev1.HostPathVolumeSource]("type"):             oneFrom("DirectoryOrCreate Directory FileOrCreate File Socket CharDevice BlockDevice", ""),
		of[corev1.ServiceSpec]("type"):                      uncheckedFrom("ClusterIP NodePort LoadBalancer ExternalName"),
		of[corev1.ServicePort]("protocol"):                  uncheckedFrom("TCP UDP SCTP"),
	}
}

// aroundRules are for the kinds around the machine. Those who read these kinds check the values.
func aroundRules() map[fieldKey]fieldRule {
	return map[fieldKey]fieldRule{
		of[kubevirtv1.VirtualMachineInstanceReplicaSetSpec]("selector"): {required: true},
		of[kubevirtv1.VirtualMachineInstanceReplicaSetSpec]("template"): {required: true},
		of[kubevirtv1.VirtualMachineInstanceReplicaSetSpec]("replicas"): by("1"),

		of[poolv1.VirtualMachinePoolSpec]("selector"):                                  {required: true},
		of[poolv1.VirtualMachinePoolSpec]("virtualMachineTemplate"):                    {required: true},
		of[poolv1.VirtualMachinePoolSpec]("replicas"):                                  by("1"),
		of[poolv1.VirtualMachinePoolSelectionPolicy]("sortPolicy"):                     uncheckedFrom("AscendingOrder DescendingOrder Newest Oldest Random"),
		of[poolv1.VirtualMachinePoolProactiveScaleInStrategy]("statePreservation"):     uncheckedFrom("Disabled Offline Online"),
		of[poolv1.VirtualMachinePoolOpportunisticScaleInStrategy]("statePreservation"): uncheckedFrom("Disabled Offline Online"),
		of[kubevirtv1.InstancetypeMatcher]("kind"):                                     inAnyCase("VirtualMachineClusterInstancetype", "VirtualMachineInstancetype"),
		of[kubevirtv1.PreferenceMatcher]("kind"):                                       inAnyCase("VirtualMachineClusterPreference", "VirtualMachinePreference"),
		of[kubevirtv1.InstancetypeMatcher]("inferFromVolumeFailurePolicy"):             uncheckedFrom("Reject Ignore"),
		of[kubevirtv1.PreferenceMatcher]("inferFromVolumeFailurePolicy"):               uncheckedFrom("Reject Ignore"),
		of[instancetypev1.VirtualMachineInstancetypeSpec]("cpu"):                       {required: true},
		of[instancetypev1.VirtualMachineInstancetypeSpec]("memory"):                    {required: true},
		of[instancetypev1.CPUInstancetype]("guest"):                                    {required: true, least: 1},
		of[instancetypev1.CPUPreferences]("preferredCPUTopology"):                      oneFrom("sockets cores threads spread any preferSockets preferCores preferThreads preferSpread preferAny", ""),
		of[instancetypev1.SpreadOptions]("across"):                                     oneFrom("SocketsCores SocketsCoresThreads CoresThreads", ""),
		of[instancetypev1.DevicePreferences]("preferredDiskBus"):                       oneFrom("virtio scsi sata usb", ""),
		of[instancetypev1.DevicePreferences]("preferredLunBus"):                        oneFrom("virtio scsi", ""),
		of[instancetypev1.DevicePreferences]("preferredCdromBus"):                      oneFrom("scsi sata usb", ""),
		of[instancetypev1.DevicePreferences]("preferredDiskCache"):                     oneFrom("none writethrough writeback", ""),
		of[instancetypev1.DevicePreferences]("preferredDiskIO"):                        oneFrom("native threads", ""),
		of[instancetypev1.DevicePreferences]("preferredInputBus"):                      oneFrom("virtio usb", ""),
		of[instancetypev1.DevicePreferences]("preferredInputType"):                     oneFrom("tablet keyboard", ""),
		of[instancetypev1.DevicePreferences]("preferredInterfaceModel"):                oneFrom("virtio e1000 e1000e igb ne2k_pci pcnet rtl8139", ""),
		of[instancetypev1.DevicePreferences]("preferredSoundModel"):                    oneFrom("ich9 ac97", ""),
		of[instancetypev1.DevicePreferences]("preferredVideoType"):                     oneFrom("vga cirrus virtio ramfb bochs", ""),
		of[instancetypev1.DevicePreferences]("preferredPanicDeviceModel"):              oneFrom("hyperv isa pvpanic", ""),
		of[instancetypev1.VirtualMachineInstancetypeSpec]("ioThreadsPolicy"):           oneFrom("shared auto supplementalPool", ""),
		of[instancetypev1.VirtualMachinePreferenceSpec]("preferredArchitecture"):       oneFrom("amd64 arm64 s390x", ""),
		of[instancetypev1.PreferenceRequirements]("architecture"):                      oneFrom("amd64 arm64 s390x", ""),
		of[cdiv1.DataVolumeSpec]("contentType"):                                        oneFrom("kubevirt", "kubevirt"),
		of[cdiv1.StorageSpec]("accessModes"):                                           oneFrom("ReadWriteOnce ReadOnlyMany ReadWriteMany ReadWriteOncePod", ""),
		of[cdiv1.StorageSpec]("volumeMode"):                                            oneFrom("Filesystem Block", ""),
		of[cdiv1.DataVolumeSourceRegistry]("pullMethod"):                               uncheckedFrom("pod node"),
		of[kubevirtv1.VirtualMachineSpec]("updateVolumesStrategy"):                     oneFrom("Replacement Migration", ""),
	}
}

// fleetRules are for gitvirt's own kind, whose Go types carry no descriptions.
func fleetRules() map[fieldKey]fieldRule {
	return map[fieldKey]fieldRule{
		of[fleetManifest]("spec"):              {doc: "The settings of the repository."},
		of[FleetSpec]("platform"):              {values: []string{string(PlatformHost), string(PlatformKubernetes)}, fallback: string(PlatformHost), doc: "Where the machines run: host is libvirt on one machine, kubernetes are Pods of a cluster."},
		of[FleetSpec]("kubernetes"):            {doc: "What machines may have on the platform kubernetes."},
		of[FleetKubernetes]("serviceAccounts"): {doc: "ServiceAccounts that machines may name for their Pods, as NAMESPACE/NAME; without any it is the namespace's default."},
		of[FleetKubernetes]("emulation"):       {values: []string{string(EmulationInstalled), string(EmulationNever)}, fallback: string(EmulationInstalled), doc: "Whether guests may run without KVM: as gitvirt was installed, or never."},
		of[FleetSpec]("drift"):                 {values: []string{string(DriftCorrect), string(DriftReport)}, fallback: string(DriftCorrect), doc: "What happens when what runs was changed by hand: correct puts it right again, report tells it and leaves it."},
		of[FleetSpec]("permittedHostDevices"):  {doc: "Which devices of the host GPUs, host devices and SR-IOV interfaces of machines may get."},
		of[FleetSpec]("interval"):              {doc: "Time between two polls of the repository, such as 30s; at least 1s.", fallback: "15s"},
		of[FleetSpec]("status"):                {doc: "Where the state of the machines is written."},
		of[FleetSpec]("policy"):                {doc: "What happens by itself, and when; the rest waits or is only shown."},
		of[FleetSpec]("pullRequests"):          {doc: "For which pull requests plans are made, and whether comments on them are heard."},
		of[FleetPullRequests]("forks"):         {doc: "Whether pull requests from other repositories are planned; anybody may open one.", fallback: "false"},
		of[FleetPullRequests]("commands"):      {doc: "Whether people who may write to the repository command by comments on pull requests: /gitvirt plan, /gitvirt approve PLAN-ID.", fallback: "false"},
		of[FleetSpec]("notifications"):         {doc: "Who is told of events. Addresses and secrets are given to the controller as files, by the names of the receivers."},
		of[Receiver]("name"):                   {required: true, doc: "What the controller's --notification-url-file and --notification-secret-file name it."},
		of[Receiver]("kind"):                   {required: true, values: []string{string(ReceiverSlack), string(ReceiverHTTP)}, doc: "What it understands: slack is an incoming webhook as Slack and Mattermost have it, http gets events as JSON."},
		of[Receiver]("filter"):                 {fallback: DefaultFilter, doc: "Which events it gets, in CEL (https://cel.dev). event has type (Normal, Warning), reason, namespace, name, message, revision, fleet (texts) and count (how often it has happened)."},
		of[FleetSpec]("trust"):                 {doc: "Whose commits are applied. A commit that changes this is judged by what held before it; the controller needs keys of its own (--trusted-keys)."},
		of[FleetTrust]("signatures"):           {values: []string{string(SignaturesHead), string(SignaturesAll)}, fallback: string(SignaturesHead), doc: "Which commits have to be signed: head is the one that is applied, all is every commit since the last one that was trusted."},
		of[FleetTrust]("keys"):                 {doc: "Public keys whose signatures count, besides those that the controller was given: armored PGP keys, and lines of OpenSSH's allowed_signers or authorized_keys."},
		of[FleetStatus]("branch"):              {doc: "The branch that holds the status.", fallback: DefaultStatusBranch},
		of[FleetStatus]("enabled"):             {doc: "Whether status is written back to git.", fallback: "true"},
	}
}
