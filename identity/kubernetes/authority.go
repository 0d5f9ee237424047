// Package kubernetes keeps the authority of gitvirt in a cluster and gives certificates through its CertificateSigningRequests: the Secret with
// the keys and the ConfigMap that everybody reads, the controller's signer, and how agents and people ask. What a request has to say is decided in identity.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gitvirt/gitvirt/identity"
)

// AuthorityName is the name of the Secret with the authority's keys, which only the controller may read, and of the ConfigMap with its public side.
const AuthorityName = "gitvirt-ca"

// The keys of the Secret, beside tls.crt and tls.key, and of the ConfigMap.
const (
	stepKeyKey      = "steps.key"
	certificatesKey = "ca.crt"
	stepKeysKey     = "steps.pub"
)

const fieldManager = "gitvirt"

// OpenAuthority reads the authority that a namespace keeps, makes it when there is none, and publishes its public side. An authority that
// cannot be read is an error: another one in its place would shut out everybody who trusts it.
func OpenAuthority(ctx context.Context, client kubernetes.Interface, namespace string, now time.Time) (*identity.Authority, error) {
	authority, err := readAuthority(ctx, client, namespace)
	if apierrors.IsNotFound(err) {
		authority, err = makeAuthority(ctx, client, namespace, now)
	}
	if err != nil {
		return nil, fmt.Errorf("the authority in the Secret %s/%s: %w", namespace, AuthorityName, err)
	}
	if err := publish(ctx, client, namespace, authority); err != nil {
		return nil, fmt.Errorf("publishing the authority in the ConfigMap %s/%s: %w", namespace, AuthorityName, err)
	}
	return authority, nil
}

func readAuthority(ctx context.Context, client kubernetes.Interface, namespace string) (*identity.Authority, error) {
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, AuthorityName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return identity.ParseAuthority(identity.Keys{
		Certificate: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey], StepKey: secret.Data[stepKeyKey],
	})
}

func makeAuthority(ctx context.Context, client kubernetes.Interface, namespace string, now time.Time) (*identity.Authority, error) {
	authority, err := identity.NewAuthority(now)
	if err != nil {
		return nil, err
	}
	keys, err := authority.Keys()
	if err != nil {
		return nil, err
	}
	_, err = client.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: AuthorityName, Namespace: namespace},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: keys.Certificate, corev1.TLSPrivateKeyKey: keys.Key, stepKeyKey: keys.StepKey},
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsAlreadyExists(err) {
		return readAuthority(ctx, client, namespace) // another controller was faster, and its word counts
	}
	return authority, err
}

func publish(ctx context.Context, client kubernetes.Interface, namespace string, authority *identity.Authority) error {
	trust, err := authority.Trust()
	if err != nil {
		return err
	}
	data := map[string]string{certificatesKey: string(trust.Certificates()), stepKeysKey: string(trust.StepKeys())}
	configMaps := client.CoreV1().ConfigMaps(namespace)
	found, err := configMaps.Get(ctx, AuthorityName, metav1.GetOptions{})
	if err == nil && maps.Equal(found.Data, data) {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = configMaps.Apply(ctx, applycorev1.ConfigMap(AuthorityName, namespace).WithData(data), metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err
}

// TrustFolder returns what reads the public side of the authority from a folder where the ConfigMap is mounted, anew each time.
func TrustFolder(dir string) func() (*identity.Trust, error) {
	return func() (*identity.Trust, error) {
		certificates, err := os.ReadFile(filepath.Join(dir, certificatesKey))
		stepKeys, err2 := os.ReadFile(filepath.Join(dir, stepKeysKey))
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("reading what the ConfigMap %s holds: %w", AuthorityName, err)
		}
		return identity.ParseTrust(certificates, stepKeys)
	}
}

// ReadTrust reads the public side of the authority from the cluster.
func ReadTrust(ctx context.Context, client kubernetes.Interface, namespace string) (*identity.Trust, error) {
	found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, AuthorityName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the ConfigMap %s/%s: %w", namespace, AuthorityName, err)
	}
	return identity.ParseTrust([]byte(found.Data[certificatesKey]), []byte(found.Data[stepKeysKey]))
}
