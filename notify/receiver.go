package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/rules"
)

// A receiver's patience.
const (
	sendTimeout = 10 * time.Second
	retryMin    = 2 * time.Second
	retryMax    = 5 * time.Minute
	// retryAfterMax bounds what a receiver may ask for.
	retryAfterMax = time.Hour
	maxRedirects  = 3
)

// receiver is one of the Fleet's. Its filter belongs to the goroutine that follows the events, the rest to the one that sends.
type receiver struct {
	n        *Notifier
	name     string
	kind     schemas.ReceiverKind
	fleet    string
	endpoint Endpoint
	filter   *rules.Filter
	queue    *queue
	stop     context.CancelFunc
}

// wants reports whether the filter is true. When that cannot be found out the event is told: rather too much than nothing.
func (r *receiver) wants(e *reconciler.Event, fleet string) bool {
	matches, err := r.filter.Matches(&rules.Event{
		Type: string(e.Type), Reason: string(e.Reason), Namespace: e.Address.Namespace, Name: e.Address.Name,
		Message: e.Message, Revision: e.Revision, Fleet: fleet, Count: int64(e.Count),
	})
	return matches || err != nil
}

// run sends until ctx ends.
func (r *receiver) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.queue.filled:
		}
		if backoff.Wait(ctx, r.n.config.Clock, r.n.config.Gather) != nil {
			return
		}
		r.deliver(ctx)
		if backoff.Wait(ctx, r.n.config.Clock, r.n.config.Pause) != nil {
			return
		}
	}
}

// deliver sends one message, and tries again until it is taken, or refused for what it is, or ctx ends.
func (r *receiver) deliver(ctx context.Context) {
	most := maxEntries
	if r.kind == schemas.ReceiverSlack {
		most = maxQueued
	}
	events, dropped := r.queue.take(most)
	if len(events) == 0 {
		return
	}
	body, err := r.body(events, dropped)
	if err != nil {
		r.failed(err, "refused")
		return
	}
	retry := backoff.Backoff{Min: retryMin, Max: retryMax, Rand: r.n.config.Rand}
	told := ""
	for {
		err := r.send(ctx, body)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			r.n.metrics.messages.WithLabelValues(r.name, "ok").Inc()
			if told != "" {
				r.n.controller.Report(reconciler.Note{Type: reconciler.Normal, Reason: reconciler.NotificationRecovered, Message: fmt.Sprintf("%q can be told again", r.name)})
			}
			return
		}
		var answer *answerError
		if errors.As(err, &answer) && answer.final() {
			r.failed(err, "refused")
			return
		}
		r.n.metrics.messages.WithLabelValues(r.name, "error").Inc()
		if problem := err.Error(); problem != told {
			told = problem
			r.tell(problem + "; it is tried again")
		}
		wait := retry.Next()
		if answer != nil {
			wait = max(wait, answer.after)
		}
		if backoff.Wait(ctx, r.n.config.Clock, wait) != nil {
			return
		}
	}
}

func (r *receiver) body(events []reconciler.Event, dropped int) ([]byte, error) {
	if r.kind == schemas.ReceiverSlack {
		return slackBody(r.fleet, events, dropped)
	}
	return jsonBody(r.fleet, r.name, events, dropped)
}

// failed counts and tells a message that is not tried again.
func (r *receiver) failed(err error, result string) {
	r.n.metrics.messages.WithLabelValues(r.name, result).Inc()
	r.tell(err.Error() + "; the message is given up")
}

func (r *receiver) tell(problem string) {
	r.n.controller.Report(reconciler.Note{Type: reconciler.Warning, Reason: reconciler.NotificationFailed, Message: fmt.Sprintf("telling %q: %s", r.name, problem)})
}

// answerError is an answer that says no.
type answerError struct {
	host string
	code int
	// after is when the receiver wants to be asked again; 0 when it says nothing.
	after time.Duration
}

func (e *answerError) Error() string {
	return fmt.Sprintf("%s answers %d %s", e.host, e.code, http.StatusText(e.code))
}

// final reports whether the same message will be refused again. A wrong address or secret is not final: its file may be mended.
func (e *answerError) final() bool {
	return e.code == http.StatusBadRequest || e.code == http.StatusRequestEntityTooLarge || e.code == http.StatusUnprocessableEntity
}

// errRedirect says that the receiver sends us elsewhere.
var errRedirect = errors.New("it redirects to where nothing is sent; put the final URL into the file")

// send sends once. Its errors hold neither the URL nor the secret.
func (r *receiver) send(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	address, err := r.endpoint.address(r.n.config.ReadFile)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("the file with its URL holds one that cannot be used")
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "gitvirt")
	if r.kind == schemas.ReceiverHTTP {
		secret, err := r.endpoint.secret(r.n.config.ReadFile)
		if err != nil {
			return err
		}
		if secret != nil {
			request.Header.Set(SignatureHeader, signature(secret, body))
		}
	}
	client := &http.Client{Transport: r.n.config.Transport, CheckRedirect: sameHost}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("sending to %s: %w", address.Host, withoutURL(err))
	}
	defer func() { _ = response.Body.Close() }() // the code says it all
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	if response.StatusCode/100 != 2 {
		return &answerError{host: address.Host, code: response.StatusCode, after: retryAfter(response.Header, r.n.config.Clock.Now())}
	}
	return nil
}

// sameHost follows redirects that ask for the same message at the same host, a few times.
func sameHost(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	if len(via) > maxRedirects || next.Method != http.MethodPost || next.URL.Scheme != first.Scheme || next.URL.Host != first.Host {
		return errRedirect
	}
	return nil
}

// withoutURL takes the URL out of an error of net/http, since it is a secret.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// retryAfter reads the header of that name, in seconds or as a time.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := header.Get("Retry-After")
	wait := time.Duration(0)
	if seconds, err := strconv.Atoi(text); err == nil {
		wait = time.Duration(min(max(seconds, 0), int(retryAfterMax/time.Second))) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, 0), retryAfterMax)
}
