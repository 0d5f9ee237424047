package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
)

// roundTripper makes requests, and makes them again where that is worth it.
type roundTripper struct {
	Config
	next http.RoundTripper

	mu sync.Mutex
	// known are answers that were kept with their ETags, by URL.
	known map[string]*answer
	// spentUntil is when the account may make requests again, and spentToken whose limit that is.
	spentUntil time.Time
	spentToken string
}

// mostKnown bounds the answers that are kept: a poll has one.
const mostKnown = 4

// answer is a response that was read whole.
type answer struct {
	status int
	header http.Header
	body   []byte
	// token is whose answer it is.
	token string
}

// RoundTrip implements http.RoundTripper. It returns responses of success only.
func (r *roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	body, err := readBody(request)
	if err != nil {
		return nil, err
	}
	if !sameServer(r.Base, request.URL) {
		return nil, &garbageError{fmt.Sprintf("it names another server, %s, for what is its own", request.URL.Host)}
	}
	ctx := request.Context()
	began := r.Clock.Now()
	waits := backoff.Backoff{Min: 250 * time.Millisecond, Max: 2 * time.Second}
	renewed := false
	for attempt := 1; ; attempt++ {
		token, err := r.token(ctx)
		if err != nil {
			return nil, err
		}
		if err := r.limited(token); err != nil {
			return nil, err
		}
		got, err := r.attempt(request, body, token)
		if err == nil {
			return got.response(request), nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var status *StatusError
		if errors.As(err, &status) && status.Status == http.StatusUnauthorized && !renewed && r.Credential != nil {
			renewed = true
			if r.Credential.Refused(ctx, token) {
				continue
			}
		}
		wait := waits.Next()
		var limit *limitError
		if errors.As(err, &limit) && !limit.until.IsZero() {
			// Never before the time it names: a moment longer, since clocks differ.
			wait = min(max(limit.until.Sub(r.Clock.Now()), 0), longestLimit) + 100*time.Millisecond
		}
		left := patience - r.Clock.Now().Sub(began)
		if attempt == attempts || wait > left || !again(request, err) {
			return nil, r.giveUp(err, token)
		}
		if err := backoff.Wait(ctx, r.Clock, wait); err != nil {
			return nil, err
		}
	}
}

func readBody(request *http.Request) ([]byte, error) {
	if request.Body == nil || request.Body == http.NoBody {
		return nil, nil
	}
	body, err := io.ReadAll(request.Body)
	return body, errors.Join(err, request.Body.Close())
}

func (r *roundTripper) token(ctx context.Context) (string, error) {
	if r.Credential == nil {
		return "", nil
	}
	return r.Credential.Token(ctx)
}

// limited refuses a request of an account that has none left: to ask all the same is what forges lock accounts for.
func (r *roundTripper) limited(token string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token == r.spentToken && r.Clock.Now().Before(r.spentUntil) {
		return &forges.RateLimitedError{Until: r.spentUntil}
	}
	return nil
}

// giveUp turns the last error into what the caller gets.
func (r *roundTripper) giveUp(err error, token string) error {
	var limit *limitError
	if !errors.As(err, &limit) {
		return err
	}
	now := r.Clock.Now()
	until := limit.until
	if until.IsZero() {
		until = now.Add(unknownLimit)
	}
	if latest := now.Add(longestLimit); until.After(latest) {
		until = latest
	}
	if limit.spent {
		r.mu.Lock()
		r.spentUntil, r.spentToken = until, token
		r.mu.Unlock()
	}
	return &forges.RateLimitedError{Until: until}
}

// again tells whether a request may be made a second time after an error, without being carried out twice.
func again(request *http.Request, err error) bool {
	var status *StatusError
	var limit *limitError
	var network *net.OpError
	switch {
	case errors.As(err, &limit):
		return true // it was not carried out
	case errors.As(err, &network) && network.Op == "dial":
		return true // nor has it got there
	case errors.As(err, &status) && !status.Temporary():
		return false
	}
	var permanent *garbageError
	if errors.As(err, &permanent) || certificateError(err) {
		return false
	}
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true // edits here replace whole texts
	}
	return marked(request.Context(), idempotentKey)
}

