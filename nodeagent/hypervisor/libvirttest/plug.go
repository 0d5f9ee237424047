package libvirttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Plugged is how DomainXML becomes a domain that can be changed while it runs: it has one of three vCPUs, room for 1 GiB of
// memory, a balloon, a virtio-scsi controller with an empty CD-ROM drive "sda", a user-mode network card with MAC address
// PluggedMAC, and spare PCI slots.
func Plugged(xml string) string {
	xml = strings.Replace(xml, "<vcpu>1</vcpu>", "<vcpu current='1'>3</vcpu>", 1)
	_, memory, _ := strings.Cut(xml, "<memory unit='MiB'>")
	memory, _, _ = strings.Cut(memory, "<")
	xml = strings.Replace(xml, "<memory ", "<maxMemory slots='4' unit='MiB'>1024</maxMemory>\n  <memory ", 1)
	xml = strings.Replace(xml, "</features>", "</features>\n  <cpu><numa><cell id='0' cpus='0-2' memory='"+memory+"' unit='MiB'/></numa></cpu>", 1)
	const ports = 12
	devices := "<controller type='pci' index='0' model='pcie-root'/>\n    " + strings.Repeat("<controller type='pci' model='pcie-root-port'/>\n    ", ports) +
		"<controller type='scsi' index='0' model='virtio-scsi'/>\n    " +
		"<disk type='file' device='cdrom'><target dev='sda' bus='scsi'/><readonly/></disk>\n    " +
		"<interface type='user'><mac address='" + PluggedMAC + "'/><model type='virtio'/></interface>\n    " +
		"<memballoon model='virtio'/>"
	return strings.Replace(xml, "<memballoon model='none'/>", devices, 1)
}

// PluggedMAC is the address of the network card of Plugged.
const PluggedMAC = "52:54:00:11:22:33"

// Image makes a raw image of a size in bytes, with a mark at its start, and returns its path.
func Image(t testing.TB, mark string, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.raw")
	if err := os.WriteFile(path, []byte(mark), 0o600); err != nil {
		t.Fatalf("make an image: %v", err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatalf("make an image: %v", err)
	}
	return path
}
