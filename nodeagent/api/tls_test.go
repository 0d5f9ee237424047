package api_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/gitvirt/gitvirt/identity"
	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// held is an identity.Source that has what it has.
type held struct {
	certificate *tls.Certificate
	trust       *identity.Trust
}

func (h held) Certificate() (*tls.Certificate, error) {
	if h.certificate == nil {
		return nil, errors.New("no certificate yet")
	}
	return h.certificate, nil
}

func (h held) Trust() (*identity.Trust, error) { return h.trust, nil }

// authority gives certificates by the road that they take in life.
type authority struct {
	*testing.T
	*identity.Authority
	trust *identity.Trust
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	made, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	trust, err := made.Trust()
	if err != nil {
		t.Fatal(err)
	}
	return authority{t, made, trust}
}

func (a authority) source(peer identity.Peer, at time.Time) held {
	a.Helper()
	key, err := identity.NewKey()
	if err != nil {
		a.Fatal(err)
	}
	asked, err := key.Request(peer)
	if err != nil {
		a.Fatal(err)
	}
	spec := certificatesv1.CertificateSigningRequestSpec{Request: asked, Usages: identity.Usages(peer.Role)}
	if peer.Role == identity.Node {
		spec.SignerName, spec.Username = identity.NodeSigner, "system:serviceaccount:gitvirt-system:gitvirt-agent"
		spec.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/node-name": {peer.Name}}
	} else {
		spec.SignerName, spec.Username, spec.Groups = identity.ClientSigner, peer.Name, peer.Groups
	}
	grant, err := identity.Check(&certificatesv1.CertificateSigningRequest{Spec: spec}, "gitvirt-system")
	if err != nil {
		a.Fatal(err)
	}
	chain, err := a.Issue(grant, at)
	if err != nil {
		a.Fatal(err)
	}
	certificate, err := key.Certificate(chain)
	if err != nil {
		a.Fatal(err)
	}
	return held{certificate, a.trust}
}

func (a authority) controller() identity.Source {
	a.Helper()
	source, err := identity.NewControllerSource(a.Authority, time.Now)
	if err != nil {
		a.Fatal(err)
	}
	return source
}

// refusals are what was told to somebody who counts. One side may tell it later than the other has seen it.
type refusals chan string

func newRefusals() refusals { return make(refusals, 100) }

func (r refusals) add(err error) { r <- identity.Reason(err) }

// service answers what it is asked.
type service struct{ api.UnimplementedAgentServer }

func (service) GetNode(ctx context.Context, _ *api.GetNodeRequest) (*api.Node, error) {
	caller, err := api.Caller(ctx)
	return &api.Node{Name: caller.String()}, err
}

func (service) ReadConsole(context.Context, *api.ReadConsoleRequest) (*api.ReadConsoleResponse, error) {
	return &api.ReadConsoleResponse{Lines: []string{"login:"}}, nil
}

func (service) ReadStatistics(context.Context, *api.ReadStatisticsRequest) (*api.Statistics, error) {
	return &api.Statistics{Vcpus: 1}, nil
}

// Console says what it is told, the first message included.
func (service) Console(stream api.Agent_ConsoleServer) error {
	for {
		input, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(&api.ConsoleOutput{Data: []byte(input.GetAddress() + string(input.GetData()))}); err != nil {
			return err
		}
	}
}

