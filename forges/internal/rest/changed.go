package rest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

// List returns a page of the pull requests, all or the open ones, the one that was updated last first, and the number of the next page or 0.
// Pages count from 1.
type List func(ctx context.Context, open bool, page int) (pulls []forges.PullRequest, next int, err error)

// PullRequests converts what one page has. One that cannot be understood spoils the page.
func PullRequests[T any](got []T, convert func(T) (forges.PullRequest, error)) ([]forges.PullRequest, error) {
	pulls := make([]forges.PullRequest, 0, len(got))
	for _, one := range got {
		pull, err := convert(one)
		if err != nil {
			return nil, err
		}
		pulls = append(pulls, pull)
	}
	return pulls, nil
}

// pagesLimit is when a forge that has always one more page is not believed any longer.
const pagesLimit = 1000

// Pages turns pages until there is none, or until more says that there is no need.
func Pages(turn func(page int) (next int, more bool, err error)) error {
	for page := 1; page < pagesLimit; {
		next, more, err := turn(page)
		if err != nil || !more || next == 0 {
			return err
		}
		if next <= page {
			return errors.New("its pages go in a circle")
		}
		page = next
	}
	return errors.New("it has page after page without an end")
}

// Changed is forges.Forge's, over pages. A forge's times have a precision, by which a pull request can seem to be older than it is.
//
// What is updated meanwhile moves to the first page and makes the others move on, so that some come twice and none of the others is missed; the one
// that moved is newer than all that was seen, and comes with the next poll.
func Changed(ctx context.Context, since time.Time, precision time.Duration, list List) ([]forges.PullRequest, error) {
	if since.IsZero() {
		return open(ctx, list)
	}
	since = since.Truncate(precision)
	var found collection
	err := Pages(func(page int) (int, bool, error) {
		pulls, next, err := list(ctx, false, page)
		if err != nil {
			return 0, false, err
		}
		older := slices.IndexFunc(pulls, func(p forges.PullRequest) bool { return p.Updated.Before(since) })
		if older >= 0 {
			pulls, next = pulls[:older], 0
		}
		found.add(pulls)
		return next, true, nil
	})
	return found.sorted(), err
}

// open returns the open ones. When one is closed while pages are turned, the one behind it slips from a page that is to come onto one that was
// seen already. So they are read again when anything has changed meanwhile; the last of three readings counts.
func open(ctx context.Context, list List) ([]forges.PullRequest, error) {
	first, next, err := list(ctx, true, 1)
	if err != nil || next == 0 {
		return first, err
	}
	before, _, err := list(ctx, false, 1)
	for range 3 {
		if err != nil {
			return nil, err
		}
		var found collection
		err = Pages(func(page int) (int, bool, error) {
			pulls, next, err := list(ctx, true, page)
			found.add(pulls)
			return next, true, err
		})
		if err != nil {
			return nil, err
		}
		var after []forges.PullRequest
		if after, _, err = list(ctx, false, 1); err == nil && slices.Equal(before, after) {
			return found.sorted(), nil
		}
		before, first = after, found.sorted()
	}
	return first, err
}

// collection gathers pull requests that may come more than once.
type collection struct {
	pulls []forges.PullRequest
	seen  map[int]bool
}

func (c *collection) add(pulls []forges.PullRequest) {
	if c.seen == nil {
		c.seen = map[int]bool{}
	}
	for _, p := range pulls {
		if !c.seen[p.Number] {
			c.seen[p.Number] = true
			c.pulls = append(c.pulls, p)
		}
	}
}

func (c *collection) sorted() []forges.PullRequest {
	slices.SortStableFunc(c.pulls, func(a, b forges.PullRequest) int { return b.Updated.Compare(a.Updated) })
	return c.pulls
}
