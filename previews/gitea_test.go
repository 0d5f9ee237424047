package previews_test

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/sources/git"
)

// TestGitea has a real forge with a real git server: what the fake forge cannot know.
func TestGitea(t *testing.T) {
	server := giteatest.New(t)
	repo := server.AddRepository(t, "shop", "fleet")
	repo.Allow(t, "gitvirt", forges.Write)
	put := func(path, text string) {
		repo.Do(t, "shop", http.MethodPost, "/contents/"+path, map[string]any{
			"content": base64.StdEncoding.EncodeToString([]byte(text)), "message": "Write " + path, "branch": "main",
		}, nil)
	}
	put("gitvirt.yaml", fleet)
	put("db.yaml", manifest("db", "256Mi"))
	client, err := gitea.New(gitea.Config{URL: server.URL, Owner: repo.Owner, Repository: repo.Name, TokenFile: server.TokenFile(t, "gitvirt")})
	if err != nil {
		t.Fatal(err)
	}
	run(t, repo.URL(), client)

	ours := func(number int) string {
		t.Helper()
		comments, err := client.Comments(t.Context(), number)
		if err != nil {
			t.Fatal(err)
		}
		body, found := "", 0
		for _, comment := range comments {
			if comment.Author == "gitvirt" {
				body = comment.Body
				found++
			}
		}
		if found > 1 {
			t.Fatalf("pull request %d has %d comments of gitvirt", number, found)
		}
		return body
	}
	until := func(number int, words string) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !strings.Contains(ours(number), words); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("pull request %d never says %q:\n%s", number, words, ours(number))
			}
		}
	}
	status := func(head string, want forges.StatusState) {
		t.Helper()
		list, err := client.Statuses(t.Context(), head)
		if err != nil || len(list) != 1 || list[0].Context != previews.StatusContext || list[0].State != want {
			t.Errorf("the statuses of %.9s are %+v, %v; want %s", head, list, err, want)
		}
	}

	first, head := repo.Open(t, giteatest.Opening{Title: "A machine", Author: "ann", Files: map[string]string{"web.yaml": manifest("web", "128Mi")}})
	until(first, "Plan: 1 to create")
	status(head, forges.Success)
	head = repo.Push(t, first)
	until(first, "`"+head[:9]+"` merged into `main`")
	status(head, forges.Success)

	second, head := repo.Open(t, giteatest.Opening{Title: "The same machine", Author: "ben", Files: map[string]string{"web.yaml": manifest("web", "192Mi")}})
	until(second, "Plan: 1 to create")
	broken, _ := repo.Open(t, giteatest.Opening{Title: "A mistake", Author: "ann", Files: map[string]string{"bad.yaml": manifest("bad", "lots")}})
	until(broken, "bad.yaml:9:25: spec.template.spec.domain.memory.guest:")
	fork, theirs := repo.Open(t, giteatest.Opening{Title: "From afar", Author: "mallory", Fork: true, Files: map[string]string{"far.yaml": manifest("far", "64Mi")}})

	repo.Merge(t, first)
	until(first, "was merged into `main`. Its last plan was: 1 to create")
	until(second, "- `web.yaml`: both sides added it, with different content")
	status(head, forges.Failure)
	until(broken, "Plan: nothing to do.")

	repo.Edit(t, broken, map[string]any{"state": "closed"})
	until(broken, "was closed without being merged")
	status(theirs, forges.Failure)
	if said := ours(fork); said != "" {
		t.Errorf("a refused fork was commented on: %s", said)
	}
}

// run runs a controller with a host in memory until the test ends.
func run(t *testing.T, url string, forge forges.Forge) {
	source, err := git.Open(git.Config{URL: url, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	beside, err := source.Beside(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	loop, err := reconciler.New(source, reconcilertest.NewHost(), reconciler.Config{Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := previews.New(forge, beside, loop, previews.Config{Interval: time.Second, Settle: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- loop.Run(ctx) }()
	go func() { ended <- shown.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, source.Close(), beside.Close()); err != nil {
			t.Error(err)
		}
	})
}
