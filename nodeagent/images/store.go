package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

const (
	imagesDir = "images"
	refsDir   = "refs"
	tmpDir    = "tmp"
	recordExt = ".json"
	dirMode   = 0o711
	// imageMode: QEMU runs as another user and reads; nobody writes.
	imageMode = 0o444
)

// entry is the record of one file in the cache. Its time of modification is when the file was last used.
type entry struct {
	InnerPath string `json:"innerPath"`
	// Disk says that Format and VirtualSize are known.
	Disk        bool            `json:"disk"`
	Format      diskfile.Format `json:"format,omitempty"`
	VirtualSize int64           `json:"virtualSize,omitempty"`
	Size        int64           `json:"size"`
}

// fileName is the name of a wanted file in its image's directory.
func (w wanted) fileName() string {
	if w.disk && w.path == "" {
		return "disk"
	}
	kind := "file-"
	if w.disk {
		kind = "disk-"
	}
	return kind + shortHash(w.path)
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

func (c *Cache) imageDir(digest string) string {
	return filepath.Join(c.dir, imagesDir, strings.ReplaceAll(digest, ":", "-"))
}

// lookup finds a wanted file in the cache and marks it used. A file that was cut off or removed does not count.
func (c *Cache) lookup(digest string, want wanted) (found, bool, error) {
	path := filepath.Join(c.imageDir(digest), want.fileName())
	raw, err := os.ReadFile(path + recordExt)
	if errors.Is(err, fs.ErrNotExist) {
		return found{}, false, nil
	}
	if err != nil {
		return found{}, false, fmt.Errorf("reading the image cache: %w", err)
	}
	var e entry
	if err := json.Unmarshal(raw, &e); err != nil {
		return found{}, false, nil // a damaged cache is fetched again
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != e.Size {
		return found{}, false, nil // as above
	}
	now := c.opts.Now()
	if err := os.Chtimes(path+recordExt, now, now); err != nil && !errors.Is(err, fs.ErrPermission) {
		return found{}, false, fmt.Errorf("marking the image used: %w", err)
	}
	return found{entry: e, path: path, digest: digest}, true, nil
}

// publish moves a finished temporary file into the cache: the file first, its record last.
func (c *Cache) publish(temporary string, digest v1.Hash, want wanted, e entry) error {
	dir := c.imageDir(digest.String())
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return diskfile.ExplainNoSpace(fmt.Errorf("making the image's directory: %w", err), c.dir, dir, 0)
	}
	path := filepath.Join(dir, want.fileName())
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("putting the image in its place: %w", err)
	}
	if err := diskfile.SyncDir(dir); err != nil {
		return err
	}
	return writeJSON(path+recordExt, e)
}

func writeJSON(path string, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding a cache record: %w", err)
	}
	return diskfile.Write(path, diskfile.WriteOptions{Mode: 0o600}, func(file *os.File) error {
		_, err := file.Write(append(encoded, '\n'))
		return err
	})
}

// resolved is what a reference was last resolved to.
type resolved struct {
	Ref    string    `json:"ref"`
	Digest string    `json:"digest"`
	Time   time.Time `json:"time"`
}

func (c *Cache) refPath(ref string) string {
	return filepath.Join(c.dir, refsDir, shortHash(ref)+recordExt)
}

// knownDigest returns the digest that a reference names, or had when it was last resolved.
func (c *Cache) knownDigest(ref string, from source) (string, bool) {
	if digest := from.pinned(); digest != "" {
		return digest, true
	}
	raw, err := os.ReadFile(c.refPath(ref))
	if err != nil {
		return "", false // it is resolved again
	}
	var last resolved
	if json.Unmarshal(raw, &last) != nil || last.Ref != ref {
		return "", false // as above
	}
	if _, err := v1.NewHash(last.Digest); err != nil {
		return "", false // as above
	}
	return last.Digest, true
}

func (c *Cache) remember(ref string, digest v1.Hash) error {
	c.mu.Lock() // two callers may write the same reference
	defer c.mu.Unlock()
	path := c.refPath(ref)
	if raw, err := os.ReadFile(path); err == nil {
		var last resolved
		if json.Unmarshal(raw, &last) == nil && last.Ref == ref && last.Digest == digest.String() {
			return nil
		}
	}
	if err := writeJSON(path, resolved{Ref: ref, Digest: digest.String(), Time: c.opts.Now().UTC()}); err != nil {
		return fmt.Errorf("remembering the digest: %w", err)
	}
	return nil
}

// newTemporary makes an unfinished file. The lock on it tells sweep that its writer lives; the kernel drops it with the process.
func (c *Cache) newTemporary() (*os.File, error) {
	file, err := os.CreateTemp(filepath.Join(c.dir, tmpDir), "fetch-")
	if err != nil {
		return nil, diskfile.ExplainNoSpace(fmt.Errorf("making a temporary file: %w", err), c.dir, c.dir, 0)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("locking a temporary file: %w", err), file.Close(), os.Remove(file.Name())) //nolint:gosec // CreateTemp has just named it
	}
	return file, nil
}

// sweep removes the unfinished files of processes that are gone.
func (c *Cache) sweep() error {
	dir := filepath.Join(c.dir, tmpDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := sweepOne(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func sweepOne(path string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = nil // somebody is writing it
	case err == nil:
		err = os.Remove(path)
	}
	return errors.Join(err, file.Close())
}
