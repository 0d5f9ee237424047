package plan

import "slices"

func none(about string, paths ...string) []Row {
	return rowsOf(Row{Consequence: ConsequenceNone, About: about}, paths...)
}

func restart(about string, paths ...string) []Row {
	return rowsOf(Row{Consequence: ConsequenceRestart, About: about}, paths...)
}

func nextBoot(about string, paths ...string) []Row {
	return rowsOf(Row{Consequence: ConsequenceNextBoot, About: about}, paths...)
}

func rowsOf(row Row, paths ...string) []Row {
	rows := make([]Row, len(paths))
	for i, path := range paths {
		rows[i] = row
		rows[i].Path = path
	}
	return rows
}

// aroundRows are what a machine has around its guest.
func aroundRows() []Row {
	const placed = "it places a Pod; nothing on a libvirt host depends on it"
	return slices.Concat(
		none("it is kept with the machine; the guest sees nothing of it", "metadata"),
		none("the power follows by itself: the step says so", "spec.runStrategy", "spec.running"),
		none("what it sets is compared field by field", "spec.instancetype", "spec.preference"),
		none("the claims that it makes are compared as claims", "spec.dataVolumeTemplates"),
		none("volumes are exchanged as their own rows say", "spec.updateVolumesStrategy"),
		none(placed, "spec.affinity", "spec.nodeSelector", "spec.schedulerName", "spec.tolerations", "spec.topologySpreadConstraints",
			"spec.priorityClassName", "spec.evictionStrategy", "spec.serviceAccountName", "spec.dnsPolicy", "spec.dnsConfig"),
		none("it is read when the guest is shut down next", "spec.terminationGracePeriodSeconds"),
		none("the host asks the guest from outside", "spec.livenessProbe", "spec.readinessProbe"),
		restart("it is refused on a libvirt host", "spec.resourceClaims", "spec.utilityVolumes"),
		nextBoot("it is read when the guest is started next", "spec.startStrategy"),
	)
}

// guestRows are what the guest reads about itself.
func guestRows() []Row {
	return slices.Concat(
		restart("the guest reads its name when it boots", "spec.hostname", "spec.subdomain"),
		[]Row{{
			Path: "spec.accessCredentials", Consequence: ConsequenceLive, holds: throughGuestAgent,
			When:  "all of them go through the guest agent",
			About: "the guest agent writes keys and passwords while the guest runs; cloud-init reads them when it boots",
		}},
	)
}

// boardRows are CPU, memory, board and firmware.
func boardRows() []Row {
	return slices.Concat(
		restart("it is another machine", "spec.architecture", "spec.domain.machine"),
		restart("the CPU of a running guest stays what it is", "spec.domain.cpu"),
		[]Row{{
			Path: "spec.domain.cpu.sockets", Consequence: ConsequenceLive, Needs: []LiveChange{LiveCPU}, holds: moreSockets,
			When:  "there are more sockets than before, and no more than the guest was started for (`maxSockets`); no queues, I/O threads or places of CPUs depend on their number",
			About: "sockets are plugged into the running guest; taking them out needs its help, so that waits for a restart",
		}},
		nextBoot("it is the room to grow that the guest gets when it is started next", "spec.domain.cpu.maxSockets", "spec.domain.memory.maxGuest"),
		restart("the memory of a running guest keeps what it is made of", "spec.domain.memory"),
		[]Row{{
			Path: "spec.domain.memory.guest", Consequence: ConsequenceLive, Needs: []LiveChange{LiveBalloon, LiveMemory}, holds: memoryInReach,
			When:  "it is what the balloon can give back or take, or up to what the guest was started for (`maxGuest`), in pieces of 2Mi, not on huge pages, on amd64 with a free PCI slot",
			About: "the balloon takes memory from the running guest and gives it back; more than it was started with is plugged in",
		}},
		none("it sizes KubeVirt's Pod", "spec.domain.memory.reservedOverhead", "spec.domain.resources.overcommitGuestOverhead"),
		[]Row{{
			Path: "spec.domain.resources", Consequence: ConsequenceNone, holds: resourcesSizeNothing,
			When:  "`ioThreadsPolicy` is not `auto`",
			About: "what follows for CPUs and memory is compared as `cpu.sockets` and `memory.guest`; nothing else is made of it on a libvirt host",
		}},
		restart("the guest reads it from its SMBIOS tables when it boots", "spec.domain.chassis", "spec.domain.firmware.serial"),
		restart("it is how the running guest counts time", "spec.domain.clock"),
		restart("features are part of the machine that the guest booted on", "spec.domain.features"),
		restart("the guest boots with it", "spec.domain.firmware"),
		none("it is used when the image is fetched next", "spec.domain.firmware.kernelBoot.container.imagePullPolicy",
			"spec.domain.firmware.kernelBoot.container.imagePullSecret"),
		rowsOf(Row{Consequence: ConsequenceReplace, About: "libvirt knows a domain by its UUID: the domain is made anew"}, "spec.domain.firmware.uuid"),
		restart("threads for I/O are laid out when the guest is started", "spec.domain.ioThreads", "spec.domain.ioThreadsPolicy"),
		restart("memory is encrypted from the start on", "spec.domain.launchSecurity"),
		none("an attestation does not change the machine", "spec.domain.launchSecurity.sev.attestation"),
		restart("QEMU is told when the guest is started", "spec.domain.rebootPolicy"),
	)
}

