package agents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // client-go's dialers still give this type
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// forward opens a connection to a port of a Pod through the API server. Unlike kubectl it opens no port on this machine, which others
// could use.
func forward(ctx context.Context, config *rest.Config, client kubernetes.Interface, namespace, pod string, port int) (net.Conn, error) {
	server := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	type outcome struct {
		conn net.Conn
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, server)
		conn, err := streams(dialer, pod, port)
		done <- outcome{conn, err}
	}()
	select {
	case o := <-done:
		return o.conn, o.err
	case <-ctx.Done():
		go func() {
			if late := <-done; late.conn != nil {
				_ = late.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// streams opens the two streams of a forwarded port: one for what is sent, one for why it fails.
func streams(dialer httpstream.Dialer, pod string, port int) (net.Conn, error) {
	connection, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("forwarding to the agent's Pod %s: %w; the Role gitvirt-user in its namespace gives the rights to reach agents", pod, err)
	}
	if err != nil {
		return nil, fmt.Errorf("forwarding to the agent's Pod %s: %w", pod, err)
	}
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := connection.CreateStream(headers)
	if err == nil {
		_ = failures.Close() // nothing is written there from here
		headers.Set(corev1.StreamType, corev1.StreamTypeData)
		var data httpstream.Stream
		if data, err = connection.CreateStream(headers); err == nil {
			return &forwarded{Stream: data, connection: connection, failures: failures, pod: pod}, nil
		}
	}
	_ = connection.Close()
	return nil, fmt.Errorf("forwarding to the agent's Pod %s: %w", pod, err)
}

// forwarded is a forwarded port as a connection.
type forwarded struct {
	httpstream.Stream
	connection httpstream.Connection
	failures   io.Reader
	pod        string
}

// maxFailure bounds what is read of a reason, in bytes.
const maxFailure = 4 << 10

// Read implements net.Conn. The end has a reason when it is a failure.
func (f *forwarded) Read(p []byte) (int, error) {
	n, err := f.Stream.Read(p)
	if n == 0 && errors.Is(err, io.EOF) {
		if reason, _ := io.ReadAll(io.LimitReader(f.failures, maxFailure)); len(reason) > 0 {
			return 0, fmt.Errorf("forwarding to the agent's Pod %s: %s", f.pod, reason)
		}
	}
	return n, err
}

// Close implements net.Conn.
func (f *forwarded) Close() error { return f.connection.Close() }

// LocalAddr implements net.Conn.
func (f *forwarded) LocalAddr() net.Addr { return forwardedAddr("here") }

// RemoteAddr implements net.Conn.
func (f *forwarded) RemoteAddr() net.Addr { return forwardedAddr("the agent's Pod " + f.pod) }

// SetDeadline implements net.Conn. Whoever waits closes the connection.
func (f *forwarded) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (f *forwarded) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (f *forwarded) SetWriteDeadline(time.Time) error { return nil }

// forwardedAddr is an end of a forwarded port, for people.
type forwardedAddr string

// Network implements net.Addr.
func (forwardedAddr) Network() string { return "portforward" }

func (a forwardedAddr) String() string { return string(a) }
