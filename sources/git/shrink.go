package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

// A mirror gathers the heads of pull requests that were closed since, and what was pushed over. One with more than headGrowth times the bytes that
// it had when it was made, and headSlack more than these, is made anew of what is needed now: what is fetched for that is at most half of what
// was gathered, and no object has to be looked at to know whether it is needed.
const (
	headGrowth = 2
	headSlack  = 32 << 20
	// shrinkRest is how long it is left as it is when it could not be made anew.
	shrinkRest = time.Hour
)

// sizeFile is where a mirror says how many bytes its packs had when it was made.
const sizeFile = "gitvirt-size"

// shrink makes the mirror anew when it has become too large. A mirror that stays large is no worse, so what goes wrong is not told: what has been
// fetched already is there in either case.
func (s *Source) shrink(ctx context.Context, refs map[string]string) {
	if !s.oversized() || s.now().Before(s.notBefore) {
		return
	}
	if err := s.refill(ctx, refs); err != nil {
		s.notBefore = s.now().Add(shrinkRest)
	}
}

// oversized compares the mirror with what it was when it was made.
func (s *Source) oversized() bool {
	size, err := packBytes(s.mirror.dir)
	if err != nil {
		return false
	}
	text, err := os.ReadFile(filepath.Join(s.mirror.dir, sizeFile))
	if err == nil {
		var made int64
		if made, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			return size > headGrowth*made && size-made > s.slack
		}
	}
	_ = noteSize(s.mirror.dir) // else the next look begins from what it is then
	return false
}

// packBytes is the size of the packs of a mirror.
func packBytes(dir string) (int64, error) {
	packs, err := filepath.Glob(filepath.Join(dir, "objects", "pack", "pack-*.pack"))
	if err != nil {
		return 0, err
	}
	var size int64
	for _, pack := range packs {
		info, err := os.Stat(pack)
		if err != nil {
			return 0, err
		}
		size += info.Size()
	}
	return size, nil
}

func noteSize(dir string) error {
	size, err := packBytes(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, sizeFile), fmt.Appendln(nil, size), 0o600)
}

// refill puts a new mirror of the branch and some references in the place of the old one.
func (s *Source) refill(ctx context.Context, refs map[string]string) error {
	st, err := s.mirror.fresh(s.cfg.Limits.FileBytes)
	if err != nil {
		return err
	}
	defer s.mirror.discard()
	if err := errors.Join(s.fill(ctx, st, refs), st.Close()); err != nil {
		return err
	}
	if err := noteSize(st.dir); err != nil {
		return err
	}
	return s.mirror.commit()
}

func (s *Source) fill(ctx context.Context, st *store, refs map[string]string) error {
	from, offered, err := s.upload(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // what matters of it was read
	name, base, err := s.head(offered)
	if err != nil {
		return err
	}
	still := map[string]string{} // what has moved meanwhile is fetched when it is looked for
	for ref, hash := range refs {
		if offered.References[ref] == plumbing.NewHash(hash) {
			still[ref] = hash
		}
	}
	f := &headFetch{s: s, st: st, from: from, refs: offered}
	if err := f.base(ctx, name, base); err != nil {
		return err
	}
	return f.others(ctx, base, still)
}
