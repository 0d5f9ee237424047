package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/several"
)

const fleet = "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\nspec: {}\n"

// manifest is a VM that holds a secret in its user data, and another by reference.
func manifest(name, secret string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %[1]s}
spec:
  runStrategy: Always
  template:
    spec:
      domain: {memory: {guest: 64Mi}, devices: {disks: [{name: a, disk: {bus: virtio}}, {name: b, disk: {bus: virtio}}]}}
      volumes:
      - name: a
        cloudInitNoCloud: {userData: "#cloud-config\npassword: %[2]s"}
      - name: b
        cloudInitNoCloud: {secretRef: {name: %[1]s}}
---
apiVersion: v1
kind: Secret
metadata: {name: %[1]s}
stringData: {userdata: "%[2]s", networkdata: "%[2]s"}
`, name, secret)
}

// world is a controller that runs against fakes.
type world struct {
	repo   *reconcilertest.Repository
	host   *reconcilertest.Host
	branch *reconcilertest.Branch
	r      *reconciler.Reconciler
	log    buffer
}

type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newWorld(t *testing.T, files map[string]string) *world {
	t.Helper()
	repo := reconcilertest.NewRepository(files)
	return worldOf(t, repo, repo)
}

// worldOf has a source around the repository.
func worldOf(t *testing.T, repo *reconcilertest.Repository, source reconciler.Source) *world {
	t.Helper()
	w := &world{repo: repo, host: reconcilertest.NewHost(), branch: reconcilertest.NewBranch()}
	r, err := reconciler.New(source, w.host, reconciler.Config{
		Status:          func(string) reconciler.StatusBranch { return w.branch },
		PublishInterval: time.Millisecond,
		Log:             slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.r = r
	return w
}

// run runs the controller until the function it returns is called.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.r.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// until waits for a state; what never comes is an error.
func until(what string, ok func() bool) error {
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return nil
		}
	}
	return errors.New("it never came: " + what)
}

func (w *world) synced() bool {
	view := w.r.View()
	return view.Plan != nil && view.Plan.Revision == w.repo.Revision() && view.Plan.Empty() && view.Plan.Unknown == ""
}

func get(handler http.Handler, method, path, host string) (int, string) {
	request := httptest.NewRequest(method, path, nil)
	request.Host = host
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder.Code, recorder.Body.String()
}

func TestAnswers(t *testing.T) {
	w := newWorld(t, map[string]string{"gitvirt.yaml": fleet, "web.yaml": manifest("web", "s3cret")})
	handler := httpapi.New(w.r)
	for _, test := range []struct {
		path string
		want int
	}{{"/healthz", 200}, {"/readyz", 503}, {"/api/v1/fleet", 503}, {"/api/v1/plan", 503}, {"/api/v1/live", 503}, {"/api/v1/vms/default/web", 503}, {"/api/v1/events", 200}} {
		if code, body := get(handler, "GET", test.path, "localhost"); code != test.want {
			t.Errorf("before the first round %s answers %d, want %d: %s", test.path, code, test.want, body)
		}
	}
	defer w.run()()
	if err := until("in sync", w.synced); err != nil {
		t.Fatal(err, w.log.String())
	}
	tests := []struct {
		method, path string
		want         int
		contains     string
	}{
		{"GET", "/healthz", 200, "ok"},
		{"HEAD", "/healthz", 200, ""},
		{"GET", "/readyz", 200, "ok"},
		{"GET", "/api/v1/fleet", 200, `"phase": "Running"`},
		{"GET", "/api/v1/fleet", 200, `"address": "VirtualMachine/default/web"`},
		{"GET", "/api/v1/vms/default/web", 200, `"step": null`},
		{"GET", "/api/v1/vms/default/nobody", 404, "no VM"},
		{"GET", "/api/v1/vms/default/..%2f..%2fetc", 404, "no VM"},
		{"GET", "/api/v1/plan", 200, `"format_version"`},
		{"GET", "/api/v1/live", 200, `"name": "default_web"`},
		{"GET", "/api/v1/events", 200, `"reason": "Applied"`},
		{"GET", "/api/v1/events?since=999999", 200, `"events": []`},
		{"GET", "/api/v1/events?since=x", 400, "a number"},
		{"GET", "/metrics", 200, `gitvirt_vm_state{name="web",namespace="default",phase="Running"} 1`},
		{"GET", "/metrics", 200, `gitvirt_poll_total{result="ok"}`},
		{"GET", "/metrics", 200, `gitvirt_apply_total{action="create",result="ok"} 1`},
		{"GET", "/metrics", 200, `gitvirt_plan_steps{action="create"} 0`},
		{"GET", "/metrics", 200, "gitvirt_status_lag_seconds"},
		{"GET", "/metrics", 200, "gitvirt_revision_info"},
		{"GET", "/metrics", 200, "gitvirt_drift_total 0"},
		{"POST", "/api/v1/plan", 405, "read only"},
		{"DELETE", "/api/v1/vms/default/web", 405, "read only"},
		{"GET", "/nothing", 404, ""},
	}
	for _, test := range tests {
		code, body := get(handler, test.method, test.path, "localhost:9471")
		if code != test.want || !strings.Contains(body, test.contains) {
			t.Errorf("%s %s answers %d, want %d with %q:\n%s", test.method, test.path, code, test.want, test.contains, body)
		}
	}
	var events httpapi.Events
	_, body := get(handler, "GET", "/api/v1/events", "localhost")
	if err := json.Unmarshal([]byte(body), &events); err != nil || events.Last != events.Events[len(events.Events)-1].ID {
		t.Errorf("%v: %s", err, body)
	}
}

// TestSources shows which repositories count, and what is wrong with them.
func TestSources(t *testing.T) {
	repo := reconcilertest.NewRepository(map[string]string{"gitvirt.yaml": `apiVersion: gitvirt.io/v1alpha1
