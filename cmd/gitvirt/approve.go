package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/reconciler/statusbranch"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
)

// approveFlags say what is approved, and by whom.
type approveFlags struct {
	source   sourceFlags
	file     string
	only     []string
	as       string
	approved bool
}

func (c *cli) approveCommand() *cobra.Command {
	var f approveFlags
	command := &cobra.Command{
		Use:   "approve PLAN-ID",
		Short: "Let the steps of a plan happen that wait for approval",
		Long: `Show what waits in the plan that the controller has written to the status branch (plan.json), ask, and record the
approval there with your name and the time. Who may push to the status branch may approve. The controller carries the
steps out when it next looks.

An approval is for exactly the steps that are shown: when a step becomes another one, because git or the machine has
changed, it needs a new approval. So does making or starting a VM at the next commit. An approval lets steps happen that
wait for approval, for a budget or for a window that is not open; what a protection, a rule or a window that denies
holds back stays where it is.

The ID may be cut short to 8 characters. Your name is git's user.name and user.email, or --as.

Exit codes: 0 recorded, 1 an error, another plan or no consent.`,
		Example: `  gitvirt approve 3f9a1c20 --git https://git.example.com/team/fleet.git
  gitvirt approve 3f9a1c20 --only web-1 --git ./fleet.git
  gitvirt approve 3f9a1c20 --plan saved.plan --git ./fleet.git --as "Ada <ada@example.com>" --auto-approve`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.source.config.URL == "" {
				return errors.New("name the repository whose status branch keeps approvals with --git; what waits on a host without one is carried out by hand, with gitvirt apply")
			}
			return c.approvePlan(cmd.Context(), &f, args[0])
		},
	}
	f.source.addGit(command)
	flags := command.Flags()
	flags.StringArrayVar(&f.only, "only", nil, "approve only the steps of this VM: NAME or NAMESPACE/NAME (may be repeated)")
	flags.StringVar(&f.file, "plan", "", "approve the plan in this file (gitvirt plan --out) and not the controller's")
	flags.StringVar(&f.as, "as", "", `who approves: "Name <email>" (default: git's user.name and user.email)`)
	flags.BoolVar(&f.approved, "auto-approve", false, "record the approval without asking")
	return command
}

func (c *cli) approvePlan(ctx context.Context, f *approveFlags, id string) error {
	author, err := c.author(f.as)
	if err != nil {
		return err
	}
	f.source.others.none = true // only the Fleet is wanted
	_, desired, err := c.read(ctx, &f.source, "")
	if err != nil {
		return err
	}
	branch := desired.Fleet.Spec.Status.Branch
	publisher, err := c.statusBranch(&f.source)
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	recorded := statusbranch.Branch{Publisher: publisher, Name: branch, Follows: f.source.config.Branch}
	files, err := recorded.Read(ctx)
	if err != nil {
		return err
	}
	p, err := f.plan(files, branch)
	if err != nil {
		return err
	}
	approval, err := approvalOf(p, id, f.only)
	if err != nil {
		return err
	}
	approval.By, approval.At = author.String(), time.Now().UTC().Truncate(time.Second)
	if approval.Given(files) {
		c.approvedAlready(approval)
		return nil
	}
	c.printf("Plan %.12s at revision %s, %s:\n", p.ID, status.ShortRevision(p.Revision), steps(len(approval.Steps)))
	for _, step := range approval.Steps {
		what := string(step.Action)
		if string(step.Consequence) != what {
			what += ", " + string(step.Consequence)
		}
		c.printf("  %s/%s %s (%s)\n", plan.Inert(step.Address.Namespace), plan.Inert(step.Address.Name), plan.Inert(step.Summary), plan.Inert(what))
	}
	if err := c.approve("Approve them as "+author.String()+"?", f.approved); err != nil {
		return err
	}
	commit, err := recorded.Approve(ctx, approval)
	switch {
	case err != nil:
		return err
	case commit == "":
		c.approvedAlready(approval)
	default:
		c.printf("Recorded in %s as %s (commit %.9s).\n", branch, approval.Path(), commit)
	}
	return nil
}

func (c *cli) approvedAlready(approval *status.Approval) {
	c.printf("Approved already: %s of plan %.12s.\n", steps(len(approval.Steps)), approval.Plan)
}

