package protocol_test

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// The exit codes and the words are read by others, so they stay.
func TestExitCodes(t *testing.T) {
	for fate, want := range map[protocol.Fate]int{
		protocol.Shutdown: 0, protocol.Migrated: 0, protocol.Saved: 0, protocol.Failed: 1, protocol.Crashed: 10,
		protocol.Killed: 11, protocol.Destroyed: 12, protocol.NeverStarted: 13, "unheard of": 1,
	} {
		if got := (protocol.Ending{Fate: fate}).ExitCode(); got != want {
			t.Errorf("%s ends with %d, want %d", fate, got, want)
		}
	}
	said, err := json.Marshal(protocol.Ending{Fate: protocol.Crashed, Domain: "default_vm", QEMU: "signal: killed"})
	if want := `{"fate":"crashed","domain":"default_vm","qemu":"signal: killed"}`; err != nil || string(said) != want {
		t.Errorf("%s, %v; want %s", said, err, want)
	}
}

// A folder with a longer path than a socket may have, as those below /var/lib/kubelet.
func deepFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pods", "0b9cbd3c-55a5-4e3f-9a53-0d9b0cf9d4ae", "volumes", "kubernetes.io~empty-dir", "gitvirt")
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func listen(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(listener.Close(), os.RemoveAll(dir)) })
	return dir
}

func TestOpenSocket(t *testing.T) {
	dir := deepFolder(t)
	if _, err := protocol.OpenSocket(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("without a daemon: %v, want that there is none", err)
	}
	if err := os.Rename(listen(t, "libvirt-sock"), filepath.Join(dir, filepath.Dir(protocol.SocketPath))); err != nil {
		t.Fatal(err)
	}
	socket, err := protocol.OpenSocket(dir)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", socket.Path())
	if err != nil {
		t.Fatalf("connect to %s: %v", socket.URI(), err)
	}
	if err := errors.Join(conn.Close(), socket.Close()); err != nil {
		t.Error(err)
	}
}

// Whoever broke out of QEMU owns the shared folder, and must not lead the agent elsewhere.
func TestOpenSocketFollowsNoLink(t *testing.T) {
	elsewhere := listen(t, "libvirt-sock")
	for name, prepare := range map[string]func(dir string) error{
		"the socket is a link": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "run", "libvirt"), 0o755),
				os.Symlink(filepath.Join(elsewhere, "libvirt-sock"), filepath.Join(dir, "run", "libvirt", "libvirt-sock")))
		},
		"its folder is a link": func(dir string) error { return os.Symlink(elsewhere, filepath.Join(dir, "run", "libvirt")) },
		"it is a file": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "run", "libvirt"), 0o755),
				os.WriteFile(filepath.Join(dir, "run", "libvirt", "libvirt-sock"), nil, 0o600))
		},
		"it is a pipe": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "run", "libvirt"), 0o755),
				syscall.Mkfifo(filepath.Join(dir, "run", "libvirt", "libvirt-sock"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := deepFolder(t)
			if err := prepare(dir); err != nil {
				t.Fatal(err)
			}
			if socket, err := protocol.OpenSocket(dir); err == nil || errors.Is(err, os.ErrNotExist) {
				t.Errorf("opened %v, %v", socket, err)
			}
		})
	}
}