kind: Fleet
metadata: {name: demo}
spec:
  sources:
  - {name: shop, git: {url: "https://git.example.com/shop.git"}, namespaces: [default]}
  - {name: wiki, git: {url: "https://git.example.com/wiki.git"}, namespaces: [wiki]}
`})
	others := reconcilertest.Others{}
	shop := others.Add("shop", map[string]string{"web.yaml": manifest("web", "s3cret")})
	others.Add("wiki", nil).Fail(&sources.Error{Kind: sources.ErrUnreadable, Source: "https://git.example.com/wiki.git", Op: "polling main", Err: errors.New("connection refused")})
	source, err := several.New(repo, others, several.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	w := worldOf(t, repo, source)
	handler := httpapi.New(w.r)
	defer w.run()()
	if err := until("it runs", func() bool {
		domain, ok := w.host.Domain(schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web"})
		return ok && domain.State == plan.StateRunning
	}); err != nil {
		t.Fatal(err, w.log.String())
	}
	var fleet httpapi.Fleet
	_, body := get(handler, "GET", "/api/v1/fleet", "localhost")
	if err := json.Unmarshal([]byte(body), &fleet); err != nil || len(fleet.Sources) != 2 {
		t.Fatalf("%v: %s", err, body)
	}
	if one := fleet.Sources[0]; one.Name != "shop" || one.Revision != shop.Revision() || one.Subject != "the first commit" || one.Problem != "" {
		t.Errorf("got %+v", one)
	}
	if one := fleet.Sources[1]; one.Name != "wiki" || one.Revision != "" || !strings.Contains(one.Problem, "connection refused") {
		t.Errorf("got %+v", one)
	}
	if sources.CommitOf(fleet.Revision) != repo.Revision() || fleet.Revision == repo.Revision() {
		t.Errorf("the revision is %s", fleet.Revision)
	}
	_, body = get(handler, "GET", "/metrics", "localhost")
	for _, want := range []string{
		`gitvirt_source_failing{source="shop"} 0`, `gitvirt_source_failing{source="wiki"} 1`,
		`gitvirt_source_info{revision="` + shop.Revision() + `",source="shop"} 1`, `gitvirt_source_info{revision="",source="wiki"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the metrics do not have %s", want)
		}
	}
	if code, body := get(handler, "GET", "/readyz", "localhost"); code != 200 {
		t.Errorf("one source that is down makes it not ready: %s", body)
	}
}

func TestHostHeader(t *testing.T) {
	w := newWorld(t, nil)
	tests := []struct {
		reason, host string
		listen       []string
		want         int
	}{
		{"loopback by name", "localhost", nil, 200},
		{"with a port", "LOCALHOST:80", nil, 200},
		{"loopback", "127.0.0.1:9471", nil, 200},
		{"loopback, IPv6", "[::1]:9471", nil, 200},
		{"IPv6 without a port", "[::1]", nil, 200},
		{"a name that an attacker resolves to loopback", "evil.example:9471", nil, 421},
		{"a name that looks like an address", "127.0.0.1.evil.example", nil, 421},
		{"localhost is no suffix", "evil.localhost", nil, 421},
		{"no host", "", nil, 421},
		{"another address", "192.0.2.1", nil, 421},
		{"the address it listens on", "192.0.2.1:80", []string{"192.0.2.1:9471"}, 200},
		{"a name it was told", "gitvirt.internal", []string{"gitvirt.internal"}, 200},
		{"every address, by number", "192.0.2.1", []string{"0.0.0.0:9471"}, 200},
		{"every address, by number, IPv6", "[2001:db8::1]:1", []string{"[::]:9471"}, 200},
		{"every address, by name", "evil.example", []string{"[::]:9471"}, 421},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			if code, body := get(httpapi.New(w.r, test.listen...), "GET", "/healthz", test.host); code != test.want {
				t.Errorf("answers %d, want %d: %s", code, test.want, body)
			}
		})
	}
}

