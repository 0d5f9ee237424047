package hypervisor

// LiveChange is something that can be done for a running guest, in the words of the agent's API (Capabilities) and of plans.
type LiveChange string

// The closed set of live changes.
const (
	LiveCPU       LiveChange = "cpu-plug"
	LiveMemory    LiveChange = "memory-plug" // with virtio-mem devices
	LiveBalloon   LiveChange = "balloon"
	LiveDisk      LiveChange = "disk-plug"
	LiveDiskGrow  LiveChange = "disk-grow"
	LiveMedia     LiveChange = "media"
	LiveInterface LiveChange = "interface-plug"
	LiveLink      LiveChange = "link"
)

// LiveChanges are all of them, in the order in which hosts name them.
func LiveChanges() []LiveChange {
	return []LiveChange{LiveCPU, LiveMemory, LiveBalloon, LiveDisk, LiveDiskGrow, LiveMedia, LiveInterface, LiveLink}
}
