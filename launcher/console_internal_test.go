package launcher

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func consolePipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "console")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Everything that is in the pipe when the guest has ended is printed, over the ends of several QEMUs.
func TestConsoleIsPrintedToItsEnd(t *testing.T) {
	path := consolePipe(t)
	var log bytes.Buffer
	c, err := openConsole(path, &log)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, said := range []string{"first boot\r\n", "second ", "boot\r\n"} {
		if err := os.WriteFile(path, []byte(said), 0o600); err != nil {
			t.Fatal(err)
		}
		want += said
	}
	c.finish()
	if log.String() != want {
		t.Errorf("printed %q, want %q", log.String(), want)
	}
}

// A log that takes nothing stops neither the guest nor the launcher's end, and says afterwards what it has missed.
func TestConsoleOutlivesItsLog(t *testing.T) {
	path := consolePipe(t)
	log, stuck := io.Pipe()
	c, err := openConsole(path, stuck)
	if err != nil {
		t.Fatal(err)
	}
	guest, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close() //nolint:errcheck // what was written is checked
	line := []byte(strings.Repeat("x", consoleChunk-1) + "\n")
	for range 64 * consoleBacklog { // far more than the pipe and the backlog hold
		if _, err := guest.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	taken := make(chan string)
	go func() {
		said, _ := io.ReadAll(log)
		taken <- string(said)
	}()
	// The log takes again, and what is said now says what is missing before.
	waiting := func() bool {
		unread, err := unix.IoctlGetInt(int(guest.Fd()), unix.TIOCINQ)
		return err != nil || unread > 0 || len(c.chunks) > 0
	}
	for deadline := time.Now().Add(time.Minute); waiting(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the backlog is not printed")
		}
	}
	if _, err := guest.Write([]byte("after that\n")); err != nil {
		t.Fatal(err)
	}
	c.finish()
	_ = stuck.Close()
	said := <-taken
	if !strings.Contains(said, "bytes of the console are lost") || !strings.HasSuffix(said, "after that\n") {
		t.Errorf("the log ends with %q", said[max(0, len(said)-200):])
	}
}

func TestConsoleEndsWithoutItsLog(t *testing.T) {
	path := consolePipe(t)
	_, stuck := io.Pipe() // nobody reads
	c, err := openConsole(path, stuck)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("lost"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.finish()
	_ = stuck.Close()
	<-c.written
}
