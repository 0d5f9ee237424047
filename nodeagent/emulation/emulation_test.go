package emulation

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script stands in for QEMU where a test needs one that misbehaves in a certain way.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestGuestImageRunsInLongMode(t *testing.T) {
	image := guestImage()
	if len(image) > 512 {
		t.Errorf("the image has %d bytes, want a small one", len(image))
	}
	result := Probe(t.Context(), Options{accelerator: "tcg", Patience: 20 * time.Second})
	if !result.KVM {
		t.Fatalf("the image does not even run under software emulation: %s", result.Reason)
	}
	t.Logf("%d bytes, %s", len(image), result.Reason)
}

func TestGuestImageIsNotProvenBy32BitCPU(t *testing.T) {
	qemu := script(t, `exec qemu-system-x86_64 "$@" -cpu qemu32`)
	result := Probe(t.Context(), Options{QEMU: qemu, accelerator: "tcg", Patience: 20 * time.Second})
	if result.KVM {
		t.Fatal("a CPU without long mode passed the probe")
	}
	if !strings.Contains(result.Reason, "did not answer") {
		t.Errorf("reason %q", result.Reason)
	}
}

func TestProbe(t *testing.T) {
	device := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		reason string
		opts   Options
		kvm    bool
		want   string
	}{
		{"a host without KVM has no device", Options{Device: "/dev/no-such-kvm"}, false, "/dev/no-such-kvm does not exist"},
		{"a device that is not one does not open", Options{Device: t.TempDir()}, false, "does not open"},
		{"an emulator that is not installed is named", Options{Device: device, QEMU: "no-such-qemu"}, false, "no-such-qemu is not installed"},
		{"a guest that hangs is not waited for", Options{Device: device, QEMU: script(t, "exec sleep 60"), Patience: 100 * time.Millisecond}, false, "hung: no answer within 100ms"},
		{"QEMU's own words are passed on", Options{Device: device, QEMU: script(t, "echo could not access KVM kernel module >&2; exit 1")}, false, "exit status 1): could not access KVM"},
		{"an orderly end without the answer proves nothing", Options{Device: device, QEMU: script(t, "exit 0")}, false, "reset the machine"},
		{"another status proves nothing", Options{Device: device, QEMU: script(t, "exit 33")}, false, "exit status 33"},
		{"the status of the guest proves KVM", Options{Device: device, QEMU: script(t, "exit 67")}, true, "a 64-bit guest ran in"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			got := Probe(t.Context(), test.opts)
			if got.KVM != test.kvm || !strings.Contains(got.Reason, test.want) {
				t.Errorf("Probe() = %v, %q; want %v, %q", got.KVM, got.Reason, test.kvm, test.want)
			}
			if !got.KVM && got.Fix == "" {
				t.Error("a failed probe says nothing about how to fix it")
			}
		})
	}
}

func TestDecide(t *testing.T) {
	device := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	works := Options{Device: device, QEMU: script(t, "exit 67")}
	broken := Options{Device: device, QEMU: script(t, "exec sleep 60"), Patience: 50 * time.Millisecond}
	tests := []struct {
		reason string
		policy Policy
		opts   Options
		want   string
		fails  bool
	}{
		{"auto takes a KVM that works", Auto, works, DomainKVM, false},
		{"auto falls back to emulation", Auto, broken, DomainQEMU, false},
		{"always does not even look", Always, Options{QEMU: "no-such-qemu"}, DomainQEMU, false},
		{"never takes a KVM that works", Never, works, DomainKVM, false},
		{"never stops at a KVM that does not", Never, broken, "", true},
		{"a policy that does not exist", "sometimes", works, "", true},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			got, reason, err := Decide(t.Context(), test.policy, func(ctx context.Context) Result { return Probe(ctx, test.opts) })
			if got != test.want || (err != nil) != test.fails {
				t.Fatalf("Decide() = %q, %v; want %q, error %v", got, err, test.want, test.fails)
			}
			if err == nil && reason == "" {
				t.Error("a decision without a reason")
			}
			var unusable *UnusableError
			if errors.As(err, &unusable) && !strings.Contains(err.Error(), "to fix it") {
				t.Errorf("the error says nothing about a fix: %v", err)
			}
		})
	}
}

func TestDecideCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Decide(ctx, Auto, func(ctx context.Context) Result { return Probe(ctx, Options{}) }); !errors.Is(err, context.Canceled) {
		t.Errorf("Decide() = %v, want context.Canceled: a cancelled probe decides nothing", err)
	}
}

// TestProbeThisHost says what the machine has; any answer is right, a hang is not.
func TestProbeThisHost(t *testing.T) {
	result := Probe(t.Context(), Options{})
	if result.Took > DefaultPatience+2*time.Second {
		t.Errorf("the probe took %v", result.Took)
	}
	t.Logf("kvm=%v in %v: %s", result.KVM, result.Took.Round(time.Millisecond), result.Reason)
}