// deviceRows are what is plugged into the machine.
func deviceRows() []Row {
	devices := func(names ...string) []string {
		for i := range names {
			names[i] = "spec.domain.devices." + names[i]
		}
		return names
	}
	return slices.Concat(
		restart("the device is part of the machine from its start on", devices("autoattachGraphicsDevice", "autoattachInputDevice",
			"autoattachMemBalloon", "autoattachPodInterface", "autoattachSerialConsole", "autoattachVSOCK", "clientPassthrough",
			"downwardMetrics", "filesystems", "gpus", "hostDevices", "inputs", "logSerialConsole", "panicDevices", "rng", "sound", "tpm",
			"useVirtioTransitional", "video", "watchdog", "disableHotplug")...),
		restart("queues are laid out when the guest is started", devices("blockMultiQueue", "networkInterfaceMultiqueue")...),
		[]Row{{
			Path: "spec.domain.devices.disks", Consequence: ConsequenceLive, Needs: []LiveChange{LiveDisk}, Whole: true, holds: diskPlug,
			When: "a whole disk comes or goes, with its volume: on virtio with a free PCI slot, on SCSI, or on USB where the guest has USB; " +
				"it names no boot order, PCI address, tag, block size or I/O thread",
			About: "disks are plugged in and out; how one is attached is decided when it is plugged in",
		}},
		nextBoot("the firmware reads it when the guest boots", devices("disks.bootOrder", "interfaces.bootOrder")...),
		[]Row{{
			Path: "spec.domain.devices.interfaces", Consequence: ConsequenceLive, Needs: []LiveChange{LiveInterface}, Whole: true, holds: interfacePlug,
			When: "a whole interface comes or goes, with its network: virtio or e1000e with a free PCI slot; it is no device of the host and not passt, " +
				"and names no boot order, PCI address or tag",
			About: "interfaces are plugged in and out; what one is connected to is decided when it is plugged in",
		}, {
			Path: "spec.domain.devices.interfaces.state", Consequence: ConsequenceLive, Needs: []LiveChange{LiveLink, LiveInterface}, holds: linkState,
			When:  "the link goes up or down; `absent` is an interface that comes or goes",
			About: "it is as if the cable were pulled or put back",
		}},
		rowsOf(Row{Consequence: ConsequenceLive, About: "the host forwards ports, whatever the guest does"},
			devices("interfaces.ports", "interfaces.portRanges")...),
		none("nothing on a libvirt host reads it", devices("interfaces.dhcpOptions")...),
	)
}

