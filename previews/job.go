package previews

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/sources"
)

// job is one look at one pull request. It works on a copy of what is known, which the loop takes over when it is done.
type job struct {
	p       *Previews
	pull    pull
	what    kind
	world   *world
	account string
	branch  string
	seq     int
	slow    bool
	// commands says that people may command by comments, hears that there may be new ones.
	commands, hears bool
	// heard are the comments that have no answer yet, when listened is when they were read; zero before.
	heard    []heard
	listened time.Time
	// made are approvals that were recorded, of which the world does not know yet.
	made []status.Approval
	// gone says that the pull request itself is not there any more.
	gone bool
}

func (j *job) run(ctx context.Context) error {
	switch j.what {
	case closes:
		return j.close(ctx)
	case refuses:
		return j.refuse(ctx)
	case awaits:
		return j.pending(ctx, "waiting: what lives is not known at the moment")
	case plans:
		return j.plan(ctx)
	case listens:
		return j.listen(ctx)
	case nothing:
	}
	return nil
}

// find looks for our comment, once, and for commands when there may be new ones. Where there are several of ours, because a controller died in
// between, the first one stays.
func (j *job) find(ctx context.Context) error {
	if !j.listened.IsZero() || j.pull.looked && !j.hears {
		return nil
	}
	began := j.p.config.Clock.Now()
	comments, err := j.p.forge.Comments(ctx, j.pull.Number)
	if err != nil {
		j.gone = errors.Is(err, forges.ErrNotFound)
		return fmt.Errorf("reading the comments: %w", err)
	}
	if !j.pull.looked {
		if err := j.recognize(ctx, comments); err != nil {
			return err
		}
	}
	j.listened = began
	if j.commands {
		j.heard = unanswered(comments, j.account, &j.pull.said)
	}
	return nil
}

// recognize finds ours among the comments.
func (j *job) recognize(ctx context.Context, comments []forges.Comment) error {
	j.pull.comment, j.pull.digest = 0, ""
	for _, comment := range comments {
		if comment.Author != j.account || !isOurs(comment.Body, j.world.fleet().Name) {
			continue
		}
		j.pull.said.join(memoryOf(comment.Body))
		if j.pull.comment != 0 {
			if err := j.p.forge.DeleteComment(ctx, j.pull.Number, comment.ID); err != nil {
				return fmt.Errorf("removing a second comment: %w", err)
			}
			continue
		}
		j.pull.comment, j.pull.digest, j.pull.summary = comment.ID, digestOf(comment.Body), lastSummary.FindString(comment.Body)
	}
	j.pull.looked = true
	return nil
}

// listen reads the comments, and makes the plan when there is something to answer.
func (j *job) listen(ctx context.Context) error {
	if err := j.find(ctx); err != nil {
		return err
	}
	if len(j.heard) == 0 && !j.pull.unsaid && !j.pull.said.pending() {
		j.silence()
		return nil
	}
	return j.plan(ctx)
}

// silence notes that the commands up to here have their answers, or so many of them as one look carries out.
func (j *job) silence() {
	if j.listened.IsZero() || !j.commands {
		return
	}
	j.pull.heard, j.pull.deaf = j.listened, time.Time{}
	if j.pull.more = len(j.heard) > maxCommands; j.pull.more {
		j.pull.deaf = j.listened.Add(j.p.config.Interval)
	}
}

// write makes the comment say body. One that somebody has removed is written again.
func (j *job) write(ctx context.Context, body, digest string) error {
	if j.pull.comment != 0 {
		err := j.p.forge.EditComment(ctx, j.pull.Number, j.pull.comment, body)
		switch {
		case err == nil:
			j.p.metrics.comments.WithLabelValues("edited").Inc()
			j.pull.digest, j.pull.summary = digest, lastSummary.FindString(body)
			return nil
		case !errors.Is(err, forges.ErrNotFound):
			return fmt.Errorf("editing the comment: %w", err)
		}
	}
	id, err := j.p.forge.Comment(ctx, j.pull.Number, body)
	if err != nil {
		j.pull.looked = false // it may be there all the same: an answer can be lost
		return fmt.Errorf("commenting: %w", err)
	}
	j.p.metrics.comments.WithLabelValues("created").Inc()
	j.pull.comment, j.pull.digest, j.pull.summary = id, digest, lastSummary.FindString(body)
	return nil
}

// status tells something of the head.
func (j *job) status(ctx context.Context, status forges.Status) error {
	if err := j.p.forge.SetStatus(ctx, j.pull.Head, status); err != nil {
		return fmt.Errorf("setting the status of %s: %w", short(j.pull.Head), err)
	}
	status.Annotations = nil
	j.pull.told = status
	return nil
}

// pending tells that a plan is to come, once for each head.
func (j *job) pending(ctx context.Context, why string) error {
	if j.pull.pending == j.pull.Head {
		return nil
	}
	if err := j.status(ctx, forges.Status{Context: StatusContext, State: forges.Pending, Description: why, URL: j.link()}); err != nil {
		return err
	}
	j.pull.pending = j.pull.Head
	return nil
}

