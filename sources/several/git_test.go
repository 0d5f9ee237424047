package several_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
	"github.com/gitvirt/gitvirt/sources/several"
)

// machine is a VM of a tenant.
func machine(namespace, name string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %s, namespace: %s}
spec:
  runStrategy: Always
  template: {spec: {domain: {memory: {guest: 64Mi}, devices: {}}}}
`, name, namespace)
}

// fleetOf is a Fleet with sources.
func fleetOf(t testing.TB, named ...schemas.FleetSource) string {
	t.Helper()
	for i := range named {
		named[i].Namespaces = []string{named[i].Name}
	}
	encoded, err := json.Marshal(map[string]any{
		"apiVersion": "gitvirt.io/v1alpha1", "kind": "Fleet", "metadata": map[string]any{"name": "demo"}, "spec": map[string]any{"sources": named},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

func at(name, url string) schemas.FleetSource {
	return schemas.FleetSource{Name: name, Git: schemas.FleetSourceGit{URL: url}}
}

// rig is a Fleet's repository and an opener, both for real.
type rig struct {
	t     testing.TB
	fleet *gittest.Repo
	git   *several.Git
	// source is opened by the first poll.
	source *several.Source
	dir    string
	// separator is between a source and the name of a file of its credentials.
	separator string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, fleet: gittest.NewRepo(t), dir: t.TempDir(), separator: "/"}
	r.git = &several.Git{Dir: filepath.Join(r.dir, "sources"), Credentials: t.TempDir()}
	return r
}

func (r *rig) open() {
	r.t.Helper()
	main, err := git.Open(git.Config{URL: r.fleet.URL(), Dir: r.dir})
	if err != nil {
		r.t.Fatal(err)
	}
	if r.source, err = several.New(main, r.git, several.Config{}); err != nil {
		r.t.Fatal(err)
	}
	source := r.source
	r.t.Cleanup(func() { _ = source.Close(); _ = main.Close() })
}

func (r *rig) poll() *sources.Snapshot {
	r.t.Helper()
	if r.source == nil {
		r.open()
	}
	snapshot, err := r.source.Poll(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return snapshot
}

// credential writes a file of a source's credentials.
func (r *rig) credential(source, name, content string) {
	r.t.Helper()
	file := filepath.Join(r.git.Credentials, source+r.separator+name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func part(t testing.TB, snapshot *sources.Snapshot, name string) sources.Part {
	t.Helper()
	for _, part := range snapshot.Parts {
		if part.Name == name {
			return part
		}
	}
	t.Fatalf("no part %s in %+v", name, snapshot.Parts)
	return sources.Part{}
}

// TestRealServers has sources that fail in the ways of real servers beside one that does not.
func TestRealServers(t *testing.T) {
	r := newRig(t)
	good := gittest.NewRepo(t)
	head := good.Commit(map[string]string{"web.yaml": machine("good", "web")})
	spoiled := func(handler http.HandlerFunc) string {
		return gittest.NewHTTPServer(t, good, gittest.HTTPOptions{Wrap: func(http.Handler) http.Handler { return handler }}).RepoURL
	}
	garbage := spoiled(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = w.Write([]byte("\x00garbage"))
	})
	broken := spoiled(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops", http.StatusBadGateway) })
	denied := gittest.NewHTTPServer(t, good, gittest.HTTPOptions{Username: "git", Password: "t0ken"}).RepoURL
	empty := gittest.NewHTTPServer(t, gittest.NewRepo(t), gittest.HTTPOptions{}).RepoURL
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(
		t, at("good", gittest.NewHTTPServer(t, good, gittest.HTTPOptions{}).RepoURL), at("down", "http://127.0.0.1:1/x.git"), at("garbage", garbage),
		at("broken", broken), at("denied", denied), at("empty", empty), at("local", good.URL()), at("path", good.Dir),
		at("password", strings.Replace(denied, "//", "//git:t0ken@", 1)),
	)})
	snapshot := r.poll()
	if got := part(t, snapshot, "good"); got.Revision != head || got.Problem != "" || got.Subject != "Change web.yaml" {
		t.Errorf("the good one is %+v", got)
	}
	for name, want := range map[string]string{
		"down": "refused", "garbage": "", "broken": "502", "denied": "authentication required", "empty": "push a first commit",
		"local": "--source-local", "path": "--source-local", "password": "password in it",
	} {
		got := part(t, snapshot, name)
		if got.Problem == "" || !strings.Contains(got.Problem, want) || got.Revision != "" || strings.Contains(got.Problem, "t0ken") {
			t.Errorf("%s is %+v", name, got)
		}
	}
	desired := schemas.Assemble(snapshot.Files)
	if len(desired.Opaque) != 8 {
		t.Errorf("unknown is %v", desired.Opaque)
	}
}

// TestWhatCannotBeReadIsItsOwn: a link, a submodule and a file that is too large are things of the source that has them, and make nobody
// else careful.
func TestWhatCannotBeReadIsItsOwn(t *testing.T) {
	r := newRig(t)
	r.git.Local = true
	shop := gittest.NewRepo(t)
	shop.Commit(map[string]string{"web.yaml": machine("shop", "web"), "link.yaml": gittest.Link("web.yaml"), "large.yaml": strings.Repeat("#", 1<<20+1)})
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, at("shop", shop.URL()))})
	desired := schemas.Assemble(r.poll().Files)
	if len(desired.Opaque) != 2 || len(desired.Diagnostics) != 2 {
		t.Fatalf("unknown is %v, %v", desired.Opaque, desired.Diagnostics)
	}
	for _, position := range desired.Opaque {
		if position.Source != "shop" {
			t.Errorf("%s is not the source's own", position)
		}
	}
	for _, d := range desired.Diagnostics {
		if d.Position.Source != "shop" {
			t.Errorf("%v is not the source's own", d)
		}
	}
}

// TestTooManyMachines: who asks for more machines than fit into memory is told, and everybody else goes on.
func TestTooManyMachines(t *testing.T) {
	r := newRig(t)
	r.git.Local = true
	const pool = `apiVersion: pool.kubevirt.io/v1beta1
