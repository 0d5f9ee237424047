package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// defaultTransport bounds each part of a request but not the whole, which may be gigabytes; StallTimeout watches that.
func defaultTransport() http.RoundTripper {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       30 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
	}
}

// registrySource is an image in a registry.
type registrySource struct {
	ref     name.Reference
	options []remote.Option
}

func parseRegistryRef(ref string, insecure bool) (name.Reference, error) {
	options := []name.Option{name.WithDefaultTag("latest")}
	if insecure {
		options = append(options, name.Insecure)
	}
	parsed, err := name.ParseReference(ref, options...)
	if err != nil {
		return nil, fmt.Errorf("reference %q: %w: %w", ref, err, ErrInvalid)
	}
	return parsed, nil
}

func (c *Cache) parseRegistry(ref string, keychain authn.Keychain) (source, error) {
	parsed, err := parseRegistryRef(ref, false)
	if err != nil {
		return nil, err
	}
	registry := parsed.Context().RegistryStr()
	insecure := slices.Contains(c.opts.Insecure, registry)
	if !insecure && parsed.Context().Scheme() == "http" && !onLoopback(registry) {
		// The library speaks http to every private address; here that has to be asked for.
		return nil, fmt.Errorf("registry %s: it would be spoken to without TLS; name it by a host name that its certificate holds, or list it as insecure: %w", registry, ErrInvalid)
	}
	if insecure {
		if parsed, err = parseRegistryRef(ref, true); err != nil {
			return nil, err
		}
	}
	return registrySource{ref: parsed, options: []remote.Option{
		remote.WithAuthFromKeychain(keychain),
		remote.WithTransport(c.opts.Transport),
		remote.WithUserAgent("gitvirt"),
		remote.WithPlatform(thisPlatform()),
		// Cache.retry tries again; two layers of retries would multiply.
		remote.WithRetryBackoff(remote.Backoff{Steps: 1, Duration: time.Millisecond}),
	}}, nil
}

func thisPlatform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

func onLoopback(registry string) bool {
	host := registry
	if h, _, err := net.SplitHostPort(registry); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || (ip != nil && ip.IsLoopback())
}

func (s registrySource) pinned() string {
	if digest, ok := s.ref.(name.Digest); ok {
		return digest.DigestStr()
	}
	return ""
}

func (s registrySource) changing() bool { return s.ref.Identifier() == "latest" }

func (s registrySource) with(ctx context.Context) []remote.Option {
	return append(slices.Clone(s.options), remote.WithContext(ctx))
}

// resolve asks with HEAD, which registries do not count as a pull, and with GET where that is not served.
func (s registrySource) resolve(ctx context.Context) (v1.Hash, error) {
	if digest := s.pinned(); digest != "" {
		return v1.NewHash(digest)
	}
	if head, err := remote.Head(s.ref, s.with(ctx)...); err == nil {
		return head.Digest, nil
	}
	got, err := remote.Get(s.ref, s.with(ctx)...)
	if err != nil {
		return v1.Hash{}, explain(s.ref.Name(), err)
	}
	return got.Digest, nil
}

func (s registrySource) open(ctx context.Context, digest v1.Hash) (contents, error) {
	image, err := remote.Image(s.ref.Context().Digest(digest.String()), s.with(ctx)...)
	if err != nil {
		return contents{}, explain(s.ref.Name(), err)
	}
	layers, err := layersOf(image)
	if err != nil {
		return contents{}, explain(s.ref.Name(), err)
	}
	return contents{layers: layers, close: func() error { return nil }}, nil
}

// layersOf pairs the layers of an image with the digests of their uncompressed bytes, which its configuration lists.
func layersOf(image v1.Image) ([]layer, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	stored, err := image.Layers()
	if err != nil {
		return nil, err
	}
	if len(stored) != len(config.RootFS.DiffIDs) {
		return nil, fmt.Errorf("it has %d layers and its configuration names %d; a container disk is a container image, not another artifact: %w",
			len(stored), len(config.RootFS.DiffIDs), ErrInvalid)
	}
	layers := make([]layer, len(stored))
	for i, one := range stored {
		size, err := one.Size()
		if err != nil {
			return nil, err
		}
		layers[i] = layer{diffID: config.RootFS.DiffIDs[i], size: size, stored: one.Compressed}
	}
	return layers, nil
}

// explain gives an error of the registry its kind. The library's text follows: it names the request and never the credentials.
func explain(ref string, err error) error {
	var response *transport.Error
	switch {
	case errors.Is(err, ErrInvalid):
		return err
	case errors.As(err, &response):
		return explainStatus(ref, response)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded), isNetwork(err):
		return fmt.Errorf("%s: the registry cannot be reached: %w: %w", ref, err, ErrUnavailable)
	}
	return fmt.Errorf("%s: %w: %w", ref, err, ErrInvalid)
}

func explainStatus(ref string, response *transport.Error) error {
	switch code := response.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fmt.Errorf("%s: the registry refuses these credentials, or there is no such repository: %w: %w", ref, response, ErrUnauthorized)
	case code == http.StatusNotFound:
		return fmt.Errorf("%s: the registry has no such image: %w: %w", ref, response, ErrNotFound)
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= http.StatusInternalServerError:
		return fmt.Errorf("%s: the registry does not serve now: %w: %w", ref, response, ErrUnavailable)
	}
	return fmt.Errorf("%s: the registry refuses: %w: %w", ref, response, ErrInvalid)
}

// isNetwork reports whether the bytes did not arrive, as against that they were wrong.
func isNetwork(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}

// DockerConfig returns the credentials in a Docker configuration (~/.docker/config.json, or the value of a pull secret of type
// kubernetes.io/dockerconfigjson). Credential helpers are not run.
func DockerConfig(raw []byte) (authn.Keychain, error) {
	var config struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		// The decoder's words may hold a part of the input.
		return nil, fmt.Errorf("docker configuration: it is not valid JSON with \"auths\": %w", ErrInvalid)
	}
	keychain := dockerConfig{}
	for server, auth := range config.Auths {
		keychain[normalServer(server)] = auth
	}
	return keychain, nil
}

// dockerConfig holds credentials by HOST or HOST/PATH.
type dockerConfig map[string]authn.AuthConfig

// normalServer turns the forms that docker login writes into HOST[/PATH].
func normalServer(server string) string {
	server = strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")
	server = strings.TrimRight(server, "/")
	for _, suffix := range []string{"/v1", "/v2"} {
		server = strings.TrimSuffix(server, suffix)
	}
	if server == "docker.io" || server == "registry-1.docker.io" {
		return name.DefaultRegistry
	}
	return server
}

// Resolve implements authn.Keychain: the longest matching path wins, as in Kubernetes.
func (d dockerConfig) Resolve(target authn.Resource) (authn.Authenticator, error) {
	for key := target.String(); key != ""; {
		if auth, ok := d[key]; ok {
			return authn.FromConfig(auth), nil
		}
		slash := strings.LastIndexByte(key, '/')
		if slash < 0 {
			break
		}
		key = key[:slash]
	}
	return authn.Anonymous, nil
}
