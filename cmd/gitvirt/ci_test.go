package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// The jobs of examples/ci are run here as the machines of CI do it: their own lines, in the shell and with the variables that they would have.

const ciLive = `{"format": "gitvirt-live", "version": "1.0", "time": "2026-01-02T03:04:05Z", "observed": {"node": "host-9", "domains": []}}`

// ciWorld is a repository with pull requests, on a git server that wants a token.
type ciWorld struct {
	t    *testing.T
	repo *gittest.Repo
	// server is the address of the forge; the repository is shop/fleet there.
	server, user, token string
	// controller answers as the API of one.
	controller string
}

func newCIWorld(t *testing.T, user, token string) *ciWorld {
	t.Helper()
	w := &ciWorld{t: t, repo: gittest.NewRepo(t), user: user, token: token}
	backend := gittest.Backend(t, w.repo, gittest.HTTPOptions{Username: user, Password: token})
	forge := httptest.NewServer(http.StripPrefix("/shop", backend))
	t.Cleanup(forge.Close)
	w.server = forge.URL
	w.controller = ciController(t)
	w.repo.Commit(map[string]string{"gitvirt.yaml": fleetManifest, "web.yaml": bare("web", "64Mi")})
	out, err := w.shell(nil, nil, publishScript(t), w.withLogin(), "--server", w.controller)
	if err != nil {
		t.Fatalf("publish-live.sh: %v\n%s", err, out)
	}
	return w
}

// ciController answers as a controller that knows of an empty host.
func ciController(t *testing.T) (address string) {
	t.Helper()
	controller := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != httpapi.LivePath {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(ciLive)) // the client may be gone
	}))
	t.Cleanup(controller.Close)
	return controller.URL
}

