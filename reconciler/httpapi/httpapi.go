// Package httpapi is the read-only HTTP interface of a controller: health, metrics, and JSON about the fleet, the plan
// and the events. It changes nothing, shows no sensitive value, and is meant for loopback: it has no authentication, so
// it refuses requests whose Host header is not one it was told of (a web page that resolves its own name to 127.0.0.1
// would otherwise read it).
//
// The fields of the answers are named as in the JSON of plans; a VM's status is the one of the status branch, and named
// as there.
package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// DefaultAddress is where a controller listens: loopback.
const DefaultAddress = "127.0.0.1:9471"

// LivePath is where what lives is told, as a plan.Live.
const LivePath = "/api/v1/live"

// Controller is what is shown; *reconciler.Reconciler is one.
type Controller interface {
	View() *reconciler.View
	VMs() []status.VM
	VM(namespace, name string) (status.VM, bool)
	Events(since uint64) []reconciler.Event
	Healthy() error
	Ready() error
	Registry() *prometheus.Registry
}

// PullRequests is a Controller that looks after pull requests as well.
type PullRequests interface {
	// Pulls returns the open ones by number.
	Pulls() map[int]previews.Status
	// Full returns all of the plan of one, as text.
	Full(ctx context.Context, number int) (string, error)
	// Problem says why the forge cannot be read; empty when it can.
	Problem() string
}

// Pulls is the answer of /api/v1/pulls.
type Pulls struct {
	// Pulls are ordered by number.
	Pulls []previews.Status `json:"pulls"`
	// Problem says why the forge cannot be read.
	Problem string `json:"problem,omitempty"`
}

// Fleet is the answer of /api/v1/fleet.
type Fleet struct {
	Fleet    string `json:"fleet"`
	Revision string `json:"revision"`
	// Subject and Author are the commit's.
	Subject string `json:"subject,omitempty"`
	Author  string `json:"author,omitempty"`
	// Sources are the repositories that the Fleet names, in its order.
	Sources []Source `json:"sources,omitempty"`
	Node    string   `json:"node,omitempty"`
	// Unknown says why the host cannot be read, PollError why git cannot.
	Unknown   string `json:"unknown,omitempty"`
	PollError string `json:"poll_error,omitempty"`
	// Refused says why the head of the branch is not applied, and what to do.
	Refused string `json:"refused,omitempty"`
	// PlanID is the plan that /api/v1/plan shows.
	PlanID string      `json:"plan_id"`
	VMs    []status.VM `json:"vms"`
}

// Source is a repository that the Fleet names.
type Source struct {
	Name string `json:"name"`
	// Revision is the commit that counts, with its Subject, Author and Time; empty when none was ever read.
	Revision string    `json:"revision,omitempty"`
	Subject  string    `json:"subject,omitempty"`
	Author   string    `json:"author,omitempty"`
	Time     time.Time `json:"time,omitzero"`
	// Problem says why it cannot be read now, or why its head is not applied.
	Problem string `json:"problem,omitempty"`
}

// VM is the answer of /api/v1/vms/NAMESPACE/NAME.
type VM struct {
	status.VM
	// Step is what the plan wants to do; null when nothing.
	Step *plan.Step `json:"step"`
}

// Events is the answer of /api/v1/events?since=ID.
type Events struct {
	Events []reconciler.Event `json:"events"`
	// Last is the ID to ask for next.
	Last uint64 `json:"last"`
}

// Error is the answer when there is nothing to show.
type Error struct {
	Error string `json:"error"`
}

