package libvirttest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// agentInit is the first program of the guest with an agent: it does no more than the agent needs, because a guest under
// software emulation pays for each process. What the guest's console shows is for people who look why a test fails.
const agentInit = `#!/bin/sh
PATH=/bin:/sbin:/usr/bin:/usr/sbin
export PATH
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /run /tmp /var/run /root
modprobe -a virtio_pci virtio_console
[ -d /sys/firmware/efi ] && echo "agent-guest: booted by EFI"
for port in /sys/class/virtio-ports/*; do
  [ "$(cat "$port/name")" = org.qemu.guest_agent.0 ] && device=/dev/${port##*/}
done
echo "agent-guest: ready"
while :; do qemu-ga -m virtio-serial -p "$device" -t /tmp; sleep 1; done
`

// AgentGuest returns the kernel and the initramfs of a Linux with Debian's qemu-guest-agent, for
// AgentDomainXML. It uses the guest that "make guest" builds, and the agent that "make setup" installs.
func AgentGuest(t testing.TB) (kernel, initramfs string) {
	t.Helper()
	guest := guestDir(t)
	root := t.TempDir()
	program, err := exec.LookPath("qemu-ga")
	if err != nil {
		t.Fatalf("qemu-ga is missing (%v): run `make setup`, which installs what the tests need", err)
	}
	libraries, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatalf("ask what %s is linked to: %v", program, err)
	}
	paths := append([]string{program}, regexp.MustCompile(`/\S+\.so\S*`).FindAllString(string(libraries), -1)...)
	for _, path := range paths {
		to := filepath.Join(root, path)
		if path == program {
			to = filepath.Join(root, "bin", "qemu-ga") // /usr/sbin is a link to /bin in the guest
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "agent-init"), []byte(agentInit), 0o755); err != nil {
		t.Fatal(err)
	}
	pack := exec.Command("sh", "-c", "find . | cpio --quiet -o -H newc | gzip -1")
	pack.Dir = root
	added, err := pack.Output()
	if err != nil {
		t.Fatalf("make the initramfs: %v", err)
	}
	base, err := os.ReadFile(filepath.Join(guest, "initramfs.img"))
	if err != nil {
		t.Fatal(err)
	}
	initramfs = filepath.Join(t.TempDir(), "initramfs.img")
	// The kernel unpacks one archive after the other.
	if err := os.WriteFile(initramfs, bytes.Join([][]byte{base, added}, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(guest, "vmlinuz"), initramfs
}

// LinuxGuest returns the kernel and the initramfs that "make guest" builds, for GuestArguments.
func LinuxGuest(t testing.TB) (kernel, initramfs string) {
	t.Helper()
	guest := guestDir(t)
	return filepath.Join(guest, "vmlinuz"), filepath.Join(guest, "initramfs.img")
}

// GuestArguments are the kernel's arguments for the test guest. Its check of the timer fails now and then on a busy machine,
// where it is emulated, and then the kernel panics. The others spare an emulated CPU a sixth of the boot: tests of ciphers, and
// certificates, that no guest here uses.
const GuestArguments = "console=ttyS0 quiet no_timer_check nokaslr cryptomgr.notests" +
	" initcall_blacklist=crypto_kdf108_init,load_system_certificate_list,init_encrypted"

// AgentArguments are the kernel's arguments for AgentGuest.
const AgentArguments = GuestArguments + " rdinit=/agent-init"

// AgentDomainXML is DomainXML for AgentGuest, with a channel for its agent.
func AgentDomainXML(name, uuid, kernel, initramfs string) string {
	xml := strings.Replace(DomainXML(name, uuid, kernel), "<memory unit='MiB'>16</memory>", "<memory unit='MiB'>128</memory>", 1)
	xml = strings.Replace(xml, "</kernel>", fmt.Sprintf("</kernel><initrd>%s</initrd><cmdline>%s</cmdline>", initramfs, AgentArguments), 1)
	return strings.Replace(xml, "<memballoon", "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>\n    <memballoon", 1)
}

// guestDir returns the folder of the guest that "make guest" builds.
func guestDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("GITVIRT_GUEST"); dir != "" {
		return dir
	}
	top, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatalf("find the module: %v", err)
	}
	out, err := exec.Command(filepath.Join(filepath.Dir(strings.TrimSpace(string(top))), "hack", "guest", "path.sh")).Output()
	if err != nil {
		t.Fatalf("hack/guest/path.sh: %v", err)
	}
	dir := strings.TrimSpace(string(out))
	if _, err := os.Stat(filepath.Join(dir, "complete")); err != nil {
		t.Fatalf("the guest is missing (%v): run `make guest`", err)
	}
	return dir
}
