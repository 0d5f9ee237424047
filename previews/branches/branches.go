// Package branches makes pull requests of the branches of a repository that is on no forge, and lets their plans be read with git: the comment of a
// branch is the file plan.md of refs/gitvirt/plans/BRANCH, its status the file status.json beside it. Package previews does the rest, which knows
// it as a forge and as a source.
//
// It is not quite one: nobody comments, nobody has rights, there are no forks, titles or webhooks. So it does not take part in the suite of
// forges/conformance, which mostly asks for these. A branch is merged when the base has its commits, and closed when it is gone.
package branches

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/sources"
)

// Prefix is where plans are; the name of the branch follows.
const Prefix = "refs/gitvirt/plans/"

// Account is who writes plans, as far as package previews asks.
const Account = "gitvirt"

// planBytes is how long a plan may be.
const planBytes = 1 << 20

// Repository is where the branches are; *git.Source is one.
type Repository interface {
	fmt.Stringer
	Matching(ctx context.Context, fetch, see func(name string) bool) (*sources.Heads, error)
	Contained(ctx context.Context, tip string, commits []string) (map[string]bool, error)
	Merge(ctx context.Context, base, head string) (*sources.Snapshot, []sources.Conflict, error)
}

// Plans is where the plans are, which is the same repository as a rule.
type Plans interface {
	ReadRefs(ctx context.Context, refs []string, wanted func(path string) bool) (map[string]sources.RefContent, error)
	// Update changes references without force; the results are by name.
	Update(ctx context.Context, updates []sources.RefUpdate) (map[string]sources.RefResult, error)
}

// Config adjusts Branches.
type Config struct {
	// Patterns say which branches are planned: names in which * stands for anything and ? for one character. At least one is needed.
	Patterns []string
	// Skip names branches that are never planned; nil names none. The base never is.
	Skip func(branch string) bool
	// Report is told when plans cannot be pushed, and when they can again; nil means nobody is.
	Report func(reconciler.Note)
	// Clock and Rand (numbers in [0,1)) are for tests; nil means the real ones.
	Clock backoff.Clock
	Rand  func() float64
}

// Branches are those of one repository. Its methods are safe for concurrent use; Run is called once.
type Branches struct {
	repository Repository
	refs       Plans
	planned    *regexp.Regexp
	config     Config
	wake       chan struct{}
	backoff    backoff.Backoff

	mu sync.Mutex
	// heads is what the repository said last; nil before.
	heads *sources.Heads
	// merged are the heads that the base has.
	merged map[string]bool
	// last is the number that was given last.
	last   int
	pulls  map[int]*branch
	byName map[string]*branch
	plans  map[string]*plan
	// problem says why the last push has failed; empty when it has not.
	problem string
}

var _ forges.Forge = (*Branches)(nil)

// branch is one as a pull request. Its title is its name.
type branch struct {
	forges.PullRequest
	// told is the last status, and of says of which commit.
	told forges.Status
	of   string
}

func (b *branch) ref() string { return Prefix + b.Title }

// New returns Branches that push nothing until Run.
func New(repository Repository, refs Plans, config Config) (*Branches, error) {
	if repository == nil || refs == nil {
		return nil, errors.New("branches: a repository, and where plans are, are needed")
	}
	planned, err := compile(config.Patterns)
	if err != nil {
		return nil, err
	}
	if config.Skip == nil {
		config.Skip = func(string) bool { return false }
	}
	if config.Report == nil {
		config.Report = func(reconciler.Note) {}
	}
	if config.Clock == nil {
		config.Clock = backoff.SystemClock{}
	}
	if config.Rand == nil {
		config.Rand = rand.Float64
	}
	return &Branches{
		repository: repository, refs: refs, planned: planned, config: config, wake: make(chan struct{}, 1),
		backoff: backoff.Backoff{Min: firstRetry, Max: lastRetry, Rand: config.Rand},
		pulls:   map[int]*branch{}, byName: map[string]*branch{}, plans: map[string]*plan{},
	}, nil
}

// compile makes one expression of patterns.
func compile(patterns []string) (*regexp.Regexp, error) {
	if len(patterns) == 0 {
		return nil, errors.New("branches: no branch is named that is to be planned")
	}
	var parts []string
	for _, pattern := range patterns {
		if pattern == "" || strings.ContainsAny(pattern, " ~^:\\\x00") {
			return nil, fmt.Errorf("%q matches no branch; write a name such as feature/*", pattern)
		}
		quoted := regexp.QuoteMeta(strings.TrimPrefix(pattern, "refs/heads/"))
		parts = append(parts, strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(quoted))
	}
	return regexp.Compile("^(?:" + strings.Join(parts, "|") + ")$")
}

// wanted reports whether a reference is a branch that is planned.
func (b *Branches) wanted(ref string) bool {
	name, ok := strings.CutPrefix(ref, "refs/heads/")
	return ok && b.planned.MatchString(name) && !b.config.Skip(name)
}

func isPlan(ref string) bool { return strings.HasPrefix(ref, Prefix) }

// failed is an error of a repository with the kind that it has for a forge, of which its text says nothing.
type failed struct {
	error
	kind error
}

// Unwrap gives errors.Is and errors.As both.
func (f *failed) Unwrap() []error { return []error{f.error, f.kind} }

// failure is an error of the repository as one of a forge.
func failure(err error) error {
	if errors.Is(err, sources.ErrAuth) {
		return &failed{err, forges.ErrDenied}
	}
	return &failed{err, forges.ErrUnavailable}
}

// Changed implements forges.Forge: it asks the repository where its references are, and fetches the heads that moved.
func (b *Branches) Changed(ctx context.Context, since time.Time) ([]forges.PullRequest, error) {
	heads, err := b.repository.Matching(ctx, b.wanted, isPlan)
	if err != nil {
		return nil, failure(err)
	}
	delete(heads.Refs, "refs/heads/"+heads.Branch)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heads == nil || !sameHeads(b.heads, heads) {
		commits := make([]string, 0, len(heads.Refs))
		for _, hash := range heads.Refs {
			commits = append(commits, hash)
		}
		b.mu.Unlock()
		merged, err := b.repository.Contained(ctx, heads.Base, commits)
		b.mu.Lock()
		if err != nil {
			return nil, failure(err)
		}
		b.merged = merged
	}
	first := b.heads == nil
	b.heads = heads
	b.take(heads, first)
	return b.changed(since), nil
}
