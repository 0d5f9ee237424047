package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/gitvirt/gitvirt/identity"
)

// The reasons in a request's conditions.
const (
	reasonChecked = "GitvirtChecked"
	reasonRefused = "GitvirtRefused"
)

// Signer answers the requests for certificates of gitvirt's signers: each is signed or denied, and the condition says why.
type Signer struct {
	requests  typedv1.CertificateSigningRequestInterface
	client    kubernetes.Interface
	namespace string
	authority *identity.Authority
	now       func() time.Time
	log       *slog.Logger
	outcomes  *prometheus.CounterVec
}

// NewSigner returns the signer of an authority, for agents that run in namespace.
func NewSigner(client kubernetes.Interface, namespace string, authority *identity.Authority, now func() time.Time, log *slog.Logger, registry prometheus.Registerer) (*Signer, error) {
	outcomes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gitvirt_certificate_requests_total", Help: "Requests for certificates, by signer and outcome (signed, denied, error).",
	}, []string{"signer", "outcome"})
	if err := registry.Register(outcomes); err != nil {
		return nil, fmt.Errorf("registering the signer's metrics: %w", err)
	}
	return &Signer{client.CertificatesV1().CertificateSigningRequests(), client, namespace, authority, now, log, outcomes}, nil
}

// key is one request in the queue.
type key struct{ signer, name string }

// Run answers requests until ctx ends. One controller at a time does.
func (s *Signer) Run(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[key]())
	informers := map[string]cache.SharedIndexInformer{}
	for _, signer := range []string{identity.NodeSigner, identity.ClientSigner} {
		informer, err := s.watch(signer, queue)
		if err != nil {
			return fmt.Errorf("watching requests for certificates: %w", err)
		}
		informers[signer] = informer
	}
	var group sync.WaitGroup
	defer group.Wait()
	for _, informer := range informers {
		group.Go(func() { informer.RunWithContext(ctx) })
	}
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	for {
		next, done := queue.Get()
		if done {
			return nil
		}
		object, exists, err := informers[next.signer].GetStore().GetByKey(next.name)
		if request, ok := object.(*certificatesv1.CertificateSigningRequest); ok && exists && err == nil {
			err = s.answer(ctx, request)
		}
		if err != nil && ctx.Err() == nil {
			s.outcomes.WithLabelValues(next.signer, "error").Inc()
			s.log.Warn("a request for a certificate has to wait", "signer", next.signer, "request", next.name, "error", err)
			queue.AddRateLimited(next)
		} else {
			queue.Forget(next)
		}
		queue.Done(next)
	}
}

// watch returns an informer of one signer's requests, which puts them into the queue.
func (s *Signer) watch(signer string, queue workqueue.TypedRateLimitingInterface[key]) (cache.SharedIndexInformer, error) {
	informer := certificatesinformers.NewFilteredCertificateSigningRequestInformer(s.client, 0, cache.Indexers{}, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.signerName", signer).String()
		options.TimeoutSeconds = nil // the API server's own half an hour and more, not client-go's five to ten minutes
	})
	add := func(object any) {
		if request, ok := object.(*certificatesv1.CertificateSigningRequest); ok && request.Spec.SignerName == signer {
			queue.Add(key{signer, request.Name})
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, object any) { add(object) }})
	return informer, err
}

// answer takes a request to its end: one that is there already is left alone. Somebody with the right to may have approved it by hand, which
// changes nothing about what may be signed.
func (s *Signer) answer(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	if len(request.Status.Certificate) > 0 || has(request, certificatesv1.CertificateDenied) || has(request, certificatesv1.CertificateFailed) {
		return nil
	}
	request = request.DeepCopy()
	approved := has(request, certificatesv1.CertificateApproved)
	grant, err := identity.Check(request, s.namespace)
	if err == nil {
		err = s.sign(ctx, request, grant, approved)
	} else {
		err = s.refuse(ctx, request, approved, err)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // somebody was faster; the change comes by itself
	}
	return err
}

func (s *Signer) sign(ctx context.Context, request *certificatesv1.CertificateSigningRequest, grant identity.Grant, approved bool) error {
	certificate, err := s.authority.Issue(grant, s.now())
	if err != nil {
		return err
	}
	if !approved {
		note(request, certificatesv1.CertificateApproved, reasonChecked, "It asks for what the API server knows of "+request.Spec.Username+".")
		if request, err = s.requests.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
			return err
		}
	}
	request.Status.Certificate = certificate
	if _, err := s.requests.UpdateStatus(ctx, request, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return err
	}
	s.outcomes.WithLabelValues(request.Spec.SignerName, "signed").Inc()
	s.log.Info("a certificate was signed", "request", request.Name, "for", grant.Peer.String())
	return nil
}

// refuse denies a request, or says of one that was approved by hand that it has failed.
func (s *Signer) refuse(ctx context.Context, request *certificatesv1.CertificateSigningRequest, approved bool, why error) error {
	var err error
	if approved {
		note(request, certificatesv1.CertificateFailed, reasonRefused, why.Error())
		_, err = s.requests.UpdateStatus(ctx, request, metav1.UpdateOptions{FieldManager: fieldManager})
	} else {
		note(request, certificatesv1.CertificateDenied, reasonRefused, why.Error())
		_, err = s.requests.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return err
	}
	s.outcomes.WithLabelValues(request.Spec.SignerName, "denied").Inc()
	s.log.Warn("a request for a certificate was denied", "signer", request.Spec.SignerName, "request", request.Name, "by", request.Spec.Username, "because", why)
	return nil
}

func note(request *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string) {
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
}

func has(request *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return conditionOf(request, kind) != nil
}

func conditionOf(request *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequestCondition {
	for i := range request.Status.Conditions {
		if request.Status.Conditions[i].Type == kind {
			return &request.Status.Conditions[i]
		}
	}
	return nil
}
