package nodeagent

import (
	"context"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// keeper sees to what is around a guest when a step stops it and starts it again: in a Pod the end of the guest is the Pod's, unless
// somebody holds it.
type keeper interface {
	// hold is called before the guest is stopped that the same step starts again. Holding twice is holding once.
	hold() error
	// release is called when the guest runs. Releasing what is not held succeeds.
	release() error
	// starting is called before a guest is started, with its record. What it cannot do costs time and nothing else.
	starting(ctx context.Context, record *domainxml.Record)
}

// noKeeper is that of a host, where guests come and go.
type noKeeper struct{}

func (noKeeper) hold() error                                 { return nil }
func (noKeeper) release() error                              { return nil }
func (noKeeper) starting(context.Context, *domainxml.Record) {}