// statusBranch opens the status branch of a repository, with its mirror beside that of the manifests.
func (c *cli) statusBranch(f *sourceFlags) (*git.Publisher, error) {
	config := f.config
	config.Dir = filepath.Join(c.cacheDir(), "status")
	return git.NewPublisher(config, git.WithGetenv(c.getenv))
}

// approvals reads what was approved from the status branch, and tells what of it cannot be read: that approves nothing. A
// source without a repository has no approvals.
func (c *cli) approvals(ctx context.Context, f *sourceFlags, fleet *schemas.Fleet) (approvals []policy.Approval, notes []string) {
	branch := fleet.Spec.Status.Branch
	if f.config.URL == "" || !fleet.Spec.Status.IsEnabled() || branch == f.config.Branch {
		return nil, nil
	}
	files, err := c.readApprovals(ctx, f, branch)
	if err != nil {
		return nil, []string{fmt.Sprintf("what was approved cannot be read from the branch %s, so nothing counts as approved here: %v", branch, err)}
	}
	recorded, problems := status.ReadApprovals(files)
	return status.ApprovalsFor(recorded, fleet.Name), problems
}

func (c *cli) readApprovals(ctx context.Context, f *sourceFlags, branch string) (map[string][]byte, error) {
	publisher, err := c.statusBranch(f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = publisher.Close() }()
	files, _, err := publisher.ReadFolder(ctx, branch, status.ApprovalFolder, "")
	if errors.Is(err, sources.ErrEmpty) {
		return nil, nil // nobody has written there yet
	}
	return files, err
}

func steps(n int) string { return fmt.Sprintf("%d step%s", n, plural(n)) }

// author is who approves.
func (c *cli) author(as string) (git.Author, error) {
	if as != "" {
		author, err := git.ParseAuthor(as)
		if err != nil {
			return author, fmt.Errorf("--as: %w", err)
		}
		return author, nil
	}
	author, err := git.Identity(c.getenv)
	if errors.Is(err, git.ErrNoIdentity) {
		return author, fmt.Errorf(`%w: set user.name and user.email with git config --global, or say --as "Name <email>"`, err)
	}
	return author, err
}

// plan reads the plan that is to be approved.
func (f *approveFlags) plan(files map[string][]byte, branch string) (*plan.Plan, error) {
	if f.file != "" {
		content, err := os.ReadFile(f.file)
		if err != nil {
			return nil, fmt.Errorf("reading the plan: %w", err)
		}
		file, err := plan.DecodeFile(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.file, err)
		}
		return file.Plan, nil
	}
	content, ok := files[status.PlanPath]
	if !ok {
		return nil, fmt.Errorf("the branch %s holds no plan (%s): nothing waits for approval, or no controller has written it yet", branch, status.PlanPath)
	}
	p, err := plan.ReadJSON(content)
	if err != nil {
		return nil, fmt.Errorf("reading %s of %s: %w", status.PlanPath, branch, err)
	}
	return p, nil
}

// approvalOf gathers the steps of a plan that wait and that only names; with no names all.
func approvalOf(p *plan.Plan, id string, only []string) (*status.Approval, error) {
	if !status.IsPlan(p, id) {
		return nil, fmt.Errorf("the present plan is %.12s at revision %s, not %s; look at it with gitvirt plan before you approve it",
			p.ID, status.ShortRevision(p.Revision), id)
	}
	found := map[string]bool{}
	for i := range p.Steps {
		step := &p.Steps[i]
		if len(only) > 0 && selected(step.Address, only) && !step.Approvable() && step.Blocked != "" {
			return nil, fmt.Errorf("%s/%s cannot be approved: %s", step.Address.Namespace, step.Address.Name, step.Blocked)
		}
		found[step.Address.Name], found[step.Address.Namespace+"/"+step.Address.Name] = true, true
	}
	for _, name := range only {
		if !found[name] {
			return nil, fmt.Errorf("the plan has no step for %s", name)
		}
	}
	approval := status.NewApproval(p, func(step *plan.Step) bool { return selected(step.Address, only) })
	if len(approval.Steps) == 0 {
		return nil, errors.New("nothing in the plan waits for an approval")
	}
	return approval, nil
}