// attempt makes a request once and reads its answer.
func (r *roundTripper) attempt(request *http.Request, body []byte, token string) (*answer, error) {
	ctx, cancel := context.WithTimeout(request.Context(), attemptTimeout)
	defer cancel()
	once := request.Clone(ctx)
	if body != nil {
		once.Body = io.NopCloser(bytes.NewReader(body))
		once.ContentLength = int64(len(body))
	}
	if r.Credential != nil {
		r.Authorize(once.Header, token)
	}
	known := r.remembered(once, token)
	if known != nil {
		once.Header.Set("If-None-Match", known.header.Get("Etag"))
	}
	response, err := r.next.RoundTrip(once)
	if err != nil {
		return nil, late(ctx, request.Context(), err)
	}
	defer func() { _ = response.Body.Close() }() // it was read, or is given up
	content, err := io.ReadAll(io.LimitReader(response.Body, bodyLimit+1))
	switch {
	case err != nil:
		return nil, late(ctx, request.Context(), fmt.Errorf("its answer ends in the middle: %w", err))
	case len(content) > bodyLimit:
		return nil, &garbageError{fmt.Sprintf("its answer has more than %d MiB", bodyLimit>>20)}
	case response.StatusCode == http.StatusNotModified && known != nil:
		return known, nil
	}
	got := &answer{status: response.StatusCode, header: response.Header, body: content, token: token}
	if err := r.judge(request.Method, got, token); err != nil {
		return nil, err
	}
	r.remember(once, got)
	return got, nil
}

// late says so of an error that is there because an attempt took too long, and not because its caller has had enough.
func late(attempt, caller context.Context, err error) error {
	if attempt.Err() != nil && caller.Err() == nil {
		return fmt.Errorf("no complete answer within %s", attemptTimeout)
	}
	return err
}

// judge returns an error for an answer that an SDK has no use for. Redirects are for http.Client.
func (r *roundTripper) judge(method string, got *answer, token string) error {
	switch {
	case got.status >= 300 && got.status < 400 && got.header.Get("Location") != "":
		return nil
	case got.status < 200 || got.status >= 300:
		if limit := limitOf(got, r.Clock.Now()); limit != nil {
			return limit
		}
		return newStatusError(got, token)
	case len(got.body) == 0 && (method != http.MethodGet || got.status != http.StatusOK):
		return nil
	case !sound(got.body):
		return errors.New("its answer is no JSON, or nothing; is this the forge's address, and nothing before it that asks to log in?")
	}
	return nil
}

// sound tells whether an answer is JSON that holds something. An SDK may trip over a list of nothings.
func sound(body []byte) bool {
	body = bytes.TrimSpace(body)
	if !json.Valid(body) || string(body) == "null" {
		return false
	}
	if body[0] != '[' {
		return true
	}
	var items []json.RawMessage
	return json.Unmarshal(body, &items) == nil && !slices.ContainsFunc(items, func(item json.RawMessage) bool { return string(item) == "null" })
}

// remembered returns the answer that was kept for a request.
func (r *roundTripper) remembered(request *http.Request, token string) *answer {
	if request.Method != http.MethodGet || !marked(request.Context(), rememberKey) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[request.URL.String()]
	if known == nil || known.token != token {
		return nil // what one account sees is not another's
	}
	return known
}

func (r *roundTripper) remember(request *http.Request, got *answer) {
	if request.Method != http.MethodGet || !marked(request.Context(), rememberKey) || got.status != http.StatusOK || got.header.Get("Etag") == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= mostKnown {
		clear(r.known)
	}
	r.known[request.URL.String()] = got
}

// response makes an http.Response of an answer. Each has a body of its own, the headers are shared and read only.
func (a *answer) response(request *http.Request) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)), StatusCode: a.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)), Request: request,
	}
}
