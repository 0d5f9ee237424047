package protocol_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

func TestHold(t *testing.T) {
	dir := t.TempDir()
	held := func(want bool) {
		t.Helper()
		if got := protocol.Held(dir); got != want {
			t.Errorf("held: %t, want %t", got, want)
		}
	}
	held(false)
	for _, step := range []struct {
		do   func(string) error
		want bool
	}{{protocol.Release, false}, {protocol.Hold, true}, {protocol.Hold, true}, {protocol.Release, false}, {protocol.Release, false}} {
		if err := step.do(dir); err != nil {
			t.Fatal(err)
		}
		held(step.want)
	}
	if err := protocol.Hold(filepath.Join(dir, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is gone: %v", err)
	}
}

// A link in the file's place leads nowhere: the agent is root, and the folder is not its own.
func TestHoldFollowsNoLink(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "precious")
	if err := os.Symlink(elsewhere, filepath.Join(dir, protocol.HoldFile)); err != nil {
		t.Fatal(err)
	}
	if err := protocol.Hold(dir); err != nil || !protocol.Held(dir) {
		t.Errorf("%v, held: %t", err, protocol.Held(dir))
	}
	if err := protocol.Release(dir); err != nil || protocol.Held(dir) {
		t.Errorf("%v, held: %t", err, protocol.Held(dir))
	}
	if _, err := os.Lstat(elsewhere); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link was followed: %v", err)
	}
}
