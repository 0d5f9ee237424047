package main

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// forgeRig is a rig whose repository is on a real forge.
type forgeRig struct {
	*rig
	repository *giteatest.Repository
	// client sees the forge as it is; front is what stands between the forge and the controller, whose git goes through it too.
	client forges.Forge
	front  *forgetest.Server
	// token is a file with that of the controller's account, always are the controller's flags in all parts of a story.
	token  string
	always []string
}

func newForgeRig(t *testing.T, files map[string]string) *forgeRig {
	t.Helper()
	server := giteatest.New(t)
	r := &forgeRig{rig: newRig(t), repository: server.AddRepository(t, "shop", "fleet"), front: forgetest.NewFront(t, server.URL)}
	r.repository.Allow(t, "gitvirt", forges.Write)
	for path, text := range files {
		r.write(path, text)
	}
	r.token = server.TokenFile(t, "gitvirt")
	r.url = r.front.URL() + "/shop/fleet.git"
	r.always = []string{"--forge", "gitea", "--forge-token-file", r.token, "--git-token-file", r.token, "--external-url", "http://gitvirt.example.org"}
	r.flags = r.always
	var err error
	if r.client, err = gitea.New(gitea.Config{URL: server.URL, Owner: "shop", Repository: "fleet", TokenFile: r.token}); err != nil {
		t.Fatal(err)
	}
	return r
}

// restart ends the controller and starts one with further flags.
func (r *forgeRig) restart(flags ...string) {
	r.t.Helper()
	r.stop(syscall.SIGTERM)
	r.flags = slices.Concat(r.always, flags)
	r.start()
	r.eventually("the controller is ready again", func() bool { return r.ask("/readyz", nil) })
}

// open opens a pull request that adds a file.
func (r *forgeRig) open(title, path, text string) (number int, head string) {
	r.t.Helper()
	return r.repository.Open(r.t, giteatest.Opening{Title: title, Author: "ann", Files: map[string]string{path: text}})
}

// write adds a file to main and returns the commit.
func (r *forgeRig) write(path, text string) string {
	r.t.Helper()
	return r.writeTo("main", path, text)
}

// writeTo adds a file to main or, on top of main, to a new branch.
func (r *forgeRig) writeTo(branch, path, text string) string {
	r.t.Helper()
	content := map[string]any{"content": base64.StdEncoding.EncodeToString([]byte(text)), "message": "Write " + path, "branch": "main"}
	if branch != "main" {
		content["new_branch"] = branch
	}
	var made struct{ Commit struct{ SHA string } }
	r.repository.Do(r.t, "shop", http.MethodPost, "/contents/"+path, content, &made)
	return made.Commit.SHA
}

// ours is the one comment of gitvirt on a pull request.
func (r *forgeRig) ours(number int) forges.Comment {
	r.t.Helper()
	return forgetest.OneComment(r.t, r.client, number, "gitvirt")
}

// comes waits until the comment says something.
func (r *forgeRig) comes(number int, words string) forges.Comment {
	r.t.Helper()
	var now forges.Comment
	r.eventually("pull request "+strconv.Itoa(number)+" says "+words, func() bool {
		now = r.ours(number)
		return strings.Contains(now.Body, words)
	})
	return now
}

// edited waits until a comment is about a head, and is the same comment.
func (r *forgeRig) edited(comment forges.Comment, number int, head string) {
	r.t.Helper()
	if now := r.comes(number, "`"+head[:9]+"`"); now.ID != comment.ID {
		r.t.Errorf("comment %d was added after %d", now.ID, comment.ID)
	}
}

// shown waits until a commit has a status of ours in a state, and returns its line.
func (r *forgeRig) shown(commit, context string, state forges.StatusState) (description string) {
	r.t.Helper()
	r.eventually("the status "+context+" of "+commit+" is "+string(state), func() bool {
		last, err := r.client.Statuses(r.t.Context(), commit)
		if err != nil {
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

// statusBranch is the table of the status branch.
func (r *forgeRig) statusBranch() string {
	r.t.Helper()
	var file struct{ Content string }
	r.repository.Do(r.t, "shop", http.MethodGet, "/contents/README.md?ref=gitvirt%2Fstatus", nil, &file)
	content, err := base64.StdEncoding.DecodeString(file.Content)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(content)
}

// statusSays tells whether the status branch names a revision.
func (r *forgeRig) statusSays(revision string) bool {
	r.t.Helper()
	return strings.Contains(r.statusBranch(), status.ShortRevision(revision))
}

// domains are what libvirt has, in their order.
func (r *forgeRig) domains() string {
	return strings.Join(slices.Sorted(slices.Values(strings.Fields(r.daemon.Virsh("list", "--all", "--name")))), " ")
}

// has holds libvirt to what it is to have now.
func (r *forgeRig) has(domains string) {
	r.t.Helper()
	if have := r.domains(); have != domains {
		r.t.Errorf("libvirt has %s, want %s", have, domains)
	}
}

// ask reads an answer of the controller; false where there is none, or not yet.
func (r *forgeRig) ask(path string, into any) bool {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.listen+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }() // it was read
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return false
	}
	switch into := into.(type) {
	case nil:
	case *string:
		*into = string(body)
	default:
		if err := json.Unmarshal(body, into); err != nil {
			r.t.Fatalf("%s: %v\n%s", path, err, body)
		}
	}
	return true
}

// pulls is what the controller knows of pull requests.
func (r *forgeRig) pulls() (pulls httpapi.Pulls) {
	r.t.Helper()
	r.ask("/api/v1/pulls", &pulls)
	return pulls
}

func (r *forgeRig) pull(number int) previews.Status {
	r.t.Helper()
	for _, pull := range r.pulls().Pulls {
		if pull.Number == number {
			return pull
		}
	}
	return previews.Status{}
}

// fleet is what the controller knows of the fleet.
func (r *forgeRig) fleet() (fleet httpapi.Fleet) {
	r.t.Helper()
	r.ask("/api/v1/fleet", &fleet)
	return fleet
}

// metric is the value of one series; 0 where there is none.
func (r *forgeRig) metric(series string) float64 {
	r.t.Helper()
	var text string
	r.ask("/metrics", &text)
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, series+" "); found {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				r.t.Fatal(err)
			}
			return value
		}
	}
	return 0
}
