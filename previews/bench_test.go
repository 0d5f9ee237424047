package previews_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// still is a world that runs exactly what main says.
type still struct{ view *reconciler.View }

func (s still) View() *reconciler.View { return s.view }
func (s still) Report(reconciler.Note) {}

func benchFile(i int) string { return fmt.Sprintf("vms/%02d/vm-%04d.yaml", i/100, i) }

// benchRepo has VMs on main, and branches change-1, change-2 and so on that change one of them each.
func benchRepo(tb testing.TB, vms, changes int) *gittest.Repo {
	tb.Helper()
	repo := gittest.NewRepo(tb)
	files := map[string]string{"gitvirt.yaml": fleet}
	for i := range vms {
		files[benchFile(i)] = manifest(fmt.Sprintf("vm-%04d", i), "128Mi")
	}
	repo.Commit(files)
	for n := 1; n <= changes; n++ {
		repo.Git("branch", fmt.Sprint("change-", n), "main")
		benchChange(repo, n, "192Mi")
	}
	return repo
}

func benchChange(repo *gittest.Repo, n int, memory string) (head string) {
	return repo.CommitTo(fmt.Sprint("change-", n), map[string]string{benchFile(n): manifest(fmt.Sprintf("vm-%04d", n), memory)})
}

// crowd is a forge with many pull requests open, and what looks after them in a world that stands still.
type crowd struct {
	url   string
	forge forges.Forge
	pulls int
	// requests is how many requests the forge has got.
	requests func() int
	// move moves the head of a pull request; begun and done tell whether its plan was begun, and whether it is commented.
	move        func(number, round int) (head string)
	begun, done func(number int, head string) bool

	shown    *previews.Previews
	registry *prometheus.Registry
}

// run has all pull requests told what there is to tell, and looks after them until the test ends.
func (c *crowd) run(tb testing.TB) {
	tb.Helper()
	source, err := git.Open(git.Config{URL: c.url, Dir: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	snapshot, err := source.Poll(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	desired := schemas.Assemble(snapshot.Files)
	observed := plan.FromDesired(desired, snapshot.Revision)
	p, err := plan.Build(desired, observed, plan.Options{Revision: snapshot.Revision})
	if err != nil {
		tb.Fatal(err)
	}
	view := &reconciler.View{Time: time.Now(), Snapshot: snapshot, Desired: desired, Observed: observed, Plan: p}
	beside, err := source.Beside(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	c.registry = prometheus.NewRegistry()
	c.shown, err = previews.New(c.forge, beside, still{view}, previews.Config{Interval: time.Hour, Registry: c.registry})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- c.shown.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, beside.Close(), source.Close()); err != nil {
			tb.Error(err)
		}
	})
	until(tb, "comments", func() bool {
		told := 0
		for _, pull := range c.shown.Pulls() {
			if pull.State == forges.Success || pull.State == forges.Failure {
				told++
			}
		}
		return told == c.pulls
	})
}

// poll has the forge polled once and tells how many requests that takes.
func (c *crowd) poll(tb testing.TB) int {
	tb.Helper()
	polls, before := polled(tb, c.registry), c.requests()
	c.shown.Nudge()
	until(tb, "poll", func() bool { return polled(tb, c.registry) > polls })
	return c.requests() - before
}

// quiet tells how many requests a poll takes when nothing has moved: the most of five, after the one that finds what we have written ourselves.
func (c *crowd) quiet(tb testing.TB) (own, most int) {
	tb.Helper()
	own = c.poll(tb)
	for range 5 {
		most = max(most, c.poll(tb))
	}
	return own, most
}

// measure tells how many requests the forge gets in a poll when nothing has moved (requests/quiet-poll) and in the one after all comments were
// written (requests/own-edits), and how long it takes from a moved head to its comment: that is the poll with its fetch (ms/fetch), and merge,
// plan and comment (ms/plan).
func (c *crowd) measure(b *testing.B) {
	b.Helper()
	start := time.Now()
	c.run(b)
	first := time.Since(start)
	own, most := c.quiet(b)

	var fetch, whole time.Duration
	round, before := 0, c.requests()
	for b.Loop() {
		round++
		n := 1 + round%c.pulls
		head := c.move(n, round)
		start := time.Now()
		c.shown.Nudge()
		until(b, "plan", func() bool { return c.begun(n, head) })
		fetch += time.Since(start)
		until(b, "comment", func() bool { return c.done(n, head) })
		whole += time.Since(start)
	}
	b.ReportMetric(float64(first.Milliseconds())/float64(c.pulls), "ms/first")
	b.ReportMetric(float64(own), "requests/own-edits")
	b.ReportMetric(float64(most), "requests/quiet-poll")
	b.ReportMetric(float64(c.requests()-before)/float64(b.N), "requests/moved")
	b.ReportMetric(float64(fetch.Milliseconds())/float64(b.N), "ms/fetch")
	b.ReportMetric(float64((whole-fetch).Milliseconds())/float64(b.N), "ms/plan")
}

func until(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(10 * time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("no %s", what)
		}
	}
}