// serve starts an agent's server and returns its address.
func serve(t *testing.T, source identity.Source, authorizer api.Authorizer, counted refusals) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := api.NewTLSServer(source, authorizer, counted.add)
	api.RegisterAgentServer(server, service{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// nobody lets nobody do anything.
var nobody = api.AuthorizerFunc(func(context.Context, identity.Peer, api.Access) error { return identity.ErrRefused })

func TestWhoIsLetInOverTLS(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	node := func(name string) identity.Peer { return identity.Peer{Role: identity.Node, Name: name} }
	alice := identity.Peer{Role: identity.User, Name: "alice"}
	now, longAgo := time.Now(), time.Now().Add(-48*time.Hour)
	right := a.source(node("node-1"), now)
	for reason, c := range map[string]struct {
		server, client identity.Source
		// what the side counts that refuses; none does when the call succeeds
		servers, clients string
	}{
		"the controller and the node's agent":    {right, a.controller(), "", ""},
		"an agent with another node's":           {a.source(node("node-2"), now), a.controller(), "", "another node"},
		"an agent of another cluster":            {held{other.source(node("node-1"), now).certificate, a.trust}, a.controller(), "", "unknown authority"},
		"an agent whose certificate is over":     {a.source(node("node-1"), longAgo), a.controller(), "", "expired"},
		"a controller of another cluster":        {right, held{must(other.controller().Certificate()), a.trust}, "unknown authority", ""},
		"an agent that calls another":            {right, a.source(node("node-2"), now), "not allowed", ""},
		"somebody whose certificate is over":     {right, a.source(alice, longAgo), "expired", ""},
		"somebody who plays the agent of a node": {a.source(alice, now), a.controller(), "", "another node"},
		"the controller in place of an agent":    {a.controller(), a.controller(), "", "another node"},
	} {
		t.Run(reason, func(t *testing.T) {
			servers, clients := newRefusals(), newRefusals()
			conn, err := api.DialTLS(serve(t, c.server, nobody, servers), "node-1", c.client, clients.add)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			answer, err := api.NewAgentClient(conn).GetNode(t.Context(), &api.GetNodeRequest{})
			if c.servers+c.clients == "" {
				if err != nil || answer.GetName() != "controller" || len(servers)+len(clients) > 0 {
					t.Errorf("%q, %v, counted %d and %d", answer.GetName(), err, len(servers), len(clients))
				}
				return
			}
			if status.Code(err) != codes.Unavailable {
				t.Errorf("it is let in: %v", err)
			}
			for counted, want := range map[refusals]string{servers: c.servers, clients: c.clients} {
				if want != "" {
					if got := <-counted; got != want {
						t.Errorf("counted %q, want %q", got, want)
					}
				}
			}
		})
	}
}

// A caller without a certificate, and one that speaks no TLS, are counted too.
func TestStrangersAreCounted(t *testing.T) {
	a := newAuthority(t)
	counted := newRefusals()
	address := serve(t, a.source(identity.Peer{Role: identity.Node, Name: "node-1"}, time.Now()), nobody, counted)
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "tls:") {
		t.Errorf("a stranger reads: %v", err)
	}
	_ = conn.Close()
	if got := <-counted; got != "no certificate" {
		t.Errorf("counted %q", got)
	}
}

func TestWhatPeopleMay(t *testing.T) {
	a := newAuthority(t)
	counted := newRefusals()
	var asked []string
	authorizer := api.AuthorizerFunc(func(_ context.Context, peer identity.Peer, access api.Access) error {
		asked = append(asked, fmt.Sprint(peer, peer.Groups, access))
		switch {
		case access.Address == "VirtualMachine/default/web":
			return nil
		case access.Address == "VirtualMachine/default/later":
			return errors.New("the API server is away")
		}
		return fmt.Errorf("%w: no", identity.ErrRefused)
	})
	address := serve(t, a.source(identity.Peer{Role: identity.Node, Name: "node-1"}, time.Now()), authorizer, counted)
	conn, err := api.DialTLS(address, "node-1", a.source(identity.Peer{Role: identity.User, Name: "alice", Groups: []string{"ops"}}, time.Now()), counted.add)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := api.NewAgentClient(conn)
	console := func(vm string) error {
		_, err := client.ReadConsole(t.Context(), &api.ReadConsoleRequest{Address: "VirtualMachine/default/" + vm})
		return err
	}
	if err := console("web"); err != nil {
		t.Error(err)
	}
	if err := console("later"); status.Code(err) != codes.Unavailable {
		t.Errorf("nobody knows whether she may: %v", err)
	}
	if _, err := client.ReadStatistics(t.Context(), &api.ReadStatisticsRequest{Address: "VirtualMachine/default/web"}); err != nil {
		t.Error(err)
	}
	// Of a stream the first message counts: who was let in for one machine does not get to another by a later one.
	talk := func(vms ...string) (heard string, err error) {
		stream, err := client.Console(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, vm := range vms {
			if err := stream.Send(&api.ConsoleInput{Address: "VirtualMachine/default/" + vm}); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			said, err := stream.Recv()
			if err != nil {
				return heard, err
			}
			heard += string(said.GetData()) + " "
		}
		return heard, stream.CloseSend()
	}
	if heard, err := talk("web", "web"); heard != "VirtualMachine/default/web VirtualMachine/default/web " || err != nil {
		t.Errorf("heard %q, %v", heard, err)
	}
	if len(counted) > 0 {
		t.Errorf("counted %q", <-counted)
	}
	if want := []string{`user "alice" [ops] {create attach VirtualMachine/default/web}`, `user "alice" [ops] {create attach VirtualMachine/default/later}`, `user "alice" [ops] {get  VirtualMachine/default/web}`, `user "alice" [ops] {create attach VirtualMachine/default/web}`}; !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
	refused := map[string]error{"a console of another": console("db")}
	_, refused["statistics of another"] = client.ReadStatistics(t.Context(), &api.ReadStatisticsRequest{Address: "VirtualMachine/default/db"})
	var heard string
	if heard, refused["typing to another"] = talk("db"); heard != "" {
		t.Errorf("heard %q", heard)
	}
	_, refused["a call of the controller's"] = client.GetNode(t.Context(), &api.GetNodeRequest{})
	_, refused["another"] = client.DeleteDisks(t.Context(), &api.DeleteDisksRequest{})
	stream, err := client.Watch(t.Context(), &api.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, refused["a stream"] = stream.Recv()
	for reason, err := range refused {
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", reason, err)
		}
		if got := <-counted; got != "not allowed" {
			t.Errorf("%s: counted %q", reason, got)
		}
	}
}

// A server that has no certificate yet answers nobody, and does when it has one: nothing is kept between connections.
func TestCertificatesChangeWhileServing(t *testing.T) {
	a := newAuthority(t)
	var mu sync.Mutex
	now := held{trust: a.trust}
	source := sourceFunc(func() held {
		mu.Lock()
		defer mu.Unlock()
		return now
	})
	address := serve(t, source, nobody, newRefusals())
	call := func() error {
		conn, err := api.DialTLS(address, "node-1", a.controller(), func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, err = api.NewAgentClient(conn).GetNode(t.Context(), &api.GetNodeRequest{})
		return err
	}
	if err := call(); status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate: %v", err)
	}
	mu.Lock()
	now = a.source(identity.Peer{Role: identity.Node, Name: "node-1"}, time.Now())
	mu.Unlock()
	if err := call(); err != nil {
		t.Error(err)
	}
}

type sourceFunc func() held

func (f sourceFunc) Certificate() (*tls.Certificate, error) { return f().Certificate() }
func (f sourceFunc) Trust() (*identity.Trust, error)        { return f().Trust() }

func must(certificate *tls.Certificate, err error) *tls.Certificate {
	if err != nil {
		panic(err)
	}
	return certificate
}
