package probes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/guestagent"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// Guest is how a guest can be reached.
type Guest interface {
	// Ping returns nil when the guest agent answers.
	Ping(ctx context.Context) error
	// Exec runs a program in the guest by its agent.
	Exec(ctx context.Context, program string, arguments ...string) (exitCode int, output []byte, err error)
	// Address returns an IP address at which this host reaches a port of the guest, or an error that says why there is none.
	Address(port int) (string, error)
	// Answers reports whether the guest itself has taken a connection to one of its ports that is open: what lies before
	// it may accept connections for a guest that is not there.
	Answers(ctx context.Context, port int) (bool, error)
}

// NewCheck returns the check of a probe.
func NewCheck(probe *kubevirtv1.Probe, guest Guest) (Check, error) {
	switch {
	case probe.Exec != nil && len(probe.Exec.Command) > 0:
		command := probe.Exec.Command
		return func(ctx context.Context) (Result, string) { return execCheck(ctx, guest, command) }, nil
	case probe.GuestAgentPing != nil:
		return func(ctx context.Context) (Result, string) {
			if err := guest.Ping(ctx); err != nil {
				return unanswered(err), err.Error()
			}
			return Success, ""
		}, nil
	case probe.TCPSocket != nil:
		port, err := portOf(probe.TCPSocket.Port)
		if err != nil {
			return nil, err
		}
		host := probe.TCPSocket.Host
		return func(ctx context.Context) (Result, string) { return tcpCheck(ctx, guest, host, port) }, nil
	case probe.HTTPGet != nil:
		port, err := portOf(probe.HTTPGet.Port)
		if err != nil {
			return nil, err
		}
		get := probe.HTTPGet
		return func(ctx context.Context) (Result, string) { return httpCheck(ctx, guest, get, port) }, nil
	}
	return nil, errors.New("the probe says nothing that can be checked: write exec, guestAgentPing, httpGet or tcpSocket")
}

// portOf reads a port: a guest has no container whose ports have names.
func portOf(port intstr.IntOrString) (int, error) {
	number := port.IntValue()
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("port %q of the probe is no number between 1 and 65535", port.String())
	}
	return number, nil
}

// unanswered says what it proves that the guest agent did not do what it was asked for: nothing, when it never was asked.
func unanswered(err error) Result {
	switch {
	case errors.Is(err, hypervisor.ErrNoAgent), errors.Is(err, guestagent.ErrRunning):
		return Failure // even when it is the time that was over: it had its time
	case errors.Is(err, hypervisor.ErrUnavailable), errors.Is(err, hypervisor.ErrNotFound),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Unknown
	}
	return Failure // it was told no
}

func execCheck(ctx context.Context, guest Guest, command []string) (Result, string) {
	code, _, err := guest.Exec(ctx, command[0], command[1:]...)
	switch {
	case err != nil:
		return unanswered(err), err.Error()
	case code != 0:
		return Failure, fmt.Sprintf("%s ended with exit code %d", command[0], code)
	}
	return Success, ""
}

// target returns host and port to connect to: the host that the probe names, or the guest.
func target(guest Guest, host string, port int) (string, error) {
	if host == "" {
		var err error
		if host, err = guest.Address(port); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

func tcpCheck(ctx context.Context, guest Guest, host string, port int) (Result, string) {
	address, err := target(guest, host, port)
	if err != nil {
		return Unknown, err.Error()
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return Failure, err.Error()
	}
	defer func() { _ = conn.Close() }() // that it opened is all that is asked
	if host != "" {
		return Success, ""
	}
	return taken(ctx, guest, conn, port)
}

// look is how long a connection is listened to until it is asked again whether the guest has taken it.
const look = 20 * time.Millisecond

// taken finds out whether the guest has taken a connection: somebody says so, or the guest speaks. One that is closed
// without a word was refused by the guest.
func taken(ctx context.Context, guest Guest, conn net.Conn, port int) (Result, string) {
	for {
		answers, err := guest.Answers(ctx, port)
		switch {
		case answers:
			return Success, ""
		case ctx.Err() != nil:
			return Failure, fmt.Sprintf("the guest does not answer at port %d", port)
		case err != nil:
			return Unknown, err.Error()
		}
		if err := conn.SetReadDeadline(time.Now().Add(look)); err != nil {
			return Failure, err.Error()
		}
		n, err := conn.Read(make([]byte, 1))
		if n > 0 {
			return Success, ""
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return Failure, fmt.Sprintf("the guest refuses connections to port %d", port)
		}
	}
}

// maxRedirects bounds how far an answer leads on.
const maxRedirects = 10

// maxHeader bounds, in bytes, how much of an answer's header a guest has read here.
const maxHeader = 64 << 10

func httpCheck(ctx context.Context, guest Guest, get *corev1.HTTPGetAction, port int) (Result, string) {
	address, err := target(guest, get.Host, port)
	if err != nil {
		return Unknown, err.Error()
	}
	location, err := url.Parse("/" + strings.TrimPrefix(get.Path, "/"))
	if err != nil {
		return Failure, err.Error()
	}
	location.Scheme, location.Host = strings.ToLower(string(get.Scheme)), address
	if location.Scheme == "" {
		location.Scheme = "http"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return Failure, err.Error()
	}
	request.Header.Set("User-Agent", "gitvirt-probe")
	request.Header.Set("Accept", "*/*")
	for _, header := range get.HTTPHeaders {
		if strings.EqualFold(header.Name, "Host") {
			request.Host = header.Value
			continue
		}
		request.Header.Set(header.Name, header.Value)
	}
	client := &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: maxHeader,
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as Kubernetes: a probe asks whether it answers, not who
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if next.URL.Hostname() != via[0].URL.Hostname() || len(via) >= maxRedirects {
				return http.ErrUseLastResponse // a redirect to elsewhere is an answer
			}
			return nil
		},
	}
	response, err := client.Do(request)
	if err != nil {
		return Failure, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 10<<10)) // the status has been read; the rest is politeness
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		// Not the words beside the number: they are the guest's.
		return Failure, fmt.Sprintf("the answer is %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	return Success, ""
}
