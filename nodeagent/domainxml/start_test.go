package domainxml_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// startable are examples whose parts exist on a machine without KVM and without devices to give away. Of the others that are
// defined all but these start on such a machine too: what needs KVM (Hyper-V, pvspinlock), PCI devices, huge pages, vsock, a
// LUN, networks, or a later QEMU (igb).
func startable() []string {
	return []string{
		"boot-orders", "cdrom-empty", "dev-client", "dev-downward", "dev-tpm-persistent", "disk-blocksize-discard", "disk-mixed",
		"fs-configmap", "fw-acpi-msdm", "fw-acpi-slic", "fw-efi-secure", "fw-kernel", "iothreads-pool", "mem-max-virtio", "net-cidr", "start-paused",
	}
}

// place makes files for the volumes of a machine.
func place(t testing.TB, machine *domainxml.Machine) {
	t.Helper()
	dir := t.TempDir()
	image := func(path, format, backing, backingFormat string) {
		arguments := []string{"create", "-q", "-f", format}
		if backing != "" {
			arguments = append(arguments, "-b", backing, "-F", backingFormat)
		}
		arguments = append(arguments, path, "64M")
		if out, err := exec.Command("qemu-img", arguments...).CombinedOutput(); err != nil {
			t.Fatalf("%s", out)
		}
	}
	tables := kubevirtv1.ACPI{}
	if firmware := machine.Spec.Domain.Firmware; firmware != nil && firmware.ACPI != nil {
		tables = *firmware.ACPI
	}
	for i := range machine.Volumes {
		volume := &machine.Volumes[i]
		volume.Path = filepath.Join(dir, strings.ReplaceAll(volume.Name, "/", "-"))
		switch {
		case volume.Name == tables.SlicNameRef || volume.Name == tables.MsdmNameRef:
			if err := os.WriteFile(volume.Path, make([]byte, 374), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		case volume.Name == domainxml.KernelBootVolume:
			volume.Path = libvirttest.GuestIdle.Kernel(t)
			if volume.Initrd != "" {
				volume.Initrd = volume.Path
			}
			continue
		case volume.Backing != "":
			volume.Backing = volume.Path + ".base"
			image(volume.Backing, volume.BackingFormat, "", "")
		}
		image(volume.Path, volume.Format, volume.Backing, volume.BackingFormat)
	}
	for i := range machine.Spec.Domain.Devices.Filesystems {
		for j := range machine.Volumes {
			if machine.Volumes[j].Name == machine.Spec.Domain.Devices.Filesystems[i].Name {
				machine.Volumes[j].Path = dir
			}
		}
	}
	machine.Host.DomainType, machine.Host.Dir = "qemu", dir
	machine.Host.ConsoleLog, machine.Host.NVRAM = filepath.Join(dir, "console.log"), filepath.Join(dir, "nvram.fd")
}

// TestRealLibvirtStarts starts guests, paused: QEMU takes every device of theirs. Neither what libvirt then has as their
// definition nor what it has as the running guest differs from what was rendered.
func TestRealLibvirtStarts(t *testing.T) {
	daemon := libvirttest.Start(t)
	for _, example := range corpus(t) {
		if !slices.Contains(startable(), example.name) {
			continue
		}
		machine := example.machine()
		place(t, &machine)
		document, err := domainxml.Render(machine)
		if err != nil {
			t.Error(err)
			continue
		}
		path := filepath.Join(t.TempDir(), "domain.xml")
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		name := domainxml.DomainName(machine.Address)
		const between = "</domain>\n"
		said, err := exec.Command("virsh", "-q", "-c", daemon.URI,
			"define --validate "+path+"; start --paused "+name+"; dumpxml "+name+"; dumpxml --inactive "+name+"; destroy "+name+"; undefine --nvram "+name).CombinedOutput()
		documents := strings.SplitAfter(string(said), between)
		if err != nil || strings.Contains(string(said), "error:") || len(documents) < 2 { // virsh returns what the last of them returned
			t.Errorf("%s: %s", example.name, said)
			_ = exec.Command("virsh", "-q", "-c", daemon.URI, "undefine --nvram "+name).Run()
			continue
		}
		noDrift(t, example.name, document, documents[1])
		differences, err := domainxml.CompareRunning(document, documents[0])
		if err != nil || len(differences) > 0 {
			t.Errorf("%s: the running guest differs: %v, %v", example.name, differences, err)
		}
	}
}
