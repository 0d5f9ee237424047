package probes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/guestagent"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/probes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock passes at once and keeps how long everybody waited.
type clock struct{ waited []time.Duration }

func (c *clock) After(d time.Duration) <-chan time.Time {
	c.waited = append(c.waited, d)
	passed := make(chan time.Time, 1)
	passed <- time.Time{}
	return passed
}

func TestTiming(t *testing.T) {
	want := probes.Timing{Period: 10 * time.Second, Timeout: time.Second, Successes: 1, Failures: 3}
	if got := probes.TimingOf(&kubevirtv1.Probe{}); got != want {
		t.Errorf("defaults: %+v, want %+v", got, want)
	}
	want = probes.Timing{InitialDelay: time.Second, Period: 2 * time.Second, Timeout: 3 * time.Second, Successes: 4, Failures: 5}
	got := probes.TimingOf(&kubevirtv1.Probe{InitialDelaySeconds: 1, PeriodSeconds: 2, TimeoutSeconds: 3, SuccessThreshold: 4, FailureThreshold: 5})
	if got != want {
		t.Errorf("given: %+v, want %+v", got, want)
	}
}

func TestRun(t *testing.T) {
	for _, test := range []struct {
		reason              string
		successes, failures int
		initial             probes.Result
		results             string // one letter each: s, f, u
		want                string // the verdicts with the number of the result that made them
	}{
		{"ready with the first success", 1, 3, probes.Failure, "ffs", "3:success"},
		{"ready after enough in a row", 2, 3, probes.Failure, "sfss", "4:success"},
		{"not ready after enough in a row", 1, 3, probes.Failure, "sffsfff", "1:success 7:failure"},
		{"and ready again", 1, 2, probes.Failure, "sffs", "1:success 3:failure 4:success"},
		{"alive from the start", 1, 3, probes.Success, "ssss", ""},
		{"dead after enough in a row", 1, 3, probes.Success, "ffsfff", "6:failure"},
		{"a guest that was never ready is told once why", 1, 2, probes.Failure, "ffff", "2:failure"},
		{"what is not known is told at once, and once", 1, 3, probes.Failure, "uuu", "1:unknown"},
		{"what is not known kills nobody", 1, 2, probes.Success, "fufu", "2:unknown"},
		{"after it the verdict is earned again", 2, 2, probes.Failure, "uss", "1:unknown 3:success"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			at := 0
			check := func(context.Context) (probes.Result, string) {
				at++
				if at > len(test.results) {
					cancel()
					return probes.Failure, "the end"
				}
				result := map[byte]probes.Result{'s': probes.Success, 'f': probes.Failure, 'u': probes.Unknown}[test.results[at-1]]
				if result == probes.Success {
					return result, ""
				}
				return result, fmt.Sprintf("reason %s", result)
			}
			var verdicts []string
			time := &clock{}
			timing := probes.Timing{InitialDelay: 7, Period: 3, Timeout: 1 << 40, Successes: test.successes, Failures: test.failures}
			probes.Run(ctx, time, timing, check, test.initial, func(v probes.Verdict) {
				verdicts = append(verdicts, fmt.Sprintf("%d:%s", at, v.Result))
				if (v.Message == "") != (v.Result == probes.Success) {
					t.Errorf("verdict %+v", v)
				}
			})
			if got := strings.Join(verdicts, " "); got != test.want {
				t.Errorf("verdicts %q, want %q", got, test.want)
			}
			if len(time.waited) < len(test.results) || time.waited[0] != 7 || time.waited[1] != 3 {
				t.Errorf("waited %v", time.waited)
			}
		})
	}
}

// guest is a guest with an answer for everything.
type guest struct {
	agent   error
	code    int
	address string
	answers []bool // whether it takes connections, one after the other; nothing means yes
	lost    error  // nobody can tell
	ran     []string
}

func (g *guest) Ping(context.Context) error { return g.agent }

func (g *guest) Exec(_ context.Context, program string, arguments ...string) (int, []byte, error) {
	g.ran = append([]string{program}, arguments...)
	return g.code, nil, g.agent
}

func (g *guest) Address(int) (string, error) {
	if g.address == "" {
		return "", errors.New("behind user-mode networking")
	}
	return g.address, nil
}

func (g *guest) Answers(context.Context, int) (bool, error) {
	if len(g.answers) > 1 {
		g.answers = g.answers[1:]
	}
	return len(g.answers) == 0 || g.answers[0], g.lost
}

// serveTCP closes each connection after a word.
func serveTCP(t *testing.T, word string) *httptest.Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, word)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return &httptest.Server{URL: "http://" + listener.Addr().String()}
}

