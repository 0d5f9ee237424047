package launchertest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gitvirt/gitvirt/launcher/files"
	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// ServeFiles answers at the socket for files of a new Pod's folder as a launcher does, in this process: without a Pod, and without libvirt. The
// Pod's volumes are folders of the folder.
func ServeFiles(t testing.TB) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range append(volumes(), shared("")) {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The path of the folder is longer than the address of a socket may be.
	short, err := os.MkdirTemp("", "files")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := files.Listen(filepath.Join(short, protocol.FilesSocket))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(short, protocol.FilesSocket), filepath.Join(shared(folder), protocol.FilesSocket)); err != nil {
		t.Fatal(err)
	}
	pod := files.Pod{
		Root: folder, Capabilities: filepath.Join(shared(folder), capabilitiesDir), Console: func() []byte { return []byte("said last\r\n") },
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { pod.Serve(ctx, listener) })
	t.Cleanup(func() {
		cancel()
		serving.Wait()
		_ = os.RemoveAll(short)
	})
	return folder
}

// Shared is the folder that a Pod's folder shares with the node.
func Shared(folder string) string { return shared(folder) }
