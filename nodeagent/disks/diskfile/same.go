package diskfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	present, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("looking at a file: %w", err)
	}
	return bytes.Equal(present, content), nil
}
