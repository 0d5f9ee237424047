package libvirttest

import (
	"os"
	"path/filepath"
)

// Probing QEMU costs seconds, so what a daemon found is kept for the next ones. libvirt itself throws it away when libvirt,
// QEMU, the kernel or the CPU have changed (virQEMUCapsIsValid). All of this is best effort: without it daemons probe.

// capabilitiesDir returns the folder that daemons of all runs share, or "".
func capabilitiesDir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "gitvirt", "libvirttest", "capabilities")
}

func (d *Daemon) capabilitiesDir() string {
	return filepath.Join(d.Dir, "cache", "qemu", "capabilities")
}

// loadCapabilities gives the daemon what others found and reports whether there was something.
func (d *Daemon) loadCapabilities() bool {
	return copyFiles(capabilitiesDir(), d.capabilitiesDir()) > 0
}

// saveCapabilities keeps what the daemon found.
func (d *Daemon) saveCapabilities() { copyFiles(d.capabilitiesDir(), capabilitiesDir()) }

// copyFiles copies the XML files of a folder, each at once, so that no reader sees half of one. It returns how many.
func copyFiles(from, to string) int {
	if from == "" || to == "" || os.MkdirAll(to, 0o755) != nil {
		return 0
	}
	paths, err := filepath.Glob(filepath.Join(from, "*.xml"))
	if err != nil {
		return 0
	}
	copied := 0
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		temporary, err := os.CreateTemp(to, "new")
		if err != nil {
			continue
		}
		_, err = temporary.Write(content)
		if closeErr := temporary.Close(); err == nil {
			err = closeErr
		}
		if err == nil {
			err = os.Rename(temporary.Name(), filepath.Join(to, filepath.Base(path)))
		}
		if err != nil {
			_ = os.Remove(temporary.Name())
			continue
		}
		copied++
	}
	return copied
}
