package walk

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

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
	var weight atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	queue := make(chan loaded, 4*workers)
	group.Go(func() error {
		defer close(queue)
		for _, j := range jobs {
			content, err := reader.Read(ctx, j.path, j.entry, opts.Limits.FileBytes)
			var tooLarge *TooLargeError
			if errors.As(err, &tooLarge) {
				j.leaf.file, j.leaf.digest = tooLargeFile(schemas.Position{Source: opts.Source, File: j.path}, tooLarge.Size, opts.Limits.FileBytes), fmt.Sprintf("large:%d:%s", tooLarge.Size, j.entry.ID)
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
				if err := opts.checkWeight(weight.Add(l.job.leaf.file.Weight())); err != nil {
					return err
				}
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
	l.job.leaf.file = opts.parse(l.job.path, l.content)
}

// parse keeps a defect in a parser, which one file reveals, from stopping the care for all the others.
func (o *Options) parse(file string, content []byte) (parsed *schemas.File) {
	defer func() {
		if r := recover(); r != nil {
			parsed = told(schemas.Position{Source: o.Source, File: file}, schemas.SeverityError, fmt.Sprintf("reading this file revealed a defect of gitvirt: %v", r),
				"please report it with the file")
			parsed.Opaque = true
		}
	}()
	return o.Parse(file, content)
}

// checkWeight enforces the limit of what machines take in memory.
func (o *Options) checkWeight(weight int64) error {
	if weight <= o.Limits.Bytes {
		return nil
	}
	return limitError(fmt.Sprintf("its machines, those of sets included, take more than %d MiB to describe", o.Limits.Bytes>>20), "ask for fewer machines, or write less into the templates of sets")
}

// told is a file of which nothing is known but one thing that is wrong with it.
func told(at schemas.Position, severity schemas.Severity, message, fix string) *schemas.File {
	return &schemas.File{Source: at.Source, Path: at.File, Diagnostics: schemas.Diagnostics{{Position: at, Severity: severity, Message: message, Fix: fix}}}
}

func symlinkFile(at schemas.Position) *schemas.File {
	severity := schemas.SeverityWarning
	if manifest(at.File) {
		severity = schemas.SeverityError
	}
	file := told(at, severity, "symbolic links are not followed, whatever is behind this one is not read", "replace it by what it points to, or name it in a "+IgnoreFile)
	file.Opaque = manifest(at.File)
	return file
}

func submoduleFile(at schemas.Position) *schemas.File {
	return told(at, schemas.SeverityWarning, "submodules are not followed, the manifests in this one are not read",
		"copy the manifests into the repository, or name the submodule in a "+IgnoreFile)
}

func tooLargeFile(at schemas.Position, size, limit int64) *schemas.File {
	file := told(at, schemas.SeverityError, fmt.Sprintf("the file has %d bytes and the limit is %d, so it was not read", size, limit),
		"split it into smaller files, or name it in a "+IgnoreFile+" if it is no manifest")
	file.Opaque = true
	return file
}
