// Package host is the platform "host": VMs are domains of a host's libvirt, and a node agent carries out the steps.
// It follows the agent's view of the host, so that planning reads memory and calls nobody.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/internal/wire"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/plan"
)

// Host is one host behind its agent.
type Host struct {
	client   api.AgentClient
	observed atomic.Pointer[plan.Observed]
	changed  chan struct{}
}

// New returns the host behind a connection. It knows nothing until Follow runs.
func New(conn grpc.ClientConnInterface) *Host {
	h := &Host{client: api.NewAgentClient(conn), changed: make(chan struct{}, 1)}
	h.observed.Store(&plan.Observed{Unknown: "the agent has not answered yet"})
	return h
}

// Observed returns what lives on the host. The result is shared and must not be changed.
func (h *Host) Observed() plan.Observed { return *h.observed.Load() }

// Changed receives a value whenever Observed has something new; several changes may be one value.
func (h *Host) Changed() <-chan struct{} { return h.changed }

func (h *Host) publish(observed *plan.Observed) {
	h.observed.Store(observed)
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// reconnect is how long Follow waits before it asks an agent that went away again. The connection itself backs off.
const reconnect = 200 * time.Millisecond

// Follow keeps Observed up to date until ctx ends. While the agent is away the host is unknown.
func (h *Host) Follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		h.publish(&plan.Observed{Node: h.Observed().Node, Unknown: "the agent does not answer: " + reason(err)})
		select {
		case <-ctx.Done():
		case <-time.After(reconnect):
		}
	}
}

// ReadOnce waits until the agent has told everything, or that it cannot.
func (h *Host) ReadOnce(ctx context.Context) (plan.Observed, error) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { h.Follow(ctx) })
	defer following.Wait()
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return h.Observed(), fmt.Errorf("asking the agent: %w; %s", context.Cause(ctx), h.Observed().Unknown)
		case <-h.changed:
			if observed := h.Observed(); observed.Unknown == "" {
				return observed, nil
			}
		}
	}
}

// watch follows one stream of the agent to its end.
func (h *Host) watch(ctx context.Context) error {
	stream, err := h.client.Watch(ctx, &api.WatchRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	mirror := mirror{domains: map[string]*plan.Domain{}, foreign: map[string]plan.Foreign{}}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		if observed := mirror.take(event); observed != nil {
			h.publish(observed)
		}
	}
}

// Execute has the agent carry out one step.
func (h *Host) Execute(ctx context.Context, target apply.Target, step plan.Step, progress func(string)) error {
	request, err := requestOf(target, step)
	if err != nil {
		return fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	stream, err := h.client.Execute(ctx, request)
	if err != nil {
		return kindOf(ctx, err)
	}
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: the agent ended the step without a result", apply.ErrRetry)
		case err != nil:
			return kindOf(ctx, err)
		case event.GetDone():
			return nil
		}
		progress(event.GetProgress())
	}
}