// New returns the handler. hosts are the names, besides loopback's, that a request may name in its Host header; the
// address that the server listens on is one.
func New(controller Controller, hosts ...string) http.Handler {
	a := &api{controller: controller}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", a.check(controller.Healthy))
	mux.HandleFunc("GET /readyz", a.check(controller.Ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(controller.Registry(), promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /api/v1/fleet", a.fleet)
	mux.HandleFunc("GET /api/v1/vms/{namespace}/{name}", a.vm)
	mux.HandleFunc("GET /api/v1/plan", a.plan)
	mux.HandleFunc("GET /api/v1/events", a.events)
	mux.HandleFunc("GET "+LivePath, a.live)
	if pulls, ok := controller.(PullRequests); ok {
		shown := &pullRequests{pulls}
		mux.HandleFunc("GET /api/v1/pulls", shown.list)
		mux.HandleFunc("GET /plans/{number}", shown.plan)
	}
	return guard(mux, hosts)
}

// Serve answers on a listener until ctx ends, then for as long as the requests that are being answered need (at most
// five seconds). The address of the listener is an allowed host.
func Serve(ctx context.Context, listener net.Listener, controller Controller, hosts ...string) error {
	server := &http.Server{
		Handler:           New(controller, append(hosts, listener.Addr().String())...),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving HTTP on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := server.Shutdown(closing)
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err != nil {
		return fmt.Errorf("closing HTTP on %s: %w", listener.Addr(), err)
	}
	return nil
}

// guard refuses what is not a read or names a host that is not ours.
func guard(next http.Handler, hosts []string) http.Handler {
	allowed, wildcard := map[string]bool{}, false
	for _, host := range hosts {
		name := hostName(host)
		if ip := net.ParseIP(name); ip != nil && ip.IsUnspecified() {
			wildcard = true
			continue
		}
		allowed[name] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy", "default-src 'none'")
		if !permitted(r.Host, allowed, wildcard) {
			answer(w, http.StatusMisdirectedRequest, Error{"this host name is not served here; use localhost or the address it listens on"})
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			header.Set("Allow", "GET, HEAD")
			answer(w, http.StatusMethodNotAllowed, Error{"read only"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// permitted reports whether a Host header is loopback's or one that was allowed. A server that listens on every address
// takes every literal address: names are what a rebinding attack needs.
func permitted(header string, allowed map[string]bool, wildcard bool) bool {
	name := hostName(header)
	if name == "localhost" || allowed[name] {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && (ip.IsLoopback() || wildcard)
}

// hostName is a host without its port and brackets, in lower case.
func hostName(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

type api struct{ controller Controller }

func (a *api) check(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	}
}

func (a *api) fleet(w http.ResponseWriter, _ *http.Request) {
	view := a.controller.View()
	if view.Plan == nil {
		a.notYet(w)
		return
	}
	out := Fleet{
		Fleet: view.Plan.Fleet, Revision: view.Plan.Revision, Subject: view.Snapshot.Subject, Author: view.Snapshot.Author,
		Node: view.Observed.Node, Unknown: view.Plan.Unknown, PollError: view.PollError, Refused: view.Refused, PlanID: view.Plan.ID, VMs: a.controller.VMs(),
	}
	for _, part := range view.Snapshot.Parts {
		if part.Name != "" {
			out.Sources = append(out.Sources, Source{part.Name, part.Revision, part.Subject, part.Author, part.Time, part.Problem})
		}
	}
	if out.VMs == nil {
		out.VMs = []status.VM{}
	}
	answer(w, http.StatusOK, out)
}

// notYet says what is missing before there is anything to show.
func (a *api) notYet(w http.ResponseWriter) {
	text := "no round is complete yet"
	if err := a.controller.Ready(); err != nil {
		text = err.Error()
	}
	answer(w, http.StatusServiceUnavailable, Error{text})
}

func (a *api) vm(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	view := a.controller.View()
	if view.Plan == nil {
		a.notYet(w)
		return
	}
	vm, ok := a.controller.VM(namespace, name)
	if !ok {
		answer(w, http.StatusNotFound, Error{fmt.Sprintf("no VM %q in the namespace %q", name, namespace)})
		return
	}
	out := VM{VM: vm}
	for i := range view.Plan.Steps {
		if view.Plan.Steps[i].Address == vm.Address {
			out.Step = &view.Plan.Steps[i]
		}
	}
	answer(w, http.StatusOK, out)
}

func (a *api) plan(w http.ResponseWriter, _ *http.Request) {
	view := a.controller.View()
	if view.Plan == nil {
		a.notYet(w)
		return
	}
	answer(w, http.StatusOK, view.Plan)
}

// live tells what lives, for plans that are made elsewhere.
func (a *api) live(w http.ResponseWriter, _ *http.Request) {
	view := a.controller.View()
	if view.Plan == nil {
		a.notYet(w)
		return
	}
	live, err := plan.NewLive(view.Observed, view.Pods, view.Time)
	if err != nil {
		answer(w, http.StatusServiceUnavailable, Error{err.Error()})
		return
	}
	answer(w, http.StatusOK, live)
}

func (a *api) events(w http.ResponseWriter, r *http.Request) {
	var since uint64
	if text := r.URL.Query().Get("since"); text != "" {
		var err error
		if since, err = strconv.ParseUint(text, 10, 64); err != nil {
			answer(w, http.StatusBadRequest, Error{"since: want the ID of an event, a number"})
			return
		}
	}
	out := Events{Events: a.controller.Events(since), Last: since}
	if len(out.Events) > 0 {
		out.Last = out.Events[len(out.Events)-1].ID
	} else {
		out.Events = []reconciler.Event{}
	}
	answer(w, http.StatusOK, out)
}

func answer(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(code)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(value) // the client went away
}
