package schemas

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

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

// ParseReady reads what annotations say: running, agent, tcp:PORT, cloud-init or probe.
func ParseReady(text string) (Ready, error) {
	word, port, hasPort := strings.Cut(text, ":")
	kind := ReadyKind(word)
	switch {
	case kind == ReadyTCP:
		n, err := strconv.ParseUint(port, 10, 16)
		if !hasPort || err != nil || n == 0 {
			return Ready{}, errors.New("tcp wants a port from 1 to 65535, as in tcp:22")
		}
		return Ready{Kind: ReadyTCP, Port: int32(n)}, nil
	case hasPort:
	case slices.Contains(readyKinds(), kind):
		return Ready{Kind: kind}, nil
	}
	return Ready{}, fmt.Errorf("%s is not one of running, agent, tcp:PORT, cloud-init, probe", quoteValue(text))
}

func readyKinds() []ReadyKind {
	return []ReadyKind{ReadyRunning, ReadyAgent, ReadyTCP, ReadyCloudInit, ReadyProbe}
}

// String writes it as ParseReady reads it; empty for the zero value.
func (r Ready) String() string {
	if r.Kind == ReadyTCP {
		return string(r.Kind) + ":" + strconv.Itoa(int(r.Port))
	}
	return string(r.Kind)
}
