package diskfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
)

// WriteSame writes content to path, whole or not at all, readable by its owner only (mode 0600). A private file that holds the
// same bytes already is left alone, with whatever owner it was given meanwhile. The file may be lost when the machine
// dies: it is one that is made anew.
func WriteSame(path string, content []byte, owner *Owner) (changed bool, err error) {
	same, err := holds(path, content)
	if err != nil || same {
		return false, err
	}
	return true, Write(path, WriteOptions{Mode: 0o600, Owner: owner, Volatile: true}, func(file *os.File) error {
		_, err := file.Write(content)
		return err
	})
}

// holds reports whether path is a private regular file with these bytes.
func holds(path string, content []byte) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at a file: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 || info.Size() != int64(len(content)) {
		return false, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("looking at a file: %w", err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	return begins(file, content)
}

// pieces are what files are read into: many are looked at, one after the other.
var pieces = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// begins reports whether the first bytes of a file are these.
func begins(file io.Reader, content []byte) (bool, error) {
	piece := pieces.Get().(*[64 << 10]byte)
	defer pieces.Put(piece)
	for len(content) > 0 {
		n, err := io.ReadFull(file, piece[:min(len(piece), len(content))])
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return false, nil // it became shorter
		case err != nil:
			return false, fmt.Errorf("looking at a file: %w", err)
		case !bytes.Equal(piece[:n], content[:n]):
			return false, nil
		}
		content = content[n:]
	}
	return true, nil
}
