package main

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
	"github.com/gitvirt/gitvirt/forges/hooks"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler/commitstatus"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// outage is how long nothing of the forge is reached in the middle of the story.
var outage = flag.Duration("outage", 3*time.Second, "how long the forge is down in the test of pull requests")

// bare is a manifest of a VM that boots nothing: there is a guest all the same.
func bare(name, memory string) string { return bareThat(name, memory, "Always") }

func bareThat(name, memory, strategy string) string {
	return "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: " + name + "}\n" +
		"spec: {runStrategy: " + strategy + ", template: {spec: {domain: {memory: {guest: " + memory + "}, devices: {autoattachPodInterface: false}}}}}\n"
}

// variable is what is another in each run: hashes, times, the host.
var variable = regexp.MustCompile("`[0-9a-f]{9}`|digest:[0-9a-f]+|[0-9]{4}-[0-9-]+ [0-9:]+ UTC|lives on `[^`]*`")

// TestPullRequestBecomesRunningVM is the way of a change through a real forge, onto real libvirt and back, and what can befall it on the way. Its
// parts share a Gitea, a libvirt and a repository, and each begins with what the one before has left.
func TestPullRequestBecomesRunningVM(t *testing.T) {
	t.Parallel()
	r := newForgeRig(t, map[string]string{"gitvirt.yaml": fleetManifest, "web.yaml": bare("web", "64Mi")})
	r.start()
	r.shown(r.head(), commitstatus.Context, forges.Success)
	r.merges()
	r.trouble()
	r.down()
	r.webhooks()
	r.signatures()
	r.plain()
	if said := r.said(); strings.Contains(said, r.repository.Server.AddUser(t, "gitvirt")) {
		t.Error("the log holds the token")
	}
}

// merges is a change that goes well, beside others that do not.
func (r *forgeRig) merges() {
	// Opened: the comment comes. The head moves: it is edited, and there is no second one.
	first, head := r.open("A database", "db.yaml", bare("db", "64Mi"))
	opened := r.comes(first, "Plan: 1 to create")
	want, err := os.ReadFile(filepath.Join("testdata", "pull_request.md"))
	if got := variable.ReplaceAllString(opened.Body, "~"); err != nil || got != string(want) {
		r.t.Errorf("the comment is\n%s\nwant, %v\n%s", got, err, want)
	}
	if line := r.shown(head, previews.StatusContext, forges.Success); !strings.HasPrefix(line, "1 to create") {
		r.t.Errorf("the plan's status says %q", line)
	}
	moved := r.repository.Push(r.t, first)
	r.edited(opened, first, moved)

	// What cannot be planned is said, and nothing of it happens.
	broken, head := r.open("A mistake", "bad.yaml", bareThat("bad", "64Mi", "Allways"))
	r.comes(broken, `bad.yaml:4`)
	r.shown(head, previews.StatusContext, forges.Failure)
	fork, head := r.repository.Open(r.t, giteatest.Opening{Title: "From outside", Author: "eve", Fork: true, Files: map[string]string{"eve.yaml": bare("eve", "64Mi")}})
	if line := r.shown(head, previews.StatusContext, forges.Failure); !strings.Contains(line, "fork") {
		r.t.Errorf("the fork's status says %q", line)
	}
	if comment := r.ours(fork); comment.ID != 0 {
		r.t.Errorf("a stranger got a comment: %s", comment.Body)
	}
	r.has("default_web")

	// Another one is merged first: this one's plan is made again, on the new base.
	other, _ := r.open("A cache", "cache.yaml", bare("cache", "64Mi"))
	r.comes(other, "Plan: 1 to create")
	r.repository.Merge(r.t, other)
	base := r.head()
	r.comes(other, "was merged into `main`")
	r.comes(first, "`main` at `"+base[:9]+"`")
	if line := r.shown(base, commitstatus.Context, forges.Success); !strings.Contains(line, "2 of 2") {
		r.t.Errorf("the status of %s says %q", base, line)
	}

	// Merged: applied, and said on the forge and on the status branch.
	r.repository.Merge(r.t, first)
	merged := r.head()
	r.shown(merged, commitstatus.Context, forges.Success)
	r.comes(first, "was merged into `main`")
	r.eventually("the status branch tells of the merge", func() bool { return r.statusSays(merged) })
	r.has("default_cache default_db default_web")
}

