package git

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing/transport"

	"github.com/gitvirt/gitvirt/sources"
)

// errTooMuch says that a fetch exceeds Config.FetchBytes.
var errTooMuch = errors.New("the server sends more than the limit for one fetch")

// accessError is a failure that a person has to mend: credentials, host keys, certificates.
type accessError struct {
	err error
	fix string
}

func (e *accessError) Error() string { return e.err.Error() }
func (e *accessError) Unwrap() error { return e.err }

// fail wraps err once, with its kind and a fix. An error that is already a *sources.Error only learns its source.
func (e *endpoint) fail(ctx context.Context, op string, err error) error {
	var known *sources.Error
	if errors.As(err, &known) {
		told := *known
		told.Source = e.display
		return &told
	}
	out := &sources.Error{Kind: sources.ErrUnreadable, Source: e.display, Op: op, Err: err}
	var access *accessError
	var cert *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	switch {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		out.Err = fmt.Errorf("no complete answer within %s: %w", e.cfg.Timeout, context.DeadlineExceeded)
		out.Fix = "check that the server is reachable, or raise the timeout"
	case ctx.Err() != nil:
		out.Err = context.Cause(ctx)
	case errors.As(err, &access):
		out.Kind, out.Fix = sources.ErrAuth, access.fix
	case errors.As(err, &cert), errors.As(err, &authority):
		out.Kind = sources.ErrAuth
		out.Fix = "name the server's certificate authority (CA file), and check the host name in the URL"
	case errors.Is(err, transport.ErrAuthenticationRequired):
		out.Kind, out.Err = sources.ErrAuth, transport.ErrAuthenticationRequired
		out.Fix = "give a token or a user name and password that may read the repository"
	case errors.Is(err, transport.ErrAuthorizationFailed):
		out.Kind, out.Err = sources.ErrAuth, transport.ErrAuthorizationFailed
		out.Fix = "the credentials are accepted but lack the right; give the token access to this repository"
	case errors.Is(err, transport.ErrRepositoryNotFound):
		out.Kind, out.Err = sources.ErrEmpty, transport.ErrRepositoryNotFound
		out.Fix = "check the URL; servers also say this to credentials that may not see the repository"
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		out.Kind = sources.ErrEmpty
		out.Fix = "push a first commit"
	case errors.Is(err, exec.ErrNotFound):
		out.Fix = "a local repository is read with git's own programs; install git (apt-get install git)"
	case errors.Is(err, errTooMuch):
		out.Fix = "use a smaller repository, or raise the limit"
	}
	return out
}

// plain makes a text that others wrote (a server, a commit's author) fit for a log or a terminal: one line, valid UTF-8,
// no control characters.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return strings.Join(strings.Fields(text), " ")
}
