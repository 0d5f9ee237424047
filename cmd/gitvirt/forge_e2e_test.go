package main

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler/commitstatus"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// bare is a manifest of a VM that boots nothing: there is a guest all the same.
func bare(name, memory string) string {
	return "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: " + name + "}\n" +
		"spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: " + memory + "}, devices: {autoattachPodInterface: false}}}}}\n"
}

// forgeRig is a rig whose repository is on a real forge.
type forgeRig struct {
	*rig
	repository *giteatest.Repository
	client     forges.Forge
}

func newForgeRig(t *testing.T, files map[string]string) *forgeRig {
	t.Helper()
	server := giteatest.New(t)
	r := &forgeRig{rig: newRig(t), repository: server.AddRepository(t, "shop", "fleet")}
	r.repository.Allow(t, "gitvirt", forges.Write)
	for path, text := range files {
		r.repository.Do(t, "shop", http.MethodPost, "/contents/"+path, map[string]any{
			"content": base64.StdEncoding.EncodeToString([]byte(text)), "message": "Write " + path, "branch": "main",
		}, nil)
	}
	token := server.TokenFile(t, "gitvirt")
	r.url = r.repository.URL()
	r.flags = []string{"--forge", "gitea", "--forge-token-file", token, "--git-token-file", token, "--external-url", "http://gitvirt.example.org"}
	var err error
	if r.client, err = gitea.New(gitea.Config{URL: server.URL, Owner: "shop", Repository: "fleet", TokenFile: token}); err != nil {
		t.Fatal(err)
	}
	return r
}

// ours is the one comment of gitvirt on a pull request.
func (r *forgeRig) ours(number int) forges.Comment {
	r.t.Helper()
	comments, err := r.client.Comments(r.t.Context(), number)
	if err != nil {
		r.t.Fatal(err)
	}
	var found []forges.Comment
	for _, comment := range comments {
		if comment.Author == "gitvirt" {
			found = append(found, comment)
		}
	}
	switch len(found) {
	case 0:
		return forges.Comment{}
	case 1:
		return found[0]
	}
	r.t.Fatalf("pull request %d has %d comments of gitvirt", number, len(found))
	return forges.Comment{}
}

// comes waits until the comment says something.
func (r *forgeRig) comes(number int, words string) forges.Comment {
	r.t.Helper()
	var now forges.Comment
	r.eventually("pull request says "+words, func() bool {
		now = r.ours(number)
		return strings.Contains(now.Body, words)
	})
	return now
}

// shown waits until a commit has a status of ours in a state, and returns its line.
func (r *forgeRig) shown(commit, context string, state forges.StatusState) (description string) {
	r.t.Helper()
	var last []forges.Status
	r.eventually("the status "+context+" of "+commit+" is "+string(state), func() bool {
		var err error
		if last, err = r.client.Statuses(r.t.Context(), commit); err != nil {
			r.t.Fatal(err)
		}
		for _, one := range last {
			if one.Context == context && one.State == state {
				description = one.Description
				return true
			}
		}
		return false
	})
	return description
}

func (r *forgeRig) head() string { return r.repository.Head(r.t, "refs/heads/main") }

// statusSays tells whether the status branch names a revision.
func (r *forgeRig) statusSays(revision string) bool {
	var file struct{ Content string }
	r.repository.Do(r.t, "shop", http.MethodGet, "/contents/README.md?ref=gitvirt%2Fstatus", nil, &file)
	content, err := base64.StdEncoding.DecodeString(file.Content)
	return err == nil && strings.Contains(string(content), status.ShortRevision(revision))
}

// domains are what libvirt has.
func (r *forgeRig) domains() string {
	return strings.Join(slices.Sorted(slices.Values(strings.Fields(r.daemon.Virsh("list", "--all", "--name")))), " ")
}

// variable is what is another in each run: hashes, times, the host.
var variable = regexp.MustCompile("`[0-9a-f]{9}`|digest:[0-9a-f]+|[0-9]{4}-[0-9-]+ [0-9:]+ UTC|lives on `[^`]*`")

// TestPullRequestBecomesRunningVM is the way of a change through a real forge, onto real libvirt and back.
func TestPullRequestBecomesRunningVM(t *testing.T) {
	t.Parallel()
	r := newForgeRig(t, map[string]string{"gitvirt.yaml": fleetManifest, "web.yaml": bare("web", "64Mi")})
	r.start()
	r.shown(r.head(), commitstatus.Context, forges.Success)

	// Opened: the comment comes. The head moves: it is edited, and there is no second one.
	first, head := r.repository.Open(t, giteatest.Opening{Title: "A database", Author: "ann", Files: map[string]string{"db.yaml": bare("db", "64Mi")}})
	opened := r.comes(first, "Plan: 1 to create")
	want, err := os.ReadFile(filepath.Join("testdata", "pull_request.md"))
	if got := variable.ReplaceAllString(opened.Body, "~"); err != nil || got != string(want) {
		t.Errorf("the comment is\n%s\nwant, %v\n%s", got, err, want)
	}
	if line := r.shown(head, previews.StatusContext, forges.Success); !strings.HasPrefix(line, "1 to create") {
		t.Errorf("the plan's status says %q", line)
	}
	moved := r.repository.Push(t, first)
	if edited := r.comes(first, moved[:9]); edited.ID != opened.ID {
		t.Errorf("comment %d was added after %d", edited.ID, opened.ID)
	}

	// What cannot be planned is said, and nothing of it happens.
	broken, head := r.repository.Open(t, giteatest.Opening{Title: "A mistake", Author: "ann", Files: map[string]string{"bad.yaml": strings.Replace(bare("bad", "64Mi"), "Always", "Allways", 1)}})
	r.comes(broken, `bad.yaml:4`)
	r.shown(head, previews.StatusContext, forges.Failure)
	fork, head := r.repository.Open(t, giteatest.Opening{Title: "From outside", Author: "eve", Fork: true, Files: map[string]string{"eve.yaml": bare("eve", "64Mi")}})
	if line := r.shown(head, previews.StatusContext, forges.Failure); !strings.Contains(line, "fork") {
		t.Errorf("the fork's status says %q", line)
	}
	if comment := r.ours(fork); comment.ID != 0 {
		t.Errorf("a stranger got a comment: %s", comment.Body)
	}
	if have := r.domains(); have != "default_web" {
		t.Errorf("before anything was merged libvirt has %s", have)
	}

	// Another one is merged first: this one's plan is made again, on the new base.
	other, _ := r.repository.Open(t, giteatest.Opening{Title: "A cache", Author: "ben", Files: map[string]string{"cache.yaml": bare("cache", "64Mi")}})
	r.comes(other, "Plan: 1 to create")
	r.repository.Merge(t, other)
	base := r.head()
	r.comes(other, "was merged into `main`")
	r.comes(first, "`main` at `"+base[:9]+"`")
	if line := r.shown(base, commitstatus.Context, forges.Success); !strings.Contains(line, "2 of 2") {
		t.Errorf("the status of %s says %q", base, line)
	}

	// Merged: applied, and said on the forge and on the status branch.
	r.repository.Merge(t, first)
	merged := r.head()
	r.shown(merged, commitstatus.Context, forges.Success)
	r.comes(first, "was merged into `main`")
	r.eventually("the status branch tells of the merge", func() bool { return r.statusSays(merged) })
	if have := r.domains(); have != "default_cache default_db default_web" {
		t.Errorf("libvirt has %s", have)
	}
	if said := r.said(); strings.Contains(said, r.repository.Server.AddUser(t, "gitvirt")) {
		t.Error("the log holds the token")
	}
}