// trouble breaks the forge's API in one way after the other while git goes on: what git says is applied and nothing else, and what there was to tell
// is told when the API is back.
func (r *forgeRig) trouble() {
	number, _ := r.open("A queue", "queue.yaml", bare("queue", "64Mi"))
	first := r.comes(number, "Plan: 1 to create")
	guest, has := r.daemon.QEMU("default_web"), "default_cache default_db"
	api := func(request *http.Request) bool { return strings.HasPrefix(request.URL.Path, "/api/") }
	for i, fault := range []forgetest.Fault{
		{Status: http.StatusInternalServerError},
		{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}},
		{Body: "<html><body>Please log in</body></html>"},
	} {
		fault.Match = api
		r.front.Fail(fault)
		what := fmt.Sprintf("trouble %d", i)
		r.eventually(what+" is told", func() bool { return r.pulls().Problem != "" })
		moved := r.repository.Push(r.t, number)
		spare := fmt.Sprintf("spare-%d", i)
		merged := r.write(spare+".yaml", bareThat(spare, "64Mi", "Halted"))
		has += " default_" + spare
		r.eventually(what+" holds git up", func() bool { return r.domains() == has+" default_web" && r.statusSays(merged) })
		r.front.Heal()
		r.edited(first, number, moved)
		r.shown(moved, previews.StatusContext, forges.Success)
		r.shown(merged, commitstatus.Context, forges.Success)
	}
	if now := r.daemon.QEMU("default_web"); now != guest {
		r.t.Errorf("a guest that nobody has changed was %d and is %d", guest, now)
	}

	// A comment that was written, and of which the answer was lost, is not written again.
	r.front.Fail(forgetest.Fault{Times: 1, Status: http.StatusBadGateway, After: true, Match: func(request *http.Request) bool {
		return request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/comments")
	}})
	lost, _ := r.open("A search", "search.yaml", bare("search", "64Mi"))
	r.eventually("the lost answer is told", func() bool { return r.pull(lost).Problem != "" })
	r.eventually("the lost answer is made good", func() bool { return r.pull(lost).Problem == "" })
	r.comes(lost, "Plan: 1 to create")
}

// down takes all of the forge away for a while, git as well.
func (r *forgeRig) down() {
	open, _ := r.open("A proxy", "proxy.yaml", bare("proxy", "64Mi"))
	first := r.comes(open, "Plan: 1 to create")
	ready, _ := r.open("A mail server", "mail.yaml", bare("mail", "64Mi"))
	r.comes(ready, "Plan: 1 to create")
	before := r.domains()

	r.front.Fail(forgetest.Fault{Drop: true})
	began := time.Now()
	r.eventually("the outage is told", func() bool { return r.pulls().Problem != "" && r.fleet().PollError != "" })
	// What happens meanwhile on the forge nobody sees. What was wanted last is kept up.
	moved := r.repository.Push(r.t, open)
	r.repository.Merge(r.t, ready)
	merged := r.head()
	late, _ := r.open("A log", "log.yaml", bare("log", "64Mi"))
	guest := r.daemon.QEMU("default_web")
	r.daemon.CrashQEMU("default_web")
	r.eventually("the guest that has crashed runs again", func() bool {
		now, err := r.daemon.FindQEMU("default_web")
		return err == nil && now != 0 && now != guest
	})
	r.eventually("the outage ends", func() bool { return time.Since(began) > *outage })
	r.has(before)

	r.front.Heal()
	healed := time.Now()
	r.edited(first, open, moved)
	r.comes(late, "Plan: 1 to create")
	r.comes(ready, "was merged into `main`")
	r.shown(merged, commitstatus.Context, forges.Success)
	r.eventually("the status branch tells of the merge", func() bool { return r.statusSays(merged) })
	r.t.Logf("the forge was down for %s, and all was told and applied %s later", healed.Sub(began).Round(time.Second), time.Since(healed).Round(time.Second))
	if after := r.domains(); after != "default_cache default_db default_mail"+strings.TrimPrefix(before, "default_cache default_db") {
		r.t.Errorf("libvirt has %s", after)
	}
}

