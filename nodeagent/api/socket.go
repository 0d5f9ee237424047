// Package api is the node agent's gRPC service: the messages, and a unix socket on which both sides know who the
// other is.
package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// DefaultSocket is where the agent listens: in the default state directory.
const DefaultSocket = "/var/lib/gitvirt/agent.sock"

// maxMessage bounds a message; a VM with its user data is far smaller.
const maxMessage = 16 << 20

// ErrPeer says that the process on the other side of the socket runs as a user who has no business here.
var ErrPeer = errors.New("the peer's user is not allowed")

// peerCredentials accepts connections only from root and from the user that this process runs as.
type peerCredentials struct{}

// peerInfo is what is known of an authenticated peer.
type peerInfo struct {
	credentials.CommonAuthInfo
	UID uint32
}

// AuthType names the way the peer was authenticated.
func (peerInfo) AuthType() string { return "unix-peer-credentials" }

func (peerCredentials) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return authenticate(conn)
}

func (peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return authenticate(conn)
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peer-credentials"}
}

func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

func (peerCredentials) OverrideServerName(string) error { return nil }

func authenticate(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("%w: not a unix socket", ErrPeer)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the peer's credentials: %w", err)
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, nil, fmt.Errorf("reading the peer's credentials: %w", err)
	}
	if failed != nil {
		return nil, nil, fmt.Errorf("reading the peer's credentials: %w", failed)
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		return nil, nil, fmt.Errorf("%w: user id %d", ErrPeer, peer.Uid)
	}
	info := peerInfo{UID: peer.Uid, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	return conn, info, nil
}

// Listen opens the agent's socket, readable by its owner only. A socket that a dead agent left behind is replaced;
// one that answers is an error.
func Listen(path string) (net.Listener, error) {
	// The socket itself is private; its folder may be the state directory, through which QEMU's user must pass.
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("making the socket's folder: %w", err)
	}
	if probe, err := net.DialTimeout("unix", path, time.Second); err == nil { //nolint:noctx // local, and bounded
		_ = probe.Close()
		return nil, fmt.Errorf("an agent is listening on %s already", path)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is there and is no socket; name another path", path)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("removing the socket of an agent that is gone: %w", err)
		}
	}
	listener, err := net.Listen("unix", path) //nolint:noctx // nothing to wait for
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("protecting %s: %w", path, err)
	}
	return listener, nil
}

// NewGRPCServer returns a server that talks only to root and to its own user.
func NewGRPCServer() *grpc.Server {
	return grpc.NewServer(grpc.Creds(peerCredentials{}), grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
}

// Dial returns a connection to the agent on a unix socket. It connects when it is first used and again whenever the
// agent comes back.
func Dial(path string) (*grpc.ClientConn, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("the agent's socket: %w", err)
	}
	conn, err := grpc.NewClient("unix://"+absolute, grpc.WithTransportCredentials(peerCredentials{}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}))
	if err != nil {
		return nil, fmt.Errorf("connecting to the agent on %s: %w", path, err)
	}
	return conn, nil
}
