package git

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
)

// maxAdvertisement bounds the list of references a server sends, in bytes: half a million references.
const maxAdvertisement = 64 << 20

// fetcher is the rest of a conversation with git-upload-pack after the references were advertised.
type fetcher interface {
	UploadPack(context.Context, *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	Close() error
}

// pusher is the rest of a conversation with git-receive-pack after the references were advertised.
type pusher interface {
	ReceivePack(context.Context, *packp.ReferenceUpdateRequest) (*packp.ReportStatus, error)
	Close() error
}

// connector opens conversations with the remote. Over http it is go-git's transport on a client of our own; ssh, git
// and local repositories are streams (see stream), because go-git's leave the ssh handshake without a deadline and
// lose what the far side writes to its standard error.
type connector struct {
	*endpoint
	web       transport.Transport
	transport *http.Transport
}

func newConnector(ep *endpoint) (*connector, error) {
	c := &connector{endpoint: ep}
	if ep.remote.Protocol != "http" && ep.remote.Protocol != "https" {
		return c, nil
	}
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		base = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	c.transport = base.Clone()
	c.transport.MaxIdleConnsPerHost = 2
	c.transport.IdleConnTimeout = 90 * time.Second
	if ep.cfg.CAFile != "" {
		pool, err := certPool(ep.cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%s: reading the CA file: %w", ep.display, err)
		}
		c.transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	c.web = githttp.NewClient(&http.Client{Transport: gitOnly{c.transport}})
	return c, nil
}

// close releases idle connections.
func (c *connector) close() {
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
}

func certPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", file)
	}
	return pool, nil
}

// upload starts a conversation that fetches. The caller closes it.
func (c *connector) upload(ctx context.Context) (fetcher, *packp.AdvRefs, error) {
	if c.web == nil {
		s, refs, err := c.openStream(ctx, transport.UploadPackServiceName)
		if err != nil {
			return nil, nil, err
		}
		return s, refs, nil
	}
	ep, auth, err := c.webEndpoint()
	if err != nil {
		return nil, nil, err
	}
	s, err := c.web.NewUploadPackSession(ep, auth)
	if err != nil {
		return nil, nil, err
	}
	refs, err := s.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, refs, nil
}

// receive starts a conversation that pushes. The caller closes it.
func (c *connector) receive(ctx context.Context) (pusher, *packp.AdvRefs, error) {
	if c.web == nil {
		s, refs, err := c.openStream(ctx, transport.ReceivePackServiceName)
		if err != nil {
			return nil, nil, err
		}
		return s, refs, nil
	}
	ep, auth, err := c.webEndpoint()
	if err != nil {
		return nil, nil, err
	}
	s, err := c.web.NewReceivePackSession(ep, auth)
	if err != nil {
		return nil, nil, err
	}
	refs, err := s.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, refs, nil
}

// webEndpoint returns a copy of the endpoint without credentials, which go-git changes when it is redirected, and the
// credentials by themselves: what is not in the URL cannot appear in an error about the URL.
func (c *connector) webEndpoint() (*transport.Endpoint, transport.AuthMethod, error) {
	ep := *c.remote
	user, password := ep.User, ep.Password
	ep.User, ep.Password = "", ""
	auth := c.cfg.Auth
	if auth.Username != "" {
		user = auth.Username
	}
	file, env := auth.TokenFile, auth.TokenEnv
	if file == "" && env == "" {
		file, env = auth.PasswordFile, auth.PasswordEnv
	} else if user == "" {
		user = "git"
	}
	secret, err := c.secret(file, env)
	if err != nil {
		return nil, nil, &accessError{fmt.Errorf("reading the credentials: %w", err), "make the secret readable to gitvirt"}
	}
	if secret != "" {
		password = secret
	}
	if user == "" && password == "" {
		return &ep, nil, nil
	}
	if strings.ContainsAny(user+password, "\r\n") {
		return nil, nil, &accessError{errors.New("the credentials hold a line break"), "store the secret on a single line"}
	}
	return &ep, &githttp.BasicAuth{Username: user, Password: password}, nil
}

// gitOnly refuses answers that are not a git server's, and bounds those that go-git reads as a whole.
type gitOnly struct {
	next http.RoundTripper
}

// maxErrorPage is how much of an error page is read, in bytes.
const maxErrorPage = 64 << 10

func (g gitOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		res.Body = limitBody(res.Body, maxErrorPage, io.EOF)
		return res, nil
	}
	kind := res.Header.Get("Content-Type")
	if !strings.HasPrefix(kind, "application/x-git-") {
		closeErr := res.Body.Close()
		return nil, errors.Join(fmt.Errorf("the server at %s does not speak git's smart http protocol (it answers with %q, not application/x-git-...)",
			req.URL.Host, kind), closeErr)
	}
	if strings.HasSuffix(req.URL.Path, "/info/refs") {
		res.Body = limitBody(res.Body, maxAdvertisement, errTooMuch)
	}
	return res, nil
}

func limitBody(body io.ReadCloser, limit int64, end error) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{&limitReader{body, limit, end}, body}
}

// limitReader ends with the error end after left bytes.
type limitReader struct {
	r    io.Reader
	left int64
	end  error
}

func (l *limitReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, l.end
	}
	if int64(len(p)) > l.left {
		p = p[:l.left]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	return n, err
}
