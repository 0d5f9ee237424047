package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/install"
)

// server keeps what is applied to it, by path, and has what runs become ready the second time that somebody looks.
type server struct {
	mu      sync.Mutex
	objects map[string]map[string]any
	looks   map[string]int
	broken  string
	never   bool
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	answer := func(code int, object map[string]any) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object)
	}
	fail := func(code int, reason string) {
		answer(code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason})
	}
	there := s.objects[r.URL.Path]
	switch {
	case s.broken != "" && strings.Contains(r.URL.Path, s.broken):
		fail(http.StatusForbidden, "Forbidden")
	case r.Method == http.MethodGet && there == nil:
		fail(http.StatusNotFound, "NotFound")
	case r.Method == http.MethodGet:
		s.looks[r.URL.Path]++
		answer(http.StatusOK, s.progress(r.URL.Path, there))
	case r.Method == http.MethodPatch:
		if r.URL.Query().Get("fieldManager") != FieldManager || r.Header.Get("Content-Type") != "application/apply-patch+yaml" {
			fail(http.StatusBadRequest, "BadRequest")
			return
		}
		body, err := io.ReadAll(r.Body)
		object := map[string]any{}
		if err := errors.Join(err, yaml.Unmarshal(body, &object)); err != nil {
			fail(http.StatusBadRequest, "BadRequest")
			return
		}
		s.objects[r.URL.Path] = object
		answer(http.StatusOK, object)
	default:
		fail(http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

// progress adds what a controller would tell.
func (s *server) progress(path string, object map[string]any) map[string]any {
	out := &unstructured.Unstructured{Object: object}
	out = out.DeepCopy()
	ready := int64(0)
	if s.looks[path] > 2 && !s.never {
		ready = 2
	}
	for field, value := range map[string]int64{
		"updatedReplicas": 2, "availableReplicas": ready, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": ready,
	} {
		_ = unstructured.SetNestedField(out.Object, value, "status", field)
	}
	return out.Object
}

func start(t *testing.T) (*server, dynamic.Interface, []*unstructured.Unstructured) {
	t.Helper()
	s := &server{objects: map[string]map[string]any{}, looks: map[string]int{}}
	listening := httptest.NewServer(s)
	t.Cleanup(listening.Close)
	client, err := dynamic.NewForConfig(&rest.Config{Host: listening.URL, QPS: 1000, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	o := install.Defaults("1")
	o.Repository, o.ServiceMonitor = "https://git.example.com/team/fleet.git", true
	objects, err := install.Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, client, objects
}

func TestApply(t *testing.T) {
	s, client, objects := start(t)
	count := func() map[Outcome]int {
		t.Helper()
		counted := map[Outcome]int{}
		if err := Apply(t.Context(), client, objects, func(_ *unstructured.Unstructured, outcome Outcome) { counted[outcome]++ }); err != nil {
			t.Fatal(err)
		}
		return counted
	}
	if got := count(); got[Created] != len(objects) || len(s.objects) != len(objects) {
		t.Errorf("at first: %v of %d, %d kept", got, len(objects), len(s.objects))
	}
	if got := count(); got[Unchanged] != len(objects) {
		t.Errorf("again: %v", got)
	}
	deployment := objects[slices.IndexFunc(objects, func(object *unstructured.Unstructured) bool { return object.GetKind() == "Deployment" })]
	if err := unstructured.SetNestedField(deployment.Object, int64(3), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	if got := count(); got[Changed] != 1 {
		t.Errorf("with a change: %v", got)
	}
	s.broken = "daemonsets"
	err := Apply(t.Context(), client, objects, func(*unstructured.Unstructured, Outcome) {})
	if err == nil || !strings.Contains(err.Error(), "DaemonSet gitvirt-system/gitvirt-agent") {
		t.Errorf("what may not be applied: %v", err)
	}
	other := &unstructured.Unstructured{}
	other.SetKind("Pod")
	if err := Apply(t.Context(), client, []*unstructured.Unstructured{other}, nil); err == nil {
		t.Error("a kind that nobody installs is applied")
	}
}

func TestWait(t *testing.T) {
	s, client, objects := start(t)
	if err := Apply(t.Context(), client, objects, func(*unstructured.Unstructured, Outcome) {}); err != nil {
		t.Fatal(err)
	}
	var told []string
	say := func(object *unstructured.Unstructured, state string) {
		told = append(told, object.GetKind()+": "+state)
	}
	if err := Wait(t.Context(), client, objects, say); err != nil {
		t.Fatal(err)
	}
	if want := []string{"Deployment: 0 of 2 ready", "Deployment: 2 of 2 ready", "DaemonSet: 0 of 2 ready", "DaemonSet: 2 of 2 ready"}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
	s.mu.Lock()
	s.never = true
	s.mu.Unlock()
	ctx, cancel := context.WithCancelCause(t.Context())
	err := Wait(ctx, client, objects, func(*unstructured.Unstructured, string) { cancel(errors.New("not within a minute")) })
	if err == nil || !strings.Contains(err.Error(), "not within a minute") || !strings.Contains(err.Error(), "0 of 2 ready") {
		t.Errorf("what never runs: %v", err)
	}
}

func TestRollout(t *testing.T) {
	for want, text := range map[string]string{
		"not seen yet false": `{"kind":"Deployment","metadata":{"generation":2},"status":{"observedGeneration":1,"updatedReplicas":1,"availableReplicas":1},"spec":{"replicas":1}}`,
		"1 of 3 ready false": `{"kind":"Deployment","spec":{"replicas":3},"status":{"updatedReplicas":1,"availableReplicas":3}}`,
		"0 of 0 ready true":  `{"kind":"DaemonSet","status":{}}`,
		"2 of 2 ready true":  `{"kind":"DaemonSet","status":{"desiredNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":2}}`,
		"1 of 2 ready false": `{"kind":"DaemonSet","status":{"desiredNumberScheduled":2,"updatedNumberScheduled":2,"numberAvailable":1}}`,
	} {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON([]byte(strings.Replace(text, `{"kind"`, `{"apiVersion":"apps/v1","kind"`, 1))); err != nil {
			t.Fatal(err)
		}
		state, done := rollout(object)
		if got := fmt.Sprint(state, " ", done); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
