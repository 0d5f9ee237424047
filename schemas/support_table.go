package schemas

import "slices"

// VMISupport is the support table of a VirtualMachineInstanceSpec, which is spec of a VirtualMachineInstance and
// spec.template.spec of a VirtualMachine. Order does not matter: the longest matching path wins.
func VMISupport() []Support {
	return slices.Concat(placementSupport(), boardSupport(), deviceSupport(), volumeSupport())
}

// placementSupport is where and how the machine runs.
func placementSupport() []Support {
	const (
		placed  = "it places a Pod among the nodes of a cluster; on a libvirt host the machine runs where its manifest is applied"
		claimed = "dynamic resource allocation is a service of Kubernetes; name the devices with deviceName"
	)
	return []Support{
		carried("accessCredentials"), carried("architecture"), carried("hostname"), carried("livenessProbe"),
		carried("readinessProbe"), carried("startStrategy"), carried("subdomain"), carried("terminationGracePeriodSeconds"),
		kept("affinity", placed), kept("nodeSelector", placed), kept("schedulerName", placed), kept("tolerations", placed),
		kept("topologySpreadConstraints", placed),
		kept("dnsConfig", "it configures the resolver of a Pod; the guest gets its name servers from DHCP or from its cloud-init network data"),
		kept("dnsPolicy", "it configures the resolver of a Pod; the guest gets its name servers from DHCP or from its cloud-init network data"),
		kept("evictionStrategy", "it says what happens when Kubernetes drains a node; nobody drains a libvirt host"),
		kept("priorityClassName", "it decides which Pod has to make room for another; a libvirt host evicts nothing"),
		kept("serviceAccountName", "it is the Pod's identity towards the API server of a cluster, which a libvirt host does not have"),
		refused("resourceClaims", claimed),
		refused("utilityVolumes", "they are attached by KubeVirt's backup and memory dump; take backups with libvirt's tools"),
	}
}

// boardSupport is CPU, memory, board and firmware.
func boardSupport() []Support {
	return []Support{
		carried("domain.cpu"), carried("domain.memory"), carried("domain.resources"),
		kept("domain.memory.reservedOverhead", "it sizes KubeVirt's Pod; libvirt sets no limits on memory, and raises that of locked memory for devices that need it"),
		kept("domain.resources.overcommitGuestOverhead", "what QEMU needs beside the guest's memory is not reserved on a libvirt host"),
		carried("domain.machine"), carried("domain.chassis"), carried("domain.clock"), carried("domain.features"),
		carried("domain.firmware"), carried("domain.ioThreads"), carried("domain.ioThreadsPolicy"),
		carried("domain.launchSecurity"), carried("domain.rebootPolicy"),
	}
}

// deviceSupport is what is plugged into the machine.
func deviceSupport() []Support {
	const claimed = "dynamic resource allocation is a service of Kubernetes; name the device with deviceName"
	return []Support{
		carried("domain.devices.autoattachGraphicsDevice"), carried("domain.devices.autoattachInputDevice"),
		carried("domain.devices.autoattachMemBalloon"), carried("domain.devices.autoattachPodInterface"),
		carried("domain.devices.autoattachSerialConsole"), carried("domain.devices.autoattachVSOCK"),
		carried("domain.devices.blockMultiQueue"), carried("domain.devices.clientPassthrough"),
		carried("domain.devices.disableHotplug"), carried("domain.devices.downwardMetrics"),
		carried("domain.devices.filesystems"), carried("domain.devices.inputs"), carried("domain.devices.logSerialConsole"),
		carried("domain.devices.networkInterfaceMultiqueue"), carried("domain.devices.panicDevices"),
		carried("domain.devices.rng"), carried("domain.devices.sound"), carried("domain.devices.tpm"),
		carried("domain.devices.useVirtioTransitional"), carried("domain.devices.video"), carried("domain.devices.watchdog"),
		carried("domain.devices.gpus"), carried("domain.devices.hostDevices"),
		refused("domain.devices.gpus.claimName", claimed), refused("domain.devices.gpus.requestName", claimed),
		refused("domain.devices.hostDevices.claimName", claimed), refused("domain.devices.hostDevices.requestName", claimed),
		carried("domain.devices.disks"),
		refused("domain.devices.disks.changedBlockTracking", "it prepares KubeVirt's incremental backups; libvirt's tools keep their own bitmaps, so remove it"),
		carried("domain.devices.interfaces"),
		kept("domain.devices.interfaces.dhcpOptions", "handed out on Kubernetes; on a host the network's own DHCP server answers the guest: QEMU's behind masquerade, else that of the libvirt network, whose dnsmasq options can say the same"),
		refused("domain.devices.interfaces.binding", "network binding plugins are containers beside KubeVirt's launcher; use masquerade, bridge or sriov"),
	}
}

// volumeSupport is what disks and interfaces are connected to.
func volumeSupport() []Support {
	const unplugged = "whether a volume can be unplugged follows from the bus of its disk"
	return []Support{
		carried("networks.name"), carried("networks.pod"), carried("networks.multus"),
		refused("networks.resourceClaim", "dynamic resource allocation is a service of Kubernetes; use multus with an sriov interface"),
		carried("volumes.name"), carried("volumes.cloudInitConfigDrive"), carried("volumes.cloudInitNoCloud"),
		carried("volumes.configMap"), carried("volumes.containerDisk"), carried("volumes.dataVolume"),
		carried("volumes.downwardAPI"), carried("volumes.downwardMetrics"), carried("volumes.emptyDisk"),
		carried("volumes.ephemeral"), carried("volumes.hostDisk"), carried("volumes.persistentVolumeClaim"),
		carried("volumes.secret"), carried("volumes.serviceAccount"), carried("volumes.sysprep"),
		kept("volumes.downwardAPI.fields.mode", "all files of the volume are read-only to the guest, whatever their mode"),
		kept("volumes.dataVolume.hotpluggable", unplugged), kept("volumes.persistentVolumeClaim.hotpluggable", unplugged),
		refused("volumes.containerPath", "a libvirt host has no launcher container with files in it; use hostDisk, or a configMap or secret volume"),
		refused("volumes.memoryDump", "write the dump with virsh dump --memory-only"),
	}
}

// VMSupport is the support table of what a VirtualMachine has around its template.
func VMSupport() []Support {
	return []Support{
		carried("spec.running"), carried("spec.runStrategy"), carried("spec.template.metadata"),
		carried("spec.dataVolumeTemplates"), carried("spec.instancetype"), carried("spec.preference"),
		kept("spec.updateVolumesStrategy", "a volume that changes is exchanged when the machine is restarted, and nothing is copied over from the old one"),
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
func kept(path, why string) Support        { return Support{path, SupportKept, why} }
func refused(path, instead string) Support { return Support{path, SupportRefused, instead} }
