package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// What the launcher does is tested in package launcher, as PID 1 of a Pod; this is about what it is told.
func TestArguments(t *testing.T) {
	for name, test := range map[string]struct {
		args        []string
		environment map[string]string
		code        int
		said        string
	}{
		"version":           {args: []string{"-version"}, said: "gitvirt-launcher devel"},
		"help":              {args: []string{"-h"}, said: "Exit codes:"},
		"an unknown flag":   {args: []string{"-gracious"}, code: exitUsage, said: "not defined"},
		"an argument":       {args: []string{"vm"}, code: exitUsage, said: `unexpected argument "vm"`},
		"grace is no time":  {environment: map[string]string{"GITVIRT_GRACE": "long"}, code: exitUsage, said: "GITVIRT_GRACE"},
		"grace in the past": {args: []string{"-grace", "-1s"}, code: exitUsage, said: "in the past"},
		"console maybe":     {environment: map[string]string{"GITVIRT_CONSOLE": "maybe"}, code: exitUsage, said: "GITVIRT_CONSOLE"},
	} {
		t.Run(name, func(t *testing.T) {
			stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			if err != nil {
				t.Fatal(err)
			}
			var stdout bytes.Buffer
			code := run(context.Background(), test.args, &stdout, stderr, func(name string) string { return test.environment[name] })
			said, err := os.ReadFile(stderr.Name())
			if err != nil {
				t.Fatal(err)
			}
			if code != test.code || !strings.Contains(stdout.String()+string(said), test.said) {
				t.Errorf("exit code %d, %s%s; want %d and %q", code, stdout.String(), said, test.code, test.said)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	environment := map[string]string{"GITVIRT_GRACE": "90s", "GITVIRT_CONSOLE": "true"}
	grace, console := time.Duration(0), false
	if err := fromEnvironment(func(name string) string { return environment[name] }, &grace, &console); err != nil {
		t.Fatal(err)
	}
	if grace != 90*time.Second || !console {
		t.Errorf("grace %s, console %t", grace, console)
	}
	grace = time.Second // a flag goes before the environment
	if err := fromEnvironment(func(name string) string { return environment[name] }, &grace, &console); err != nil || grace != time.Second {
		t.Errorf("grace %s, %v", grace, err)
	}
	grace = 0
	if err := fromEnvironment(func(string) string { return "" }, &grace, &console); err != nil || grace != 30*time.Second {
		t.Errorf("grace %s, %v", grace, err)
	}
}

func TestReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "message")
	ending := protocol.Ending{Fate: protocol.Crashed, Domain: "default_vm"}
	if err := report(path, ending); err != nil {
		t.Errorf("without a kubelet: %v", err)
	}
	if err := os.WriteFile(path, []byte("what an earlier container said, and more of it than this one says"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := report(path, ending); err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(path)
	if want := `{"fate":"crashed","domain":"default_vm"}` + "\n"; err != nil || string(said) != want {
		t.Errorf("%q, %v; want %q", said, err, want)
	}
}