func publishScript(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../examples/ci/publish-live.sh")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// withLogin is the repository's URL with the credentials in it.
func (w *ciWorld) withLogin() string {
	return strings.Replace(w.server, "://", "://"+w.user+":"+w.token+"@", 1) + "/shop/fleet.git"
}

// open points the references of a pull request to a change of main.
func (w *ciWorld) open(number int, path, text string) (head string) {
	branch := fmt.Sprint("change-", number)
	if !w.repo.Has(branch) {
		w.repo.Git("branch", branch, "main")
	}
	head = w.repo.CommitTo(branch, map[string]string{path: text})
	for _, ref := range []string{"refs/pull/%d/head", "refs/pull/%d/merge", "refs/merge-requests/%d/head"} {
		w.repo.Git("update-ref", fmt.Sprintf(ref, number), head)
	}
	return head
}

// shell runs a program in a folder of its own and returns what it prints. It has the environment of a fresh machine that has gitvirt.
func (w *ciWorld) shell(folder *string, env map[string]string, command ...string) (string, error) {
	w.t.Helper()
	dir := w.t.TempDir()
	if folder != nil {
		if *folder == "" {
			*folder = dir
		}
		dir = *folder
	}
	cmd := exec.CommandContext(w.t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + filepath.Dir(program(w.t, "gitvirt")) + ":" + os.Getenv("PATH"), "HOME=" + w.t.TempDir(),
		"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
	}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		w.t.Fatal(err)
	}
	return string(out), err
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "examples", "ci", path))
	if err == nil {
		err = yaml.Unmarshal(content, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// workflow is what is read of a file of GitHub's kind.
type workflow struct {
	Defaults struct{ Run struct{ Shell string } }
	Jobs     map[string]struct {
		Env   map[string]string
		Steps []struct {
			Name, If, Run string
			Env           map[string]string
		}
	}
}

// expression is one of GitHub's.
var expression = regexp.MustCompile(`\$\{\{ *(.*?) *\}\}`)

// actions runs the job for a pull request, as GitHub Actions does, with the values of its expressions.
func (w *ciWorld) actions(number int, api string, values map[string]string) (out string, failed []string) {
	w.t.Helper()
	var flow workflow
	readYAML(w.t, "actions.yaml", &flow)
	if flow.Defaults.Run.Shell != "bash" {
		w.t.Fatalf("the shell is %q", flow.Defaults.Run.Shell)
	}
	value := func(text string) string {
		return expression.ReplaceAllStringFunc(text, func(found string) string {
			value, known := values[expression.FindStringSubmatch(found)[1]]
			if !known {
				w.t.Fatalf("nobody knows what %s is", found)
			}
			return value
		})
	}
	notes := w.t.TempDir()
	env := map[string]string{
		"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": w.server, "GITHUB_REPOSITORY": "shop/fleet", "GITHUB_API_URL": api,
		"GITHUB_REF": fmt.Sprintf("refs/pull/%d/merge", number), "GITHUB_BASE_REF": "main", "GITHUB_HEAD_REF": fmt.Sprint("change-", number),
		"GITHUB_STEP_SUMMARY": filepath.Join(notes, "summary"), "GITHUB_PATH": filepath.Join(notes, "path"),
	}
	for name, text := range flow.Jobs["plan"].Env {
		env[name] = value(text)
	}
	var folder string
	for _, step := range flow.Jobs["plan"].Steps {
		if step.If != "" && value(step.If) != "true" || step.If == "" && len(failed) > 0 {
			continue
		}
		script := gittest.WriteFile(w.t, step.Run)
		said, err := w.shell(&folder, env, "bash", "--noprofile", "--norc", "-eo", "pipefail", script)
		out += said
		if err != nil {
			failed = append(failed, step.Name)
		}
	}
	summary, err := os.ReadFile(env["GITHUB_STEP_SUMMARY"])
	if err != nil || !strings.Contains(out, string(summary)) {
		w.t.Errorf("the summary is %q, %v", summary, err)
	}
	if strings.Contains(out, w.token) || strings.Contains(out, base64.StdEncoding.EncodeToString([]byte(w.user+":"+w.token))) {
		w.t.Errorf("the job tells its token:\n%s", out)
	}
	return out, failed
}

// TestActionsWorkflow runs examples/ci/actions.yaml as GitHub Actions does. As Gitea Actions do it is run by TestWorkflowOnGitea.
func TestActionsWorkflow(t *testing.T) {
	t.Parallel()
	forge := forgetest.NewGitHub(t)
	there := forge.AddRepository("shop/fleet", false)
	there.Allow("github-actions[bot]", forges.Write)
	w := newCIWorld(t, "x-access-token", forge.AddUser("github-actions[bot]"))
	run := func(number int, fork, live string) (string, []string) {
		return w.actions(number, forge.URL()+"/api/v3", map[string]string{
			"github.token": w.token, "vars.GITVIRT_LIVE": live, "!cancelled()": "true",
			"!cancelled() && github.event.pull_request.head.repo.full_name == github.repository": fork,
		})
	}
	ours := func(number int) (bodies []string) {
		for _, comment := range there.Comments(number) {
			if comment.Author == "github-actions[bot]" {
				bodies = append(bodies, comment.Body)
			}
		}
		return bodies
	}
	const here, elsewhere = "true", "false"

	first := there.Open(forgetest.Opening{Head: w.open(1, "db.yaml", bare("db", "64Mi"))})
	planted := there.Comment(first, "mallory", "<!-- gitvirt:plan:e2e -->\nnothing to see")
	for i, live := range []string{"", w.controller} { // from the branch, and from a controller
		out, failed := run(first, here, live)
		if len(failed) > 0 || !strings.Contains(out, "2 VMs in 3 files: valid") {
			t.Fatalf("run %d: %v failed:\n%s", i, failed, out)
		}
		if got := ours(first); len(got) != 1 || !strings.Contains(got[0], "Plan: 1 to create") || !strings.Contains(got[0], "`host-9`") {
			t.Errorf("run %d: the comments are %q", i, got)
		}
	}
	if comments := there.Comments(first); comments[0].ID != planted || !strings.HasSuffix(comments[0].Body, "nothing to see") {
		t.Errorf("somebody else's comment is %+v", comments[0])
	}
	head := w.open(1, "cache.yaml", bare("cache", "64Mi"))
	if out, failed := run(first, here, ""); len(failed) > 0 {
		t.Errorf("%v failed:\n%s", failed, out)
	}
	if got := ours(first); len(got) != 1 || !strings.Contains(got[0], "Plan: 2 to create") || !strings.Contains(got[0], head[:9]) {
		t.Errorf("after another push the comments are %q", got)
	}

	broken := there.Open(forgetest.Opening{Head: w.open(2, "bad.yaml", bareThat("bad", "64Mi", "Allways"))})
	out, failed := run(broken, here, "")
	if !slices.Equal(failed, []string{"Validate the manifests", "Preview the merge"}) || !strings.Contains(out, `bad.yaml:4`) {
		t.Errorf("%v failed:\n%s", failed, out)
	}
	if got := ours(broken); len(got) != 1 || !strings.Contains(got[0], `bad.yaml:4`) {
		t.Errorf("about mistakes the comments are %q", got)
	}

	fork := there.Open(forgetest.Opening{Head: w.open(3, "far.yaml", bare("far", "64Mi")), Fork: true})
	if out, failed := run(fork, elsewhere, ""); len(failed) > 0 || !strings.Contains(out, "Plan: 1 to create") || len(ours(fork)) > 0 {
		t.Errorf("for a fork: %v failed, comments are %q:\n%s", failed, ours(fork), out)
	}
}

// pipeline is what is read of a file of GitLab's kind; jobs that extend another one have all that it has.
type pipeline map[string]struct {
	Extends      string
	Variables    map[string]string
	BeforeScript []string `json:"before_script"`
	Script       []string
	Artifacts    struct{ Paths []string }
}

// TestGitLabPipeline runs examples/ci/gitlab-ci.yaml as GitLab's runner does.
func TestGitLabPipeline(t *testing.T) {
	t.Parallel()
	w := newCIWorld(t, "gitlab-ci-token", "glcbt-64_sesame")
	var jobs pipeline
	readYAML(t, "gitlab-ci.yaml", &jobs)
	run := func(name string, number int, live string) (out, preview string, err error) {
		job, base := jobs[name], jobs[jobs[name].Extends]
		env := map[string]string{
			"CI": "true", "GITLAB_CI": "true", "CI_PIPELINE_SOURCE": "merge_request_event", "CI_JOB_TOKEN": w.token,
			"CI_PROJECT_URL": w.server + "/shop/fleet", "CI_REPOSITORY_URL": w.withLogin(),
			"CI_MERGE_REQUEST_IID": fmt.Sprint(number), "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
		}
		if live != "" {
			env["GITVIRT_LIVE"] = live
		}
		for name, text := range base.Variables {
			env[name] = os.Expand(text, func(variable string) string { return env[variable] })
		}
		var folder string
		lines := slices.Concat([]string{"set -eo pipefail"}, base.BeforeScript, job.Script)
		out, err = w.shell(&folder, env, "bash", "-c", strings.Join(lines, "\n"))
		for _, path := range job.Artifacts.Paths {
			content, err := os.ReadFile(filepath.Join(folder, path))
			if err != nil {
				t.Fatal(err)
			}
			preview += string(content)
		}
		if strings.Contains(out, w.token) {
			t.Errorf("the job tells its token:\n%s", out)
		}
		return out, preview, err
	}
	w.open(1, "db.yaml", bare("db", "64Mi"))
	if out, _, err := run("gitvirt:validate", 1, ""); err != nil || !strings.Contains(out, "2 VMs in 3 files: valid") {
		t.Errorf("%v:\n%s", err, out)
	}
	for _, live := range []string{"", w.controller} {
		if out, preview, err := run("gitvirt:preview", 1, live); err != nil || !strings.Contains(out, preview) || !strings.Contains(preview, "Plan: 1 to create") {
			t.Errorf("%v:\n%s\nthe preview is\n%s", err, out, preview)
		}
	}
	w.open(2, "bad.yaml", bareThat("bad", "64Mi", "Allways"))
	if out, _, err := run("gitvirt:validate", 2, ""); err == nil || !strings.Contains(out, "bad.yaml:4") {
		t.Errorf("%v:\n%s", err, out)
	}
	if out, preview, err := run("gitvirt:preview", 2, ""); err == nil || !strings.Contains(preview, "bad.yaml:4") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestWorkflowOnGitea does what examples/ci/README.md says, on a real Gitea with its own runner.
func TestWorkflowOnGitea(t *testing.T) {
	t.Parallel()
	server := giteatest.New(t, giteatest.WithActions())
	repo := server.AddRepository(t, "shop", "fleet")
	workflow, err := os.ReadFile(filepath.Join("..", "..", "examples", "ci", "actions.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	clone := gittest.Clone(t, repo.URLAs(t, "shop"))
	clone.Commit(gittest.Nobody(t), map[string]string{
		"gitvirt.yaml": fleetManifest, "web.yaml": bare("web", "64Mi"), ".gitea/workflows/gitvirt.yaml": string(workflow),
	})
	clone.Push()
	w := &ciWorld{t: t}
	if out, err := w.shell(nil, nil, publishScript(t), repo.URLAs(t, "shop"), "--server", ciController(t)); err != nil {
		t.Fatalf("publish-live.sh: %v\n%s", err, out)
	}
	server.AddRunner(t, "ubuntu-latest", filepath.Dir(program(t, "gitvirt"))+":"+os.Getenv("PATH"))
	client, err := gitea.New(gitea.Config{URL: server.URL, Owner: "shop", Repository: "fleet", TokenFile: server.TokenFile(t, "shop")})
	if err != nil {
		t.Fatal(err)
	}
	ends := func(head string, state forges.StatusState) {
		t.Helper()
		var last []forges.Status
		for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			if last, err = client.Statuses(t.Context(), head); err != nil {
				t.Fatal(err)
			}
			if len(last) == 1 && last[0].State == state {
				return
			}
			if time.Now().After(end) || len(last) == 1 && last[0].State != forges.Pending {
				t.Fatalf("the job ends as %+v, want %s", last, state)
			}
		}
	}
	says := func(number int, words ...string) (id int64) {
		t.Helper()
		comments, err := client.Comments(t.Context(), number)
		if err != nil || len(comments) != 1 || comments[0].Author != "gitea-actions" {
			t.Fatalf("the comments are %+v, %v", comments, err)
		}
		for _, word := range words {
			if !strings.Contains(comments[0].Body, word) {
				t.Errorf("the comment does not say %q:\n%s", word, comments[0].Body)
			}
		}
		return comments[0].ID
	}

	first, head := repo.Open(t, giteatest.Opening{Title: "A database", Author: "ann", Files: map[string]string{"db.yaml": bare("db", "64Mi")}})
	ends(head, forges.Success)
	comment := says(first, "Plan: 1 to create", head[:9])
	moved := repo.Push(t, first)
	ends(moved, forges.Success)
	if edited := says(first, "Plan: 1 to create", moved[:9]); edited != comment {
		t.Errorf("comment %d was added after %d", edited, comment)
	}
	broken, head := repo.Open(t, giteatest.Opening{Title: "A mistake", Author: "ann", Files: map[string]string{"bad.yaml": bareThat("bad", "64Mi", "Allways")}})
	ends(head, forges.Failure)
	says(broken, "bad.yaml:4")
}
