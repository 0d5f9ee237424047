package previews_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/fake"
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

const (
	benchVMs   = 5000
	benchPulls = 1000
)

func benchFile(i int) string { return fmt.Sprintf("vms/%02d/vm-%04d.yaml", i/100, i) }

// BenchmarkPreview has 1,000 pull requests open on a repository of 5,000 VMs. It tells how many requests the forge gets in a poll when nothing has
// moved, and how long it takes from a moved head to its comment: that is the poll with its fetch (ms/fetch), and merge, plan and comment.
func BenchmarkPreview(b *testing.B) {
	repo := gittest.NewRepo(b)
	files := map[string]string{"gitvirt.yaml": fleet}
	for i := range benchVMs {
		files[benchFile(i)] = manifest(fmt.Sprintf("vm-%04d", i), "128Mi")
	}
	repo.Commit(files)
	forge := fake.New(time.Now)
	for n := 1; n <= benchPulls; n++ {
		repo.Git("update-ref", fmt.Sprintf("refs/heads/topic%d", n), "main")
		head := repo.CommitTo(fmt.Sprint("topic", n), map[string]string{benchFile(n): manifest(fmt.Sprintf("vm-%04d", n), "192Mi")})
		repo.Git("update-ref", fmt.Sprintf("refs/pull/%d/head", n), head)
		repo.Git("update-ref", "-d", fmt.Sprintf("refs/heads/topic%d", n))
		forge.Open(forges.PullRequest{Number: n, Author: "ann", Base: "main", Head: head})
	}
	server := gittest.NewHTTPServer(b, repo, gittest.HTTPOptions{})
	source, err := git.Open(git.Config{URL: server.RepoURL, Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	snapshot, err := source.Poll(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	desired := schemas.Assemble(snapshot.Files)
	observed := plan.FromDesired(desired, snapshot.Revision)
	p, err := plan.Build(desired, observed, plan.Options{Revision: snapshot.Revision})
	if err != nil {
		b.Fatal(err)
	}
	view := &reconciler.View{Time: time.Now(), Snapshot: snapshot, Desired: desired, Observed: observed, Plan: p}
	beside, err := source.Beside(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = beside.Close() }()
	shown, err := previews.New(forge, beside, still{view}, previews.Config{Interval: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- shown.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	until := func(what string, done func() bool) {
		for deadline := time.Now().Add(10 * time.Minute); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				b.Fatalf("no %s", what)
			}
		}
	}
	start := time.Now()
	until("comments", func() bool {
		_, writes := forge.Requests()
		return writes >= 2*benchPulls
	})
	first := float64(time.Since(start).Milliseconds()) / benchPulls
	shown.Nudge() // our own comments have updated all of them: this poll reads them once more
	time.Sleep(2 * time.Second)
	all, _ := forge.Requests()
	shown.Nudge()
	time.Sleep(2 * time.Second)
	quiet, _ := forge.Requests()

	var fetch, whole time.Duration
	round := 0
	for b.Loop() {
		round++
		n := 1 + round%benchPulls
		ref := fmt.Sprintf("refs/pull/%d/head", n)
		repo.Git("update-ref", "refs/heads/topic", ref)
		head := repo.CommitTo("topic", map[string]string{benchFile(n): manifest(fmt.Sprintf("vm-%04d", n), fmt.Sprint(200+round, "Mi"))})
		repo.Git("update-ref", ref, head)
		repo.Git("update-ref", "-d", "refs/heads/topic")
		forge.Change(n, func(pr *forges.PullRequest) { pr.Head = head })
		start := time.Now()
		shown.Nudge()
		until("pending", func() bool { return forge.Told(head, previews.StatusContext).State != "" })
		fetch += time.Since(start)
		until("comment", func() bool { return forge.Told(head, previews.StatusContext).State == forges.Success })
		whole += time.Since(start)
	}
	b.ReportMetric(first, "ms/first")
	b.ReportMetric(float64(quiet-all), "requests/quiet-poll")
	b.ReportMetric(float64(fetch.Milliseconds())/float64(b.N), "ms/fetch")
	b.ReportMetric(float64((whole-fetch).Milliseconds())/float64(b.N), "ms/plan")
}
