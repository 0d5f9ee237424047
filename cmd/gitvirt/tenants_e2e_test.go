package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// TestTenantsOnRealLibvirt has two repositories besides that of the Fleet. What one of them runs is neither taken by the other nor lost when
// its own server is down, be it that nobody remembers what it asked for.
func TestTenantsOnRealLibvirt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	shop, wiki := gittest.NewRepo(t), gittest.NewRepo(t)
	var down atomic.Bool
	server := gittest.NewHTTPServer(t, shop, gittest.HTTPOptions{Username: "git", Password: "t0ken", Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if down.Load() {
				http.Error(w, "later", http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, req)
		})
	}})
	credentials := filepath.Join(r.state, "credentials")
	if err := os.MkdirAll(filepath.Join(credentials, "shop"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(credentials, "shop", "token"), []byte("t0ken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.flags = []string{"--source-credentials", credentials, "--source-local"}
	first := shop.Commit(map[string]string{"web.yaml": bare("web", "64Mi")})
	wiki.Commit(map[string]string{"db.yaml": bare("db", "64Mi")})
	r.repo.Commit(map[string]string{"gitvirt.yaml": fleetManifest + fmt.Sprintf(
		"  sources:\n  - {name: shop, git: {url: %q}, namespaces: [default]}\n  - {name: wiki, git: {url: %q}, namespaces: [default]}\n", server.RepoURL, wiki.URL(),
	)})
	r.start()
	r.settled("", map[string]status.Phase{"web": status.PhaseRunning, "db": status.PhaseRunning})
	id := r.daemon.Virsh("domid", "default_web")
	same := func(when string) {
		t.Helper()
		if now := r.daemon.Virsh("domid", "default_web"); now != id {
			t.Fatalf("%s: the guest is another one (%s, was %s)", when, now, id)
		}
		if xml := r.daemon.Virsh("dumpxml", "default_web"); !strings.Contains(xml, "shop@"+first) {
			t.Fatalf("%s: it is not recorded as made from shop:\n%s", when, xml)
		}
	}
	same("at first")
	table := func() string { return r.repo.File("gitvirt/status", "README.md") }

	wiki.Commit(map[string]string{"web.yaml": bare("web", "96Mi")})
	r.eventually("both are told", func() bool {
		return strings.Contains(table(), "wiki:web.yaml") && strings.Contains(table(), "shop:web.yaml")
	})
	same("after another source claimed it")

	down.Store(true)
	r.eventually("it is told that the server is down", func() bool { return strings.Contains(table(), "503") })
	same("while its server is down")
	r.stop(syscall.SIGTERM)
	if err := os.RemoveAll(filepath.Join(r.state, "git", "sources", "shop")); err != nil {
		t.Fatal(err)
	}
	before := r.repo.Git("rev-parse", "gitvirt/status")
	r.start()
	last := wiki.Commit(map[string]string{"cache.yaml": bare("cache", "64Mi")})
	r.eventually("the other source goes on", func() bool {
		vm := r.statuses()["cache"]
		return vm != nil && vm.ObservedRevision == "wiki@"+last && vm.Phase == status.PhaseRunning && r.repo.Git("rev-parse", "gitvirt/status") != before
	})
	same("after a restart without any memory of what it asked for")
	if out, code := r.gitvirt("get"); code != 0 || !strings.Contains(out, "The source shop is not up to date") || strings.Contains(out, "t0ken") {
		t.Errorf("get: exit %d\n%s", code, out)
	}

	down.Store(false)
	wiki.Commit(map[string]string{"web.yaml": gittest.Delete})
	r.settled("", map[string]status.Phase{"web": status.PhaseRunning, "db": status.PhaseRunning, "cache": status.PhaseRunning})
	same("in the end")
}
