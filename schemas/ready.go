package schemas

// ReadyKind is how it is told that a guest is ready.
type ReadyKind string

// The closed set of kinds.
const (
	ReadyRunning   ReadyKind = "running"    // the guest runs
	ReadyAgent     ReadyKind = "agent"      // its guest agent answers
	ReadyTCP       ReadyKind = "tcp"        // a TCP port of it takes connections
	ReadyCloudInit ReadyKind = "cloud-init" // its first boot is done
	ReadyProbe     ReadyKind = "probe"      // its readiness probe succeeds
)

// Ready is when a machine counts as ready. The zero value means that its readiness probe decides where it has one, and
// otherwise that it runs.
type Ready struct {
	Kind ReadyKind `json:"kind"`
	// Port is the port of ReadyTCP.
	Port int32 `json:"port,omitempty"`
}