// webhooks has the forge polled once an hour only: what is seen was seen because the forge has said so, and what others say is not heard.
func (r *forgeRig) webhooks() {
	const polls = `gitvirt_previews_poll_total{result="ok"}`
	address, secret := freeAddress(r.t), "sesame"
	r.restart("--interval", "1h", "--webhook-listen", address, "--webhook-secret-file", gittest.WriteFile(r.t, secret))
	r.eventually("the first poll", func() bool { return r.metric(polls) > 0 })
	waiting, _ := r.open("A registry", "registry.yaml", bare("registry", "64Mi"))
	polled := r.metric(polls)

	for _, key := range []string{"guess", ""} {
		if status := r.send("http://"+address+hooks.Path, waiting, key); status != http.StatusUnauthorized {
			r.t.Errorf("a webhook that is signed with %q is answered with %d", key, status)
		}
	}
	if forged := r.metric(`gitvirt_webhook_requests_total{result="forged"}`); forged != 2 {
		r.t.Errorf("%v forged webhooks were counted", forged)
	}
	heard, _ := r.open("A monitor", "monitor.yaml", bare("monitor", "64Mi"))
	if now := r.metric(polls); now != polled || r.ours(waiting).ID != 0 {
		r.t.Errorf("after forged webhooks %v polls are %v", polled, now)
	}

	r.repository.AddHook(r.t, "http://"+address+hooks.Path, secret, "push", "pull_request")
	moved := r.repository.Push(r.t, heard)
	r.comes(heard, "`"+moved[:9]+"`")
	r.comes(waiting, "Plan: 1 to create")
	r.repository.Merge(r.t, heard)
	merged := r.head()
	r.shown(merged, commitstatus.Context, forges.Success)
	r.comes(heard, "was merged into `main`")
	if have := r.domains(); !strings.Contains(have, "default_monitor") || strings.Contains(have, "default_registry") {
		r.t.Errorf("libvirt has %s", have)
	}
}

// send sends a webhook as Gitea does, signed with a key; "" signs nothing.
func (r *forgeRig) send(address string, number int, key string) (status int) {
	r.t.Helper()
	body := fmt.Appendf(nil, `{"action": "opened", "number": %d}`, number)
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header = http.Header{"Content-Type": {"application/json"}, "X-Gitea-Event": {"pull_request"}}
	if key != "" {
		request.Header.Set("X-Gitea-Signature", forgetest.Sign(body, key))
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode
}

// signatures has only signed commits applied: the merge that the forge makes is none, until somebody signs it.
func (r *forgeRig) signatures() {
	ann := gittest.NewSSHPerson(r.t, "ann")
	r.restart("--trusted-keys", gittest.WriteFile(r.t, ann.Public+"\n"), "--trusted-since", r.head())
	number, _ := r.open("A shop", "shop.yaml", bare("shop", "64Mi"))
	r.comes(number, "Plan: 1 to create")
	before := r.domains()
	r.repository.Merge(r.t, number)
	unsigned := r.head()
	r.eventually("the commit is refused", func() bool {
		fleet := r.fleet()
		return strings.Contains(fleet.Refused, unsigned[:12]) && fleet.Revision != unsigned
	})
	r.eventually("the status branch says so", func() bool {
		said := r.statusBranch()
		return strings.Contains(said, "A revision is not applied") && strings.Contains(said, unsigned[:12])
	})
	if line := r.shown(unsigned, commitstatus.Context, forges.Failure); line != "not applied: it is not signed" {
		r.t.Errorf("the status of %s says %q", unsigned, line)
	}
	r.has(before)

	clone := gittest.Clone(r.t, r.repository.URLAs(r.t, "shop"))
	signed := clone.Commit(ann, map[string]string{"approved.txt": "by ann\n"})
	clone.Push()
	r.shown(signed, commitstatus.Context, forges.Success)
	r.eventually("the status branch tells of the signed commit", func() bool {
		return r.statusSays(signed) && !strings.Contains(r.statusBranch(), "A revision is not applied")
	})
	if have := r.domains(); !strings.Contains(have, "default_shop") {
		r.t.Errorf("libvirt has %s", have)
	}
}

// plain has the forge be a git server and nothing more: plans of branches are references, and how far a commit is stands in git's notes.
func (r *forgeRig) plain() {
	r.always = []string{"--git-token-file", r.token}
	r.restart("--plan-refs", "feature/*", "--status-notes")
	r.writeTo("feature/plain", "plain.yaml", bare("plain", "64Mi"))
	const ref = "refs/gitvirt/plans/feature/plain"
	clone, nobody := gittest.Clone(r.t, r.repository.URLAs(r.t, "shop")), gittest.Nobody(r.t)
	planned := func() bool {
		clone.Git(nobody, "fetch", "--quiet", "--prune", "origin", "+refs/gitvirt/*:refs/gitvirt/*", "+refs/notes/*:refs/notes/*")
		return clone.Git(nobody, "for-each-ref", ref) != ""
	}
	r.eventually("the plan of a branch is pushed", func() bool {
		return planned() && strings.Contains(clone.Git(nobody, "show", ref+":plan.md"), "Plan: 1 to create")
	})
	r.eventually("git's notes tell of the head", func() bool {
		return planned() && strings.HasPrefix(clone.Git(nobody, "log", "-1", "--notes=gitvirt", "--format=%N", r.head()), "gitvirt/apply: success: ")
	})
	r.repository.Do(r.t, "shop", http.MethodDelete, "/branches/feature%2Fplain", nil, nil)
	r.eventually("the plan of a branch that is gone is removed", func() bool { return !planned() })
}
