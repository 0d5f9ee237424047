package diskfile

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoSpace says that a file system is full, or a quota used up.
var ErrNoSpace = errors.New("no space left")

// NoSpaceError is ErrNoSpace with its figures.
type NoSpaceError struct {
	// Path is the file or directory that was written to.
	Path string
	// Need is how many bytes were wanted; 0 when unknown.
	Need int64
	// Free is how many bytes the file system has left.
	Free int64
}

// Error names the place and the figures.
func (e *NoSpaceError) Error() string {
	if e.Need <= 0 {
		return fmt.Sprintf("no space left for %s: %s free", e.Path, FormatBytes(e.Free))
	}
	return fmt.Sprintf("no space left for %s: needs %s, %s free", e.Path, FormatBytes(e.Need), FormatBytes(e.Free))
}

// Is makes errors.Is(err, ErrNoSpace) true.
func (e *NoSpaceError) Is(target error) bool { return target == ErrNoSpace }

// Free returns how many bytes an unprivileged user may still write to the file system of dir.
func Free(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("reading the free space of %s: %w", dir, err)
	}
	return int64(stat.Bavail) * stat.Bsize, nil //nolint:gosec // a file system has fewer than 2^63 blocks
}

// RequireFree returns a NoSpaceError when the file system of dir has fewer than need bytes left for path.
func RequireFree(dir, path string, need int64) error {
	free, err := Free(dir)
	if err != nil {
		return err
	}
	if free < need {
		return &NoSpaceError{Path: path, Need: need, Free: free}
	}
	return nil
}

// ExplainNoSpace turns an error of a write below dir into a NoSpaceError when that is what it is, and returns any other unchanged.
func ExplainNoSpace(err error, dir, path string, need int64) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	free, statErr := Free(dir)
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	return &NoSpaceError{Path: path, Need: need, Free: free}
}

// FormatBytes renders a size for people, in binary units.
func FormatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefixes := float64(n)/unit, "KMGTPE"
	for value >= unit && len(prefixes) > 1 {
		value, prefixes = value/unit, prefixes[1:]
	}
	return fmt.Sprintf("%.1f %ciB", value, prefixes[0])
}
