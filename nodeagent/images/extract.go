package images

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

const (
	diskDir = "disk"
	// Whiteouts of the OCI image specification: ".wh.NAME" hides NAME in the layers below, ".wh..wh..opq" all that its directory holds there.
	whiteoutPrefix = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
	maxLinks       = 8
	copyBuffer     = 1 << 20
)

// extractor takes one file out of the layers of an image, reading each layer once from its start to its end. Layers are
// read from the topmost down, so that what is found first is what the container would see.
type extractor struct {
	layers []layer
	limit  int64
	out    *os.File
	// watch sees the stored bytes of every layer.
	watch func(layer, io.Reader) io.Reader
}

// extracted is the file that was found.
type extracted struct {
	innerPath string
	size      int64
}

// extract writes the wanted file to e.out. Symbolic and hard links are followed inside the image; each costs another reading.
func (e *extractor) extract(ctx context.Context, want wanted) (extracted, error) {
	if want.path == "" {
		return e.onlyFile(ctx)
	}
	at := want.path
	for range maxLinks {
		search := &pathSearch{path: at}
		if err := e.scan(ctx, search); err != nil {
			return extracted{}, err
		}
		switch {
		case search.found:
			return extracted{innerPath: at, size: search.size}, nil
		case search.next == "":
			return extracted{}, fmt.Errorf("the image holds no file /%s: %w", want.path, ErrNotFound)
		}
		at = search.next
	}
	return extracted{}, fmt.Errorf("/%s leads through more than %d links: %w", want.path, maxLinks, ErrInvalid)
}

// onlyFile finds the only file in /disk.
func (e *extractor) onlyFile(ctx context.Context) (extracted, error) {
	search := &diskSearch{hidden: map[string]bool{}}
	if err := e.scan(ctx, search); err != nil {
		return extracted{}, err
	}
	switch len(search.names) {
	case 0:
		return extracted{}, fmt.Errorf("the image holds no file in /disk; a container disk has its disk image there (COPY disk.qcow2 /disk/): %w", ErrNotFound)
	case 1:
	default:
		return extracted{}, fmt.Errorf("the image holds several files in /disk (%s); name one with the container disk's path: %w", strings.Join(search.names, ", "), ErrInvalid)
	}
	if search.isLink {
		return extracted{}, fmt.Errorf("/%s/%s is a link; name the file it leads to with the container disk's path: %w", diskDir, search.names[0], ErrInvalid)
	}
	return extracted{innerPath: path.Join(diskDir, search.names[0]), size: search.size}, nil
}

// search decides what is wanted of the entries of the layers.
type search interface {
	// entry is told of every entry of a layer. When it returns true, the entry's contents replace the output and keep is told their size.
	entry(name string, header *tar.Header) (take bool, err error)
	keep(size int64)
	// endLayer ends a layer, and returns true when the layers below do not matter.
	endLayer() (done bool)
}

// scan shows the layers to a search, from the topmost down. Every layer that is begun is read to its end and verified.
func (e *extractor) scan(ctx context.Context, s search) error {
	for i := len(e.layers) - 1; i >= 0; i-- {
		if err := e.scanLayer(ctx, e.layers[i], s); err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(e.layers), err)
		}
		if s.endLayer() {
			return nil
		}
	}
	return nil
}

func (e *extractor) scanLayer(ctx context.Context, l layer, s search) (err error) {
	plain, err := l.uncompressed(func(r io.Reader) io.Reader { return e.watch(l, r) })
	if err != nil {
		return layerError(err)
	}
	defer func() {
		if closeErr := plain.Close(); err == nil && closeErr != nil {
			err = layerError(closeErr)
		}
	}()
	verified := &verifiedReader{reader: plain, hash: sha256.New(), context: ctx.Err, limit: 2 * e.limit}
	if err := e.scanEntries(tar.NewReader(verified), s); err != nil {
		return err
	}
	if _, err := io.CopyBuffer(io.Discard, verified, make([]byte, copyBuffer)); err != nil { // padding behind the tarball
		return layerError(err)
	}
	if got := "sha256:" + hex.EncodeToString(verified.hash.Sum(nil)); got != l.diffID.String() {
		return fmt.Errorf("its contents have the digest %s, and the image's configuration says %s: %w", got, l.diffID, ErrInvalid)
	}
	return nil
}

func (e *extractor) scanEntries(entries *tar.Reader, s search) error {
	buffer := make([]byte, copyBuffer)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return layerError(err)
		}
		name, ok := entryName(header.Name)
		if !ok {
			continue
		}
		take, err := s.entry(name, header)
		if err != nil || !take {
			if err != nil {
				return err
			}
			continue
		}
		size, err := e.copy(entries, header, buffer)
		if err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
		s.keep(size)
	}
}

// copy replaces the output with the contents of an entry.
func (e *extractor) copy(entries *tar.Reader, header *tar.Header, buffer []byte) (int64, error) {
	if header.Size > e.limit {
		return 0, fmt.Errorf("it has %s, and at most %s are allowed: %w", diskfile.FormatBytes(header.Size), diskfile.FormatBytes(e.limit), ErrTooLarge)
	}
	if err := e.out.Truncate(0); err != nil {
		return 0, fmt.Errorf("writing it: %w", err)
	}
	writer := &diskfile.SparseWriter{File: e.out, Limit: e.limit}
	for {
		n, readErr := io.ReadFull(entries, buffer)
		if _, err := writer.Write(buffer[:n]); err != nil {
			return 0, diskfile.ExplainNoSpace(fmt.Errorf("writing it: %w", err), path.Dir(e.out.Name()), path.Dir(e.out.Name()), header.Size)
		}
		switch {
		case errors.Is(readErr, io.EOF), errors.Is(readErr, io.ErrUnexpectedEOF) && writer.Written() == header.Size:
			if err := writer.Close(); err != nil {
				return 0, fmt.Errorf("writing it: %w", err)
			}
			return writer.Written(), nil
		case readErr != nil:
			return 0, layerError(readErr)
		}
	}
}

// layerError gives an error of reading a layer its kind, unless it has one: bytes that arrived and make no sense.
func layerError(err error) error {
	for _, kind := range []error{ErrUnavailable, ErrInvalid, ErrTooLarge, ErrUnauthorized, ErrNotFound, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return err
		}
	}
	return fmt.Errorf("it cannot be unpacked: %w: %w", err, ErrInvalid)
}

// entryName makes the name of an entry relative to the image's root, and false when it would leave it.
func entryName(name string) (string, bool) {
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", false
		}
	}
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	return name, name != ""
}

// verifiedReader hashes what it passes on and bounds it, so that a few bytes cannot unpack to a full disk of zeros for ever.
type verifiedReader struct {
	reader  io.Reader
	hash    hash.Hash
	context func() error
	read    int64
	limit   int64
}

func (v *verifiedReader) Read(p []byte) (int, error) {
	if err := v.context(); err != nil {
		return 0, err
	}
	n, err := v.reader.Read(p)
	v.hash.Write(p[:n])
	if v.read += int64(n); v.read > v.limit {
		return n, fmt.Errorf("it unpacks to more than %s: %w", diskfile.FormatBytes(v.limit), ErrTooLarge)
	}
	return n, err
}
