package sources

import "errors"

// RefUpdate is what a reference of a repository is to hold.
type RefUpdate struct {
	// Ref is its full name, such as "refs/gitvirt/plans/feature".
	Ref string
	// Known is the commit that it was at when it was read or written last; "" when it was not there. One that somebody else has moved
	// since is left as it is.
	Known string
	// Files are all that it is to hold, by path; nil removes the reference.
	Files map[string][]byte
	// Message is that of the commit, which stands on the one before it.
	Message string
}

// RefContent is what a reference holds.
type RefContent struct {
	// Commit is the full hash of what it is at.
	Commit string
	// Files are the ones that were asked for, by path. There are none where the reference is not at a commit.
	Files map[string][]byte
}

// RefResult is what became of a RefUpdate.
type RefResult struct {
	// Commit is where the reference is now; "" when it is not there.
	Commit string
	// Err is nil when it holds what it should; ErrMoved when somebody else has moved it, and it holds what they wrote.
	Err error
}

// ErrMoved says that a reference is not where it was known to be.
var ErrMoved = errors.New("somebody else has moved it")
