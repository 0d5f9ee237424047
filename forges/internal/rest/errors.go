package rest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gitvirt/gitvirt/forges"
)

// StatusError is an answer that is no success.
type StatusError struct {
	// Status is that of HTTP.
	Status int
	// Message is the forge's own, on one line and without the credential, should it repeat that.
	Message string
}

// Error implements error.
func (e *StatusError) Error() string {
	text := strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status)))
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Temporary tells that the same request may succeed later.
func (e *StatusError) Temporary() bool {
	return e.Status >= 500 && e.Status != http.StatusNotImplemented || e.Status == http.StatusRequestTimeout || e.Status == http.StatusTooEarly
}

// Is makes it the kind of error that its status stands for.
func (e *StatusError) Is(target error) bool { return target == e.kind() }

func (e *StatusError) kind() error {
	switch {
	case e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden || e.Status == http.StatusProxyAuthRequired:
		return forges.ErrDenied
	case e.Status == http.StatusNotFound || e.Status == http.StatusGone:
		return forges.ErrNotFound
	case e.Status == http.StatusRequestTimeout || e.Status == http.StatusTooEarly || e.Status < 400 || e.Status >= 500:
		return forges.ErrUnavailable
	}
	return forges.ErrRefused
}

// messageLimit is how much of a forge's own words goes into an error, in characters.
const messageLimit = 300

func newStatusError(got *answer, token string) *StatusError {
	return &StatusError{Status: got.status, Message: messageOf(got.body, token)}
}

// messageOf finds what a forge says in its error: all three have a message, GitLab's may be an object and OAuth's has other names.
func messageOf(body []byte, token string) string {
	var content struct {
		Message     any    `json:"message"`
		Error       any    `json:"error"`
		Description string `json:"error_description"`
		Errors      any    `json:"errors"`
	}
	if err := json.Unmarshal(body, &content); err != nil {
		return "" // a page for people; its status says enough
	}
	var parts []string
	for _, part := range []any{content.Message, content.Error, content.Description, content.Errors} {
		switch value := part.(type) {
		case nil:
		case string:
			parts = append(parts, value)
		default:
			if text, err := json.Marshal(value); err == nil {
				parts = append(parts, string(text))
			}
		}
	}
	text := strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
	if token != "" {
		text = strings.ReplaceAll(text, token, "[token]")
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
	return Cut(text, messageLimit)
}

// Cut shortens a text to so many characters, with an ellipsis for the last.
func Cut(text string, limit int) string {
	characters := []rune(text)
	if len(characters) <= limit {
		return text
	}
	return string(characters[:limit-1]) + "…"
}

// garbageError is an answer that will be no better the next time.
type garbageError struct{ what string }

func (e *garbageError) Error() string { return e.what }

// limitError is an answer that asks for fewer requests.
type limitError struct {
	// until is when requests are answered again; zero where the forge does not say.
	until time.Time
	// spent says that it is the account's limit for all requests, and not one for this kind of request.
	spent bool
}

func (e *limitError) Error() string { return "too many requests" }

// limitOf tells whether an answer is about a rate limit. GitHub uses 403 for it as well as 429.
// https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api, https://docs.gitlab.com/security/rate_limits
func limitOf(got *answer, now time.Time) *limitError {
	retry, hasRetry := after(got.header.Get("Retry-After"), now)
	remaining, reset := got.header.Get("X-Ratelimit-Remaining"), got.header.Get("X-Ratelimit-Reset")
	if remaining == "" {
		remaining, reset = got.header.Get("Ratelimit-Remaining"), got.header.Get("Ratelimit-Reset")
	}
	spent := remaining == "0"
	switch {
	case got.status == http.StatusTooManyRequests:
	case got.status == http.StatusForbidden && (hasRetry || spent):
	case got.status == http.StatusServiceUnavailable && hasRetry:
	default:
		return nil
	}
	if hasRetry {
		return &limitError{until: retry}
	}
	if until, ok := after(reset, now); ok && spent {
		return &limitError{until: until, spent: true}
	}
	return &limitError{}
}

// after reads a time as forges and HTTP write it: seconds from now, seconds since 1970, or a date.
func after(text string, now time.Time) (time.Time, bool) {
	const epoch = 1_000_000_000 // nobody waits for thirty years
	if seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && seconds >= 0 {
		if seconds >= epoch {
			return time.Unix(min(seconds, 1<<40), 0), true
		}
		return now.Add(time.Duration(seconds) * time.Second), true
	}
	if date, err := http.ParseTime(text); err == nil {
		return date, true
	}
	return time.Time{}, false
}

func certificateError(err error) bool {
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &hostname)
}

// Error translates what an SDK returned into the words of package forges. It says what was being done, and never what it was done with.
func Error(ctx context.Context, doing string, err error) error {
	var limit *forges.RateLimitedError
	var status *StatusError
	var before *translated
	switch {
	case err == nil:
		return nil
	case errors.As(err, &limit):
		err = fmt.Errorf("%s: %w", doing, limit)
	case ctx.Err() != nil:
		err = fmt.Errorf("%s: %w: %w", doing, forges.ErrUnavailable, context.Cause(ctx))
	case errors.As(err, &before):
		err = fmt.Errorf("%s: %w", doing, before)
	case errors.As(err, &status):
		err = fmt.Errorf("%s: %w: %w", doing, status.kind(), status)
	case errors.Is(err, forges.ErrDenied), errors.Is(err, forges.ErrRefused), errors.Is(err, forges.ErrNotFound), errors.Is(err, forges.ErrUnavailable):
		err = fmt.Errorf("%s: %w", doing, inner(err))
	case certificateError(err):
		err = fmt.Errorf("%s: %w: its certificate is not trusted: %w; name a CA file if it is of your own making", doing, forges.ErrUnavailable, inner(err))
	default:
		err = fmt.Errorf("%s: %w: %w", doing, forges.ErrUnavailable, inner(err))
	}
	return &translated{err}
}

// translated is an error that says all that there is to say. What a credential returns is inside of what a request returns.
type translated struct{ err error }

func (e *translated) Error() string { return e.err.Error() }
func (e *translated) Unwrap() error { return e.err }

// inner takes off what http.Client puts around an error: the URL, which says nothing that doing does not.
func inner(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// Is tells whether an error is an answer with an HTTP status.
func Is(err error, status int) bool {
	var got *StatusError
	return errors.As(err, &got) && got.Status == status
}

// Message returns the forge's own words of an error, if it has answered with some.
func Message(err error) string {
	var got *StatusError
	if errors.As(err, &got) {
		return got.Message
	}
	return ""
}
