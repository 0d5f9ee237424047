// Package rest is what the clients of all forges share: how a request is made, tried again and given up, how often it may be made, and what
// the answers mean in the words of package forges. It knows no forge; what differs between them is in its Config.
//
// Everything is in one http.RoundTripper below the forges' SDKs. It reads answers whole, so that one that is cut or is no JSON is found
// where it can still be tried again, and hands the SDKs nothing but sound answers: all others are errors, which Error translates.
package rest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
)

const (
	// bodyLimit is how much an answer may hold, in bytes. A page of GitLab's with fifty texts of a million characters is the most that is
	// asked for.
	bodyLimit = 64 << 20
	// attemptTimeout bounds one request, its answer included.
	attemptTimeout = 20 * time.Second
	// patience is how long is tried again; an attempt is not begun after it.
	patience = 5 * time.Second
	// attempts is how often, at most.
	attempts = 4
	// unknownLimit is how long a forge is left alone that wants fewer requests and does not say until when. GitHub asks for a minute.
	unknownLimit = time.Minute
	// longestLimit bounds what a forge may ask for; limits are by the hour.
	longestLimit = 2 * time.Hour
)

// Credential hands out what requests are authenticated with. Its methods may be called at the same time.
type Credential interface {
	// Token returns it, renewed when that is due. An error of it says what is wrong without the token.
	Token(ctx context.Context) (string, error)
	// Refused tells that the forge did not take a token. Whether another one is worth a try is what it returns.
	Refused(ctx context.Context, token string) bool
}

// Config says how to speak to a forge.
type Config struct {
	// Base is where the API is. Credentials go to its scheme, host and port, and requests nowhere else.
	Base *url.URL
	// CAFile holds PEM certificates that servers are trusted by besides the system's; may be empty.
	CAFile string
	// Credential authenticates each request; nil means that they have an Authorization already.
	Credential Credential
	// Authorize puts a token into a request, in the forge's own way.
	Authorize func(h http.Header, token string)
	// Clock is the system's when nil.
	Clock backoff.Clock
}

// NewClient returns the client that an SDK is to use.
func NewClient(config Config) (*http.Client, error) {
	transport, err := dialer(config.CAFile)
	if err != nil {
		return nil, err
	}
	if config.Clock == nil {
		config.Clock = backoff.SystemClock{}
	}
	return &http.Client{
		Transport: &roundTripper{Config: config, next: transport, known: map[string]*answer{}},
		CheckRedirect: func(request *http.Request, via []*http.Request) error {
			return checkRedirect(config.Base, request, via)
		},
	}, nil
}

// dialer returns a transport that checks TLS against the system's authorities and those of a file.
func dialer(caFile string) (*http.Transport, error) {
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: attemptTimeout,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if caFile == "" {
		return transport, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("reading the certificates that the forge is trusted by: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate that can be read; want PEM", caFile)
	}
	transport.TLSClientConfig.RootCAs = pool
	return transport, nil
}

// checkRedirect lets a request be sent on within the same server only, where it stays the request that it was: a credential is for one
// server, and a POST that becomes a GET writes nothing.
func checkRedirect(base *url.URL, request *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case !sameServer(base, request.URL):
		return &garbageError{fmt.Sprintf("it sends requests on to %s://%s; name that server, if it is the forge", request.URL.Scheme, request.URL.Host)}
	case request.Method != first.Method:
		return &garbageError{"it sends a " + first.Method + " on as a " + request.Method + "; the repository may have another name now"}
	case len(via) > 3:
		return &garbageError{"it sends requests in a circle"}
	}
	return nil
}

func sameServer(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if strings.EqualFold(u.Scheme, "https") {
		return "443"
	}
	return "80"
}

// BaseURL reads the address of a forge as people write it. What it returns has no slash at its end.
func BaseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("the forge's URL cannot be read; want https://HOST or https://HOST/PATH")
	case u.User != nil:
		return nil, errors.New("the forge's URL holds a user or a password; name a token file instead")
	case u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return nil, fmt.Errorf("the forge's URL is %q; want https://HOST or https://HOST/PATH", text)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the forge's URL is %q; want it without what follows its path", text)
	case u.Scheme == "http" && !local(u.Hostname()):
		return nil, fmt.Errorf("the forge's URL is %q: a token would be readable on its way; want https, with a CA file if the server's certificate is of your own making", text)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

// local tells whether a host is this machine, which no network lies between.
func local(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

type contextKey int

const (
	idempotentKey contextKey = iota
	rememberKey
)

// Idempotent marks a request that may be made twice though its method does not say so.
func Idempotent(ctx context.Context) context.Context {
	return context.WithValue(ctx, idempotentKey, true)
}

// Remember marks a GET that is made again and again: its answer is kept with its ETag, and asked for anew only if it is another.
func Remember(ctx context.Context) context.Context { return context.WithValue(ctx, rememberKey, true) }

func marked(ctx context.Context, key contextKey) bool {
	value, _ := ctx.Value(key).(bool)
	return value
}
