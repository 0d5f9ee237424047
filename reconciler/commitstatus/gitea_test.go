package commitstatus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/commitstatus"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/schemas/signers"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
	"github.com/gitvirt/gitvirt/sources/trust"
)

// TestGitea has commits with real signatures on a real forge: those that are not applied say so, until their keys count.
func TestGitea(t *testing.T) {
	server := giteatest.New(t)
	remote := server.AddRepository(t, "shop", "fleet")
	remote.Allow(t, "gitvirt", forges.Write)
	client, err := gitea.New(gitea.Config{URL: server.URL, Owner: remote.Owner, Repository: remote.Name, TokenFile: server.TokenFile(t, "gitvirt")})
	if err != nil {
		t.Fatal(err)
	}
	ann, bob, nobody := gittest.NewSSHPerson(t, "ann"), gittest.NewSSHPerson(t, "bob"), gittest.Nobody(t)
	work := gittest.NewRepo(t).Work()
	address := strings.Replace(remote.URL(), "://", "://shop:"+server.AddUser(t, "shop")+"@", 1)
	push := func(who *gittest.Person, files map[string]string) string {
		t.Helper()
		hash := work.Commit(who, files)
		work.Git(who, "push", "--quiet", "--force", address, "HEAD:refs/heads/main")
		return hash
	}
	wants := func(commit string, state forges.StatusState, words string) {
		t.Helper()
		var last []forges.Status
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if last, err = client.Statuses(t.Context(), commit); err != nil {
				t.Fatal(err)
			}
			if len(last) == 1 && last[0].Context == commitstatus.Context && last[0].State == state && strings.Contains(last[0].Description, words) {
				return
			}
		}
		t.Fatalf("%.9s is told to be %+v, want %s with %q", commit, last, state, words)
	}

	first := push(ann, map[string]string{"gitvirt.yaml": gitvirtYAML, "a.yaml": machine("a", "64Mi")})
	dir, host := t.TempDir(), reconcilertest.NewHost()
	stop := control(t, remote.URL(), dir, host, client, ann)
	wants(first, forges.Success, "applied 1 of 1")
	second := push(nobody, map[string]string{"b.yaml": machine("b", "64Mi")})
	wants(second, forges.Failure, "not applied: it is not signed")
	third := push(bob, map[string]string{"c.yaml": machine("c", "64Mi")})
	wants(third, forges.Failure, "not applied: it is signed with the SSH key SHA256:")
	if n := len(host.Observed().Domains); n != 1 {
		t.Errorf("%d machines, want the one that is trusted", n)
	}
	stop()
	stop = control(t, remote.URL(), dir, host, client, ann, bob)
	wants(third, forges.Success, "applied 3 of 3")
	wants(second, forges.Failure, "not applied: it is not signed")
	stop()
}

// control runs a controller that trusts some people, until the function that it returns is called.
func control(t *testing.T, url, dir string, host *reconcilertest.Host, forge commitstatus.Forge, trusted ...*gittest.Person) (stop func()) {
	t.Helper()
	text := ""
	for _, who := range trusted {
		text += who.Public + "\n"
	}
	keys, err := signers.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	source, err := git.Open(git.Config{URL: url, Dir: dir}, git.WithTrust(trust.New(trust.Anchor{Signers: keys}, time.Now)))
	if err != nil {
		t.Fatal(err)
	}
	loop, err := reconciler.New(source, host, reconciler.Config{Interval: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	reporter, err := commitstatus.New(loop, commitstatus.OnForge(forge), commitstatus.Config{Interval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- loop.Run(ctx) }()
	go func() { ended <- reporter.Run(ctx) }()
	return func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, source.Close()); err != nil {
			t.Error(err)
		}
	}
}
