package diskfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// ErrTooLarge says that more was written than a file may hold.
var ErrTooLarge = errors.New("image too large")

const sparseBlock = 4096

// SparseWriter writes a file from its start and leaves out whole blocks of zeros. Writes may have any length; Close gives the
// file its length.
type SparseWriter struct {
	// File is empty.
	File *os.File
	// Limit is how many bytes may be written.
	Limit int64

	offset int64
}

// Written is how many bytes were written so far, holes included.
func (w *SparseWriter) Written() int64 { return w.offset }

// Write implements io.Writer. A run of blocks that hold data is one write.
func (w *SparseWriter) Write(p []byte) (int, error) {
	if w.offset+int64(len(p)) > w.Limit {
		return 0, fmt.Errorf("more than %s: %w", FormatBytes(w.Limit), ErrTooLarge)
	}
	var zeros [sparseBlock]byte
	start := 0 // of the data that is not written yet
	for at := 0; at < len(p); {
		end := min(at+sparseBlock-int((w.offset+int64(at))%sparseBlock), len(p))
		if bytes.Equal(p[at:end], zeros[:end-at]) {
			if err := w.flush(p, start, at); err != nil {
				return start, err
			}
			start = end
		}
		at = end
	}
	if err := w.flush(p, start, len(p)); err != nil {
		return start, err
	}
	w.offset += int64(len(p))
	return len(p), nil
}

func (w *SparseWriter) flush(p []byte, start, end int) error {
	if start == end {
		return nil
	}
	_, err := w.File.WriteAt(p[start:end], w.offset+int64(start))
	return err
}

// Close gives the file its length, which a hole at its end leaves out. The file stays open.
func (w *SparseWriter) Close() error { return w.File.Truncate(w.offset) }
