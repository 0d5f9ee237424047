package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
)

// previewFlags say which pull request is looked at, and what it is compared with.
type previewFlags struct {
	planFlags
	number   int
	head     string
	detailed bool
}

func (c *cli) previewCommand() *cobra.Command {
	var f previewFlags
	command := &cobra.Command{
		Use:   "preview [REPOSITORY]",
		Short: "Show what merging a pull request would change",
		Long: `Merge the head of a pull request, or a branch, into the branch that is followed (in memory: nothing is pushed), and print as
Markdown what that adds to what lives: the text that a controller writes onto the pull request. What lives is read from --live,
which is a file of "gitvirt snapshot" or the URL of a controller, and without it from this host or the cluster that KUBECONFIG names. No
forge is asked: the repository says where the heads of pull requests are.

Without --pr and --head the pull request is that of the job of CI: Gitea Actions, GitHub Actions and GitLab CI say which.

Exit codes: 0 done; 1 an error, a mistake in the manifests, a conflict or an unreadable host; with --detailed-exitcode also 2 when
there is something to do.`,
		Example: `  gitvirt preview --git https://git.example.com/team/fleet.git --pr 12 --live live.json
  gitvirt preview --git ./fleet.git --head feature --live http://127.0.0.1:9471
  gitvirt preview --git "$CI_REPOSITORY_URL" --live live.json > comment.md`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.source.argument(args); err != nil {
				return err
			}
			return c.preview(cmd.Context(), &f)
		},
	}
	f.source.addGit(command)
	f.agent.add(command)
	f.kube.add(command)
	flags := command.Flags()
	flags.IntVar(&f.number, "pr", 0, "number of the pull request, or merge request (default: that of the job of CI)")
	flags.StringVar(&f.head, "head", "", "branch or reference to merge, in place of a pull request's head")
	flags.StringVar(&f.live, "live", "", "what to compare with: a file of gitvirt snapshot (- for the standard input), or a controller's URL")
	flags.BoolVar(&f.detailed, "detailed-exitcode", false, "exit with 2 when there is something to do")
	command.MarkFlagsMutuallyExclusive("pr", "head")
	return command
}

func (c *cli) preview(ctx context.Context, f *previewFlags) error {
	if f.source.dir != "" {
		return errors.New("a directory has no branches to merge; name the repository with --git")
	}
	names, fork, err := c.heads(f)
	if err != nil {
		return err
	}
	source, err := c.openGit(&f.source, c.cacheDir())
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	base, head, err := fetched(ctx, source, names)
	if err != nil {
		return err
	}
	view, err := c.baseView(ctx, f, source, base.Base)
	if err != nil {
		return err
	}
	shown, err := previews.Once(ctx, source, view, previews.Pull{Head: head, Branch: base.Branch, Fork: fork}, commentBytes)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(c.stdout, shown.Comment); err != nil {
		return fmt.Errorf("writing the preview: %w", err)
	}
	switch {
	case shown.Status.State == forges.Failure || shown.Plan != nil && shown.Plan.Unknown != "":
		return errSilent
	case f.detailed && shown.Plan != nil && len(shown.Plan.Steps) > 0:
		return errChanges
	}
	return nil
}

// heads names the references of which one is the head. Whoever opens a pull request may be a stranger: what belongs to others is not in its
// preview.
func (c *cli) heads(f *previewFlags) (names []string, fork bool, err error) {
	if f.head != "" {
		if strings.HasPrefix(f.head, "refs/") {
			return []string{f.head}, false, nil
		}
		return []string{"refs/heads/" + f.head}, false, nil
	}
	number := f.number
	if number == 0 {
		number = c.pullRequestOfJob()
	}
	if number <= 0 {
		return nil, false, errors.New("which pull request? Name it with --pr NUMBER, or a branch with --head; no job of CI says it")
	}
	text := strconv.Itoa(number)
	return []string{"refs/pull/" + text + "/head", "refs/merge-requests/" + text + "/head"}, true, nil
}

// pullRequestOfJob is what CI says of the pull request that it runs for; 0 when it says nothing.
func (c *cli) pullRequestOfJob() int {
	for _, text := range []string{c.getenv("CI_MERGE_REQUEST_IID"), numberIn(c.getenv("GITHUB_REF"))} {
		if number, err := strconv.Atoi(text); err == nil {
			return number
		}
	}
	return 0
}

// numberIn finds the number in refs/pull/NUMBER/merge.
func numberIn(reference string) string {
	rest, found := strings.CutPrefix(reference, "refs/pull/")
	if !found {
		return ""
	}
	number, _, _ := strings.Cut(rest, "/")
	return number
}

// fetched brings the base and the first of some references that the repository has.
func fetched(ctx context.Context, source *git.Source, names []string) (base *sources.Heads, head string, err error) {
	base, err = source.Heads(ctx, names)
	if err != nil {
		return nil, "", err
	}
	for _, name := range names {
		if err := base.Refused[name]; err != nil {
			return nil, "", fmt.Errorf("fetching %s: %w", name, err)
		}
		if hash := base.Refs[name]; hash != "" {
			return base, hash, nil
		}
	}
	return nil, "", fmt.Errorf("%s has no %s", source, strings.Join(names, " and no "))
}

// baseView is what the base wants, and what lives.
func (c *cli) baseView(ctx context.Context, f *previewFlags, source *git.Source, revision string) (*reconciler.View, error) {
	snapshot, err := source.At(ctx, revision)
	if err != nil {
		return nil, err
	}
	if snapshot, err = c.withOthers(ctx, &f.source, snapshot); err != nil {
		return nil, err
	}
	desired := f.source.assemble(snapshot)
	var live *plan.Live
	if f.live != "" {
		live, err = c.readLive(ctx, f.live)
	} else {
		live, err = c.lookAt(ctx, &f.planFlags, desired.Fleet)
	}
	if err != nil {
		return nil, err
	}
	pods, err := podsOf(live)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.live, err)
	}
	desired, live.Observed = f.source.against(snapshot, desired, live.Observed)
	return &reconciler.View{Time: live.Time, Snapshot: snapshot, Desired: desired, Observed: live.Observed, Plan: &plan.Plan{}, Pods: pods}, nil
}
