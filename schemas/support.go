package schemas

import (
	"slices"
	"strings"
	"sync"
)

// SupportStatus says what gitvirt does with a field that KubeVirt knows.
type SupportStatus uint8

const (
	// SupportUndecided is a field the table does not name; it is refused like SupportRefused.
	SupportUndecided SupportStatus = iota
	// SupportCarried is carried out.
	SupportCarried
	// SupportRefused is an error that names the field.
	SupportRefused
	// SupportKept is accepted and kept with the machine, and nothing on a host depends on it: it is for Pods, or the
	// guest sees nothing of it.
	SupportKept
	// SupportIgnored is accepted and not read, such as status, which the server side writes.
	SupportIgnored
)

// Support is one row of the support table: a field with everything below it, unless a longer path says otherwise.
type Support struct {
	// Path is the field's path without list indices, such as "domain.devices.gpus".
	Path   string
	Status SupportStatus
	// Instead says why the field is refused or only kept, or what to use in its place.
	Instead string
}

// VMISupport is the support table of a VirtualMachineInstanceSpec, which is spec of a VirtualMachineInstance and
// spec.template.spec of a VirtualMachine. Order does not matter: the longest matching path wins.
func VMISupport() []Support {
	return slices.Concat(placementSupport(), boardSupport(), deviceSupport(), volumeSupport())
}

// placementSupport is where and how the machine runs.
func placementSupport() []Support {
	return []Support{
		carried("affinity"), carried("architecture"), carried("dnsConfig"), carried("dnsPolicy"),
		carried("evictionStrategy"), carried("hostname"), carried("nodeSelector"), carried("priorityClassName"),
		carried("schedulerName"), carried("serviceAccountName"), carried("subdomain"),
		carried("terminationGracePeriodSeconds"), carried("tolerations"), carried("topologySpreadConstraints"),
		refused("accessCredentials", "put ssh keys and passwords into the cloud-init user data"),
		refused("livenessProbe", "gitvirt restarts a machine that crashes or stops; remove the probe"),
		refused("readinessProbe", "remove the probe"),
		refused("resourceClaims", "dynamic resource allocation needs KubeVirt"),
		refused("startStrategy", "a machine is started running; remove it"),
		refused("utilityVolumes", "remove it"),
	}
}

// boardSupport is CPU, memory, board and firmware.
func boardSupport() []Support {
	return []Support{
		carried("domain.cpu.cores"), carried("domain.cpu.sockets"), carried("domain.cpu.threads"),
		carried("domain.cpu.model"), carried("domain.cpu.features"),
		refused("domain.cpu.dedicatedCpuPlacement", "CPUs are shared; remove it"),
		refused("domain.cpu.isolateEmulatorThread", "remove it"),
		refused("domain.cpu.maxSockets", "a change of sockets restarts the machine; remove it"),
		refused("domain.cpu.numa", "remove it"),
		refused("domain.cpu.realtime", "remove it"),
		carried("domain.memory.guest"),
		refused("domain.memory.hugepages", "remove it"),
		refused("domain.memory.maxGuest", "a change of memory restarts the machine; remove it"),
		refused("domain.memory.reservedOverhead", "remove it"),
		carried("domain.resources"),
		carried("domain.machine"), carried("domain.chassis"), carried("domain.clock"), carried("domain.features"),
		carried("domain.firmware.uuid"), carried("domain.firmware.serial"), carried("domain.firmware.bootloader"),
		carried("domain.firmware.kernelBoot"),
		refused("domain.firmware.kernelBoot.container.imagePullSecret", "log in to the registry on the node instead"),
		refused("domain.firmware.acpi", "remove it"),
		refused("domain.ioThreads", "use dedicatedIOThread on the disks that need a thread of their own"),
		refused("domain.ioThreadsPolicy", "use dedicatedIOThread on the disks that need a thread of their own"),
		refused("domain.launchSecurity", "remove it"),
		refused("domain.rebootPolicy", "remove it"),
	}
}

// deviceSupport is what is plugged into the machine.
func deviceSupport() []Support {
	return []Support{
		carried("domain.devices.autoattachGraphicsDevice"), carried("domain.devices.autoattachInputDevice"),
		carried("domain.devices.autoattachMemBalloon"), carried("domain.devices.autoattachPodInterface"),
		carried("domain.devices.autoattachSerialConsole"),
		carried("domain.devices.blockMultiQueue"), carried("domain.devices.disableHotplug"),
		carried("domain.devices.inputs"), carried("domain.devices.logSerialConsole"),
		carried("domain.devices.networkInterfaceMultiqueue"), carried("domain.devices.rng"),
		carried("domain.devices.sound"), carried("domain.devices.tpm"), carried("domain.devices.useVirtioTransitional"),
		carried("domain.devices.video"), carried("domain.devices.watchdog"),
		refused("domain.devices.watchdog.diag288", "it is for s390x; use i6300esb"),
		refused("domain.devices.autoattachVSOCK", "use the serial console or the network to reach the guest"),
		refused("domain.devices.panicDevices", "remove it"),
		refused("domain.devices.clientPassthrough", "USB redirection needs KubeVirt's API server; remove it"),
		refused("domain.devices.downwardMetrics", "remove it"),
		refused("domain.devices.filesystems", "use a disk instead of virtiofs"),
		refused("domain.devices.gpus", "device passthrough is not there yet"),
		refused("domain.devices.hostDevices", "device passthrough is not there yet"),
		carried("domain.devices.disks"),
		refused("domain.devices.disks.blockSize.matchVolume", "write the sizes under custom"),
		refused("domain.devices.disks.blockSize.custom.discardGranularity", "remove it"),
		refused("domain.devices.disks.changedBlockTracking", "remove it"),
		refused("domain.devices.disks.lun", "passing SCSI commands through needs a block device, which no volume here is; use disk"),
		refused("domain.devices.disks.lun.reservation", "SCSI persistent reservations need KubeVirt; remove it"),
		refused("domain.devices.disks.tag", "tags are handed over on a config drive only; remove it"),
		carried("domain.devices.interfaces"),
		refused("domain.devices.interfaces.binding", "use masquerade or bridge"),
		refused("domain.devices.interfaces.dhcpOptions", "set it in the cloud-init network data"),
		refused("domain.devices.interfaces.macvtap", "use bridge"),
		refused("domain.devices.interfaces.passt", "use masquerade"),
		refused("domain.devices.interfaces.passtBinding", "use masquerade"),
		refused("domain.devices.interfaces.portRanges", "list single ports under ports"),
		refused("domain.devices.interfaces.slirp", "use masquerade"),
		refused("domain.devices.interfaces.sriov", "use bridge"),
		refused("domain.devices.interfaces.tag", "tags are handed over on a config drive only; remove it"),
	}
}

