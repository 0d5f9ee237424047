package schemas

import (
	"slices"
	"strings"
	"sync"
)

// setSupport is the support table of VirtualMachinePools but for their template; a VirtualMachineInstanceReplicaSet has
// the first three fields only.
func setSupport() []Support {
	return []Support{
		carried("spec.replicas"), carried("spec.selector"), carried("spec.paused"),
		carried("spec.nameGeneration"),
		refused("spec.maxUnavailable", "all machines that a change concerns are restarted when it is applied; remove it"),
		refused("spec.updateStrategy", "changes are applied as they are pushed; look at gitvirt plan before you merge, and remove it"),
		refused("spec.scaleInStrategy", "the machines with the highest numbers go first and their disks are kept; remove it"),
		refused("spec.autohealing", "use runStrategy Always: a machine that stops is started again"),
	}
}

// claimSupport is the support table of a PersistentVolumeClaimSpec, and of CDI's StorageSpec.
func claimSupport(at string) []Support {
	return []Support{
		carried(at + ".accessModes"), carried(at + ".resources"), carried(at + ".volumeName"), carried(at + ".volumeMode"),
		carried(at + ".dataSource"), carried(at + ".dataSourceRef"),
		kept(at+".selector", "a host has no classes of volumes to choose from"),
		kept(at+".storageClassName", "a host has one place for images"),
	}
}

// dataVolumeSupport is the support table of a DataVolumeSpec.
func dataVolumeSupport(at string) []Support {
	const elsewhere = "gitvirt fills disks from blank, registry, http and pvc"
	rows := []Support{
		carried(at + ".source"),
		refused(at+".source.s3", elsewhere+"; use http with a signed or public URL"),
		refused(at+".source.gcs", elsewhere+"; use http with a signed or public URL"),
		refused(at+".source.imageio", elsewhere+"; export the disk and use http"),
		refused(at+".source.vddk", elsewhere+"; export the disk and use http"),
		refused(at+".source.snapshot", elsewhere+"; use pvc to clone"),
		refused(at+".source.upload", "there is nothing to upload to: put the image where the host can fetch it and use http or registry, or name the file with hostDisk"),
		refused(at+".source.http.certConfigMap", "let the host trust the authority"),
		refused(at+".source.http.secretExtraHeaders", "use secretRef with accessKeyId and secretKey"),
		refused(at+".source.registry.certConfigMap", "let the host trust the authority"),
		refused(at+".source.registry.imageStream", "use url"),
		kept(at+".source.registry.pullMethod", "the host fetches the image itself"),
		refused(at+".sourceRef", "write what the DataSource refers to under source"),
		carried(at + ".contentType"),
		refused(at+".checkpoints", "warm imports need CDI; remove it"),
		refused(at+".finalCheckpoint", "warm imports need CDI; remove it"),
		kept(at+".preallocation", "images grow as the guest writes"),
		kept(at+".priorityClassName", "it is for Pods"),
	}
	rows = append(rows, claimSupport(at+".pvc")...)
	return append(append(rows, claimSupport(at+".storage")...), kept(at+".pvc.volumeAttributesClassName", "a host has one place for images"))
}

// volumeKindSupport is the support table of a PersistentVolume.
func volumeKindSupport() []Support {
	rows := []Support{
		carried("spec.capacity"), carried("spec.accessModes"), carried("spec.claimRef"), carried("spec.hostPath"), carried("spec.local"),
		carried("spec.volumeMode"),
	}
	for _, field := range []string{"persistentVolumeReclaimPolicy", "storageClassName", "mountOptions", "nodeAffinity", "volumeAttributesClassName"} {
		rows = append(rows, kept("spec."+field, "the file or device is used as it is"))
	}
	for _, field := range []string{
		"awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume", "flocker", "gcePersistentDisk",
		"glusterfs", "iscsi", "nfs", "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume",
	} {
		rows = append(rows, refused("spec."+field, "attach or mount it on the host and name the device or file with local.path"))
	}
	return rows
}

// matcherSupport is the support table of references to instancetypes and preferences.
func matcherSupport() []Support {
	var rows []Support
	for _, at := range []string{"spec.instancetype", "spec.preference"} {
		rows = append(rows, carried(at),
			refused(at+".inferFromVolume", "a manifest must say itself what it asks for: write name"),
			refused(at+".inferFromVolumeFailurePolicy", "a manifest must say itself what it asks for: remove it"),
			refused(at+".revisionName", "git has the revisions: remove it"))
	}
	return rows
}

// mirrored returns the rows of a machine's field for the field of another kind that becomes it, so that what a machine
// must not say an instancetype must not say for it.
func mirrored(field, mirror string) []Support {
	var rows []Support
	above := Support{}
	for _, row := range VMISupport() {
		if rest, ok := strings.CutPrefix(row.Path, field); ok && (rest == "" || rest[0] == '.') {
			rows = append(rows, Support{mirror + rest, row.Status, row.Instead})
		} else if strings.HasPrefix(field, row.Path+".") && len(row.Path) > len(above.Path) {
			above = row
		}
	}
	if !slices.ContainsFunc(rows, func(row Support) bool { return row.Path == mirror }) {
		rows = append(rows, Support{mirror, above.Status, above.Instead})
	}
	return rows
}

