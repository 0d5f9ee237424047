package nodeagent

import (
	"context"
	"slices"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// pending is since when the running guest has been without what is configured, when it is without that once a record is
// defined: a second change does not make the wait look shorter.
func (e *execution) pending(record *domainxml.Record) int64 {
	if !e.active() || e.now.running == nil || e.now.running.Hash == record.Hash {
		return 0
	}
	if before := e.now.record; before != nil && before.Pending != 0 && before.Hash != e.now.running.Hash {
		return before.Pending
	}
	return e.agent.config.Now().Unix()
}

// acquaint notes in which ways a guest differs from its definition that was started a moment ago from a definition that did
// not differ from its record. A libvirt that makes something of a definition which this agent has never seen would otherwise
// be corrected again and again, by one restart after the other.
func (e *execution) acquaint(ctx context.Context, record *domainxml.Record) error {
	if err := e.read(ctx); err != nil {
		return err
	}
	if !e.active() || len(e.now.changes) > 0 || len(e.now.conclusions.running) == 0 {
		return nil
	}
	for _, change := range e.now.conclusions.running {
		record.Native = append(record.Native, change.GetPath())
	}
	return e.mark(ctx, record)
}

// native is what acquaint noted of the guest that runs; a definition that it gets live says so too.
func (e *execution) native() []string {
	if !e.active() || e.now.running == nil {
		return nil
	}
	return e.now.running.Native
}

// restore undoes in the running guest what somebody changed in it. The definition is not touched: the guest becomes what its
// own record tells of. A device that was plugged in is taken away, its file stays where it is.
func (e *execution) restore(ctx context.Context) error {
	if !e.changesGuest() || e.now.running == nil || len(e.now.conclusions.running) == 0 {
		return nil
	}
	e.restoring = true
	record := e.now.record
	operations, err := e.operations(ctx, record)
	if err != nil {
		return err
	}
	if err := e.carryOut(ctx, record, operations); err != nil {
		return err
	}
	if err := e.read(ctx); err != nil {
		return err
	}
	if left := e.now.conclusions.running; len(left) > 0 {
		return e.refuse(record, &notLiveError{left[0].GetPath() + " cannot be undone while the guest runs"})
	}
	return nil
}

// foreignTo leaves out of what differs in a running guest what it had from its start.
func foreignTo(record *domainxml.Record, changes []*api.Change) []*api.Change {
	if len(record.Native) == 0 {
		return changes
	}
	return slices.DeleteFunc(changes, func(change *api.Change) bool { return slices.Contains(record.Native, change.GetPath()) })
}
