package git

import (
	"context"
	"errors"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/gitvirt/gitvirt/sources"
)

// Notes are git's notes beside commits, below one reference, as git notes reads and writes them: a tree whose paths are the hashes of commits, with
// slashes somewhere in them. It is safe for concurrent use, also with others who write notes.
type Notes struct {
	publisher *Publisher
	ref       plumbing.ReferenceName
	author    Author
}

// Notes returns those of a reference, such as "refs/notes/gitvirt", in the publisher's repository.
func (p *Publisher) Notes(ref string, author Author) *Notes {
	return &Notes{publisher: p, ref: plumbing.ReferenceName(ref), author: author}
}

// Name names them for people, without credentials.
func (n *Notes) Name() string { return n.ref.String() + " of " + n.publisher.String() }

// isOf reports whether a path is that of a commit's note. How deep it lies is up to who wrote it, and changes with how many there are.
func isOf(commit string) func(path string) bool {
	return func(path string) bool { return strings.ReplaceAll(path, "/", "") == commit }
}

// Show returns the note of a commit, by its full hash; false when it has none.
func (n *Notes) Show(ctx context.Context, commit string) (text string, found bool, err error) {
	r := &reading{p: n.publisher, name: n.ref.String(), branch: n.ref, wanted: isOf(commit)}
	files, _, err := r.read(ctx)
	if errors.Is(err, sources.ErrEmpty) {
		return "", false, nil
	}
	for _, content := range files {
		return string(content), true, nil
	}
	return "", false, err
}

// Write makes a text the note of a commit, by its full hash, and leaves those of others alone. It pushes without force, and begins again when
// somebody else was faster, until ctx ends.
func (n *Notes) Write(ctx context.Context, commit, text string) error {
	w := &writer{
		p: n.publisher, name: n.ref.String(), branch: n.ref, owned: isOf(commit), files: map[string][]byte{commit[:2] + "/" + commit[2:]: []byte(text)},
		message: "Note of " + commit[:min(12, len(commit))], author: n.author,
		fix: "allow gitvirt's user to push to " + n.ref.String() + "; some servers take only branches and tags",
	}
	_, err := w.publish(ctx)
	return err
}
