package capabilities_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/capabilities"
)

// The emulation of QEMU has its own models whole, and those of processors with features that it does not know not.
func TestCPUModels(t *testing.T) {
	models, err := capabilities.CPUModels(t.Context(), "qemu-system-x86_64", "qemu")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"qemu64": true, "Nehalem": true, "SapphireRapids": false, "host": false, "max": false, "qemu64-v1": false} {
		if got := slices.Contains(models, name); got != want {
			t.Errorf("%s: %t, want %t; %v", name, got, want, models)
		}
	}
}

// A QEMU that tells nothing is an error, and not a host without models.
func TestNoCPUModels(t *testing.T) {
	for name, script := range map[string]string{
		"it fails": "echo no such accelerator >&2; exit 1", "it says nothing": "true", "it says something else": `echo '{"return":{}}{"error":{"class":"x"}}'`,
		"it says no JSON": "echo hello",
	} {
		program := filepath.Join(t.TempDir(), "qemu")
		if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >/dev/null\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if models, err := capabilities.CPUModels(t.Context(), program, "qemu"); err == nil {
			t.Errorf("%s: %v", name, models)
		}
	}
}
