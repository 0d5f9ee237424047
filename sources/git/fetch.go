package git

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// maxHaves is how many of our commits the server is told. The mirror's tip is nearly always an ancestor of what is
// wanted; after a force-push one of the commits before it is.
const maxHaves = 256

// request is what one fetch asks for.
type request struct {
	wants []plumbing.Hash
	// known are tips in the store: the server sends nothing that is reachable from them.
	known []plumbing.Hash
	// depth is the number of commits wanted of each history; 0 means all that is not known.
	depth int
	limit int64
}

// download fetches the wanted objects into s over an open conversation, which it ends.
func download(ctx context.Context, from fetcher, refs *packp.AdvRefs, s *store, r request) (err error) {
	req := packp.NewUploadPackRequestFromCapabilities(refs.Capabilities)
	if refs.Capabilities.Supports(capability.NoProgress) {
		if err := req.Capabilities.Set(capability.NoProgress); err != nil {
			return err
		}
	}
	req.Wants = r.wants
	req.Haves = haves(s, r.known)
	if err := setDepth(req, refs, s, r.depth); err != nil {
		return err
	}
	res, err := from.UploadPack(ctx, req)
	if errors.Is(err, transport.ErrEmptyUploadPackRequest) {
		return fmt.Errorf("the server sends no objects: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Close()) }()
	if err := addShallows(s, res.Shallows, res.Unshallows, r.depth); err != nil {
		return err
	}
	var body io.Reader = res
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		body = sideband.NewDemuxer(sideband.Sideband64k, res)
	case req.Capabilities.Supports(capability.Sideband):
		body = sideband.NewDemuxer(sideband.Sideband, res)
	}
	if err := packfile.UpdateObjectStorage(s.Storage, &limitReader{body, r.limit, errTooMuch}); err != nil {
		return fmt.Errorf("receiving objects: %w", err)
	}
	for _, want := range r.wants {
		if !s.has(want) {
			return fmt.Errorf("the server did not send %s, which it offered", want)
		}
	}
	return nil
}

// setDepth asks for a shallow history, and tells the server where ours ends.
func setDepth(req *packp.UploadPackRequest, refs *packp.AdvRefs, s *store, depth int) error {
	if !refs.Capabilities.Supports(capability.Shallow) {
		return nil
	}
	shallows, err := s.Shallow()
	if err != nil {
		return fmt.Errorf("reading where the mirror's history ends: %w", err)
	}
	if depth == 0 && len(shallows) == 0 {
		return nil
	}
	req.Shallows = shallows
	if depth > 0 {
		req.Depth = packp.DepthCommits(depth)
	}
	return req.Capabilities.Set(capability.Shallow)
}

func addShallows(s *store, added, removed []plumbing.Hash, depth int) error {
	if depth == 0 || len(added)+len(removed) == 0 {
		return nil
	}
	shallows, err := s.Shallow()
	if err != nil {
		return err
	}
	set := map[plumbing.Hash]bool{}
	for _, h := range shallows {
		set[h] = true
	}
	for _, h := range added {
		set[h] = true
	}
	for _, h := range removed {
		delete(set, h)
	}
	shallows = shallows[:0]
	for h := range set {
		shallows = append(shallows, h)
	}
	plumbing.HashesSort(shallows)
	return s.SetShallow(shallows)
}

// haves lists the known tips and the newest of their ancestors.
func haves(s *store, known []plumbing.Hash) []plumbing.Hash {
	seen := map[plumbing.Hash]bool{}
	for _, tip := range known {
		commit, err := object.GetCommit(s, tip)
		if err != nil {
			continue // a tip that cannot be read is not known
		}
		left := maxHaves
		// It ends early where a shallow history does.
		_ = object.NewCommitIterCTime(commit, seen, nil).ForEach(func(c *object.Commit) error {
			seen[c.Hash] = true
			if left--; left <= 0 || len(seen) >= 4*maxHaves {
				return storer.ErrStop
			}
			return nil
		})
	}
	list := make([]plumbing.Hash, 0, len(seen))
	for h := range seen {
		list = append(list, h)
	}
	plumbing.HashesSort(list)
	return list
}

// branchHead finds the branch in what the remote offers. An empty branch means its HEAD.
func branchHead(refs *packp.AdvRefs, branch string) (plumbing.ReferenceName, plumbing.Hash, error) {
	if branch != "" {
		name := plumbing.NewBranchReferenceName(branch)
		hash, ok := refs.References[string(name)]
		if !ok {
			return "", plumbing.ZeroHash, fmt.Errorf("%w: there is no branch %q", errNoBranch, branch)
		}
		return name, hash, nil
	}
	all, err := refs.AllReferences()
	if err != nil {
		return "", plumbing.ZeroHash, fmt.Errorf("the remote's HEAD names no branch: %w", errNoBranch)
	}
	name := plumbing.HEAD
	if head, ok := all[plumbing.HEAD]; ok && head.Type() == plumbing.SymbolicReference {
		name = head.Target()
	}
	hash, ok := refs.References[string(name)]
	if !ok && refs.Head != nil && name == plumbing.HEAD {
		return plumbing.HEAD, *refs.Head, nil // a detached HEAD
	}
	if !ok {
		return "", plumbing.ZeroHash, fmt.Errorf("%w: the remote's HEAD is %s, which does not exist", errNoBranch, name)
	}
	return name, hash, nil
}
