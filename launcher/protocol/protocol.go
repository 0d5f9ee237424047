// Package protocol is what the launcher of a VM's Pod and those outside agree upon: the files in the folder that they share,
// which is a volume of the Pod, and how the launcher tells what became of the guest. docs/launcher.md tells it in prose.
package protocol

// Dir is the shared folder as the launcher sees it. For those outside it is a volume of the Pod; whatever runs in the Pod may
// write there, so they follow no link in it (OpenSocket).
const Dir = "/run/gitvirt"

// RuntimeVolume is the name of the Pod's volume, an emptyDir, that is the shared folder.
const RuntimeVolume = "gitvirt-runtime"

// HoldFile is the file of the shared folder that keeps a Pod whose guest has ended. The node agent makes it (Hold) before it stops a
// guest that it will start again in the same Pod, and removes it (Release) when the guest runs. While it is there no end of the guest
// ends the Pod; when it is removed while no guest runs, the last end counts. Its content means nothing.
const HoldFile = "hold"

// ConsolePipe is a named pipe in the shared folder: what a guest's serial port logs into it (<log file='...' append='on'/>) is
// printed by the launcher when it was asked to. It is there from the launcher's start, and read in any case.
const ConsolePipe = "console"

// Fate is what became of a guest.
type Fate string

// The fates.
const (
	Shutdown     Fate = "shutdown"      // it shut down, by itself or because it was asked to
	Migrated     Fate = "migrated"      // it runs elsewhere
	Saved        Fate = "saved"         // its state is in a file
	Crashed      Fate = "crashed"       // QEMU died, or the guest panicked and its domain says that this ends it
	Killed       Fate = "killed"        // it did not shut down within the grace time
	Destroyed    Fate = "destroyed"     // somebody switched it off
	NeverStarted Fate = "never-started" // the Pod was ended before a guest ran
	Failed       Fate = "failed"        // the launcher could not do its work
)

// The exit codes of the launcher. They stay away from 1 and 2 (of the launcher itself, and of its arguments) and from 126 on,
// which shells and container runtimes use.
const (
	exitOK           = 0
	exitFailed       = 1
	exitCrashed      = 10
	exitKilled       = 11
	exitDestroyed    = 12
	exitNeverStarted = 13
)

// Ending is what the launcher writes to the Pod's termination message, as one line of JSON.
type Ending struct {
	Fate Fate `json:"fate"`
	// Domain is the name of the guest's domain, if there was one.
	Domain string `json:"domain,omitempty"`
	// QEMU is how QEMU's process ended, such as "exit status 0" or "signal: killed", if that is known.
	QEMU string `json:"qemu,omitempty"`
	// Detail is for people.
	Detail string `json:"detail,omitempty"`
}

// ExitCode is what the launcher ends with.
func (e Ending) ExitCode() int {
	switch e.Fate {
	case Shutdown, Migrated, Saved:
		return exitOK
	case Crashed:
		return exitCrashed
	case Killed:
		return exitKilled
	case Destroyed:
		return exitDestroyed
	case NeverStarted:
		return exitNeverStarted
	default:
		return exitFailed
	}
}
