package walk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/gitvirt/gitvirt/sources"
)

// ignores are the patterns that hold in a directory, those of outer directories first.
type ignores struct {
	key      string // equal keys mean equal patterns
	patterns []gitignore.Pattern
}

// ignoreFile adds the patterns of dir's own ignore file, if it has one.
func (w *walker) ignoreFile(ctx context.Context, dir string, entries []Entry, outer ignores) (ignores, error) {
	for _, e := range entries {
		if e.Name != IgnoreFile {
			continue
		}
		file := path.Join(dir, IgnoreFile)
		if e.Kind != Regular {
			return ignores{}, ignoreError(file, errors.New("it is not a plain file"))
		}
		content, err := w.reader.Read(ctx, file, e, w.opts.Limits.FileBytes)
		var tooLarge *TooLargeError
		if errors.As(err, &tooLarge) {
			return ignores{}, ignoreError(file, err)
		}
		if err != nil {
			return ignores{}, err
		}
		return outer.with(dir, content), nil
	}
	return outer, nil
}

// ignoreError makes the whole revision unread: without the ignore file nobody can tell what is wanted.
func ignoreError(file string, err error) error {
	return &sources.Error{
		Kind: sources.ErrLimit,
		Op:   "reading " + file,
		Err:  fmt.Errorf("cannot tell which files to leave out: %w", err),
		Fix:  "make it a short plain file",
	}
}

func (i ignores) with(dir string, content []byte) ignores {
	domain := split(dir)
	inner := ignores{patterns: append([]gitignore.Pattern(nil), i.patterns...)}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		inner.patterns = append(inner.patterns, gitignore.ParsePattern(line, domain))
	}
	sum := sha256.Sum256([]byte(i.key + "\x00" + dir + "\x00" + string(content)))
	inner.key = hex.EncodeToString(sum[:])
	return inner
}

func (i ignores) match(file string, dir bool) bool {
	if len(i.patterns) == 0 {
		return false
	}
	return gitignore.NewMatcher(i.patterns).Match(split(file), dir)
}

func split(dir string) []string {
	if dir == "" {
		return nil
	}
	return strings.Split(dir, "/")
}
