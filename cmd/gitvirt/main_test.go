package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// programs is where the tests build gitvirt and its agent, once and only when a test needs them.
var programs = struct { //nolint:gochecknoglobals // shared by all tests of the package
	once sync.Once
	dir  string
	err  error
}{}

// TestMain makes this test binary also gitvirt itself, for the scripts of TestScripts.
func TestMain(m *testing.M) {
	testscript.Main(cleaning{m}, map[string]func(){"gitvirt": main, pluginName: main, completionName: main})
}

// cleaning removes the programs after the tests.
type cleaning struct{ m *testing.M }

func (c cleaning) Run() int {
	code := c.m.Run()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir)
	}
	return code
}

// program returns a program as it is released: gitvirt static, the agent with libvirt loaded at run time. It is compiled as make build does, which
// finds most of it in the cache then.
func program(t testing.TB, name string) string {
	t.Helper()
	programs.once.Do(func() {
		programs.dir, programs.err = os.MkdirTemp("", "gitvirt-programs-")
		if programs.err == nil {
			programs.err = build(filepath.Join(programs.dir, "gitvirt"), []string{"CGO_ENABLED=0"}, ".")
		}
		if programs.err == nil {
			programs.err = build(filepath.Join(programs.dir, "gitvirt-agent"), []string{"CGO_ENABLED=1"}, "-tags", "libvirt_dlopen,netgo,osusergo", "../gitvirt-agent")
		}
	})
	if programs.err != nil {
		t.Fatal(programs.err)
	}
	return filepath.Join(programs.dir, name)
}

func build(output string, environment []string, args ...string) error {
	command := exec.Command("go", append([]string{"build", "-trimpath", "-gcflags=all=-dwarf=false", "-o", output}, args...)...)
	command.Env = append(os.Environ(), environment...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", filepath.Base(output), err, out)
	}
	return nil
}
