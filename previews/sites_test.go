package previews_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/github"
	"github.com/gitvirt/gitvirt/forges/gitlab"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// shown is what a client of a forge sees there, in real time.
type shown struct {
	t      *testing.T
	client forges.Forge
	// account is who writes our comments.
	account string
}

// comment is the one of ours on a pull request; an empty one where there is none.
func (s shown) comment(number int) forges.Comment {
	s.t.Helper()
	return forgetest.OneComment(s.t, s.client, number, s.account)
}

// says waits until our comment says something.
func (s shown) says(number int, words string) forges.Comment {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		now := s.comment(number)
		switch {
		case strings.Contains(now.Body, words):
			return now
		case time.Now().After(end):
			s.t.Fatalf("pull request %d never says %q:\n%s", number, words, now.Body)
		}
	}
}

// status waits until a commit has our status, and no other.
func (s shown) status(head string, state forges.StatusState, words string) {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		list, err := s.client.Statuses(s.t.Context(), head)
		switch {
		case err == nil && len(list) == 1 && list[0].Context == previews.StatusContext && list[0].State == state && strings.Contains(list[0].Description, words):
			return
		case time.Now().After(end):
			s.t.Fatalf("the statuses of %.9s are %+v, %v; want %s with %q", head, list, err, state, words)
		}
	}
}

// site is a forge of a kind, with what people do there; the git server beside it is real.
type site struct {
	shown
	git    *gittest.Repo
	server *forgetest.Server
	repo   *forgetest.Repository
	// ref is where git finds the head of a pull request.
	ref string
	// whole says that the plan of some hundred machines fits into a comment, beside that mistakes stand beside their lines.
	whole, beside bool
}

func onGitHub(tb testing.TB, options ...forgetest.Option) *site {
	tb.Helper()
	server := forgetest.NewGitHub(tb, options...)
	s := &site{server: server.Server, repo: server.AddRepository("shop/fleet", false), ref: "refs/pull/%d/head"}
	s.account = "gitvirt"
	s.repo.Allow(s.account, forges.Write)
	s.client = client(tb, github.Config{URL: server.URL(), Owner: "shop", Repository: "fleet", TokenFile: server.TokenFile(tb, s.account)}, github.New)
	return s
}

func asApp(tb testing.TB, options ...forgetest.Option) *site {
	tb.Helper()
	server := forgetest.NewGitHub(tb, options...)
	s := &site{server: server.Server, repo: server.AddRepository("shop/fleet", false), ref: "refs/pull/%d/head", beside: true}
	app := server.AddApp(tb, 7, "gitvirt")
	app.Install(s.repo)
	s.account = "gitvirt[bot]"
	s.client = client(tb, github.Config{URL: server.URL(), Owner: "shop", Repository: "fleet", App: &github.App{ID: 7, PrivateKeyFile: app.KeyFile(tb)}}, github.New)
	return s
}

func onGitLab(tb testing.TB, options ...forgetest.Option) *site {
	tb.Helper()
	server := forgetest.NewGitLab(tb, options...)
	s := &site{server: server.Server, repo: server.AddRepository("shop/infra/fleet", true), ref: "refs/merge-requests/%d/head", whole: true}
	s.account = "gitvirt"
	s.repo.Allow(s.account, forges.Write)
	s.client = client(tb, gitlab.Config{URL: server.URL(), Project: "shop/infra/fleet", TokenFile: server.TokenFile(tb, s.account)}, gitlab.New)
	return s
}

func client[C any, F forges.Forge](tb testing.TB, config C, open func(C) (F, error)) F {
	tb.Helper()
	made, err := open(config)
	if err != nil {
		tb.Fatal(err)
	}
	return made
}