// volumeSupport is what disks and interfaces are connected to.
func volumeSupport() []Support {
	return []Support{
		carried("networks.name"), carried("networks.pod"), carried("networks.multus"),
		refused("networks.pod.vmNetworkCIDR", "the address range of user-mode networking is QEMU's; remove it"),
		refused("networks.pod.vmIPv6NetworkCIDR", "the address range of user-mode networking is QEMU's; remove it"),
		refused("networks.resourceClaim", "use pod or multus"),
		carried("volumes.name"), carried("volumes.containerDisk"), carried("volumes.cloudInitNoCloud"),
		carried("volumes.emptyDisk"), carried("volumes.hostDisk"),
		refused("volumes.containerDisk.imagePullSecret", "log in to the registry on the node instead"),
		refused("volumes.cloudInitConfigDrive", "use cloudInitNoCloud"),
		refused("volumes.configMap", "write the files with the cloud-init user data"),
		refused("volumes.containerPath", "use hostDisk"),
		carried("volumes.dataVolume"), carried("volumes.persistentVolumeClaim"), carried("volumes.ephemeral"),
		refused("volumes.downwardAPI", "write the values into the cloud-init user data"),
		refused("volumes.downwardMetrics", "remove it"),
		refused("volumes.memoryDump", "remove it"),
		refused("volumes.secret", "use a Secret as cloudInitNoCloud.secretRef"),
		refused("volumes.serviceAccount", "remove it"),
		refused("volumes.sysprep", "use hostDisk with a prepared image"),
	}
}

// VMSupport is the support table of what a VirtualMachine has around its template.
func VMSupport() []Support {
	return []Support{
		carried("spec.running"), carried("spec.runStrategy"), carried("spec.template.metadata"),
		carried("spec.dataVolumeTemplates"), carried("spec.instancetype"), carried("spec.preference"),
		refused("spec.updateVolumesStrategy", "remove it"),
	}
}

// objectSupport is what every kind has: who it is, and what only servers write.
func objectSupport() []Support {
	rows := []Support{carried("apiVersion"), carried("kind"), ignored("status")}
	return append(rows, metadataSupport("metadata")...)
}

func metadataSupport(at string) []Support {
	rows := []Support{carried(at)}
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "selfLink", "creationTimestamp", "deletionTimestamp",
		"deletionGracePeriodSeconds", "managedFields", "ownerReferences", "finalizers",
	} {
		rows = append(rows, ignored(at+"."+field))
	}
	return rows
}

func carried(path string) Support          { return Support{Path: path, Status: SupportCarried} }
func ignored(path string) Support          { return Support{Path: path, Status: SupportIgnored} }
func refused(path, instead string) Support { return Support{path, SupportRefused, instead} }

// supportNode is the tables as a tree, followed by the decoder as it goes down.
type supportNode struct {
	children map[string]*supportNode
	status   SupportStatus
	decided  bool
	instead  string
}

func (n *supportNode) add(rows []Support, prefix string) {
	for _, row := range rows {
		at := n
		for name := range strings.SplitSeq(prefix+row.Path, ".") {
			child := at.children[name]
			if child == nil {
				child = &supportNode{}
				if at.children == nil {
					at.children = map[string]*supportNode{}
				}
				at.children[name] = child
			}
			at = child
		}
		at.status, at.decided, at.instead = row.Status, true, row.Instead
	}
}

// below returns what holds for the field name under n, given what holds for n itself.
func (n *supportNode) below(name string, inherited SupportStatus) (*supportNode, SupportStatus) {
	if n == nil {
		return nil, inherited
	}
	child := n.children[name]
	if child == nil || !child.decided {
		return child, inherited
	}
	return child, child.status
}

// supportTrees are the trees by kind; built at first use and never changed.
var supportTrees = sync.OnceValue(func() map[string]*supportNode {
	vm, vmi, plain := &supportNode{}, &supportNode{}, &supportNode{}
	vm.add(objectSupport(), "")
	vm.add(VMSupport(), "")
	vm.add(metadataSupport("spec.template.metadata"), "")
	vm.add(VMISupport(), "spec.template.spec.")
	vmi.add(objectSupport(), "")
	vmi.add(VMISupport(), "spec.")
	plain.add(objectSupport(), "")
	return map[string]*supportNode{KindVirtualMachine: vm, KindVirtualMachineInstance: vmi, "": plain}
})