func instancetypeSupport() []Support {
	rows := []Support{carried("spec")}
	for _, pair := range [][2]string{
		{"nodeSelector", "nodeSelector"},
		{"schedulerName", "schedulerName"},
		{"domain.devices.gpus", "gpus"},
		{"domain.devices.hostDevices", "hostDevices"},
		{"domain.ioThreadsPolicy", "ioThreadsPolicy"},
		{"domain.ioThreads", "ioThreads"},
		{"domain.launchSecurity", "launchSecurity"},
		{"domain.cpu.model", "cpu.model"},
		{"domain.cpu.dedicatedCpuPlacement", "cpu.dedicatedCPUPlacement"},
		{"domain.cpu.numa", "cpu.numa"},
		{"domain.cpu.isolateEmulatorThread", "cpu.isolateEmulatorThread"},
		{"domain.cpu.realtime", "cpu.realtime"},
		{"domain.cpu.maxSockets", "cpu.maxSockets"},
		{"domain.memory.hugepages", "memory.hugepages"},
		{"domain.memory.maxGuest", "memory.maxGuest"},
	} {
		rows = append(rows, mirrored(pair[0], "spec."+pair[1])...)
	}
	return rows
}

func preferenceSupport() []Support {
	rows := []Support{carried("spec"), kept("spec.volumes", "a host has one place for images")}
	for _, pair := range [][2]string{
		{"domain.clock.timer", "clock.preferredTimer"},
		{"domain.devices.gpus.virtualGPUOptions", "devices.preferredVirtualGPUOptions"},
		{"domain.devices.disks.blockSize", "devices.preferredDiskBlockSize"},
		{"domain.devices.rng", "devices.preferredRng"},
		{"domain.devices.tpm", "devices.preferredTPM"},
		{"domain.devices.panicDevices", "devices.preferredPanicDeviceModel"},
		{"domain.features.apic", "features.preferredApic"},
		{"domain.features.hyperv", "features.preferredHyperv"},
		{"domain.features.kvm", "features.preferredKvm"},
		{"domain.features.pvspinlock", "features.preferredPvspinlock"},
		{"domain.features.smm", "features.preferredSmm"},
		{"domain.firmware.bootloader.efi", "firmware.preferredEfi"},
		{"domain.launchSecurity", "preferredLaunchSecurity"},
	} {
		rows = append(rows, mirrored(pair[0], "spec."+pair[1])...)
	}
	return rows
}

// supportTrees are the support tables by kind, as trees; those of "" are for every other kind; built at first use and never changed.
var supportTrees = sync.OnceValue(func() map[string]*supportNode {
	tree := func(parts ...[]Support) *supportNode {
		root := &supportNode{}
		root.add(objectSupport(), "")
		for _, rows := range parts {
			root.add(rows, "")
		}
		return root
	}
	set := tree(setSupport()[:3], metadataSupport("spec.template.metadata"))
	set.add(VMISupport(), "spec.template.spec.")
	pool := tree(setSupport(), metadataSupport("spec.virtualMachineTemplate.metadata"))
	addMachine(pool, "spec.virtualMachineTemplate.")
	machine, instanceOf := tree(), tree()
	addMachine(machine, "")
	instanceOf.add(VMISupport(), "spec.")
	volume := tree(volumeKindSupport())
	instance, prefer := tree(instancetypeSupport()), tree(preferenceSupport())
	return map[string]*supportNode{
		"": tree(), KindVirtualMachine: machine, KindVirtualMachineInstance: instanceOf, KindReplicaSet: set, KindPool: pool,
		KindInstancetype: instance, KindClusterInstancetype: instance, KindPreference: prefer, KindClusterPreference: prefer,
		KindDataVolume:            tree(dataVolumeSupport("spec")),
		KindPersistentVolumeClaim: tree(claimSupport("spec"), []Support{kept("spec.volumeAttributesClassName", "a host has one place for images")}),
		KindPersistentVolume:      volume,
	}
})

// addMachine adds the tables of a VirtualMachine whose fields are below prefix.
func addMachine(root *supportNode, prefix string) {
	root.add(VMSupport(), prefix)
	root.add(matcherSupport(), prefix)
	root.add([]Support{carried("spec.dataVolumeTemplates")}, prefix)
	root.add(metadataSupport("spec.dataVolumeTemplates.metadata"), prefix)
	root.add([]Support{ignored("spec.dataVolumeTemplates.status")}, prefix)
	root.add(dataVolumeSupport("spec.dataVolumeTemplates.spec"), prefix)
	root.add(metadataSupport("spec.template.metadata"), prefix)
	root.add(VMISupport(), prefix+"spec.template.spec.")
}
