package kubernetes

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gitvirt/gitvirt/identity"
)

const namespace = "gitvirt-system"

// server is a stand-in for the API server. It says about who asks for a certificate what it is told to.
type server struct {
	*fake.Clientset
	who certificatesv1.CertificateSigningRequestSpec
}

func newServer() *server {
	s := &server{Clientset: fake.NewClientset()}
	s.as("system:serviceaccount:gitvirt-system:gitvirt-agent", map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/node-name": {"node-1"}})
	names := 0
	s.PrependReactor("create", "certificatesigningrequests", func(action ktesting.Action) (bool, runtime.Object, error) {
		request := action.(ktesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		names++
		request.Name = request.GenerateName + strings.Repeat("x", names)
		request.Spec.Username, request.Spec.Groups, request.Spec.Extra = s.who.Username, s.who.Groups, s.who.Extra
		return false, nil, nil
	})
	s.PrependReactor("create", "selfsubjectreviews", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{Username: s.who.Username, Groups: s.who.Groups},
		}}, nil
	})
	return s
}

func (s *server) as(user string, extra map[string]certificatesv1.ExtraValue, groups ...string) {
	s.who = certificatesv1.CertificateSigningRequestSpec{Username: user, Groups: groups, Extra: extra}
}

// answers has the signer answer each request by itself, once it is there and somebody waits; then the watch ends, and is begun anew.
func (s *server) answers(t *testing.T, signer *Signer) {
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	s.PrependWatchReactor("certificatesigningrequests", func(ktesting.Action) (bool, watch.Interface, error) {
		events := watch.NewFake()
		group.Go(func() {
			defer events.Stop()
			list, err := s.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			for i := range list.Items {
				if err := signer.answer(t.Context(), &list.Items[i]); err != nil {
					t.Error(err)
				}
			}
		})
		return true, events, nil
	})
}

func (s *server) signer(t *testing.T, now func() time.Time) (*Signer, *identity.Authority, *prometheus.Registry) {
	t.Helper()
	authority, err := OpenAuthority(t.Context(), s, namespace, now())
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	signer, err := NewSigner(s, namespace, authority, now, slog.New(slog.DiscardHandler), registry)
	if err != nil {
		t.Fatal(err)
	}
	return signer, authority, registry
}