// volumeRows are what disks and interfaces are connected to.
func volumeRows() []Row {
	return slices.Concat(
		[]Row{{
			Path: "spec.networks", Consequence: ConsequenceLive, Needs: []LiveChange{LiveInterface}, Whole: true, holds: networkPlug,
			When:  "it comes or goes with its interface",
			About: "an interface stays connected to what it was plugged into",
		}},
		none("every network is a libvirt network", "spec.networks.multus.default"),
		none("only the order of disks and interfaces counts", "spec.volumes.order", "spec.networks.order"),
		[]Row{{
			Path: "spec.volumes", Consequence: ConsequenceLive, Needs: []LiveChange{LiveDisk, LiveMedia}, Whole: true, holds: volumePlug,
			When:  "it comes or goes with its disk, or the disk is a CD-ROM: then it is inserted or ejected (not what is made for cloud-init or sysprep)",
			Loses: "what the guest could write to a containerDisk or ephemeral volume goes from the machine",
			About: "a disk stays connected to what it was plugged in with",
		}, {
			Path: "spec.volumes.containerDisk", Consequence: ConsequenceLive, Needs: []LiveChange{LiveMedia}, Seldom: true, holds: mediaChange,
			When:  "the disk is a CD-ROM",
			Loses: "the volume becomes one of another kind, and the guest could write to it",
			About: "a CD-ROM takes another image; a disk is made anew from it when the guest is started",
		}, {
			Path: "spec.volumes.ephemeral", Consequence: ConsequenceLive, Needs: []LiveChange{LiveMedia}, Seldom: true, holds: mediaChange,
			When:  "the disk is a CD-ROM",
			Loses: "the volume becomes one of another kind, and the guest could write to it",
			About: "a CD-ROM takes another image; a disk is made anew from it when the guest is started",
		}},
		restart("the guest reads it when it boots", "spec.volumes.cloudInitNoCloud", "spec.volumes.cloudInitConfigDrive", "spec.volumes.sysprep",
			"spec.volumes.downwardAPI", "spec.volumes.downwardMetrics"),
		rowsOf(Row{
			Consequence: ConsequenceLive, Needs: []LiveChange{LiveMedia}, Seldom: true, holds: mediaChange,
			When:  "the disk is a CD-ROM",
			About: "a CD-ROM with other files is inserted; the guest reads what else is made of them when it boots",
		}, "spec.volumes.configMap", "spec.volumes.secret"),
		none("a libvirt host has no tokens: it holds the namespace, whoever is named", "spec.volumes.serviceAccount"),
		none("it is used when the image is fetched next", "spec.volumes.containerDisk.imagePullPolicy", "spec.volumes.containerDisk.imagePullSecret"),
		rowsOf(Row{
			Consequence: ConsequenceLive, Needs: []LiveChange{LiveDiskGrow}, holds: diskGrows,
			When:  "it grows and the disk is no CD-ROM; a disk never shrinks, and that of a PersistentVolume keeps its size",
			About: "the running guest is told that its disk has grown",
		}, "spec.volumes.emptyDisk.capacity", "claims.capacity"),
		none("it sizes a disk that is made; one that exists keeps its size", "spec.volumes.hostDisk.capacity"),
		none("whether a volume can be unplugged follows from its disk", "spec.volumes.persistentVolumeClaim.hotpluggable", "spec.volumes.dataVolume.hotpluggable"),
		none("all files are read-only to the guest, whatever their mode", "spec.volumes.downwardAPI.fields.mode"),
	)
}

// recordRows are what a machine's record has beside its manifest: claims, and digests of what Secrets and ConfigMaps hold.
func recordRows() []Row {
	return slices.Concat(
		[]Row{{
			Path: "claims", Consequence: ConsequenceLive, Needs: []LiveChange{LiveDisk, LiveMedia}, Whole: true, holds: claimPlug,
			When:  "it comes or goes with its volume",
			About: "a disk stays connected to the claim that it was plugged in with",
		}},
		none("it fills an image that is made; one that exists stays as it is", "claims.source"),
		none("nothing in the machine depends on it", "claims.shared"),
		[]Row{{
			Path: "secrets", Consequence: ConsequenceLive, Needs: []LiveChange{LiveMedia}, holds: secretContent,
			When:  "it is an access credential, and all of them go through the guest agent; or it is what a CD-ROM holds, and not for cloud-init or sysprep",
			About: "a CD-ROM with other files is inserted; the guest reads what else is made of a Secret when it boots",
		}, {
			Path: "contents", Consequence: ConsequenceLive, Needs: []LiveChange{LiveMedia}, Seldom: true, holds: mediumContent,
			When:  "it is what a CD-ROM holds, and not for cloud-init or sysprep",
			About: "a CD-ROM with other files is inserted; the guest reads what else is made of a ConfigMap when it boots",
		}},
		none("the domain changes hands, the guest does not notice", "fleet", "source"),
	)
}
