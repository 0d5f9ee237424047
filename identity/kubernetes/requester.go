package kubernetes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/gitvirt/gitvirt/identity"
)

// ErrDenied says that the controller gives no such certificate; asking again is of no use until something else changes.
var ErrDenied = errors.New("the certificate was denied")

// Request asks for a certificate with a key that is made for it, and waits until the controller has answered. The key stays in memory.
func Request(ctx context.Context, client kubernetes.Interface, peer identity.Peer) (*tls.Certificate, error) {
	key, err := identity.NewKey()
	if err != nil {
		return nil, err
	}
	asked, err := key.Request(peer)
	if err != nil {
		return nil, err
	}
	signer, name := identity.ClientSigner, "gitvirt-client-"
	if peer.Role == identity.Node {
		signer, name = identity.NodeSigner, "gitvirt-agent-"
	}
	request, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: asked, SignerName: signer, Usages: identity.Usages(peer.Role)},
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("asking for a certificate: %w", err)
	}
	chain, err := await(ctx, client, request)
	if err != nil {
		return nil, fmt.Errorf("the CertificateSigningRequest %s: %w", request.Name, err)
	}
	return key.Certificate(chain)
}

// await waits until a request has an answer. A watch that ends is begun anew, from what is there then.
func await(ctx context.Context, client kubernetes.Interface, request *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	requests := client.CertificatesV1().CertificateSigningRequests()
	for {
		if chain, err := answerOf(request); chain != nil || err != nil {
			return chain, err
		}
		events, err := requests.Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", request.Name).String(), ResourceVersion: request.ResourceVersion,
		})
		if err != nil {
			return nil, fmt.Errorf("waiting for the answer: %w", err)
		}
		select {
		case <-events.ResultChan(): // whatever it was, also the end of the watch
		case <-ctx.Done():
		}
		events.Stop()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("no answer yet, does gitvirt's controller run? %w", context.Cause(ctx))
		}
		if request, err = requests.Get(ctx, request.Name, metav1.GetOptions{}); err != nil {
			return nil, fmt.Errorf("reading the answer: %w", err)
		}
	}
}

func answerOf(request *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		if condition := conditionOf(request, kind); condition != nil {
			return nil, fmt.Errorf("%w: %s", ErrDenied, condition.Message)
		}
	}
	return request.Status.Certificate, nil
}

// trustPeriod is how often an agent looks whether its certificate is still of the authority that is trusted. It calls nobody for that.
const trustPeriod = time.Minute

// Agent keeps the certificate of a node's agent. It is the agent's identity.Source.
type Agent struct {
	client kubernetes.Interface
	node   string
	trust  func() (*identity.Trust, error)
	clock  clock.Clock
	log    *slog.Logger

	mu          sync.Mutex
	certificate *tls.Certificate
}

// NewAgent returns what keeps the certificate of the agent on a node; trust reads the authority (TrustFolder).
func NewAgent(client kubernetes.Interface, node string, trust func() (*identity.Trust, error), clock clock.Clock, log *slog.Logger) *Agent {
	return &Agent{client: client, node: node, trust: trust, clock: clock, log: log}
}

// Certificate implements identity.Source.
func (a *Agent) Certificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.certificate == nil {
		return nil, errors.New("the agent has no certificate yet")
	}
	return a.certificate, nil
}

// Trust implements identity.Source.
func (a *Agent) Trust() (*identity.Trust, error) { return a.trust() }

// Run gets a certificate, and another one before it expires or when the authority is another, until ctx ends.
func (a *Agent) Run(ctx context.Context) {
	patience := newPatience()
	for {
		pause := trustPeriod
		if err := a.renew(ctx); err != nil && ctx.Err() == nil {
			pause = patience.Step()
			a.log.Warn("no certificate for this node's agent", "node", a.node, "error", err, "again_in", pause)
		} else {
			patience = newPatience()
		}
		timer := a.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// newPatience is how long to wait after each failure. Each attempt leaves an object, which Kubernetes removes after an hour.
func newPatience() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 1 << 30, Cap: 5 * time.Minute}
}

// answerPatience bounds the wait for one answer; a request that the controller has not seen for so long is left behind.
const answerPatience = 10 * time.Minute

// renew asks for a certificate if there is none that will do.
func (a *Agent) renew(ctx context.Context) error {
	trust, err := a.trust()
	if err != nil {
		return err
	}
	if held, err := a.Certificate(); err == nil && identity.Fresh(held, trust, a.clock.Now()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	certificate, err := Request(ctx, a.client, identity.Peer{Role: identity.Node, Name: a.node})
	if err != nil {
		return err
	}
	if !identity.Fresh(certificate, trust, a.clock.Now()) {
		return errors.New("the certificate that was signed is not of the authority that is trusted here; the ConfigMap may be on its way")
	}
	a.mu.Lock()
	a.certificate = certificate
	a.mu.Unlock()
	a.log.Info("this node's agent has a certificate", "node", a.node, "until", certificate.Leaf.NotAfter)
	return nil
}

// user is the identity.Source of somebody who calls agents for the time of a command.
type user struct {
	certificate *tls.Certificate
	trust       *identity.Trust
}

func (u user) Certificate() (*tls.Certificate, error) { return u.certificate, nil }
func (u user) Trust() (*identity.Trust, error)        { return u.trust, nil }

// NewUser gets a certificate for whoever the client speaks for, by the name and the groups that the API server knows.
func NewUser(ctx context.Context, client kubernetes.Interface, namespace string) (identity.Source, error) {
	trust, err := ReadTrust(ctx, client, namespace)
	if err != nil {
		return nil, err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking the API server who we are: %w", err)
	}
	me := review.Status.UserInfo
	certificate, err := Request(ctx, client, identity.Peer{Role: identity.User, Name: me.Username, Groups: me.Groups})
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%w; the ClusterRole gitvirt-user gives the right to ask", err)
	}
	if err != nil {
		return nil, err
	}
	return user{certificate, trust}, nil
}