// open opens a pull request with files on top of main.
func (s *site) open(opening forgetest.Opening, files map[string]string) (number int, head string) {
	branch := strings.ReplaceAll(opening.Title, " ", "-")
	s.git.Git("branch", branch, "main")
	opening.Head = s.git.CommitTo(branch, files)
	number = s.repo.Open(opening)
	s.git.Git("update-ref", fmt.Sprintf(s.ref, number), opening.Head)
	return number, opening.Head
}

// TestSites tells the story of pull requests on forges of each kind: what a forge in memory cannot know is what each of them takes, and how it shows it.
func TestSites(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB, ...forgetest.Option) *site{"GitHub": onGitHub, "GitHub, an App": asApp, "GitLab": onGitLab} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			s.t, s.git = t, gittest.NewRepo(t)
			s.git.Commit(map[string]string{"gitvirt.yaml": fleet, "web.yaml": manifest("web", "128Mi")})
			run(t, git.Config{URL: s.git.Dir}, s.client, reconcilertest.NewHost())
			s.story()
		})
	}
}

func (s *site) story() {
	// A plan, and another head: the comment is edited.
	first, head := s.open(forgetest.Opening{Title: "more memory", Author: "ann"}, map[string]string{"web.yaml": manifest("web", "192Mi")})
	opened := s.says(first, "128Mi -> 192Mi")
	s.status(head, forges.Success, "1 restart")
	head = s.git.CommitTo("more-memory", map[string]string{"web.yaml": manifest("web", "256Mi")})
	s.git.Git("update-ref", fmt.Sprintf(s.ref, first), head)
	s.repo.Push(first, head)
	if edited := s.says(first, "128Mi -> 256Mi"); edited.ID != opened.ID {
		s.t.Errorf("comment %d was added after %d", edited.ID, opened.ID)
	}
	s.status(head, forges.Success, "1 restart")

	// A mistake, beside its line where that can be.
	broken, wrong := s.open(forgetest.Opening{Title: "a mistake", Author: "ann"}, map[string]string{"bad.yaml": manifest("bad", "lots")})
	s.says(broken, "bad.yaml:9:25: spec.template.spec.domain.memory.guest:")
	s.status(wrong, forges.Failure, "1 mistake")
	marked := s.repo.Annotations(wrong, previews.StatusContext)
	if s.beside && (len(marked) != 1 || marked[0].Path != "bad.yaml" || marked[0].Line != 9) || !s.beside && len(marked) > 0 {
		s.t.Errorf("beside lines there is %+v", marked)
	}

	// More than a comment may hold is told as far as it fits.
	many := map[string]string{}
	for i := range 300 {
		many[fmt.Sprintf("many/%d.yaml", i)] = manifest(fmt.Sprint("many-", i), "64Mi")
	}
	crowd, crowded := s.open(forgetest.Opening{Title: "a crowd", Author: "ann"}, many)
	long := s.says(crowd, "Plan: 300 to create").Body
	if cut := strings.Contains(long, "left out: the text would be too long."); cut == s.whole || len(long) > s.client.CommentLimit() {
		s.t.Errorf("of %d bytes, where %d are allowed, something is left out: %v", len(long), s.client.CommentLimit(), cut)
	}
	s.status(crowded, forges.Success, "300 to create")

	// A fork is told so, on its commit alone.
	fork, theirs := s.open(forgetest.Opening{Title: "from afar", Author: "eve", Fork: true}, map[string]string{"far.yaml": manifest("far", "64Mi")})
	s.status(theirs, forges.Failure, "not planned: it comes from a fork")
	if said := s.comment(fork); said.ID != 0 {
		s.t.Errorf("a refused fork was commented on: %s", said.Body)
	}

	// What nobody decides about any more says so in a line.
	s.repo.Close(broken)
	s.says(broken, "This pull request was closed without being merged.")
	s.git.Git("update-ref", "refs/heads/main", head)
	s.repo.Merge(first)
	if merged := s.says(first, "was merged into `main`. Its last plan was: 1 restart"); merged.ID != opened.ID {
		s.t.Errorf("comment %d was added after %d", merged.ID, opened.ID)
	}
}
