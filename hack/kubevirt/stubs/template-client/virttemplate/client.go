// Package virttemplate stands in for kubevirt.io/virt-template-client-go.
package virttemplate

import "k8s.io/client-go/rest"

// Clientset is never used.
type Clientset struct{}

// Templates is never used.
type Templates struct{}

// NewForConfig returns a client that does nothing.
func NewForConfig(*rest.Config) (*Clientset, error) { return &Clientset{}, nil }

// TemplateV1beta1 returns a client that does nothing.
func (*Clientset) TemplateV1beta1() Templates { return Templates{} }

// RESTClient returns none.
func (Templates) RESTClient() rest.Interface { return nil }
