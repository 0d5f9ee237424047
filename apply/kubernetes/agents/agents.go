// Package agents reaches the agent of the node that a VM's Pod is on, for somebody who has rights in the cluster and no way to its
// network: through the API server, which forwards a port of the agent's Pod. What passes through is TLS between the caller and the agent, each
// with a certificate of gitvirt's authority, so that neither the API server nor the kubelet on the way reads or writes in it.
package agents

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	identities "github.com/gitvirt/gitvirt/identity/kubernetes"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// Cluster is a cluster in which gitvirt is installed.
type Cluster struct {
	// Config is how the API server is reached, as whom.
	Config *rest.Config
	// Namespace is gitvirt's own.
	Namespace string
	// Agent is the host:port of the agent for callers in its network; "" goes through the API server.
	Agent string
	// Labels are those of the agents' Pods.
	Labels map[string]string
}

// Dial returns a connection to the agent of the node that a VM's Pod is on. The caller's certificate is made for it.
func (c Cluster) Dial(ctx context.Context, vm schemas.Address) (*grpc.ClientConn, error) {
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	node, err := nodeOf(ctx, client, vm)
	if err != nil {
		return nil, err
	}
	address, options := c.Agent, []grpc.DialOption(nil)
	if address == "" {
		pod, err := c.agentOn(ctx, client, node)
		if err != nil {
			return nil, err
		}
		address = pod
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return forward(ctx, c.Config, client, c.Namespace, pod, api.DefaultPort)
		}))
	}
	source, err := identities.NewUser(ctx, client, c.Namespace)
	if err != nil {
		return nil, err
	}
	return api.DialTLS(address, node, source, func(error) {}, options...) // whatever fails is the error of the call
}

// nodeOf returns the node that a VM's Pod is on.
func nodeOf(ctx context.Context, client kubernetes.Interface, vm schemas.Address) (string, error) {
	name := pods.Name(vm)
	pod, err := client.CoreV1().Pods(vm.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("the VM %s/%s has no Pod (%s), so it is off or not there; \"gitvirt get\" tells", vm.Namespace, vm.Name, name)
	case err != nil:
		return "", fmt.Errorf("looking for the Pod of the VM %s/%s: %w", vm.Namespace, vm.Name, err)
	case pod.Spec.NodeName == "":
		return "", fmt.Errorf("the Pod %s/%s of the VM is on no node yet; \"kubectl -n %[1]s describe pod %[2]s\" says why", vm.Namespace, name)
	}
	return pod.Spec.NodeName, nil
}

// agentOn returns the name of the agent's Pod on a node.
func (c Cluster) agentOn(ctx context.Context, client kubernetes.Interface, node string) (string, error) {
	found, err := client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(c.Labels).String(), FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if apierrors.IsForbidden(err) {
		return "", fmt.Errorf("looking for the agent of the node %s: %w; the Role gitvirt-user in %s gives the rights to reach agents", node, err, c.Namespace)
	}
	if err != nil {
		return "", fmt.Errorf("looking for the agent of the node %s: %w", node, err)
	}
	for i := range found.Items {
		if pod := &found.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod.Name, nil
		}
	}
	return "", fmt.Errorf("%w on the node %s: no Pod of the DaemonSet in %s runs there", errNoAgent, node, c.Namespace)
}

var errNoAgent = errors.New("no agent runs")
