package launcher_test

import (
	"os"
	"testing"

	"github.com/gitvirt/gitvirt/launcher/launchertest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	launchertest.Clean()
	os.Exit(code)
}
