package libvirttest

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Guest is a kernel of a few bytes that does one thing. It runs on machine q35 or pc with <features><acpi/></features>.
type Guest string

// The guests.
const (
	GuestIdle      Guest = "idle"       // halts: uses no CPU and ignores the power button
	GuestObedient  Guest = "obedient"   // powers off when the power button is pressed; polls for it, which uses a CPU
	GuestPowersOff Guest = "powers off" // powers itself off at once
	GuestEcho      Guest = "echo"       // says on its serial port what it hears there; polls for it
)

// The code of the guests, for 32-bit protected mode. SeaBIOS puts the ACPI PM1a event block (status, enable) at port 0x600 and
// the control block at 0x604; SLP_EN with SLP_TYP 0, which is S5 in QEMU's tables, powers off.
const (
	code = 0x20 // the code's offset in the file, after the header

	halt = "\xfa\xf4\xeb\xfd" // cli; 1: hlt; jmp 1b

	powerOff = "\x66\xba\x04\x06" + // mov dx, 0x604
		"\x66\xb8\x00\x20" + // mov ax, 0x2000
		"\x66\xef" + // out dx, ax
		halt

	awaitButton = "\x66\xba\x02\x06" + // mov dx, 0x602
		"\x66\xb8\x00\x01" + // mov ax, 0x100 (PWRBTN_EN: without it QEMU does not latch the status)
		"\x66\xef" + // out dx, ax
		"\x66\xba\x00\x06" + // mov dx, 0x600
		"\x66\xed" + // 1: in ax, dx
		"\xf6\xc4\x01" + // test ah, 1 (PWRBTN_STS)
		"\x74\xf9" // jz 1b

	// The serial port's registers: data at 0x3f8, line status at 0x3fd with bit 0 for something to read.
	echo = "\x66\xba\xfd\x03" + // 1: mov dx, 0x3fd
		"\xec" + // in al, dx
		"\xa8\x01" + // test al, 1
		"\x74\xf7" + // jz 1b
		"\x66\xba\xf8\x03" + // mov dx, 0x3f8
		"\xec" + // in al, dx
		"\xee" + // out dx, al
		"\xeb\xef" // jmp 1b
)

// Kernel writes the guest as a multiboot kernel and returns its path, for <os><kernel>.
func (g Guest) Kernel(t testing.TB) string {
	t.Helper()
	program, known := map[Guest]string{GuestIdle: halt, GuestObedient: awaitButton + powerOff, GuestPowersOff: powerOff, GuestEcho: echo}[g]
	if !known {
		t.Fatalf("no guest %q", g)
	}
	// https://www.gnu.org/software/grub/manual/multiboot/multiboot.html#Header-layout, with the addresses of flag 16: the
	// file is loaded as it is.
	const magic, flags, address = 0x1BADB002, 1 << 16, 0x100000
	var image []byte
	for _, field := range []uint32{magic, flags, (1<<32 - magic - flags) % (1 << 32), address, address, 0, 0, address + code} {
		image = binary.LittleEndian.AppendUint32(image, field)
	}
	path := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(path, append(image, program...), 0o600); err != nil {
		t.Fatalf("write the guest's kernel: %v", err)
	}
	return path
}

// WithUserNetwork gives a domain of DomainXML a network card in QEMU's user-mode network, with the alias ua-default.
func WithUserNetwork(xml string) string {
	const card = "<interface type='user'><model type='virtio'/><alias name='ua-default'/></interface>\n    "
	return strings.Replace(xml, "<memballoon", card+"<memballoon", 1)
}

// WithConsole gives a domain of DomainXML a serial console.
func WithConsole(xml string) string {
	return strings.Replace(xml, "<memballoon", "<serial type='pty'/>\n    <memballoon", 1)
}

// DomainXML returns a domain with as little in it as libvirt allows, under software emulation. An empty uuid leaves it to
// libvirt, an empty kernel boots nothing.
func DomainXML(name, uuid, kernel string) string {
	if uuid != "" {
		uuid = "\n  <uuid>" + uuid + "</uuid>"
	}
	if kernel != "" {
		kernel = "<kernel>" + kernel + "</kernel>"
	}
	return fmt.Sprintf(`<domain type='qemu'>
  <name>%s</name>%s
  <memory unit='MiB'>16</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>%s</os>
  <features><acpi/></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
`, name, uuid, kernel)
}
