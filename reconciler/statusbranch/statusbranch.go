// Package statusbranch is the status branch of a git repository: where the controller writes the status, and where approvals are recorded, by
// people with gitvirt approve and by the controller for people who command it on a pull request.
package statusbranch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
)

// Branch is a branch of a repository that the status is written to. Its methods are safe for concurrent use.
type Branch struct {
	// Publisher reads and writes the repository.
	Publisher *git.Publisher
	// Name is the branch.
	Name string
	// Follows is the branch that the manifests come from, where that is known; it is never written to.
	Follows string
}

// ErrOwnBranch keeps status files out of the branch that the manifests come from.
var ErrOwnBranch = errors.New("the Fleet's spec.status.branch is the branch that the manifests come from; name another one")

// Read returns what the branch holds; a branch that does not exist yet holds nothing.
func (b Branch) Read(ctx context.Context) (map[string][]byte, error) {
	if b.Name == b.Follows {
		return nil, ErrOwnBranch
	}
	files, err := b.Publisher.Read(ctx, b.Name)
	if errors.Is(err, sources.ErrEmpty) {
		return nil, nil
	}
	return files, err
}

// Publish makes the branch hold the files that are the status, and reports whether that took a commit.
func (b Branch) Publish(ctx context.Context, files map[string][]byte, message string) (bool, error) {
	if b.Name == b.Follows {
		return false, ErrOwnBranch
	}
	result, err := b.Publisher.Publish(ctx, b.Name, status.Owned, files, message, git.Author{})
	return result.Changed, err
}

// ReadFolder returns the files below a folder of the branch, and the commit that they are of; no files when that is still the commit known.
func (b Branch) ReadFolder(ctx context.Context, folder, known string) (map[string][]byte, string, error) {
	if b.Name == b.Follows {
		return nil, "", ErrOwnBranch
	}
	return b.Publisher.ReadFolder(ctx, b.Name, folder, known)
}

// Approve records an approval as a commit by who approves, and returns the commit; "" when each of the steps was approved before, which takes
// none. A path that another approval has is left to it: the time of this one is then a second later.
func (b Branch) Approve(ctx context.Context, approval *status.Approval) (commit string, err error) {
	files, _, err := b.ReadFolder(ctx, status.ApprovalFolder, "")
	if err != nil && !errors.Is(err, sources.ErrEmpty) {
		return "", err
	}
	if approval.Given(files) {
		return "", nil
	}
	for files[approval.Path()] != nil {
		approval.At = approval.At.Add(time.Second)
	}
	content, err := approval.YAML()
	if err != nil {
		return "", err
	}
	path := approval.Path()
	owned := func(name string) bool { return name == path }
	result, err := b.Publisher.Publish(ctx, b.Name, owned, map[string][]byte{path: content}, approval.Subject(), authorOf(approval.By))
	if err != nil {
		return "", fmt.Errorf("recording the approval: %w", err)
	}
	return result.Commit, nil
}

// authorOf reads "Name <email>", as it was written by git.Author's String.
func authorOf(by string) git.Author {
	at := strings.LastIndex(by, " <")
	if at < 0 {
		return git.Author{Name: by}
	}
	return git.Author{Name: by[:at], Email: strings.TrimSuffix(by[at+2:], ">")}
}
