package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/identity"
)

// DefaultPort is where agents listen for callers from other machines.
const DefaultPort = 9473

// handshakes are TLS with certificates on both sides. Each connection is made with what the Source has then, so that certificates and the
// authority may change while a server serves and while a client has lost its connection.
type handshakes struct {
	config  func() (*tls.Config, error)
	refused func(error)
}

// ClientHandshake implements credentials.TransportCredentials. The name that is verified is the node's, whatever the address is.
func (h handshakes) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := h.config()
	if err != nil {
		return nil, nil, err
	}
	secured, info, err := credentials.NewTLS(config).ClientHandshake(ctx, config.ServerName, conn)
	return secured, info, h.count(conn, err)
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshakes) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := h.config()
	if err != nil {
		return nil, nil, err
	}
	secured, info, err := credentials.NewTLS(config).ServerHandshake(conn)
	return secured, info, h.count(conn, err)
}

// count tells of a handshake that failed.
func (h handshakes) count(conn net.Conn, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("connection with %s: %w", conn.RemoteAddr(), err)
	h.refused(err)
	return err
}

// Info implements credentials.TransportCredentials.
func (handshakes) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (h handshakes) Clone() credentials.TransportCredentials { return h }

// OverrideServerName implements credentials.TransportCredentials.
func (handshakes) OverrideServerName(string) error { return nil }

// Access is what a caller wants to do with one VM, in the words by which Kubernetes gives rights to its Pod.
type Access struct {
	Verb, Subresource string
	// Address is that of the VM, such as "VirtualMachine/default/web".
	Address string
}

// Authorizer decides what people may do. The controller is not asked about.
type Authorizer interface {
	// Authorize returns an error with identity.ErrRefused when the peer may not.
	Authorize(ctx context.Context, peer identity.Peer, access Access) error
}

// AuthorizerFunc is a function that is an Authorizer.
type AuthorizerFunc func(ctx context.Context, peer identity.Peer, access Access) error

// Authorize implements Authorizer.
func (f AuthorizerFunc) Authorize(ctx context.Context, peer identity.Peer, access Access) error {
	return f(ctx, peer, access)
}

// personal are the calls that people may be allowed, each about one VM: who may attach to a Pod may have its guest's console, and who
// may read it may know what its guest uses. All others are the controller's.
func personal(method string) (verb, subresource string, ok bool) {
	switch method {
	case "ReadConsole", "Console":
		return "create", "attach", true
	case "ReadStatistics":
		return "get", "", true
	}
	return "", "", false
}

// NewTLSServer returns a server for callers from other machines, who show certificates. Whoever has none that will do is told to refused, as is
// a call that the caller has no right to; each is an error that identity.Reason has a word for.
func NewTLSServer(source identity.Source, authorizer Authorizer, refused func(error)) *grpc.Server {
	allow := func(ctx context.Context, method string, message any) error {
		err := authorize(ctx, authorizer, path.Base(method), message)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, identity.ErrRefused):
			refused(err)
			return status.Error(codes.PermissionDenied, err.Error())
		}
		return status.Error(codes.Unavailable, err.Error())
	}
	return grpc.NewServer(
		grpc.Creds(handshakes{func() (*tls.Config, error) { return identity.ServerTLS(source) }, refused}), grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(func(ctx context.Context, message any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := allow(ctx, info.FullMethod, message); err != nil {
				return nil, err
			}
			return handle(ctx, message)
		}),
		// What a stream is about is in its first message, which comes after its start.
		grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			if _, _, ok := personal(path.Base(info.FullMethod)); ok {
				return handle(server, &guarded{ServerStream: stream, allow: func(first any) error { return allow(stream.Context(), info.FullMethod, first) }})
			}
			if err := allow(stream.Context(), info.FullMethod, nil); err != nil {
				return err
			}
			return handle(server, stream)
		}),
	)
}

// guarded is a stream whose first message says whether it is allowed. Nothing is sent before, and what follows is about the same.
type guarded struct {
	grpc.ServerStream
	allow   func(first any) error
	allowed bool
}

// RecvMsg implements grpc.ServerStream.
func (g *guarded) RecvMsg(message any) error {
	if err := g.ServerStream.RecvMsg(message); err != nil || g.allowed {
		return err
	}
	if err := g.allow(message); err != nil {
		return err
	}
	g.allowed = true
	return nil
}

// SendMsg implements grpc.ServerStream. The first message is received before anything is sent.
func (g *guarded) SendMsg(message any) error {
	if !g.allowed {
		return status.Error(codes.PermissionDenied, "the call has not said what it is about")
	}
	return g.ServerStream.SendMsg(message)
}

// authorize decides about one call.
func authorize(ctx context.Context, authorizer Authorizer, method string, message any) error {
	caller, err := Caller(ctx)
	if err != nil {
		return err
	}
	if caller.Role == identity.Controller {
		return nil
	}
	verb, subresource, ok := personal(method)
	about, named := message.(interface{ GetAddress() string })
	if !ok || !named {
		return fmt.Errorf("%w: %s is for the controller, not for the %s", identity.ErrRefused, method, caller)
	}
	return authorizer.Authorize(ctx, caller, Access{Verb: verb, Subresource: subresource, Address: about.GetAddress()})
}

// CallerName names who calls, for logs: on the socket of the host it is somebody there.
func CallerName(ctx context.Context) string {
	caller, err := Caller(ctx)
	if err != nil {
		return "somebody on this host"
	}
	return caller.String()
}

// Caller is who calls, on a server for other machines.
func Caller(ctx context.Context) (identity.Peer, error) {
	connection, ok := peer.FromContext(ctx)
	if !ok {
		return identity.Peer{}, fmt.Errorf("%w: nobody is known to call", identity.ErrRefused)
	}
	info, ok := connection.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return identity.Peer{}, fmt.Errorf("%w: no certificate", identity.ErrRefused)
	}
	return identity.PeerOf(info.State.PeerCertificates[0])
}

// DialTLS returns a connection to the agent of a node at an address (host:port). Whoever answers has to show that node's certificate; another is
// told to refused. Options may say how to reach the address.
func DialTLS(address, node string, source identity.Source, refused func(error), options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(handshakes{func() (*tls.Config, error) { return identity.ClientTLS(source, node) }, refused}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	}, options...)
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return nil, fmt.Errorf("connecting to the agent of the node %s at %s: %w", node, address, err)
	}
	return conn, nil
}