func TestServe(t *testing.T) {
	w := newWorld(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- httpapi.Serve(ctx, listener, w.r) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + listener.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != "ok\n" {
		t.Errorf("%v: %q", err, body)
	}
	_ = response.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestNoSecrets: whatever is asked and whatever happens, nothing of a secret is shown: not by HTTP, not in the status
// branch, not in the log.
func TestNoSecrets(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		marker := rapid.StringMatching(`[a-z]{4}-marker-[a-z0-9]{8}`).Draw(t, "secret")
		second := rapid.StringMatching(`[a-z]{4}-second-[a-z0-9]{8}`).Draw(t, "changed secret")
		broken := rapid.SampledFrom([]string{"", "password: x\n  : [" + marker + "\n", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nstringData: {userdata: [" + marker + "]}\n"}).Draw(t, "broken file")
		happens := rapid.SampledFrom([]string{"nothing", "edit", "crash", "retry", "stalled", "unknown"}).Draw(t, "fault")
		var problem string
		synctest.Test(outer, func(t *testing.T) { problem = secretStory(t, marker, second, broken, happens) })
		if problem != "" {
			t.Fatal(problem)
		}
	})
}

func secretStory(t *testing.T, marker, second, broken, happens string) string {
	w := newWorld(t, map[string]string{"gitvirt.yaml": fleet, "web.yaml": manifest("web", marker), "db.yaml": manifest("db", marker)})
	stop := w.run()
	defer stop()
	if err := until("in sync", w.synced); err != nil {
		return err.Error() + w.log.String()
	}
	web := schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "web"}
	switch happens {
	case "edit":
		w.host.Edit(web)
	case "crash":
		w.host.Crash(web)
	case "unknown":
		w.host.SetUnknown("away")
	case "retry", "stalled":
		kind := map[string]error{"retry": apply.ErrRetry, "stalled": apply.ErrStalled}[happens]
		w.host.SetFault(web, func(plan.Step) error { return fmt.Errorf("%w: injected", kind) })
	}
	w.repo.Commit("change the secret", map[string]string{"web.yaml": manifest("web", second), "broken.yaml": broken})
	w.r.Nudge()
	revision := w.repo.Revision()
	if err := until("planned", func() bool { return w.r.View().Plan.Revision == revision }); err != nil {
		return err.Error()
	}
	if err := until("published", func() bool {
		return happens == "unknown" || strings.Contains(w.branch.File("README.md"), revision[:7])
	}); err != nil {
		return err.Error() + w.log.String()
	}
	handler := httpapi.New(w.r)
	everything := map[string]string{"log": w.log.String(), "commits": strings.Join(w.branch.Commits(), "\n")}
	for _, path := range []string{"/api/v1/fleet", "/api/v1/plan", "/api/v1/vms/default/web", "/api/v1/events", "/metrics", "/readyz", "/healthz"} {
		_, everything[path] = get(handler, "GET", path, "localhost")
	}
	for _, path := range w.branch.Paths() {
		everything[path] = w.branch.File(path)
	}
	for where, content := range everything {
		scanner := bufio.NewScanner(strings.NewReader(content))
		for scanner.Scan() {
			if strings.Contains(scanner.Text(), marker) || strings.Contains(scanner.Text(), second) {
				return "a secret is in " + where + ": " + scanner.Text()
			}
		}
	}
	return ""
}

// pulling is a controller that looks after pull requests.
type pulling struct {
	*reconciler.Reconciler
	pulls   map[int]previews.Status
	problem string
}

func (p pulling) Pulls() map[int]previews.Status { return p.pulls }
func (p pulling) Problem() string                { return p.problem }

func (p pulling) Full(_ context.Context, number int) (string, error) {
	switch number {
	case 7:
		return "<b>Plan</b>: 1 restart.\n", nil
	case 8:
		return "", errors.New("git is away")
	}
	return "", previews.ErrNoPlan
}

// TestPulls shows pull requests where a controller has them, and says nothing of them where it has not.
func TestPulls(t *testing.T) {
	w := newWorld(t, map[string]string{"gitvirt.yaml": fleet})
	if code, body := get(httpapi.New(w.r), "GET", "/api/v1/pulls", "localhost"); code != http.StatusNotFound {
		t.Errorf("without a forge: %d %s", code, body)
	}
	handler := httpapi.New(pulling{w.r, map[int]previews.Status{9: {Number: 9}, 7: {Number: 7, Head: "abc"}}, "the forge is away"})
	code, body := get(handler, "GET", "/api/v1/pulls", "localhost")
	var pulls httpapi.Pulls
	if err := json.Unmarshal([]byte(body), &pulls); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if len(pulls.Pulls) != 2 || pulls.Pulls[0].Number != 7 || pulls.Pulls[0].Head != "abc" || pulls.Problem != "the forge is away" {
		t.Errorf("%+v", pulls)
	}
	for path, want := range map[string]int{"/plans/7": 200, "/plans/8": 503, "/plans/9": 404, "/plans/x": 404} {
		if code, body := get(handler, "GET", path, "localhost"); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
	request := httptest.NewRequest("GET", "/plans/7", nil)
	request.Host = "localhost"
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	if kind := recorder.Header().Get("Content-Type"); kind != "text/plain; charset=utf-8" {
		t.Errorf("a plan is served as %s", kind)
	}
	if code, _ := get(handler, "GET", "/plans/7", "evil.example"); code != http.StatusMisdirectedRequest {
		t.Errorf("another host gets %d", code)
	}
}
