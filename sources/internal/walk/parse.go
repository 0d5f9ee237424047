package walk

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/gitvirt/gitvirt/schemas"
)

// loaded is a file's content on its way from the reader to a parser.
type loaded struct {
	job     job
	content []byte
}

// parseAll reads the jobs one after the other and parses them on all processors. Every leaf belongs to one job, so
// the parsers share nothing.
func parseAll(ctx context.Context, reader Reader, jobs []job, opts Options) error {
	workers := opts.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	group, ctx := errgroup.WithContext(ctx)
	queue := make(chan loaded, 4*workers)
	group.Go(func() error {
		defer close(queue)
		for _, j := range jobs {
			content, err := reader.Read(ctx, j.path, j.entry, opts.Limits.FileBytes)
			var tooLarge *TooLargeError
			if errors.As(err, &tooLarge) {
				j.leaf.file, j.leaf.digest = tooLargeFile(j.path, tooLarge.Size, opts.Limits.FileBytes), fmt.Sprintf("large:%d:%s", tooLarge.Size, j.entry.ID)
				continue
			}
			if err != nil {
				return fmt.Errorf("reading %s: %w", j.path, err)
			}
			select {
			case queue <- loaded{j, content}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range min(workers, len(jobs)) {
		group.Go(func() error {
			for l := range queue {
				l.parse(opts)
			}
			return nil
		})
	}
	return group.Wait()
}

// parse fills the leaf, with what it was before if that is equal.
func (l loaded) parse(opts Options) {
	if opts.Digest != nil {
		l.job.leaf.digest = opts.Digest(l.content)
		if old := l.job.old; old != nil && old.file != nil && old.digest == l.job.leaf.digest {
			l.job.leaf.file = old.file
			return
		}
	}
	l.job.leaf.file = parse(opts.Parse, l.job.path, l.content)
}

// parse keeps a defect in a parser, which one file reveals, from stopping the care for all the others.
func parse(f func(string, []byte) *schemas.File, file string, content []byte) (parsed *schemas.File) {
	defer func() {
		if r := recover(); r != nil {
			parsed = &schemas.File{Path: file, Opaque: true, Diagnostics: schemas.Diagnostics{{
				Position: schemas.Position{File: file},
				Severity: schemas.SeverityError,
				Message:  fmt.Sprintf("reading this file revealed a defect of gitvirt: %v", r),
				Fix:      "please report it with the file",
			}}}
		}
	}()
	return f(file, content)
}

func symlinkFile(file string) *schemas.File {
	d := schemas.Diagnostic{
		Position: schemas.Position{File: file},
		Severity: schemas.SeverityWarning,
		Message:  "symbolic links are not followed, whatever is behind this one is not read",
		Fix:      "replace it by what it points to, or name it in a " + IgnoreFile,
	}
	if manifest(file) {
		d.Severity = schemas.SeverityError
	}
	return &schemas.File{Path: file, Opaque: manifest(file), Diagnostics: schemas.Diagnostics{d}}
}

func submoduleFile(file string) *schemas.File {
	return &schemas.File{Path: file, Diagnostics: schemas.Diagnostics{{
		Position: schemas.Position{File: file},
		Severity: schemas.SeverityWarning,
		Message:  "submodules are not followed, the manifests in this one are not read",
		Fix:      "copy the manifests into the repository, or name the submodule in a " + IgnoreFile,
	}}}
}

func tooLargeFile(file string, size, limit int64) *schemas.File {
	return &schemas.File{Path: file, Opaque: true, Diagnostics: schemas.Diagnostics{{
		Position: schemas.Position{File: file},
		Severity: schemas.SeverityError,
		Message:  fmt.Sprintf("the file has %d bytes and the limit is %d, so it was not read", size, limit),
		Fix:      "split it into smaller files, or name it in a " + IgnoreFile + " if it is no manifest",
	}}}
}