// polled is how many polls there were.
func polled(tb testing.TB, registry *prometheus.Registry) float64 {
	tb.Helper()
	families, err := registry.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	polls := 0.0
	for _, family := range families {
		if family.GetName() == "gitvirt_previews_poll_total" {
			for _, metric := range family.GetMetric() {
				polls += metric.GetCounter().GetValue()
			}
		}
	}
	return polls
}

// TestQuietPoll has 1,000 pull requests open: a poll is one request as long as none of them moves.
func TestQuietPoll(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB, ...forgetest.Option) *site{"GitHub": onGitHub, "GitLab": onGitLab} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// People open no thousand of them within a second.
			var seconds atomic.Int64
			began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			s := open(t, forgetest.WithNow(func() time.Time { return began.Add(time.Duration(seconds.Add(1)) * time.Second) }))
			c := &crowd{url: benchRepo(t, 1, 0).Dir, forge: s.client, pulls: 1000, requests: func() int { return len(s.server.Requests()) }}
			for n := range c.pulls {
				s.repo.Open(forgetest.Opening{Head: fmt.Sprintf("%040x", n+1), Fork: true}) // a refusal is told of each
			}
			c.run(t)
			if own, most := c.quiet(t); most > 1 {
				t.Errorf("a quiet poll takes %d requests, after one that took %d", most, own)
			}
		})
	}
}

// benchVMs is how many there are.
const benchVMs = 5000

// BenchmarkPreview has 1,000 pull requests open on a repository of 5,000 VMs, on a server that answers as GitHub does.
func BenchmarkPreview(b *testing.B) {
	const pulls = 1000
	site, repo := onGitHub(b), benchRepo(b, benchVMs, pulls)
	point := func(n int, head string) { repo.Git("update-ref", fmt.Sprintf(site.ref, n), head) }
	for n := 1; n <= pulls; n++ {
		head := repo.Git("rev-parse", fmt.Sprint("change-", n))
		point(n, head)
		site.repo.Open(forgetest.Opening{Author: "ann", Head: head})
	}
	(&crowd{
		url: gittest.NewHTTPServer(b, repo, gittest.HTTPOptions{}).RepoURL, forge: site.client, pulls: pulls,
		requests: func() int { return len(site.server.Requests()) },
		move: func(n, round int) string {
			head := benchChange(repo, n, fmt.Sprint(200+round, "Mi"))
			point(n, head)
			site.repo.Push(n, head)
			return head
		},
		begun: func(_ int, head string) bool { return site.repo.Updates(head) > 0 },
		done:  func(n int, head string) bool { return strings.Contains(site.repo.Comments(n)[0].Body, head[:9]) },
	}).measure(b)
}

// BenchmarkPreviewGitea has 60 open on a real Gitea, more than are on a page there.
func BenchmarkPreviewGitea(b *testing.B) {
	const pulls = 60
	server := giteatest.New(b)
	there, repo := server.AddRepository(b, "shop", "fleet"), benchRepo(b, benchVMs, pulls)
	push := func(refs ...string) {
		args := append([]string{"-C", repo.Dir, "push", "--quiet", "--force", there.URLAs(b, "shop")}, refs...)
		if out, err := exec.CommandContext(b.Context(), "git", args...).CombinedOutput(); err != nil {
			b.Fatalf("git push: %v\n%s", err, out)
		}
	}
	push("--all")
	there.Allow(b, "gitvirt", forges.Write)
	front := forgetest.NewFront(b, server.URL)
	client, err := gitea.New(gitea.Config{URL: front.URL(), Owner: there.Owner, Repository: there.Name, TokenFile: server.TokenFile(b, "gitvirt")})
	if err != nil {
		b.Fatal(err)
	}
	for n := 1; n <= pulls; n++ {
		there.Do(b, "shop", http.MethodPost, "/pulls", map[string]any{"title": fmt.Sprint("Change ", n), "head": fmt.Sprint("change-", n), "base": "main"}, nil)
	}
	// What has arrived there is counted here: to ask would keep it from its work.
	told := func(part string) int {
		count := 0
		for _, request := range front.Requests() {
			if request.Method != http.MethodGet && request.Status/100 == 2 && strings.Contains(request.Path, part) {
				count++
			}
		}
		return count
	}
	comments := 0
	(&crowd{
		url: there.URL(), forge: client, pulls: pulls,
		requests: func() int { return len(front.Requests()) },
		move: func(n, round int) string {
			head := benchChange(repo, n, fmt.Sprint(200+round, "Mi"))
			push(fmt.Sprint("change-", n))
			ref := fmt.Sprintf("refs/pull/%d/head", n)
			until(b, "reference", func() bool { return there.Head(b, ref) == head })
			comments = told("/comments")
			return head
		},
		begun: func(_ int, head string) bool { return told("/statuses/"+head) > 0 },
		done:  func(int, string) bool { return told("/comments") > comments },
	}).measure(b)
}