func counted(t *testing.T, registry *prometheus.Registry, signer, outcome string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if labels := metric.GetLabel(); labels[0].GetValue() == outcome && labels[1].GetValue() == signer {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestOpenAuthority(t *testing.T) {
	s := newServer()
	first, err := OpenAuthority(t.Context(), s, namespace, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	writes := len(s.Actions())
	second, err := OpenAuthority(t.Context(), s, namespace, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, action := range s.Actions()[writes:] {
		if action.GetVerb() != "get" {
			t.Errorf("opened again, it does %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
	signature, err := first.SignStep([]byte("step"))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := ReadTrust(t.Context(), s, namespace)
	if err != nil || trust.VerifyStep([]byte("step"), signature) != nil {
		t.Errorf("the ConfigMap is not the authority's: %v", err)
	}
	if again, err := second.SignStep([]byte("step")); err != nil || trust.VerifyStep([]byte("step"), again) != nil {
		t.Errorf("opened again it is another: %v", err)
	}
	published, err := s.CoreV1().ConfigMaps(namespace).Get(t.Context(), AuthorityName, metav1.GetOptions{})
	if err != nil || strings.Contains(published.String(), "PRIVATE") {
		t.Errorf("published: %v, %v", published, err)
	}

	// Mounted as a folder.
	dir := t.TempDir()
	if _, err := TrustFolder(dir)(); err == nil {
		t.Error("an empty folder is trusted")
	}
	for name, text := range published.Data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if trust, err := TrustFolder(dir)(); err != nil || trust.VerifyStep([]byte("step"), signature) != nil {
		t.Errorf("the folder is not the authority's: %v", err)
	}
}

// What somebody else changed in the ConfigMap is put right; a Secret that cannot be read is left alone.
func TestOpenAuthorityThatWasTouched(t *testing.T) {
	s := newServer()
	authority, err := OpenAuthority(t.Context(), s, namespace, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.CoreV1().ConfigMaps(namespace).Get(t.Context(), AuthorityName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found.Data[certificatesKey] = "another"
	if _, err := s.CoreV1().ConfigMaps(namespace).Update(t.Context(), found, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(t.Context(), s, namespace, time.Now()); err != nil {
		t.Fatal(err)
	}
	signature, err := authority.SignStep(nil)
	if err != nil {
		t.Fatal(err)
	}
	if trust, err := ReadTrust(t.Context(), s, namespace); err != nil || trust.VerifyStep(nil, signature) != nil {
		t.Errorf("the ConfigMap is not put right: %v", err)
	}
	secret, err := s.CoreV1().Secrets(namespace).Get(t.Context(), AuthorityName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(secret.Data, stepKeyKey)
	if _, err := s.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(t.Context(), s, namespace, time.Now()); err == nil || !strings.Contains(err.Error(), "gitvirt-system/gitvirt-ca") {
		t.Errorf("a Secret that lacks a key: %v", err)
	}
}

// Of two controllers that make the authority at the same time both have the one that is kept.
func TestOpenAuthorityRace(t *testing.T) {
	s := newServer()
	faster := newServer()
	if _, err := OpenAuthority(t.Context(), faster, namespace, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.PrependReactor("create", "secrets", func(action ktesting.Action) (bool, runtime.Object, error) {
		secret, err := faster.CoreV1().Secrets(namespace).Get(t.Context(), AuthorityName, metav1.GetOptions{})
		if err == nil {
			err = s.Tracker().Add(secret)
		}
		if err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewAlreadyExists(corev1.Resource("secrets"), AuthorityName)
	})
	authority, err := OpenAuthority(t.Context(), s, namespace, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	signature, err := authority.SignStep(nil)
	if err != nil {
		t.Fatal(err)
	}
	if trust, err := ReadTrust(t.Context(), faster, namespace); err != nil || trust.VerifyStep(nil, signature) != nil {
		t.Errorf("it has another one: %v", err)
	}
}

func TestAgentGetsItsCertificate(t *testing.T) {
	s := newServer()
	clock := clocktesting.NewFakeClock(time.Now())
	signer, _, registry := s.signer(t, clock.Now)
	s.answers(t, signer)
	trust := func() (*identity.Trust, error) { return ReadTrust(t.Context(), s, namespace) }
	agent := NewAgent(s, "node-1", trust, clock, slog.New(slog.DiscardHandler))
	if _, err := agent.Certificate(); err == nil {
		t.Error("it has a certificate from the start")
	}
	serial := func() string {
		t.Helper()
		if err := agent.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		certificate, err := agent.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		if peer, err := identity.PeerOf(certificate.Leaf); err != nil || peer.Name != "node-1" {
			t.Errorf("it is of %s, %v", peer, err)
		}
		return certificate.Leaf.SerialNumber.String()
	}
	first := serial()
	if serial() != first {
		t.Error("a certificate that will do is replaced")
	}
	clock.Step(18 * time.Hour)
	second := serial()
	if second == first {
		t.Error("a certificate is not replaced in time")
	}
	// Another authority: what the old one signed is replaced at once.
	if err := s.CoreV1().Secrets(namespace).Delete(t.Context(), AuthorityName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	replaced, err := OpenAuthority(t.Context(), s, namespace, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.renew(t.Context()); err == nil || !strings.Contains(err.Error(), "not of the authority") {
		t.Errorf("what the old authority signs: %v", err)
	}
	signer.authority = replaced
	if serial() == second {
		t.Error("the certificate of another authority is kept")
	}
	if got := counted(t, registry, identity.NodeSigner, "signed"); got != 4 {
		t.Errorf("%v signed, want 4", got)
	}
}

func TestAgentIsDenied(t *testing.T) {
	s := newServer()
	signer, _, registry := s.signer(t, time.Now)
	s.answers(t, signer)
	for reason, extra := range map[string]map[string]certificatesv1.ExtraValue{
		"the token of another node": {"authentication.kubernetes.io/node-name": {"node-2"}}, "a token of no node": nil,
	} {
		s.as("system:serviceaccount:gitvirt-system:gitvirt-agent", extra)
		_, err := Request(t.Context(), s, identity.Peer{Role: identity.Node, Name: "node-1"})
		if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "refused: ") {
			t.Errorf("%s: %v", reason, err)
		}
	}
	if got := counted(t, registry, identity.NodeSigner, "denied"); got != 2 {
		t.Errorf("%v denied, want 2", got)
	}
}

// A certificate that somebody with the right approved by hand is signed if it may be, and fails if it may not.
func TestApprovedByHand(t *testing.T) {
	s := newServer()
	signer, _, registry := s.signer(t, time.Now)
	s.answers(t, signer)
	s.PrependReactor("create", "certificatesigningrequests", func(action ktesting.Action) (bool, runtime.Object, error) {
		request := action.(ktesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		note(request, certificatesv1.CertificateApproved, "KubectlApprove", "by hand")
		return false, nil, nil
	})
	if _, err := Request(t.Context(), s, identity.Peer{Role: identity.Node, Name: "node-1"}); err != nil {
		t.Error(err)
	}
	if _, err := Request(t.Context(), s, identity.Peer{Role: identity.Node, Name: "node-2"}); !errors.Is(err, ErrDenied) {
		t.Errorf("another node's: %v", err)
	}
	if signed, denied := counted(t, registry, identity.NodeSigner, "signed"), counted(t, registry, identity.NodeSigner, "denied"); signed != 1 || denied != 1 {
		t.Errorf("%v signed, %v denied", signed, denied)
	}
	answered := len(s.Actions())
	list, err := s.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if err := signer.answer(t.Context(), &list.Items[i]); err != nil {
			t.Error(err)
		}
	}
	if got := len(s.Actions()); got != answered+1 {
		t.Errorf("answering again does %d things", got-answered-1)
	}
}

func TestUserGetsACertificate(t *testing.T) {
	s := newServer()
	signer, _, _ := s.signer(t, time.Now)
	s.answers(t, signer)
	s.as("alice", nil, "system:authenticated", "ops")
	source, err := NewUser(t.Context(), s, namespace)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := source.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if peer, err := identity.PeerOf(certificate.Leaf); err != nil || peer.Role != identity.User || peer.Name != "alice" || len(peer.Groups) != 2 {
		t.Errorf("it is of %+v, %v", peer, err)
	}
	s.PrependReactor("create", "certificatesigningrequests", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(certificatesv1.Resource("certificatesigningrequests"), "", errors.New("no"))
	})
	if _, err := NewUser(t.Context(), s, namespace); err == nil || !strings.Contains(err.Error(), "gitvirt-user") {
		t.Errorf("somebody who may not ask: %v", err)
	}
}

// Nobody answers: waiting ends with the context and says what to look for.
func TestNobodyAnswers(t *testing.T) {
	s := newServer()
	ctx, cancel := context.WithCancel(t.Context())
	s.PrependWatchReactor("certificatesigningrequests", func(ktesting.Action) (bool, watch.Interface, error) {
		cancel()
		return true, watch.NewFake(), nil
	})
	if _, err := Request(ctx, s, identity.Peer{Role: identity.Node, Name: "node-1"}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "controller") {
		t.Errorf("error %v", err)
	}
}

// The loops: the signer sees requests by itself, tries again what failed, and the agent keeps asking.
func TestRun(t *testing.T) {
	s := newServer()
	signer, _, registry := s.signer(t, time.Now)
	var failures sync.Once
	s.PrependReactor("update", "certificatesigningrequests", func(action ktesting.Action) (failed bool, _ runtime.Object, _ error) {
		failures.Do(func() { failed = true })
		if failed {
			return true, nil, apierrors.NewServiceUnavailable("later")
		}
		return false, nil, nil
	})
	// The stand-in forgets what happened before a watch began: here a watch ends at once, and what is there is read again.
	s.PrependWatchReactor("certificatesigningrequests", func(action ktesting.Action) (bool, watch.Interface, error) {
		if _, one := action.(ktesting.WatchAction).GetWatchRestrictions().Fields.RequiresExactMatch("metadata.name"); !one {
			return false, nil, nil
		}
		events := watch.NewFake()
		events.Stop()
		return true, events, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := signer.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	trust := func() (*identity.Trust, error) { return ReadTrust(ctx, s, namespace) }
	has := make(chan struct{})
	agent := NewAgent(s, "node-1", trust, clocktesting.NewFakeClock(time.Now()), slog.New(slog.NewTextHandler(once(has), nil)))
	group.Go(func() { agent.Run(ctx) })
	<-has
	cancel()
	group.Wait()
	if _, err := agent.Certificate(); err != nil {
		t.Error(err)
	}
	if failed := counted(t, registry, identity.NodeSigner, "error"); failed != 1 {
		t.Errorf("%v failed, want 1", failed)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// once closes a channel at the first thing that is logged.
func once(done chan struct{}) io.Writer {
	var first sync.Once
	return writer(func() { first.Do(func() { close(done) }) })
}

type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

func TestMayAccess(t *testing.T) {
	s := newServer()
	s.PrependReactor("create", "subjectaccessreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
		review := action.(ktesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == "alice" && asked.Resource == "pods" && asked.Subresource == "attach" && asked.Verb == "create" && asked.Namespace == "team-a"
		return true, review, nil
	})
	for reason, c := range map[string]struct {
		peer      identity.Peer
		namespace string
		want      bool
	}{
		"the controller":          {identity.Peer{Role: identity.Controller}, "team-b", true},
		"somebody who may":        {identity.Peer{Role: identity.User, Name: "alice"}, "team-a", true},
		"in another namespace":    {identity.Peer{Role: identity.User, Name: "alice"}, "team-b", false},
		"somebody who may not":    {identity.Peer{Role: identity.User, Name: "bob"}, "team-a", false},
		"another agent":           {identity.Peer{Role: identity.Node, Name: "alice"}, "team-a", false},
		"nobody knows who it is":  {identity.Peer{}, "team-a", false},
		"a user with such a name": {identity.Peer{Role: identity.User, Name: "gitvirt:controller"}, "team-b", false},
	} {
		err := MayAccess(t.Context(), s, c.peer, "create", "attach", c.namespace, "virt-launcher-web")
		if (err == nil) != c.want || (err != nil && !errors.Is(err, identity.ErrRefused)) {
			t.Errorf("%s: %v", reason, err)
		}
	}
}
