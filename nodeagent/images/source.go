package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// errSourceGone says that a local source is not there any more.
var errSourceGone = errors.New("source is gone")

// source is where a container image comes from.
type source interface {
	// pinned returns the digest that the reference itself names, or "".
	pinned() string
	// changing reports whether the reference is resolved at every use by default.
	changing() bool
	// resolve returns the digest that the reference has now.
	resolve(ctx context.Context) (v1.Hash, error)
	// open returns the layers of the image with that digest, for this machine's architecture. The contents are read under ctx.
	open(ctx context.Context, digest v1.Hash) (contents, error)
}

// contents are the layers of one image, from the lowest to the topmost.
type contents struct {
	layers []layer
	close  func() error
}

// layer is one layer as it is stored, compressed or not, and the digest of its uncompressed bytes.
type layer struct {
	diffID v1.Hash
	size   int64
	stored func() (io.ReadCloser, error)
}

// uncompressed opens the layer and undoes gzip or zstd, whichever its bytes show. through sees the stored bytes first.
func (l layer) uncompressed(through func(io.Reader) io.Reader) (io.ReadCloser, error) {
	undo, err := partial.CompressedToLayer(storedLayer{layer: l, through: through})
	if err != nil {
		return nil, err
	}
	return undo.Uncompressed()
}

// storedLayer is what partial.CompressedToLayer needs; it only ever calls Compressed.
type storedLayer struct {
	layer
	through func(io.Reader) io.Reader
}

// Compressed opens the stored bytes.
func (s storedLayer) Compressed() (io.ReadCloser, error) {
	stored, err := s.stored()
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{s.through(stored), stored}, nil
}

// Digest, Size and MediaType complete the interface; nothing calls them.
func (s storedLayer) Digest() (v1.Hash, error) { return s.diffID, nil }

// Size is as above.
func (s storedLayer) Size() (int64, error) { return s.size, nil }

// MediaType is as above.
func (s storedLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

// The prefixes of local references, named as skopeo names them.
const (
	layoutPrefix  = "oci:"
	archivePrefix = "oci-archive:"
)

func isLocal(ref string) bool {
	return strings.HasPrefix(ref, layoutPrefix) || strings.HasPrefix(ref, archivePrefix)
}

// parse tells where a reference leads.
func (c *Cache) parse(ref string, keychain authn.Keychain) (source, error) {
	if strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r == 0x7f }) || ref == "" {
		return nil, fmt.Errorf("reference %q: it is empty or holds a space or a control character: %w", ref, ErrInvalid)
	}
	if path, ok := strings.CutPrefix(ref, archivePrefix); ok {
		return c.parseLocal(ref, path, openArchive)
	}
	if path, ok := strings.CutPrefix(ref, layoutPrefix); ok {
		return c.parseLocal(ref, path, openLayout)
	}
	if keychain == nil {
		keychain = c.opts.Keychain
	}
	return c.parseRegistry(ref, keychain)
}

// parseLocal splits /path[:tag]; a colon counts only in the last part of the path.
func (c *Cache) parseLocal(ref, path string, open func(string) (blobs, error)) (source, error) {
	tag := ""
	if colon := strings.LastIndexByte(path, ':'); colon > strings.LastIndexByte(path, '/') {
		path, tag = path[:colon], path[colon+1:]
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, fmt.Errorf("reference %q: want an absolute path without \"..\": %w", ref, ErrInvalid)
	}
	allowed := len(c.opts.LocalRoots) == 0 || slices.ContainsFunc(c.opts.LocalRoots, func(root string) bool { return below(root, path) })
	if allowed && len(c.opts.LocalRoots) > 0 {
		// A symbolic link must not lead out either. A path that is not there is reported when it is opened.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			allowed = slices.ContainsFunc(c.opts.LocalRoots, func(root string) bool {
				realRoot, err := filepath.EvalSymlinks(root)
				return err == nil && below(realRoot, real)
			})
		}
	}
	if !allowed {
		return nil, fmt.Errorf("reference %q: images are taken from %s only: %w", ref, strings.Join(c.opts.LocalRoots, ", "), ErrInvalid)
	}
	return localSource{path: path, tag: tag, openBlobs: open}, nil
}

// below reports whether path is dir or lies in it, by name.
func below(dir, path string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(relative)
}
