package libvirtrpc

// Error is an error of libvirt's (virError).
type Error struct {
	Code    int32 // virErrorNumber
	From    int32 // virErrorDomain
	Message string
}

func (e *Error) Error() string { return "libvirt: " + e.Message }

// State is a domain's state (virDomainState) and the reason of it, whose meaning depends on the state.
type State struct{ State, Reason int32 }

// Shutoff is the state of a domain that does not run (VIR_DOMAIN_SHUTOFF).
const Shutoff int32 = 5

// Active tells whether the domain runs, paused or not.
func (s State) Active() bool { return s.State != Shutoff }

// The reasons of Shutoff (virDomainShutoffReason) that say something.
const (
	ShutoffShutdown  int32 = 1
	ShutoffDestroyed int32 = 2
	ShutoffCrashed   int32 = 3
	ShutoffMigrated  int32 = 4
	ShutoffSaved     int32 = 5
	ShutoffFailed    int32 = 6
)

// Event is a change in a domain's life.
type Event struct {
	Domain string
	Kind   int32 // virDomainEventType
	Detail int32 // whose meaning depends on the kind
}

// The kinds of events that matter.
const (
	EventStarted int32 = 2
	EventStopped int32 = 5
)

// The details of EventStopped (virDomainEventStoppedDetailType).
const (
	StoppedShutdown  int32 = 0
	StoppedDestroyed int32 = 1
	StoppedCrashed   int32 = 2
	StoppedMigrated  int32 = 3
	StoppedSaved     int32 = 4
	StoppedFailed    int32 = 5 // QEMU is gone and had not said that the guest shut down
)
