package networks

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// maxPacket is how much of a frame is read: nothing that is answered is longer.
const maxPacket = 1600

// guestFilter lets through what a guest may ask: DHCP, DHCPv6, router solicitations, and with neighbours also ARP and neighbour
// solicitations. All else that a guest sends stays in the kernel, however much it is. Frames of VLANs are nobody's here.
func guestFilter(neighbours bool) []bpf.Instruction {
	arp, solicitation := verdictDrop, verdictDrop
	if neighbours {
		arp, solicitation = verdictKeep, verdictKeep
	}
	return assemble([]line{
		{op: bpf.LoadExtension{Num: bpf.ExtVLANTagPresent}},
		{jump: &branch{cond: bpf.JumpNotEqual, value: 0, to: verdictDrop}},
		{op: bpf.LoadAbsolute{Off: 12, Size: 2}},
		{jump: &branch{cond: bpf.JumpEqual, value: unix.ETH_P_ARP, to: arp}},
		{jump: &branch{cond: bpf.JumpEqual, value: unix.ETH_P_IPV6, to: "ip6"}},
		{jump: &branch{cond: bpf.JumpNotEqual, value: unix.ETH_P_IP, to: verdictDrop}},
		{op: bpf.LoadAbsolute{Off: 23, Size: 1}},
		{jump: &branch{cond: bpf.JumpNotEqual, value: unix.IPPROTO_UDP, to: verdictDrop}},
		{op: bpf.LoadAbsolute{Off: 20, Size: 2}},
		{jump: &branch{cond: bpf.JumpBitsSet, value: 0x1fff, to: verdictDrop}}, // the rest of a fragmented packet
		{op: bpf.LoadMemShift{Off: 14}},
		{op: bpf.LoadIndirect{Off: 16, Size: 2}},
		{jump: &branch{cond: bpf.JumpEqual, value: 67, to: verdictKeep}},
		{jump: &branch{cond: always, to: verdictDrop}},
		{label: "ip6", op: bpf.LoadAbsolute{Off: 20, Size: 1}},
		{jump: &branch{cond: bpf.JumpEqual, value: unix.IPPROTO_ICMPV6, to: "icmp6"}},
		{jump: &branch{cond: bpf.JumpNotEqual, value: unix.IPPROTO_UDP, to: verdictDrop}},
		{op: bpf.LoadAbsolute{Off: 56, Size: 2}},
		{jump: &branch{cond: bpf.JumpEqual, value: 547, to: verdictKeep}},
		{jump: &branch{cond: always, to: verdictDrop}},
		{label: "icmp6", op: bpf.LoadAbsolute{Off: 54, Size: 1}},
		{jump: &branch{cond: bpf.JumpEqual, value: 133, to: verdictKeep}},
		{jump: &branch{cond: bpf.JumpEqual, value: 135, to: solicitation}},
	})
}

// gatewayFilter lets through what tells of a gateway's MAC address: ARP, and neighbour advertisements.
func gatewayFilter() []bpf.Instruction {
	return assemble([]line{
		{op: bpf.LoadExtension{Num: bpf.ExtVLANTagPresent}},
		{jump: &branch{cond: bpf.JumpNotEqual, value: 0, to: verdictDrop}},
		{op: bpf.LoadAbsolute{Off: 12, Size: 2}},
		{jump: &branch{cond: bpf.JumpEqual, value: unix.ETH_P_ARP, to: verdictKeep}},
		{jump: &branch{cond: bpf.JumpNotEqual, value: unix.ETH_P_IPV6, to: verdictDrop}},
		{op: bpf.LoadAbsolute{Off: 20, Size: 1}},
		{jump: &branch{cond: bpf.JumpNotEqual, value: unix.IPPROTO_ICMPV6, to: verdictDrop}},
		{op: bpf.LoadAbsolute{Off: 54, Size: 1}},
		{jump: &branch{cond: bpf.JumpEqual, value: 136, to: verdictKeep}},
	})
}

// A line of a filter is an instruction, or a jump to a label. What runs off the end is dropped.
type line struct {
	label string
	op    bpf.Instruction
	jump  *branch
}

type branch struct {
	cond  bpf.JumpTest
	value uint32
	to    string
}

const (
	verdictDrop, verdictKeep = "drop", "keep"
	// always is no condition of BPF's.
	always bpf.JumpTest = 0xffff
)

// assemble puts distances in place of labels.
func assemble(lines []line) []bpf.Instruction {
	at := map[string]int{verdictDrop: len(lines), verdictKeep: len(lines) + 1}
	for i, one := range lines {
		if one.label != "" {
			at[one.label] = i
		}
	}
	out := make([]bpf.Instruction, 0, len(lines)+2)
	for i, one := range lines {
		switch {
		case one.jump == nil:
			out = append(out, one.op)
		case one.jump.cond == always:
			out = append(out, bpf.Jump{Skip: uint32(at[one.jump.to] - i - 1)}) //nolint:gosec // a filter has a few lines
		default:
			out = append(out, bpf.JumpIf{Cond: one.jump.cond, Val: one.jump.value, SkipTrue: uint8(at[one.jump.to] - i - 1)}) //nolint:gosec // as above
		}
	}
	return append(out, bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: maxPacket})
}

// attach sets a socket's filter.
func attach(socket int, filter []bpf.Instruction) error {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return fmt.Errorf("assembling a packet filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, one := range raw {
		code[i] = unix.SockFilter{Code: one.Op, Jt: one.Jt, Jf: one.Jf, K: one.K}
	}
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]} //nolint:gosec // a filter has a few lines
	return unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
}
