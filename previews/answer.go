package previews

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// maxCommands is how many commands are carried out at one look at a pull request; the others have to wait for an interval.
const maxCommands = 5

// atOnce is how far apart the times may be of a comment that was never edited: forges that tell seconds may have begun another one while they wrote
// it. An edit within that time cannot be told.
const atOnce = time.Second

// approveTimeout is how long recording an approval may take; there has to be time left to tell that it failed.
const approveTimeout = 20 * time.Second

// errUnwritten says that an approval cannot be recorded now.
var errUnwritten = errors.New("the status branch cannot be written")

// answer carries out the commands that have no answer yet, in order, and remembers what became of them. r is what the pull request would do; nil
// when it is not open any more. An error is one that trying again may mend: what could not be carried out is still to be answered then, and so is
// all that comes after it.
func (j *job) answer(ctx context.Context, r *report) error {
	said := &j.pull.said
	said.dropPending()
	for _, one := range j.heard[:min(len(j.heard), maxCommands)] {
		given, err := j.obey(ctx, r, one)
		said.add(one.ID, given)
		j.pull.unsaid = true
		j.p.metrics.commands.WithLabelValues(string(one.command.verb), given.Result.verdict()).Inc()
		if err != nil {
			return fmt.Errorf("answering %s of %s: %w", one.command.text, given.By, err)
		}
		j.tell(given)
	}
	return nil
}

// tell tells what became of a command. What was refused is told without its text, so that somebody who tries again and again is one event.
func (j *job) tell(given answer) {
	plain := func(text string) string { return text }
	note := reconciler.Note{
		Type: reconciler.Normal, Reason: CommandRefused,
		Message: fmt.Sprintf("pull request %d: a command of %s: %s", j.pull.Number, given.By, given.text(plain)),
	}
	switch {
	case given.Result.done():
		note.Reason = CommandDone
		note.Message = fmt.Sprintf("pull request %d: %s of %s: %s", j.pull.Number, given.Command, given.By, given.text(plain))
	case given.Result == undisclosed:
		note.Type = reconciler.Warning
	}
	j.p.world.Report(note)
}

// obey carries out one command. The answer is always one; with an error it is one that is not the last.
func (j *job) obey(ctx context.Context, r *report, one heard) (answer, error) {
	given := answer{At: one.Created.Unix(), By: told(one.Author), Command: one.command.text}
	switch {
	case r == nil:
		given.Result = over
		return given, nil
	case one.Updated.Sub(one.Created) > atOnce:
		given.Result = edited
		return given, nil
	case one.command.verb == verbOther:
		given.Result = unknown
		return given, nil
	}
	may, err := j.p.forge.Permission(ctx, one.Author)
	switch {
	case errors.Is(err, forges.ErrUnavailable):
		given.Result = unasked
		return given, err
	case err != nil:
		given.Result = undisclosed
		return given, nil
	case may < j.needs(one):
		given.Result, given.May = forbidden, may.String()
		return given, nil
	case one.command.verb == verbPlan:
		given.Result = planned // all looks at a pull request make its plan
		return given, nil
	}
	err = j.approve(ctx, r, one, &given)
	return given, err
}

// needs is what somebody has to be permitted for a command. Who opened a pull request from here has a branch here.
func (j *job) needs(one heard) forges.Permission {
	if one.command.verb == verbPlan && !j.pull.Fork && one.Author == j.pull.Author {
		return forges.Read
	}
	return forges.Write
}

// approve records the approval of the plan that is named, which is the pull request's or the controller's, as it is now.
func (j *job) approve(ctx context.Context, r *report, one heard, given *answer) error {
	view := j.p.world.View()
	fleet := j.world.fleet()
	var approval *status.Approval
	var before int
	switch id := one.command.id; {
	case len(id) < status.MinPlanID:
		given.Result = tooShort
		return nil
	case r.plan != nil && status.IsPlan(r.plan, id):
		if given.Result = foreseen; r.judged {
			given.Result = unsettled
			return nil
		}
		approval, before = r.approval(), approvedOf(r.plan)
		given.Later = len(status.NewApproval(r.plan, (*plan.Step).Recurs).Steps)
	case view.Plan != nil && view.Desired != nil && view.Plan.Unknown == "" && status.IsPlan(view.Plan, id):
		given.Result, fleet = approved, view.Desired.Fleet
		approval, before = status.NewApproval(view.Plan, func(*plan.Step) bool { return true }), approvedOf(view.Plan)
	default:
		if given.Result = stale; r.plan != nil {
			given.Plan = fmt.Sprintf("%.12s", r.plan.ID)
		}
		return nil
	}
	given.Plan, given.Steps = fmt.Sprintf("%.12s", approval.Plan), len(approval.Steps)
	switch {
	case given.Steps == 0 && before > 0:
		given.Result, given.Steps = repeated, before
		return nil
	case given.Steps == 0 && given.Later > 0:
		given.Result = recurring
		return nil
	case given.Steps == 0:
		given.Result = needless
		return nil
	}
	branch := j.p.approvals(fleet)
	if branch == nil {
		given.Result = unrecorded
		return nil
	}
	approval.By, approval.At = j.signs(one.Author), j.p.config.Clock.Now().UTC().Truncate(time.Second)
	recording, cancel := context.WithTimeout(ctx, approveTimeout)
	defer cancel()
	commit, err := branch.Approve(recording, approval)
	switch {
	case err != nil:
		given.Result = unwritten
		return fmt.Errorf("%w: %w", errUnwritten, err)
	case commit == "":
		given.Result = repeated
		return nil
	}
	j.made = append(j.made, *approval)
	return nil
}

// signs is how the author of an approval is written: "Name <email>", with who it is on which forge, and where they said it.
func (j *job) signs(login string) string {
	name := fmt.Sprintf("%s (%s#%d)", told(login), plan.Inert(j.p.forge.Name()), j.pull.Number)
	return strings.NewReplacer("<", "?", ">", "?").Replace(name) + " <gitvirt@localhost>"
}
