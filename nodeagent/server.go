package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/capabilities"
	"github.com/gitvirt/gitvirt/nodeagent/cpus"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/hostdevices"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/images"
	"github.com/gitvirt/gitvirt/nodeagent/imports"
)

// stepLimit is how long one step may go without progress, beside the guest's grace period. There is no limit on the whole:
// importing a large image takes hours.
const stepLimit = 30 * time.Minute

// Server is the agent's gRPC service.
type Server struct {
	api.UnimplementedAgentServer
	agent *Agent
	// life ends steps that are on their way when the agent stops; a caller that goes away does not.
	life context.Context //nolint:containedctx // the lifetime of the process, not of a call
}

// NewServer returns the service of an agent. Steps run until they are done or life ends, even when their caller goes
// away, so that nothing is left half done because a controller restarted.
func NewServer(life context.Context, agent *Agent) *Server {
	return &Server{agent: agent, life: life}
}

// GetNode describes the host.
func (s *Server) GetNode(ctx context.Context, _ *api.GetNodeRequest) (*api.Node, error) {
	node := &api.Node{Name: s.agent.config.Node, StateDir: s.agent.config.StateDir, DomainType: s.agent.config.DomainType}
	if s.agent.config.Describe != nil {
		s.agent.config.Describe(ctx, node)
	}
	return node, nil
}

// Watch sends what lives on the host and every change of it.
func (s *Server) Watch(_ *api.WatchRequest, stream api.Agent_WatchServer) error {
	w := s.agent.view.subscribe()
	defer s.agent.view.unsubscribe(w)
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.life.Done():
			return status.Error(codes.Unavailable, "the agent stops")
		case <-w.wake:
		}
		if err := s.send(stream, s.agent.view.take(w)); err != nil {
			return err
		}
	}
}

func (s *Server) send(stream api.Agent_WatchServer, next update) error {
	if next.unknown != "" {
		return stream.Send(&api.WatchEvent{Event: &api.WatchEvent_Unknown{Unknown: next.unknown}})
	}
	for _, name := range next.names {
		event := &api.WatchEvent{Event: &api.WatchEvent_Gone{Gone: name}}
		switch message := next.message(name).(type) {
		case *api.Domain:
			event.Event = &api.WatchEvent_Domain{Domain: message}
		case *api.Foreign:
			event.Event = &api.WatchEvent_Foreign{Foreign: message}
		}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	return stream.Send(&api.WatchEvent{Event: &api.WatchEvent_Synced{Synced: &api.Synced{
		Node: s.agent.config.Node, Complete: next.complete, Capabilities: &api.Capabilities{Live: next.able},
	}}})
}

// Execute carries out one step and reports its progress.
func (s *Server) Execute(request *api.ExecuteRequest, stream api.Agent_ExecuteServer) error {
	limit := stepLimit + time.Duration(request.GetGraceSeconds())*time.Second
	ctx, cancel := context.WithCancelCause(s.life)
	defer cancel(nil)
	patience := time.AfterFunc(limit, func() { cancel(fmt.Errorf("the step told of no progress for %s", limit)) })
	defer patience.Stop()
	progress := make(chan string, 16)
	type outcome struct {
		fingerprint string
		err         error
	}
	done := make(chan outcome, 1)
	go func() {
		fingerprint, err := s.agent.Execute(ctx, request, func(text string) {
			patience.Reset(limit)
			select {
			case progress <- text:
			default: // nobody is waiting for every word
			}
		})
		done <- outcome{fingerprint, err}
	}()
	for {
		select {
		case text := <-progress:
			_ = stream.Send(&api.ExecuteEvent{Progress: text}) // a caller that went away does not stop the step
		case result := <-done:
			for len(progress) > 0 {
				_ = stream.Send(&api.ExecuteEvent{Progress: <-progress})
			}
			if result.err != nil {
				return StatusOf(result.err)
			}
			return stream.Send(&api.ExecuteEvent{Done: true, Fingerprint: result.fingerprint})
		}
	}
}

// Check says what would keep a step from being carried out, and changes nothing.
func (s *Server) Check(ctx context.Context, request *api.ExecuteRequest) (*api.CheckResponse, error) {
	found, err := s.agent.Check(ctx, request)
	if err != nil {
		return nil, StatusOf(err)
	}
	return &api.CheckResponse{Problems: found.Problems, NotLive: found.NotLive, Warnings: found.Warnings}, nil
}

// StatusOf turns an error of an Agent into the code that tells the caller what to do about it.
func StatusOf(err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, ErrStale), errors.Is(err, ErrNotLive):
		code = codes.Aborted
	case errors.Is(err, ErrInvalid), errors.Is(err, imports.ErrRefused), errors.Is(err, hypervisor.ErrInvalid), errors.Is(err, hypervisor.ErrConflict):
		code = codes.InvalidArgument
	case errors.Is(err, disks.ErrShrink), errors.Is(err, disks.ErrForbidden), errors.Is(err, diskfile.ErrForeignData),
		errors.Is(err, images.ErrInvalid), errors.Is(err, images.ErrTooLarge),
		errors.Is(err, capabilities.ErrMissing), errors.Is(err, hostdevices.ErrUnavailable), errors.Is(err, cpus.ErrTooFew):
		code = codes.FailedPrecondition
	case errors.Is(err, ErrNeverReady):
		code = codes.FailedPrecondition
	case errors.Is(err, ErrNotReadyInTime):
		code = codes.DeadlineExceeded
	case errors.Is(err, diskfile.ErrNoSpace):
		code = codes.ResourceExhausted
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}

