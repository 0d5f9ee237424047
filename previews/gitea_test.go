package previews_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/reconciler/statusbranch"
	"github.com/gitvirt/gitvirt/sources/git"
)

// TestGitea has a real forge with a real git server: what the fake forge cannot know.
func TestGitea(t *testing.T) {
	t.Parallel()
	server := giteatest.New(t)
	repo := server.AddRepository(t, "shop", "fleet")
	repo.Allow(t, "gitvirt", forges.Write)
	put := func(path, text string) {
		repo.Do(t, "shop", http.MethodPost, "/contents/"+path, map[string]any{
			"content": base64.StdEncoding.EncodeToString([]byte(text)), "message": "Write " + path, "branch": "main",
		}, nil)
	}
	put("gitvirt.yaml", fleet+"  pullRequests: {commands: true}\n")
	put("db.yaml", manifest("db", "256Mi"))
	token := server.TokenFile(t, "gitvirt")
	client, err := gitea.New(gitea.Config{URL: server.URL, Owner: repo.Owner, Repository: repo.Name, TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	host := reconcilertest.NewHost()
	run(t, git.Config{URL: repo.URL(), Auth: git.Auth{TokenFile: token}}, client, host)

	seen := shown{t, client, "gitvirt"}
	first, head := repo.Open(t, giteatest.Opening{Title: "A machine", Author: "ann", Files: map[string]string{"web.yaml": manifest("web", "128Mi")}})
	seen.says(first, "Plan: 1 to create")
	seen.status(head, forges.Success, "")
	head = repo.Push(t, first)
	seen.says(first, "`"+head[:9]+"` merged into `main`")
	seen.status(head, forges.Success, "")

	second, head := repo.Open(t, giteatest.Opening{Title: "The same machine", Author: "ben", Files: map[string]string{"web.yaml": manifest("web", "192Mi")}})
	seen.says(second, "Plan: 1 to create")
	broken, _ := repo.Open(t, giteatest.Opening{Title: "A mistake", Author: "ann", Files: map[string]string{"bad.yaml": manifest("bad", "lots")}})
	seen.says(broken, "bad.yaml:9:25: spec.template.spec.domain.memory.guest:")
	fork, theirs := repo.Open(t, giteatest.Opening{Title: "From afar", Author: "mallory", Fork: true, Files: map[string]string{"far.yaml": manifest("far", "64Mi")}})

	repo.Merge(t, first)
	seen.says(first, "was merged into `main`. Its last plan was: 1 to create")
	seen.says(second, "- `web.yaml`: both sides added it, with different content")
	seen.status(head, forges.Failure, "")
	seen.says(broken, "Plan: nothing to do.")

	repo.Edit(t, broken, map[string]any{"state": "closed"})
	seen.says(broken, "was closed without being merged")
	seen.status(theirs, forges.Failure, "")
	if said := seen.comment(fork).Body; said != "" {
		t.Errorf("a refused fork was commented on: %s", said)
	}

	// Commands: Gitea tells only administrators of the repository what others may do.
	grows, _ := repo.Open(t, giteatest.Opening{Title: "More memory", Author: "ann"})
	rewrite(t, repo, grows, "db.yaml", manifest("db", "320Mi"))
	seen.says(grows, "256Mi -&gt; 320Mi")
	approve := regexp.MustCompile("/gitvirt approve [0-9a-f]{12}").FindString(seen.comment(grows).Body)
	repo.Comment(t, grows, "ann", approve)
	seen.says(grows, "`ann` `"+approve+"`: **refused**, the forge does not tell gitvirt's account what others may do")
	repo.Allow(t, "gitvirt", forges.Admin)
	server.AddUser(t, "eve")
	repo.Comment(t, grows, "eve", approve)
	seen.says(grows, "`eve` `"+approve+"`: **refused**, that takes write permission in the repository, and the forge says `read`")
	repo.Comment(t, grows, "ann", approve+"\n\nIt was slow.")
	seen.says(grows, "`ann` `"+approve+"`: **done**, approved 1 step of plan")
	host.Executions()
	repo.Merge(t, grows)
	seen.says(grows, "was merged into `main`")
	for end := time.Now().Add(2 * time.Minute); !slices.ContainsFunc(host.Executions(), func(e reconcilertest.Execution) bool { return e.Action == plan.ActionRestart && e.Err == nil }); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what was approved never happens")
		}
	}
}

// rewrite replaces a file on the branch of a pull request.
func rewrite(t *testing.T, repo *giteatest.Repository, number int, path, text string) {
	t.Helper()
	var pull struct{ Head struct{ Ref string } }
	repo.Do(t, repo.Owner, http.MethodGet, fmt.Sprint("/pulls/", number), nil, &pull)
	var file struct{ SHA string }
	repo.Do(t, repo.Owner, http.MethodGet, "/contents/"+path+"?ref="+pull.Head.Ref, nil, &file)
	repo.Do(t, repo.Owner, http.MethodPut, "/contents/"+path, map[string]any{
		"content": base64.StdEncoding.EncodeToString([]byte(text)), "message": "Rewrite " + path, "branch": pull.Head.Ref, "sha": file.SHA,
	}, nil)
}

// run runs a controller with a host in memory until the test ends.
func run(t *testing.T, config git.Config, forge forges.Forge, host *reconcilertest.Host) {
	config.Dir = t.TempDir()
	source, err := git.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := source.Beside(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := git.NewPublisher(config)
	if err != nil {
		t.Fatal(err)
	}
	loop, err := reconciler.New(source, host, reconciler.Config{
		Interval: time.Second, Status: func(name string) reconciler.StatusBranch {
			return statusbranch.Branch{Publisher: publisher, Name: name}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := previews.New(forge, beside, loop, previews.Config{
		Interval: time.Second, Settle: time.Second,
		Approvals: func(name string) previews.ApprovalBranch {
			return statusbranch.Branch{Publisher: publisher, Name: name}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- loop.Run(ctx) }()
	go func() { ended <- shown.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, publisher.Close(), source.Close(), beside.Close()); err != nil {
			t.Error(err)
		}
	})
}
