package nodeagent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// PodLive remembers for the agents of a node's Pods what can be done for running guests. libvirt has to judge a handful of domains for that, in
// each Pod before its guest starts, and says the same wherever libvirt and QEMU have the same versions.
type PodLive struct {
	mu    sync.Mutex
	known map[string][]hypervisor.LiveChange
}

// versioned is a hypervisor that tells its versions, as libvirt does.
type versioned interface {
	Version(ctx context.Context) (libvirtVersion, qemuVersion string, err error)
}

// of returns what can be done in a Pod. What its libvirt says is remembered for others only while no guest has run there, so that it is no
// guest's word; untouched tells whether that is so.
func (l *PodLive) of(ctx context.Context, pod PodHypervisor, domainType string, untouched func() bool) ([]hypervisor.LiveChange, error) {
	source, ok := pod.(versioned)
	if l == nil || !ok {
		return pod.LiveChanges(ctx, domainType)
	}
	daemon, qemu, err := source.Version(ctx)
	if err != nil {
		return pod.LiveChanges(ctx, domainType)
	}
	key := strings.Join([]string{daemon, qemu, domainType}, " ")
	l.mu.Lock()
	able, known := l.known[key]
	l.mu.Unlock()
	if known {
		return slices.Clone(able), nil
	}
	able, err = pod.LiveChanges(ctx, domainType)
	if err != nil || !untouched() {
		return able, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = map[string][]hypervisor.LiveChange{}
	}
	l.known[key] = slices.Clone(able)
	return able, nil
}

// LiveChanges implements hypervisor.Hypervisor.
func (o *oneDomain) LiveChanges(ctx context.Context, domainType string) ([]hypervisor.LiveChange, error) {
	return o.live.of(ctx, o.PodHypervisor, domainType, o.untouched)
}

// untouched tells whether no guest has been started in a Pod yet, by the file that is made before the first one is.
func untouched(first string) bool {
	_, err := os.Lstat(first)
	return errors.Is(err, fs.ErrNotExist)
}