// Await waits until a guest is ready; it changes nothing and so ends with its caller.
func (s *Server) Await(ctx context.Context, request *api.AwaitRequest) (*api.AwaitResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	message, err := s.agent.Await(ctx, request)
	if err != nil {
		if s.life.Err() != nil {
			return nil, status.Error(codes.Unavailable, "the agent stops")
		}
		return nil, StatusOf(err)
	}
	return &api.AwaitResponse{Message: message}, nil
}

// ReadConsole returns the last lines of a guest's serial console.
func (s *Server) ReadConsole(ctx context.Context, request *api.ReadConsoleRequest) (*api.ReadConsoleResponse, error) {
	lines, err := s.agent.ReadConsole(ctx, request)
	if err != nil {
		return nil, StatusOf(err)
	}
	return &api.ReadConsoleResponse{Lines: lines}, nil
}

// Console is a guest's serial console.
func (s *Server) Console(stream api.Agent_ConsoleServer) error {
	return ServeConsole(s.life, stream, s.agent.OpenConsole)
}

// ReadStatistics returns what a running guest uses.
func (s *Server) ReadStatistics(ctx context.Context, request *api.ReadStatisticsRequest) (*api.Statistics, error) {
	found, err := s.agent.ReadStatistics(ctx, request)
	if err != nil {
		return nil, StatusOfGuest(err)
	}
	return found, nil
}

// ReadDomain returns the definition of a domain.
func (s *Server) ReadDomain(ctx context.Context, request *api.ReadDomainRequest) (*api.ReadDomainResponse, error) {
	found, err := s.agent.ReadDomain(ctx, request.GetName())
	if err != nil {
		return nil, StatusOf(err)
	}
	return found, nil
}

// ListDisks lists every disk that holds data.
func (s *Server) ListDisks(ctx context.Context, _ *api.ListDisksRequest) (*api.ListDisksResponse, error) {
	found, err := s.agent.Disks(ctx)
	if err != nil {
		return nil, StatusOf(err)
	}
	return &api.ListDisksResponse{Disks: found}, nil
}

// DeleteDisks deletes exactly the named disks.
func (s *Server) DeleteDisks(ctx context.Context, request *api.DeleteDisksRequest) (*api.DeleteDisksResponse, error) {
	deleted, err := s.agent.DeleteDisks(ctx, request.GetIds())
	if err != nil {
		return nil, StatusOf(err)
	}
	return &api.DeleteDisksResponse{Deleted: deleted}, nil
}
