package podagent

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// reader is a Guest that shows what it has.
type reader interface {
	ReadConsole(ctx context.Context, request *api.ReadConsoleRequest) ([]string, error)
	ReadDomain(ctx context.Context, name string) (*api.ReadDomainResponse, error)
	OpenConsole(ctx context.Context, request *api.ConsoleInput) (hypervisor.Console, error)
	ReadStatistics(ctx context.Context, request *api.ReadStatisticsRequest) (*api.Statistics, error)
}

var _ reader = (*nodeagent.Agent)(nil)

// Server is the agent's gRPC service: it shows what the Pods of the node have. Steps do not come this way: the controller writes them on
// the Pods, signed.
type Server struct {
	api.UnimplementedAgentServer
	agent    *Agent
	describe func(ctx context.Context, node *api.Node)
}

// NewServer returns the service of an agent; describe fills in what GetNode answers about the node.
func NewServer(agent *Agent, describe func(ctx context.Context, node *api.Node)) *Server {
	return &Server{agent: agent, describe: describe}
}

// GetNode describes the node.
func (s *Server) GetNode(ctx context.Context, _ *api.GetNodeRequest) (*api.Node, error) {
	node := &api.Node{Name: s.agent.config.Node, StateDir: s.agent.config.StateDir}
	s.describe(ctx, node)
	return node, nil
}

// Execute is refused.
func (s *Server) Execute(*api.ExecuteRequest, api.Agent_ExecuteServer) error {
	return status.Error(codes.PermissionDenied, "on Kubernetes the controller writes steps on Pods; this agent takes none from anybody else")
}

// ReadConsole returns the last lines of a guest's serial console.
func (s *Server) ReadConsole(ctx context.Context, request *api.ReadConsoleRequest) (*api.ReadConsoleResponse, error) {
	found, err := s.guest(request.GetAddress())
	if err != nil {
		return nil, err
	}
	lines, err := found.ReadConsole(ctx, request)
	if err != nil {
		return nil, nodeagent.StatusOf(err)
	}
	return &api.ReadConsoleResponse{Lines: lines}, nil
}

// Console is a guest's serial console. Who had it is logged.
func (s *Server) Console(stream api.Agent_ConsoleServer) error {
	log := s.agent.config.Logger.With("by", api.CallerName(stream.Context()))
	opened := false
	err := nodeagent.ServeConsole(stream.Context(), stream, func(ctx context.Context, first *api.ConsoleInput) (hypervisor.Console, error) {
		log = log.With("vm", first.GetAddress())
		found, err := s.guest(first.GetAddress())
		if err != nil {
			return nil, err
		}
		console, err := found.OpenConsole(ctx, &api.ConsoleInput{Address: first.GetAddress(), Force: first.GetForce()})
		if opened = err == nil; opened {
			log.Info("a console is opened", "force", first.GetForce())
		}
		return console, err
	})
	if opened {
		log.Info("a console is closed")
	}
	return err
}

// ReadStatistics returns what a running guest uses.
func (s *Server) ReadStatistics(ctx context.Context, request *api.ReadStatisticsRequest) (*api.Statistics, error) {
	found, err := s.guest(request.GetAddress())
	if err != nil {
		return nil, err
	}
	statistics, err := found.ReadStatistics(ctx, &api.ReadStatisticsRequest{Address: request.GetAddress()})
	if err != nil {
		return nil, nodeagent.StatusOfGuest(err)
	}
	return statistics, nil
}

// ReadDomain returns the definition of a domain.
func (s *Server) ReadDomain(ctx context.Context, request *api.ReadDomainRequest) (*api.ReadDomainResponse, error) {
	found, err := s.find(func(known *state) bool {
		return known.sight != nil && known.sight.Domain.GetName() == request.GetName()
	}, request.GetName())
	if err != nil {
		return nil, err
	}
	domain, err := found.ReadDomain(ctx, request.GetName())
	if err != nil {
		return nil, nodeagent.StatusOf(err)
	}
	return domain, nil
}

// guest returns the agent of a machine's Pod.
func (s *Server) guest(address string) (reader, error) {
	return s.find(func(known *state) bool { return known.step.Address == address }, address)
}

// find returns the agent of the Pod whose state is asked for.
func (s *Server) find(is func(*state) bool, name string) (reader, error) {
	here := false
	for _, w := range s.agent.all() {
		known := w.known()
		if known.step == nil || !is(&known) {
			continue
		}
		if found, ok := known.ready.guest.(reader); ok {
			return found, nil
		}
		here = true // or was: its next Pod may be here as well
	}
	if here {
		return nil, status.Errorf(codes.Unavailable, "the Pod of %s is not running", name)
	}
	return nil, status.Errorf(codes.NotFound, "%s is not on this node", name)
}
