// Package sources says where manifests come from: a Snapshot is one complete revision of them, and the packages
// below it read snapshots from git (sources/git) and from a plain directory (sources/directory).
//
// It decides which files are manifests and what happens to those that cannot be read. It does not interpret them
// (package schemas does), does not log and does not decide what follows from a failure; the kind of the error says
// that: see ErrUnreadable, ErrEmpty, ErrAuth, ErrLimit and ErrUntrusted. Whatever the kind, no snapshot means "unknown", never
// "nothing is wanted".
//
// # Which files are read
//
//   - Files whose name ends in .yaml, .yml or .json, in the source's sub-path and below.
//   - Names that begin with "." are skipped, files and directories alike.
//   - A .gitvirtignore (gitignore syntax) in the sub-path or in any directory below it takes away more.
//   - Symbolic links are not followed. One that is named like a manifest is an error and makes its File opaque
//     (nobody can tell what it asks for, so nothing is destroyed meanwhile); any other is a warning.
//   - A submodule is not followed and is a warning.
//   - A file above Limits.FileBytes is an error and opaque; its content is never held in memory.
//
// Too many files, too deep a tree or a .gitvirtignore that cannot be read leave the whole revision unread.
package sources

import (
	"errors"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

// Snapshot is one complete revision of the manifests. It is immutable; files that did not change between two
// snapshots of one source are the same pointers.
type Snapshot struct {
	// Revision is the full commit hash, or a content hash ("sha256:...") for a directory. With other repositories beside it
	// a mark and a digest of their commits follow: Commit is without them.
	Revision string
	// Subject, Author and Time are the commit's: the first line of its message, "Name <address>", and when it
	// was authored; without control characters. A directory has none.
	Subject, Author string
	Time            time.Time
	// Files is ordered by path; those of other repositories follow, source by source. Paths are relative to the root of the
	// repository (not to the sub-path) or of the directory, with forward slashes.
	Files []*schemas.File
	// Parts are the repositories that it was read from, the one that the Fleet is in first; nil where there is no other.
	Parts []Part
	// Rewritten is the previous revision when history was rewritten (a force-push), else "".
	Rewritten string
	// Changed lists the paths that were added, removed or changed since the previous snapshot of this source,
	// ordered; nil on the first, and where there are other repositories.
	Changed []string
}

// Limits bound what one revision may hold. A zero field means its default.
type Limits struct {
	// FileBytes is the largest manifest, in bytes.
	FileBytes int64
	// Files is the number of manifests.
	Files int
	// Depth is the number of nested directories below the sub-path.
	Depth int
	// Bytes bounds what the machines take in memory, those that sets make included (schemas.File.Weight).
	Bytes int64
}

// DefaultLimits returns 1 MiB per file, 50,000 files, 16 levels and 1 GiB of machines.
func DefaultLimits() Limits {
	return Limits{FileBytes: 1 << 20, Files: 50_000, Depth: 16, Bytes: 1 << 30}
}

// WithDefaults fills the zero fields from DefaultLimits.
func (l Limits) WithDefaults() Limits {
	d := DefaultLimits()
	if l.FileBytes <= 0 {
		l.FileBytes = d.FileBytes
	}
	if l.Files <= 0 {
		l.Files = d.Files
	}
	if l.Depth <= 0 {
		l.Depth = d.Depth
	}
	if l.Bytes <= 0 {
		l.Bytes = d.Bytes
	}
	return l
}

// The kinds of failure; exactly one of them is found by errors.Is in every error of Poll, Last and At.
var (
	// ErrUnreadable says that the source could not be read this time: the server is down, slow or answers
	// nonsense, the disk is full. Try again with backoff.
	ErrUnreadable = errors.New("source is unreadable")
	// ErrEmpty says that there is nothing to read: no such repository, no commit, no such branch, revision or
	// sub-path, or not a single manifest in it. It may be a mistake or a repository that is being set up: try
	// again, and touch nothing meanwhile. Who really wants no VM at all keeps a gitvirt.yaml (kind: Fleet).
	ErrEmpty = errors.New("source is empty")
	// ErrAuth says that the server refuses our credentials or that we refuse the server's (an unknown host key,
	// an untrusted certificate). It needs a person; retry slowly, credentials are read anew each time.
	ErrAuth = errors.New("source denies access")
	// ErrLimit says that this revision exceeds Limits. Another revision has to come; retrying is useless.
	ErrLimit = errors.New("source exceeds a limit")
	// ErrUntrusted says that the branch has a revision that nobody whose signature counts has signed. What was trusted
	// before stays what is wanted; another revision has to come.
	ErrUntrusted = errors.New("source has a revision that is not trusted")
)

// Error is a failure of a source: its kind, what was being done, the cause, and what to do about it.
type Error struct {
	// Kind is ErrUnreadable, ErrEmpty, ErrAuth, ErrLimit or ErrUntrusted.
	Kind error
	// Source names the repository or directory, without credentials.
	Source string
	// Op is what was being done, such as "fetching main".
	Op string
	// Err is the cause; it may be nil.
	Err error
	// Fix says what to do about it; it may be empty.
	Fix string
	// Revision is the full hash of the commit that an ErrUntrusted is about, and Reason says in a few words why it is, such as "it is not
	// signed". Both are empty where they are not known.
	Revision, Reason string
}

// Error returns "SOURCE: OP: CAUSE; FIX".
func (e *Error) Error() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{e.Source, e.Op} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	cause := e.Kind
	if e.Err != nil {
		cause = e.Err
	}
	text := strings.Join(append(parts, cause.Error()), ": ")
	if e.Fix != "" {
		text += "; " + e.Fix
	}
	return text
}

// Unwrap gives errors.Is and errors.As both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Commit is one commit of a history.
type Commit struct {
	// Revision is the full hash, Parents are those of its parents.
	Revision string
	Parents  []string
	// Subject and Author are as in a Snapshot. Time is when it was authored, Committed when it came to be as it is.
	Subject, Author string
	Time, Committed time.Time
	// Tree identifies what the source reads of the commit: equal trees hold equal manifests. It is empty where the
	// commit has nothing for the source.
	Tree string
}

// Conflict is why two revisions cannot be merged.
type Conflict struct {
	// Path is where, from the root of the repository; empty when it is about the revisions as a whole.
	Path string
	// Reason says what both sides did, as a phrase such as "both sides changed the same lines".
	Reason string
}

// String returns "PATH: REASON".
func (c Conflict) String() string {
	if c.Path == "" {
		return c.Reason
	}
	return c.Path + ": " + c.Reason
}

// Heads is where references of a repository are.
type Heads struct {
	// Branch is the one that the source follows, without "refs/heads/", and Base is its head.
	Branch, Base string
	// Refs are the full hashes of the references that were asked for, by name. Those that the remote does not have are missing.
	Refs map[string]string
	// Seen are the full hashes of references that were only looked at.
	Seen map[string]string
	// Refused says of references why what they name cannot be had.
	Refused map[string]error
}
