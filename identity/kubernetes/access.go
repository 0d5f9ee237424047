package kubernetes

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gitvirt/gitvirt/identity"
)

// MayAccess asks the API server whether a peer may do something to a Pod. The controller may do everything, another agent nothing. The error
// has identity.ErrRefused behind it when the answer is no.
func MayAccess(ctx context.Context, client kubernetes.Interface, peer identity.Peer, verb, subresource, namespace, pod string) error {
	switch peer.Role {
	case identity.Controller:
		return nil
	case identity.User:
	default:
		return fmt.Errorf("%w: the %s has no business here", identity.ErrRefused, peer)
	}
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: peer.Name, Groups: peer.Groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Version: "v1", Resource: "pods", Subresource: subresource, Namespace: namespace, Name: pod,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("asking whether the %s may: %w", peer, err)
	}
	if !review.Status.Allowed {
		resource := "pods"
		if subresource != "" {
			resource += "/" + subresource
		}
		return fmt.Errorf("%w: %q may not %s %s of %s/%s", identity.ErrRefused, peer.Name, verb, resource, namespace, pod)
	}
	return nil
}