// link is where all of the plan is; empty when nobody can reach it.
func (j *job) link() string {
	if j.p.config.ExternalURL == "" {
		return ""
	}
	return j.p.config.ExternalURL + "/plans/" + strconv.Itoa(j.pull.Number)
}

// plan makes the comment and the status right.
func (j *job) plan(ctx context.Context) error {
	if j.pull.moved {
		if err := j.pending(ctx, "the plan is being made"); err != nil {
			return err
		}
	}
	if err := j.find(ctx); err != nil {
		return err
	}
	r, err := j.report(ctx)
	if err != nil {
		return fmt.Errorf("planning %s: %w", short(j.pull.Head), err)
	}
	unanswered := j.answer(ctx, r)
	if len(j.made) > 0 { // what they approve waits no more
		j.world = newWorld(j.world.view, j.p.config.Clock.Now(), j.made...)
		if r, err = j.report(ctx); err != nil {
			return fmt.Errorf("planning %s: %w", short(j.pull.Head), err)
		}
	}
	r.unread = !j.world.view.ApprovalsKnown
	r.branch, r.link, r.commands, r.said = j.branch, j.link(), j.commands, j.pull.said
	body, digest := r.comment(j.p.forge.CommentLimit())
	status := r.status()
	if digest == j.pull.digest && j.pull.pending != j.pull.Head {
		j.p.metrics.comments.WithLabelValues("unchanged").Inc()
		status.Annotations = nil
		j.pull.told = status
	} else {
		// The comment comes last: that it is right says that the status is.
		if err := j.status(ctx, status); err != nil {
			return err
		}
		j.pull.pending = ""
		if digest != j.pull.digest || j.pull.comment == 0 {
			if err := j.write(ctx, body, digest); err != nil {
				return err
			}
		}
	}
	j.pull.head, j.pull.base, j.pull.world, j.pull.at, j.pull.moved = j.pull.Head, r.base, j.seq, j.p.config.Clock.Now(), false
	j.pull.unsaid = false
	if unanswered != nil {
		return unanswered
	}
	j.silence()
	return nil
}

// report plans the pull request.
func (j *job) report(ctx context.Context) (*report, error) {
	if err := j.pull.unfetched; err != nil {
		problem := err.Error()
		var told *sources.Error
		if errors.As(err, &told) && told.Err != nil {
			problem = told.Err.Error()
		}
		return &report{fleet: j.world.fleet().Name, base: j.world.view.Commit(), head: j.pull.Head, problem: "its commits cannot be fetched: " + problem}, nil
	}
	began := j.p.config.Clock.Now()
	r, err := j.world.plan(ctx, j.p.source, j.pull.Head, j.pull.Fork)
	j.p.metrics.planned(r, err, j.p.config.Clock.Now().Sub(began))
	return r, err
}

// refuse tells that pull requests from forks are not planned, on the commit alone.
func (j *job) refuse(ctx context.Context) error {
	status := forges.Status{
		Context: StatusContext, State: forges.Failure,
		Description: "not planned: it comes from a fork, and the Fleet does not allow that (spec.pullRequests.forks)",
	}
	shown, err := j.p.forge.Statuses(ctx, j.pull.Head)
	if err != nil {
		return fmt.Errorf("reading the statuses of %s: %w", short(j.pull.Head), err)
	}
	j.pull.refused = j.pull.Head
	for _, one := range shown {
		if one.Context == status.Context && one.State == status.State && one.Description == status.Description {
			j.pull.told = status
			return nil
		}
	}
	if err := j.status(ctx, status); err != nil {
		j.pull.refused = ""
		return err
	}
	return nil
}

// close leaves one line of a comment, where there is one.
func (j *job) close(ctx context.Context) error {
	if err := j.find(ctx); err != nil {
		return err
	}
	what := "was closed without being merged"
	switch {
	case j.pull.State == forges.Merged:
		what = "was merged into " + plan.Span(j.branch)
	case j.pull.State == forges.Open:
		what = "is not to be merged into " + plan.Span(j.branch) + " any more"
	}
	if j.pull.comment == 0 || j.pull.digest == closedDigest {
		return nil
	}
	if err := j.answer(ctx, nil); err != nil {
		return err
	}
	body, digest := closing(j.world.fleet().Name, what, j.pull.summary, &j.pull.said, j.p.forge.CommentLimit())
	if err := j.p.forge.EditComment(ctx, j.pull.Number, j.pull.comment, body); err != nil && !errors.Is(err, forges.ErrNotFound) {
		return fmt.Errorf("closing the comment: %w", err)
	}
	j.pull.digest, j.pull.unsaid = digest, false
	j.silence()
	j.pull.head = "" // when it is opened again, everything is told again
	j.p.metrics.comments.WithLabelValues("closed").Inc()
	return nil
}
