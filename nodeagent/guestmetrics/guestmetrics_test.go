package guestmetrics

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHost is a root folder with the files that the figures come from.
func fakeHost(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"proc/stat":    "cpu  100 20 3 4000 5 6 7 0 0 0\ncpu0 1 1 1 1\n",
		"proc/meminfo": "MemTotal:  8000 kB\nMemFree:  3000 kB\nBuffers:  100 kB\nCached:  900 kB\nSwapCached:  10 kB\nSwapTotal:  1000 kB\nSwapFree:  600 kB\n",
		"proc/vmstat":  "nr_free_pages 1\npswpin 5\npswpout 7\n",
		"sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
		"sys/devices/system/cpu/cpu1/topology/physical_package_id": "0\n",
		"sys/devices/system/cpu/cpu2/topology/physical_package_id": "1\n",
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func figures(t testing.TB) []byte {
	t.Helper()
	host := ReadHost(fakeHost(t), "host-1", time.Unix(1700000000, 0))
	host.Hypervisor = "qemu-7.2.22"
	out, err := Document(host, Guest{VCPUs: 2, MemoryKiB: 131072, CPUTime: 1500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDocument(t *testing.T) {
	const golden = "testdata/metrics.xml"
	got := figures(t)
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
	if err := xml.Unmarshal(got, new(anyDocument)); err != nil {
		t.Error(err)
	}
}

type anyDocument struct {
	XMLName xml.Name `xml:"metrics"`
}

// TestReadHost reads this machine: what it is made of differs, that there is something does not.
func TestReadHost(t *testing.T) {
	host := ReadHost("/", "host-1", time.Now())
	if host.CPUTime <= 0 || host.FreeKiB == 0 || host.UsedKiB == 0 {
		t.Errorf("%+v lacks figures", host)
	}
	if empty := ReadHost(t.TempDir(), "host-1", time.Time{}); empty.CPUTime != 0 || empty.Sockets != 0 || empty.UsedVirtualKiB != 0 {
		t.Errorf("%+v of nothing", empty)
	}
}

// readDisk reads as vm-dump-metrics does.
func readDisk(t testing.TB, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil || len(raw) != DiskSize || string(raw[:4]) != "mvbd" {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	flag, sum, length := binary.BigEndian.Uint32(raw[4:]), binary.BigEndian.Uint32(raw[8:]), binary.BigEndian.Uint32(raw[12:])
	body := raw[16 : 16+length]
	var have uint32
	for _, b := range body {
		have += uint32(b)
	}
	if flag != 0 || have != sum {
		t.Errorf("flag %d, sum %d of %d", flag, have, sum)
	}
	return string(body)
}

func TestDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics")
	if err := CreateDisk(path); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil || before.Mode() != 0o600 {
		t.Fatalf("%v, %v", before, err)
	}
	if got := readDisk(t, path); got != "<metrics></metrics>\n" {
		t.Errorf("a new disk holds %q", got)
	}
	for _, body := range []string{string(figures(t)), "short\n"} {
		if err := WriteDisk(path, []byte(body)); err != nil {
			t.Fatal(err)
		}
		if got := readDisk(t, path); got != body {
			t.Errorf("%q, want %q", got, body)
		}
	}
	if err := CreateDisk(path); err != nil || readDisk(t, path) != "short\n" {
		t.Errorf("a disk that is there was made anew: %v", err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("a guest would not see what was written: %v", err)
	}
	if err := WriteDisk(path, make([]byte, DiskSize)); err == nil {
		t.Error("a body that does not fit was written")
	}
	if err := errors.Join(os.Remove(path), os.Symlink("/dev/null", path)); err != nil {
		t.Fatal(err)
	}
	if err := WriteDisk(path, []byte("x")); err == nil {
		t.Error("a link was followed")
	}
}

// port is QEMU's end: it listens, and is what the guest writes to and reads from.
func port(t *testing.T, dir string) (*net.UnixListener, string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: "port.sock", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = listener.Close() })
	return listener, filepath.Join(dir, "port.sock")
}

func TestServer(t *testing.T) {
	// Longer than the address of a socket may be.
	listener, path := port(t, filepath.Join(t.TempDir(), strings.Repeat("long", 30)))
	var fails atomic.Bool
	server := Server{Socket: path, Interval: time.Millisecond, Report: func(context.Context) ([]byte, error) {
		if fails.Load() {
			return nil, errors.New("no figures")
		}
		return []byte("<metrics/>\n"), nil
	}}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(t.Context()) }()
	guest, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(guest)
	for _, step := range []struct {
		reason, ask, want string
		fails             bool
	}{
		{"what vm-dump-metrics asks", "GET /metrics/XML\r\n\r\n", "<metrics/>\n\n", false},
		{"with newlines only", "GET /metrics/XML\n\n", "<metrics/>\n\n", false},
		{"something else", "GET /etc/passwd\n\n", invalidRequest, false},
		{"another path that begins alike", "GET /metrics/XML5\n\n", invalidRequest, false},
		{"a line that is too long", strings.Repeat("x", 100000) + "\n\n", invalidRequest, false},
		{"no empty line", "GET /metrics/XML\nmore\n", invalidRequest, false},
		{"while there are no figures", "GET /metrics/XML\n\n", unavailable, true},
	} {
		fails.Store(step.fails)
		if _, err := io.WriteString(guest, step.ask); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(step.want))
		if _, err := io.ReadFull(answers, got); err != nil || string(got) != step.want {
			t.Errorf("%s: %q, %v; want %q", step.reason, got, err, step.want)
		}
	}
	_ = guest.Close()
	if err := <-ended; err != nil {
		t.Errorf("Serve() = %v; a guest that is switched off is no error", err)
	}
}

func TestServerEnds(t *testing.T) {
	if err := (Server{Socket: filepath.Join(t.TempDir(), "none.sock")}).Serve(t.Context()); err == nil {
		t.Error("Serve() without a socket succeeded")
	}
	listener, path := port(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Server{Socket: path}.Serve(ctx) }()
	guest, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guest.Close() }()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve() = %v; the end of the agent is no error", err)
	}
}

// TestServerFlood: a guest that writes without an end of a line waits, and not the host.
func TestServerFlood(t *testing.T) {
	listener, path := port(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Server{Socket: path, Interval: time.Hour}.Serve(ctx) }()
	guest, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guest.Close() }()
	if err := guest.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := guest.Write(bytes.Repeat([]byte("x"), 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes were taken, %v", n, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve() = %v; the end of the agent is no error", err)
	}
}
