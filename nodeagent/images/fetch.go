package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// retry calls attempt until it succeeds, fails for good, or was tried often enough.
func (c *Cache) retry(ctx context.Context, attempt func(context.Context) error) error {
	pause := c.opts.RetryPause
	for tried := 1; ; tried++ {
		err := attempt(ctx)
		switch {
		case err == nil || !errors.Is(err, ErrUnavailable):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case tried >= c.opts.Attempts:
			return err
		}
		jittered := pause/2 + rand.N(pause) //nolint:gosec // jitter is no secret
		c.opts.Log.Warn("fetching an image failed and is tried again", "error", err, "attempt", tried, "pause", jittered)
		if ended := backoff.Wait(ctx, nil, jittered); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
		pause *= 3
	}
}

// fetch takes the wanted file out of an image and publishes it in the cache.
func (c *Cache) fetch(ctx context.Context, from source, digest v1.Hash, opts GetOptions, want wanted) error {
	return c.retry(ctx, func(ctx context.Context) (err error) {
		file, err := c.newTemporary()
		if err != nil {
			return err
		}
		temporary := file.Name()
		defer func() {
			err = errors.Join(err, file.Close())
			if removeErr := os.Remove(temporary); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
				err = errors.Join(err, removeErr)
			}
		}()
		e, err := c.fetchInto(ctx, file, from, digest, opts, want)
		if err != nil {
			return err
		}
		return c.publish(temporary, digest, want, e)
	})
}

func (c *Cache) fetchInto(ctx context.Context, file *os.File, from source, digest v1.Hash, opts GetOptions, want wanted) (entry, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	image, err := from.open(ctx, digest)
	if err != nil {
		return entry{}, err
	}
	transfer := newTransfer(image.layers, c.opts.StallTimeout, cancel, opts.Progress)
	defer transfer.stop()
	e := &extractor{layers: image.layers, limit: c.opts.MaxFileSize, out: file, watch: transfer.watch}
	got, err := e.extract(ctx, want)
	if errors.Is(context.Cause(ctx), errStalled) {
		err = fmt.Errorf("no byte arrived for %v: %w", c.opts.StallTimeout, ErrUnavailable)
	}
	if err := errors.Join(err, image.close()); err != nil {
		return entry{}, err
	}
	return c.finish(file, got, want)
}

// finish checks an extracted file and makes it durable and read-only.
func (c *Cache) finish(file *os.File, got extracted, want wanted) (entry, error) {
	e := entry{InnerPath: got.innerPath, Disk: want.disk, Size: got.size}
	if want.disk {
		info, err := diskfile.Detect(file, got.size)
		if err == nil {
			err = c.checkDisk(info, got.innerPath)
		}
		if err != nil {
			return entry{}, fmt.Errorf("/%s: %w: %w", got.innerPath, err, ErrInvalid)
		}
		e.Format, e.VirtualSize = info.Format, info.VirtualSize
	}
	err := file.Chmod(imageMode)
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		dir := path.Dir(file.Name())
		return entry{}, diskfile.ExplainNoSpace(fmt.Errorf("finishing the file: %w", err), dir, dir, got.size)
	}
	return e, nil
}

// checkDisk compares what a disk is with its limits and with what its name says.
func (c *Cache) checkDisk(info diskfile.Info, name string) error {
	if info.VirtualSize > c.opts.MaxVirtualSize {
		return fmt.Errorf("the disk has %s, and at most %s are allowed: %w", diskfile.FormatBytes(info.VirtualSize), diskfile.FormatBytes(c.opts.MaxVirtualSize), ErrTooLarge)
	}
	extension := strings.ToLower(path.Ext(name))
	claimed := map[string]string{
		".qcow2": "qcow2", ".qcow": "qcow2", ".vmdk": "VMDK", ".vhdx": "VHDX", ".vhd": "VHD", ".vdi": "VDI",
		".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".bz2": "bzip2",
	}[extension]
	if claimed != "" && claimed != string(info.Format) {
		return fmt.Errorf("its name says %s and its contents do not; it is damaged, or misnamed", claimed)
	}
	return nil
}

var errStalled = errors.New("transfer stalled")

// transfer counts the bytes of all layers and ends a transfer that stands still.
type transfer struct {
	total, done int64
	progress    func(done, total int64)
	stall       time.Duration
	timer       *time.Timer
	reported    time.Time
}

func newTransfer(layers []layer, stall time.Duration, cancel context.CancelCauseFunc, progress func(done, total int64)) *transfer {
	t := &transfer{progress: progress, stall: stall, timer: time.AfterFunc(stall, func() { cancel(errStalled) })}
	for _, l := range layers {
		t.total += l.size
	}
	return t
}

func (t *transfer) stop() { t.timer.Stop() }

func (t *transfer) watch(l layer, r io.Reader) io.Reader {
	return &watchedReader{transfer: t, layer: l, reader: r}
}

// progressInterval keeps Progress from being called for every read.
const progressInterval = 100 * time.Millisecond

func (t *transfer) count(n int) {
	t.timer.Reset(t.stall)
	t.done += int64(n)
	if t.progress == nil {
		return
	}
	if now := time.Now(); t.done >= t.total || now.Sub(t.reported) >= progressInterval {
		t.reported = now
		t.progress(min(t.done, t.total), t.total)
	}
}

// watchedReader reads the stored bytes of a layer.
type watchedReader struct {
	transfer *transfer
	layer    layer
	reader   io.Reader
	read     int64
}

// Read implements io.Reader. An error before the last byte means that the transfer broke; one behind it comes from the library's check of the digest.
func (w *watchedReader) Read(p []byte) (int, error) {
	n, err := w.reader.Read(p)
	w.read += int64(n)
	w.transfer.count(n)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case w.layer.size > 0 && w.read >= w.layer.size:
		return n, fmt.Errorf("the stored layer does not have its digest: %w: %w", err, ErrInvalid)
	}
	return n, fmt.Errorf("the transfer broke after %s: %w: %w", diskfile.FormatBytes(w.read), err, ErrUnavailable)
}

// flight is a digest that somebody is working on.
type flight struct {
	held    chan struct{}
	waiters int
}

// enter waits until nobody else works on the digest. It is a channel, so that waiting ends with the context, and a caller that
// gives up does not take the others down with it.
func (c *Cache) enter(ctx context.Context, digest string) (release func(), err error) {
	c.mu.Lock()
	f := c.flights[digest]
	if f == nil {
		f = &flight{held: make(chan struct{}, 1)}
		c.flights[digest] = f
	}
	f.waiters++
	c.mu.Unlock()
	leave := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if f.waiters--; f.waiters == 0 {
			delete(c.flights, digest)
		}
	}
	select {
	case f.held <- struct{}{}:
		return func() { <-f.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("waiting for image %s: %w", digest, context.Cause(ctx))
	}
}

// resolve returns the digest that a source has now.
func (c *Cache) resolve(ctx context.Context, from source) (v1.Hash, error) {
	var digest v1.Hash
	err := c.retry(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, c.opts.StallTimeout)
		defer cancel()
		var err error
		digest, err = from.resolve(ctx)
		return err
	})
	if err != nil {
		return v1.Hash{}, fmt.Errorf("resolving it: %w", err)
	}
	return digest, nil
}
