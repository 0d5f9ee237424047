package previews

import (
	"context"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
)

// Pull is one pull request that is looked at once, without any forge.
type Pull struct {
	// Head is the full hash of what is to be merged, Branch the name of what it is to be merged into.
	Head, Branch string
	// Fork says that it is told nothing of what belongs to other fleets.
	Fork bool
}

// Preview is what a comment and a commit status would say.
type Preview struct {
	// Comment is Markdown, with the hidden lines of a comment.
	Comment string
	Status  forges.Status
	// Plan is nil when there can be none, and Comment says why.
	Plan *plan.Plan
}

// Once makes the preview of one pull request. view is what is compared with: its Snapshot and Desired are the base's, its Plan only says
// whether what lives is known. limit is how long the comment may be, in bytes.
func Once(ctx context.Context, source merger, view *reconciler.View, pull Pull, limit int) (*Preview, error) {
	r, err := newWorld(view, view.Time).plan(ctx, source, pull.Head, pull.Fork)
	if err != nil {
		return nil, err
	}
	r.branch = pull.Branch
	body, _ := r.comment(limit)
	return &Preview{Comment: body, Status: r.status(), Plan: r.plan}, nil
}