kind: VirtualMachinePool
metadata: {name: p%d, namespace: shop}
spec:
  replicas: 1000
  selector: {matchLabels: {a: b}}
  virtualMachineTemplate:
    metadata: {labels: {a: b}}
    spec: {runStrategy: Always, template: {metadata: {labels: {a: b}}, spec: {domain: {memory: {guest: 64Mi}}}}}
`
	shop := gittest.NewRepo(t)
	head := shop.Commit(map[string]string{"web.yaml": machine("shop", "web")})
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, at("shop", shop.URL()))})
	r.poll()
	files := map[string]string{}
	for i := range 60 {
		files[fmt.Sprintf("p%d.yaml", i)] = fmt.Sprintf(pool, i)
	}
	shop.Commit(files)
	if got := part(t, r.poll(), "shop"); got.Revision != head || !strings.Contains(got.Problem, "take more than 64 MiB to describe") {
		t.Errorf("the source is %+v", got)
	}
}

func TestForcePushOfOne(t *testing.T) {
	r := newRig(t)
	r.git.Local = true
	shop := gittest.NewRepo(t)
	old := shop.Commit(map[string]string{"web.yaml": machine("shop", "web")})
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, at("shop", shop.URL()))})
	first := r.poll()
	if again := r.poll(); again != first {
		t.Error("nothing moved, and it is another snapshot")
	}
	head := shop.ForcePush("main", map[string]string{"db.yaml": machine("shop", "db")})
	second := r.poll()
	if got := part(t, second, "shop"); got.Revision != head || got.Rewritten != old {
		t.Errorf("got %+v", got)
	}
	if second.Rewritten != "" || second.Commit() != first.Commit() {
		t.Errorf("the Fleet's own history is told as rewritten: %+v", second)
	}
	if vms := schemas.Assemble(second.Files).VMs; len(vms) != 1 || vms[0].Address.Name != "db" || vms[0].Position.String() != "shop:db.yaml:3:18" {
		t.Errorf("wanted is %+v", vms)
	}
	if got := second.Provenance("shop"); got != "shop@"+head {
		t.Errorf("recorded is %s", got)
	}
}

func TestBranchAndPath(t *testing.T) {
	r := newRig(t)
	r.git.Local = true
	shop := gittest.NewRepo(t)
	shop.Commit(map[string]string{"web.yaml": machine("shop", "web")})
	shop.CommitTo("live", map[string]string{"vms/db.yaml": machine("shop", "db"), "other/x.yaml": machine("shop", "x")})
	source := at("shop", shop.Dir)
	source.Git.Branch, source.Git.Path = "live", "vms"
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, source)})
	if got := paths(r.poll()); got != ":gitvirt.json shop:vms/db.yaml" {
		t.Errorf("the files are %s", got)
	}
}

// TestCredentials gives a source a token while the controller runs, changes it, and binds it to a place; in a folder of its own, and in
// one for all sources, as a Secret has it.
func TestCredentials(t *testing.T) {
	for _, separator := range []string{"/", "."} {
		t.Run("shop"+separator+"token", func(t *testing.T) { credentialsChange(t, separator) })
	}
}

func credentialsChange(t *testing.T, separator string) {
	r := newRig(t)
	r.separator = separator
	shop := gittest.NewRepo(t)
	shop.Commit(map[string]string{"web.yaml": machine("shop", "web")})
	var password atomic.Pointer[string]
	var asked atomic.Int32
	expect := func(text string) { password.Store(&text) }
	expect("first")
	server := gittest.NewHTTPServer(t, shop, gittest.HTTPOptions{TLS: true, Wrap: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			asked.Add(1)
			gittest.Backend(t, shop, gittest.HTTPOptions{Username: "git", Password: *password.Load()}).ServeHTTP(w, req)
		})
	}})
	ca, err := os.ReadFile(server.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, at("shop", server.RepoURL))})
	problem := func(words string) {
		t.Helper()
		if got := part(t, r.poll(), "shop"); !strings.Contains(got.Problem, words) || got.Problem == "" {
			t.Fatalf("got %+v, want %q", got, words)
		}
	}
	well := func() {
		t.Helper()
		if got := part(t, r.poll(), "shop"); got.Problem != "" {
			t.Fatalf("got %+v", got)
		}
	}
	problem("certificate")
	r.credential("shop", several.CAFile, string(ca))
	problem("authentication required")
	r.credential("shop", several.TokenFile, "first\n")
	well()
	expect("second")
	r.credential("shop", several.TokenFile, "second\n")
	well() // it is read anew each time
	before := asked.Load()
	r.credential("shop", several.URLFile, "https://git.example.com/shop\n")
	problem("its credentials are for https://git.example.com/shop")
	if asked.Load() != before {
		t.Error("the token was sent to a place that it is not for")
	}
	if got := part(t, r.poll(), "shop"); got.Revision == "" {
		t.Error("what was read before does not count any more")
	}
	r.credential("shop", several.URLFile, server.URL)
	well()
}

func TestURLsOfCredentials(t *testing.T) {
	for _, test := range []struct {
		url, bound string
		want       bool
	}{
		{"https://git.example.com/shop/fleet.git", "https://git.example.com", true},
		{"https://git.example.com/shop/fleet.git", "https://git.example.com/", true},
		{"https://git.example.com/shop/fleet.git", "https://git.example.com/shop/fleet.git", true},
		{"https://git.example.com.evil.example/fleet.git", "https://git.example.com", false},
		{"https://git.example.com@evil.example/fleet.git", "https://git.example.com", false},
		{"https://git.example.com/shopping/fleet.git", "https://git.example.com/shop", false},
		{"http://git.example.com/shop/fleet.git", "https://git.example.com", false},
		{"git@git.example.com:shop/fleet.git", "git@git.example.com:", true},
		{"git@git.example.com:shop/fleet.git", "git@git.example.com", false},
	} {
		r := newRig(t)
		r.credential("shop", several.URLFile, test.bound)
		source := at("shop", test.url)
		opened, err := r.git.Open(&source)
		if (err == nil) != test.want {
			t.Errorf("%s with credentials for %s: %v", test.url, test.bound, err)
		}
		if err == nil {
			_ = opened.Close()
		}
	}
}

// TestNames keeps a name from being a path, whatever a Fleet says.
func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../shop", "a/b", "/etc"} {
		r := newRig(t)
		source := at(name, "https://git.example.com/x.git")
		if _, err := r.git.Open(&source); err == nil {
			t.Errorf("%q was opened", name)
		}
	}
}

// TestAgentOfTheController lets no source speak with what the controller may do.
func TestAgentOfTheController(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	t.Setenv("SSH_AUTH_SOCK", listener.Addr().String())
	server := gittest.NewSSHServer(t)
	shop := gittest.NewRepo(t)
	r := newRig(t)
	known, err := os.ReadFile(server.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	r.credential("shop", several.KnownHostsFile, string(known))
	shop.Commit(map[string]string{"web.yaml": machine("shop", "web")})
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, at("shop", server.URL(shop)))})
	if got := part(t, r.poll(), "shop"); !strings.Contains(got.Problem, "no ssh key is given") {
		t.Errorf("got %+v", got)
	}
	key, err := os.ReadFile(server.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	r.credential("shop", several.SSHKeyFile, string(key))
	if got := part(t, r.poll(), "shop"); got.Problem != "" {
		t.Errorf("got %+v", got)
	}
}

// TestEncrypted has a tenant that copies an encrypted file of somebody else: the controller's keys do not open it.
func TestEncrypted(t *testing.T) {
	content := gittest.ReadFile(t, "../sops/testdata/secret.yaml")
	r := newRig(t)
	r.git.Local = true
	shop := gittest.NewRepo(t)
	shop.Commit(map[string]string{"secret.yaml": content})
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, at("shop", shop.URL()))})
	file := r.poll().Files[1]
	if !file.Opaque || len(file.Diagnostics) != 1 || !strings.Contains(file.Diagnostics[0].Error(), "--source-credentials") || !strings.HasPrefix(file.Diagnostics[0].Error(), "shop:secret.yaml:") {
		t.Fatalf("got %+v", file)
	}
	r.credential("shop", several.AgeKeysFile, gittest.ReadFile(t, "../sops/testdata/age.txt"))
	if file = r.poll().Files[1]; file.Opaque || file.Source != "shop" {
		t.Errorf("with a key of its own: %+v", file.Diagnostics)
	}
}

// TestTrust wants commits of one source signed by keys of the Fleet, and by those alone.
func TestTrust(t *testing.T) {
	r := newRig(t)
	r.git.Local = true
	ann, eve := gittest.NewSSHPerson(t, "ann"), gittest.NewSSHPerson(t, "eve")
	shop := gittest.NewRepo(t)
	work := shop.Work()
	signed := work.Commit(ann, map[string]string{"web.yaml": machine("shop", "web")})
	work.Push()
	source := at("shop", shop.URL())
	source.Trust = &schemas.FleetTrust{Signatures: schemas.SignaturesAll, Keys: []string{ann.Public}}
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, source)})
	is := func(revision, problem string) {
		t.Helper()
		got := part(t, r.poll(), "shop")
		if got.Revision != revision || !strings.Contains(got.Problem, problem) || (problem == "") != (got.Problem == "") {
			t.Fatalf("got %+v, want %s and %q", got, revision, problem)
		}
	}
	is(signed, "")
	unsigned := work.Commit(eve, map[string]string{"db.yaml": machine("shop", "db"), "gitvirt.yaml": fleetTrusting(eve)})
	work.Push()
	is(signed, unsigned[:12])
	covered := work.Commit(ann, map[string]string{"more.yaml": machine("shop", "more")})
	work.Push()
	is(signed, unsigned[:12]) // every commit has to be signed, not only the last
	r.source = nil
	is(signed, unsigned[:12]) // also after a restart
	source.Trust = &schemas.FleetTrust{Keys: []string{ann.Public}}
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(t, source)})
	is(covered, "")
}

// fleetTrusting is what somebody writes into a source who would like to count.
func fleetTrusting(p *gittest.Person) string {
	return fmt.Sprintf("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\nspec: {trust: {keys: [%q]}}\n", p.Public)
}

// BenchmarkQuietPoll asks the Fleet's repository and 50 others, of which none has moved.
func BenchmarkQuietPoll(b *testing.B) {
	r := newRig(b)
	r.git.Local = true
	var named []schemas.FleetSource
	for i := range 50 {
		name := fmt.Sprintf("tenant-%d", i)
		repo := gittest.NewRepo(b)
		files := map[string]string{}
		for j := range 100 {
			files[fmt.Sprintf("vm-%d.yaml", j)] = machine(name, fmt.Sprintf("vm-%d", j))
		}
		repo.Commit(files)
		named = append(named, at(name, repo.URL()))
	}
	r.fleet.Commit(map[string]string{"gitvirt.json": fleetOf(b, named...)})
	r.open()
	first := r.poll()
	for len(first.Files) < 5001 { // the first read of all may take longer than a poll waits
		first = r.poll()
	}
	for b.Loop() {
		if r.poll() != first {
			b.Fatal("it is another snapshot")
		}
	}
}