func TestChecks(t *testing.T) {
	handler := http.NewServeMux()
	handler.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "value" || r.Host != "name.example" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	handler.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	handler.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	handler.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/broken", http.StatusFound) })
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	closed := httptest.NewServer(handler)
	closed.Close()
	hangsUp, speaks := serveTCP(t, ""), serveTCP(t, "220 ready")
	port := func(server *httptest.Server) intstr.IntOrString {
		location, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		number, err := strconv.Atoi(location.Port())
		if err != nil {
			t.Fatal(err)
		}
		return intstr.FromInt32(int32(number))
	}
	get := func(server *httptest.Server, path string, scheme corev1.URIScheme) kubevirtv1.Handler {
		return kubevirtv1.Handler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: port(server), Scheme: scheme, HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Key", Value: "value"}, {Name: "Host", Value: "name.example"}},
		}}
	}
	tcp := func(server *httptest.Server, host string) kubevirtv1.Handler {
		return kubevirtv1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: port(server), Host: host}}
	}
	exec := kubevirtv1.Handler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/x"}}}
	ping := kubevirtv1.Handler{GuestAgentPing: &kubevirtv1.GuestAgentPing{}}
	silent := hypervisor.ErrNoAgent
	for _, test := range []struct {
		reason  string
		handler kubevirtv1.Handler
		guest   guest
		want    probes.Result
		message string
	}{
		{"an agent that answers", ping, guest{}, probes.Success, ""},
		{"an agent that does not", ping, guest{agent: silent}, probes.Failure, "no guest agent answers"},
		{"an agent that nobody could ask", ping, guest{agent: hypervisor.ErrUnavailable}, probes.Unknown, "hypervisor unavailable"},
		{"an agent that had no time", ping, guest{agent: context.DeadlineExceeded}, probes.Unknown, "deadline"},
		{"an agent that had its time", ping, guest{agent: fmt.Errorf("%w: %w", hypervisor.ErrNoAgent, context.DeadlineExceeded)}, probes.Failure, "no guest agent"},
		{"an agent that refuses", exec, guest{agent: errors.New("guest-exec is disabled")}, probes.Failure, "disabled"},
		{"a program that does not end", exec, guest{agent: fmt.Errorf("%w: %w", guestagent.ErrRunning, context.DeadlineExceeded)}, probes.Failure, "not ended"},
		{"a program that nobody could ask for", exec, guest{agent: hypervisor.ErrUnavailable}, probes.Unknown, "hypervisor unavailable"},
		{"a program that succeeds", exec, guest{}, probes.Success, ""},
		{"a program that fails", exec, guest{code: 2}, probes.Failure, "test ended with exit code 2"},
		{"a program that nobody can run", exec, guest{agent: silent}, probes.Failure, "no guest agent answers"},
		{"a port that is open", tcp(plain, ""), guest{address: "127.0.0.1"}, probes.Success, ""},
		{"a port that is not", tcp(closed, ""), guest{address: "127.0.0.1"}, probes.Failure, "refused"},
		{"a guest that cannot be reached", tcp(plain, ""), guest{}, probes.Unknown, "user-mode"},
		{"a port behind which the guest takes the connection at last", tcp(plain, ""), guest{address: "127.0.0.1", answers: []bool{false, false, true}}, probes.Success, ""},
		{"a port behind which nobody can tell", tcp(plain, ""), guest{address: "127.0.0.1", answers: []bool{false}, lost: errors.New("the monitor hangs")}, probes.Unknown, "the monitor hangs"},
		{"a connection that is closed again", tcp(hangsUp, ""), guest{address: "127.0.0.1", answers: []bool{false}}, probes.Failure, "refuses"},
		{"a service that speaks", tcp(speaks, ""), guest{address: "127.0.0.1", answers: []bool{false}}, probes.Success, ""},
		{"the address that the probe names", tcp(plain, "127.0.0.1"), guest{}, probes.Success, ""},
		{"HTTP", get(plain, "/ok", ""), guest{address: "127.0.0.1"}, probes.Success, ""},
		{"HTTPS, whoever signed it", get(secure, "ok", corev1.URISchemeHTTPS), guest{address: "127.0.0.1"}, probes.Success, ""},
		{"HTTP that is broken", get(plain, "/broken", ""), guest{address: "127.0.0.1"}, probes.Failure, "500"},
		{"a redirect to elsewhere is an answer", get(plain, "/elsewhere", ""), guest{address: "127.0.0.1"}, probes.Success, ""},
		{"a redirect within is followed", get(plain, "/here", ""), guest{address: "127.0.0.1"}, probes.Failure, "500"},
		{"HTTP of a guest that cannot be reached", get(plain, "/ok", ""), guest{}, probes.Unknown, "user-mode"},
		{"HTTP to nobody", get(closed, "/ok", ""), guest{address: "127.0.0.1"}, probes.Failure, "refused"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			check, err := probes.NewCheck(&kubevirtv1.Probe{Handler: test.handler}, &test.guest)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			result, message := check(ctx)
			if result != test.want || !strings.Contains(message, test.message) || (message == "") != (test.message == "") {
				t.Errorf("%s, %q, want %s, %q", result, message, test.want, test.message)
			}
			if test.handler.Exec != nil && !cmp.Equal(test.guest.ran, test.handler.Exec.Command) {
				t.Errorf("ran %q", test.guest.ran)
			}
		})
	}
}

func TestProbesThatCheckNothing(t *testing.T) {
	for _, handler := range []kubevirtv1.Handler{
		{},
		{Exec: &corev1.ExecAction{}},
		{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}},
		{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(70000)}},
	} {
		if _, err := probes.NewCheck(&kubevirtv1.Probe{Handler: handler}, &guest{}); err == nil {
			t.Errorf("%+v was taken", handler)
		}
	}
}
