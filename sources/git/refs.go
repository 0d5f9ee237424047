package git

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/gitvirt/gitvirt/sources"
)

// ReadRefs returns what references hold of the files that are wanted, in one fetch and without their history. Those that do not exist are missing.
func (p *Publisher) ReadRefs(ctx context.Context, refs []string, wanted func(path string) bool) (map[string]sources.RefContent, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	done, err := p.takeTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	contents, err := p.readRefs(ctx, refs, wanted)
	if err != nil {
		return nil, p.fail(ctx, "reading references", err)
	}
	return contents, nil
}

func (p *Publisher) readRefs(ctx context.Context, refs []string, wanted func(string) bool) (map[string]sources.RefContent, error) {
	from, offered, err := p.upload(ctx)
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return map[string]sources.RefContent{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }() // what matters of it was read
	tips, wants := map[string]plumbing.Hash{}, []plumbing.Hash(nil)
	for _, ref := range refs {
		if tip, ok := offered.References[ref]; ok {
			tips[ref] = tip
			wants = append(wants, tip)
		}
	}
	if len(wants) == 0 {
		return map[string]sources.RefContent{}, nil
	}
	plumbing.HashesSort(wants)
	m, err := newMirror(p.parent, p.display, "references", "read")
	if err != nil {
		return nil, err
	}
	unlock, err := m.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	st, err := m.create(m.dir, p.cfg.Limits.FileBytes) // always anew: what is read is small, and read once
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }() // nothing in it is needed again
	if err := download(ctx, from, offered, st, request{wants: slices.Compact(wants), depth: 1, limit: min(headBytes, p.cfg.FetchBytes)}); err != nil {
		return nil, err
	}
	contents := make(map[string]sources.RefContent, len(tips))
	for ref, tip := range tips {
		files, err := filesOf(st, tip, wanted)
		if err != nil && !errors.Is(err, plumbing.ErrObjectNotFound) { // as of a tag, which is no commit
			return nil, err
		}
		contents[ref] = sources.RefContent{Commit: tip.String(), Files: files}
	}
	return contents, nil
}

// Update changes references with one push and without force: each gets a commit on top of the one that it was known to be at, or is removed from
// there. The error is about all of them; otherwise the results, by name, say what became of each.
func (p *Publisher) Update(ctx context.Context, updates []sources.RefUpdate, author Author) (map[string]sources.RefResult, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	done, err := p.takeTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	u := &refUpdate{p: p, author: author, results: map[string]sources.RefResult{}, added: &builder{added: memory.NewStorage()}}
	if err := u.run(ctx, updates); err != nil {
		return nil, p.fail(ctx, "pushing references", err)
	}
	return u.results, nil
}

// refUpdate is one Update.
type refUpdate struct {
	p        *Publisher
	author   Author
	results  map[string]sources.RefResult
	added    *builder
	commands []*packp.Command
}

func (u *refUpdate) run(ctx context.Context, updates []sources.RefUpdate) error {
	to, offered, err := u.p.receive(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }() // the report says what happened
	for i := range updates {
		if err := u.command(&updates[i], offered.References[updates[i].Ref]); err != nil {
			return err
		}
	}
	if len(u.commands) == 0 {
		return nil
	}
	// Removals come first, because a/b cannot be made while a is there.
	slices.SortStableFunc(u.commands, func(a, b *packp.Command) int { return cmp.Compare(removals(a), removals(b)) })
	return u.push(ctx, to, offered.Capabilities)
}

func removals(c *packp.Command) int {
	if c.New.IsZero() {
		return 0
	}
	return 1
}

// command adds what the push has to do for a reference, which is at now.
func (u *refUpdate) command(update *sources.RefUpdate, now plumbing.Hash) error {
	switch {
	case !now.IsZero() && now.String() != update.Known:
		u.results[update.Ref] = sources.RefResult{Commit: now.String(), Err: sources.ErrMoved}
		return nil
	case update.Files == nil && now.IsZero():
		u.results[update.Ref] = sources.RefResult{}
		return nil
	case update.Files == nil:
		u.commands = append(u.commands, &packp.Command{Name: plumbing.ReferenceName(update.Ref), Old: now})
		return nil
	}
	all := func(string) bool { return true }
	for path := range update.Files {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	built, err := build(nil, plumbing.ZeroHash, all, update.Files)
	if err != nil {
		return err
	}
	commit, err := built.commit(now, update.Message, u.author, u.p.now())
	if err != nil {
		return err
	}
	for _, hash := range built.hashes {
		made, err := built.added.EncodedObject(plumbing.AnyObject, hash)
		if err != nil {
			return err
		}
		if err := u.added.add(made); err != nil {
			return err
		}
	}
	u.commands = append(u.commands, &packp.Command{Name: plumbing.ReferenceName(update.Ref), Old: now, New: commit})
	return nil
}

// push sends everything and takes the server's word for each reference. The server compares and swaps.
func (u *refUpdate) push(ctx context.Context, to pusher, supports *capability.List) error {
	req := packp.NewReferenceUpdateRequestFromCapabilities(supports)
	said := &tail{}
	if supports.Supports(capability.Sideband64k) {
		req.Progress = said
		if err := req.Capabilities.Set(capability.Sideband64k); err != nil {
			return err
		}
	}
	req.Commands = u.commands
	if len(u.added.hashes) > 0 { // what only removes has no pack
		pack, err := u.added.pack()
		if err != nil {
			return err
		}
		req.Packfile = io.NopCloser(bytes.NewReader(pack))
	}
	report, err := to.ReceivePack(ctx, req)
	if report == nil && err != nil {
		return err // it never came to a decision
	}
	answers := map[plumbing.ReferenceName]error{}
	if report != nil {
		for _, status := range report.CommandStatuses {
			answers[status.ReferenceName] = status.Error()
		}
		if len(answers) == 0 && err != nil {
			return err // what was sent could not be unpacked
		}
	}
	for _, command := range u.commands {
		answer := answers[command.Name]
		switch {
		case answer != nil:
			text := plain(answer.Error())
			if more := plain(said.String()); more != "" {
				text += " (" + more + ")"
			}
			u.results[command.Name.String()] = sources.RefResult{Commit: tipName(command.Old), Err: u.p.fail(ctx, "pushing", &accessError{
				fmt.Errorf("%w: %s", ErrRefused, text), "allow gitvirt's user to push references below refs/gitvirt; some servers take only branches and tags",
			})}
		default:
			u.results[command.Name.String()] = sources.RefResult{Commit: tipName(command.New)}
		}
	}
	return nil
}
