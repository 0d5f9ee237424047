package emulation

import "encoding/binary"

// Where the parts of the test guest lie in guest-physical memory. The page tables are three pages of
// fresh, hence zeroed, memory behind the code.
const (
	loadAddress = 0x100000
	pml4Address = 0x103000
	pdptAddress = 0x104000
	pdAddress   = 0x105000

	gdtOffset        = 32 // behind the multiboot header
	gdtLength        = 16
	descriptorOffset = gdtOffset + gdtLength // lgdt's operand
	codeOffset       = 56
)

// What the guest says, and to whom.
const (
	exitPort   = 0xf4
	exitValue  = 0x21
	exitStatus = exitValue<<1 | 1 // how isa-debug-exit turns a written value into QEMU's exit status
)

// The multiboot header (Multiboot Specification 0.6.96, section 3.1): flag 16 says that the load addresses
// are in the header, so that no ELF wrapping is needed.
const (
	multibootMagic = 0x1badb002
	multibootFlags = 1 << 16
)

// guestImage returns a multiboot kernel of about 160 bytes that switches on PAE, paging and long mode, runs 64-bit
// instructions and writes exitValue to the isa-debug-exit device. A KVM that only pretends to work hangs on
// the way into long mode; real mode and 32-bit code prove nothing.
func guestImage() []byte {
	image := make([]byte, codeOffset)
	copy(image[gdtOffset:], gdt())
	image = append(image, enterLongMode()...)
	image = append(image, longMode()...)
	end := uint32(loadAddress + len(image)) //nolint:gosec // some 160 bytes

	flags := uint32(multibootFlags)
	for i, word := range []uint32{
		multibootMagic, flags, -(multibootMagic + flags),
		loadAddress,              // header_addr
		loadAddress,              // load_addr
		end,                      // load_end_addr
		end,                      // bss_end_addr
		loadAddress + codeOffset, // entry_addr
	} {
		binary.LittleEndian.PutUint32(image[4*i:], word)
	}
	return image
}

// enterLongMode is 32-bit code: identity-map the first 2 MiB, switch on PAE, EFER.LME and paging, load a 64-bit code
// segment and jump into it (Intel SDM volume 3, section 11.8.5).
func enterLongMode() []byte {
	var code []byte
	store := func(address, value uint32) {
		code = append(code, 0xc7, 0x05) // mov dword [address], value
		code = binary.LittleEndian.AppendUint32(code, address)
		code = binary.LittleEndian.AppendUint32(code, value)
	}
	store(pml4Address, pdptAddress|0b11) // present, writable
	store(pdptAddress, pdAddress|0b11)
	store(pdAddress, 0x83) // present, writable, 2 MiB page at 0

	code = append(code, 0xb8) // mov eax, pml4Address
	code = binary.LittleEndian.AppendUint32(code, pml4Address)
	code = append(code,
		0x0f, 0x22, 0xd8, // mov cr3, eax
		0x0f, 0x20, 0xe0, // mov eax, cr4
		0x83, 0xc8, 0x20, // or eax, PAE
		0x0f, 0x22, 0xe0, // mov cr4, eax
		0xb9, 0x80, 0x00, 0x00, 0xc0, // mov ecx, IA32_EFER
		0x0f, 0x32, // rdmsr
		0x80, 0xcc, 0x01, // or ah, LME
		0x0f, 0x30, // wrmsr
		0x0f, 0x20, 0xc0, // mov eax, cr0
		0x0d, 0x01, 0x00, 0x00, 0x80, // or eax, PG|PE
		0x0f, 0x22, 0xc0, // mov cr0, eax
		0x0f, 0x01, 0x15, // lgdt [descriptor]
	)
	code = binary.LittleEndian.AppendUint32(code, loadAddress+descriptorOffset)
	const jumpLength = 7
	long := uint32(loadAddress + codeOffset + len(code) + jumpLength) //nolint:gosec // some 160 bytes
	code = append(code, 0xea)                                         // jmp 0x08:long
	code = binary.LittleEndian.AppendUint32(code, long)
	return append(code, 0x08, 0x00)
}

// longMode is 64-bit code: the exit value comes out of the upper half of a 64-bit register, which only a CPU in
// long mode has.
func longMode() []byte {
	code := []byte{0x48, 0xb8} // mov rax, exitValue<<32
	code = binary.LittleEndian.AppendUint64(code, uint64(exitValue)<<32)
	return append(code,
		0x48, 0xc1, 0xe8, 0x20, // shr rax, 32
		0xe7, exitPort, // out exitPort, eax
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to the hlt
	)
}

// gdt returns the null and the 64-bit code descriptor, and behind them the operand of lgdt.
func gdt() []byte {
	table := make([]byte, 8, gdtLength+6)
	table = binary.LittleEndian.AppendUint64(table, 0x00209a0000000000)
	table = binary.LittleEndian.AppendUint16(table, gdtLength-1)
	return binary.LittleEndian.AppendUint32(table, loadAddress+gdtOffset)
}