// Check asks the agent what it makes of a step. Nothing is changed.
func (h *Host) Check(ctx context.Context, target apply.Target, step plan.Step) (apply.Findings, error) {
	request, err := requestOf(target, step)
	if err != nil {
		return apply.Findings{}, fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	response, err := h.client.Check(ctx, request)
	if err != nil {
		return apply.Findings{}, kindOf(ctx, err)
	}
	return apply.Findings{Problems: response.GetProblems(), NotLive: response.GetNotLive(), Warnings: response.GetWarnings()}, nil
}

func requestOf(target apply.Target, step plan.Step) (*api.ExecuteRequest, error) {
	request := &api.ExecuteRequest{
		Address: step.Address.String(), Domain: step.Domain, Precondition: step.Precondition, Define: step.Define,
		Replace: step.Action == plan.ActionReplace, Destroy: step.Action == plan.ActionDestroy,
		Power: string(step.Power), GraceSeconds: step.GraceSeconds,
		Live:   step.ReachesGuest(),
		Retire: step.Action == plan.ActionRetire, Adopt: step.Adopt,
	}
	if step.Previous != nil {
		request.Previous = step.Previous.String()
	}
	var err error
	request.Vm, err = wire.VM(target, &step)
	return request, err
}

// Await waits until a guest is ready. The agent says when the time is up; should it fail to, nobody waits much longer.
func (h *Host) Await(ctx context.Context, guest apply.Guest, timeout time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, timeout+awaitSlack)
	defer cancel()
	_, err := h.client.Await(limited, &api.AwaitRequest{
		Address: guest.Address.String(), Domain: guest.Domain, Ready: string(guest.Ready.Kind), Port: uint32(guest.Ready.Port), //nolint:gosec // a port
		TimeoutSeconds: max(int64(timeout/time.Second), 1),
	})
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.DeadlineExceeded, codes.FailedPrecondition, codes.InvalidArgument:
		return apply.NotReadyError{Reason: readiness(err), Never: status.Code(err) != codes.DeadlineExceeded}
	default:
		return kindOf(ctx, err)
	}
}

// readiness is the agent's reason without the words that every such answer begins with.
func readiness(err error) string {
	text := reason(err)
	for _, words := range []string{"it will not become ready: ", "it is not ready in time: "} {
		text = strings.TrimPrefix(text, words)
	}
	return text
}

// awaitSlack is how much longer than asked for an answer about a guest is waited for.
const awaitSlack = 10 * time.Second

// Console returns what a guest printed last on its serial console.
func (h *Host) Console(ctx context.Context, guest apply.Guest, lines int) ([]string, error) {
	response, err := h.client.ReadConsole(ctx, &api.ReadConsoleRequest{
		Address: guest.Address.String(), Domain: guest.Domain, Lines: uint32(max(lines, 0)), //nolint:gosec // a number of lines
	})
	if err != nil {
		return nil, fmt.Errorf("reading the console of %s: %s", guest.Address, reason(err))
	}
	return response.GetLines(), nil
}

// kindOf turns the agent's answer into the kinds of package apply. That the caller did not wait says nothing about the host.
func kindOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return apply.ErrLeft
	}
	kind := apply.ErrRetry
	switch status.Code(err) {
	case codes.Aborted:
		kind = apply.ErrStale
	case codes.InvalidArgument, codes.FailedPrecondition:
		kind = apply.ErrStalled
	default:
	}
	return fmt.Errorf("%w: %s", kind, reason(err))
}

func reason(err error) string {
	if err == nil {
		return "the stream ended"
	}
	return status.Convert(err).Message()
}

// Node describes the host.
func (h *Host) Node(ctx context.Context) (*api.Node, error) {
	node, err := h.client.GetNode(ctx, &api.GetNodeRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the agent about its host: %s", reason(err))
	}
	return node, nil
}

// ReadDomain returns the definition of a domain, gitvirt's or another's.
func (h *Host) ReadDomain(ctx context.Context, name string) (*api.ReadDomainResponse, error) {
	found, err := h.client.ReadDomain(ctx, &api.ReadDomainRequest{Name: name})
	if err != nil {
		return nil, fmt.Errorf("reading the domain %s: %s", name, reason(err))
	}
	return found, nil
}

// Disks lists the disks that hold data on the host.
func (h *Host) Disks(ctx context.Context) ([]*api.DataDisk, error) {
	response, err := h.client.ListDisks(ctx, &api.ListDisksRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing disks: %s", reason(err))
	}
	return response.GetDisks(), nil
}

// DeleteDisks deletes exactly the named disks and returns the ones that are gone.
func (h *Host) DeleteDisks(ctx context.Context, ids []string) ([]*api.DeletedDisk, error) {
	response, err := h.client.DeleteDisks(ctx, &api.DeleteDisksRequest{Ids: ids})
	if err != nil {
		return nil, fmt.Errorf("deleting disks: %s", reason(err))
	}
	return response.GetDeleted(), nil
}
