package emulation

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestProbeOnce(t *testing.T) {
	dir := t.TempDir()
	device := filepath.Join(dir, "kvm")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	counter := filepath.Join(dir, "runs")
	program := script(t, "echo run >>"+counter+"\nexit 67")
	runs := func() int {
		content, err := os.ReadFile(counter)
		if err != nil {
			t.Fatal(err)
		}
		return len(content) / len("run\n")
	}
	opts := Options{QEMU: program, Device: device}
	file := filepath.Join(dir, "answer.json")
	for range 3 {
		if result := ProbeOnce(context.Background(), opts, file); !result.KVM {
			t.Fatalf("got %+v", result)
		}
	}
	if runs() != 1 {
		t.Errorf("asked three times, probed %d times; want 1", runs())
	}
	for reason, change := range map[string]func() error{
		"another QEMU":       func() error { return os.Chtimes(program, time.Unix(1, 0), time.Unix(1, 0)) },
		"another device":     func() error { return os.Chmod(device, 0o660) },
		"a damaged answer":   func() error { return os.WriteFile(file, []byte("{"), 0o600) },
		"the answer is gone": func() error { return os.Remove(file) },
	} {
		before := runs()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		ProbeOnce(context.Background(), opts, file)
		if runs() != before+1 {
			t.Errorf("%s: not probed again", reason)
		}
	}
}
