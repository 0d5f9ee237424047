package forwards

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/schemas"
)

// Endpoint is a port of a guest's loopback address.
type Endpoint struct {
	Address netip.Addr
	schemas.ForwardedPort
}

// Redirects is the table of nftables that leads connections of this host from guests' ports to the ports that QEMU listens
// on. It is the agent's own; the kernel keeps it when the agent ends, and no other table is touched.
type Redirects struct {
	// Table is its name; each agent of a host has its own.
	Table string
}

const (
	chainName = "output"
	mapName   = "ports"
)

// protocolNumber is IP's number of a protocol.
func protocolNumber(name string) byte {
	if name == "UDP" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// List returns the redirects that are in force. A table that somebody took away has none.
func (r Redirects) List() (map[Endpoint]uint16, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("reaching nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: r.Table}
	rules, err := conn.GetRules(table, &nftables.Chain{Name: chainName, Table: table})
	if errors.Is(err, unix.ENOENT) || (err == nil && len(rules) == 0) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the rules of nftables table %s: %w", r.Table, err)
	}
	set, err := conn.GetSetByName(table, mapName)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the map of nftables table %s: %w", r.Table, err)
	}
	found, err := settled(conn, set)
	if err != nil {
		return nil, fmt.Errorf("reading the ports of nftables table %s: %w", r.Table, err)
	}
	return found, nil
}

// reads is how often a map is read at most, until two reads in a row are equal.
const reads = 20

// settled returns what a map holds. The kernel skips elements, and does not tell, when its table grows while it is read,
// which it does some time after elements were added.
func settled(conn *nftables.Conn, set *nftables.Set) (map[Endpoint]uint16, error) {
	var before map[Endpoint]uint16
	for range reads {
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return nil, err
		}
		now := endpoints(elements)
		if before != nil && maps.Equal(before, now) {
			return now, nil
		}
		before = now
	}
	return nil, fmt.Errorf("it was another each of %d times", reads)
}

// endpoints returns what elements of the map say, without those that are not ours.
func endpoints(elements []nftables.SetElement) map[Endpoint]uint16 {
	found := map[Endpoint]uint16{}
	for _, element := range elements {
		if len(element.Key) != keyLength || len(element.Val) < 2 {
			continue
		}
		to := Endpoint{Address: netip.AddrFrom4([4]byte(element.Key[:4]))}
		to.Protocol, to.Port = "TCP", binary.BigEndian.Uint16(element.Key[8:])
		if element.Key[4] == unix.IPPROTO_UDP {
			to.Protocol = "UDP"
		}
		found[to] = binary.BigEndian.Uint16(element.Val)
	}
	return found
}

// keyLength is that of a key of the map: an address, a protocol and a port, four bytes each.
const keyLength = 12

// Set puts exactly these redirects into force. Those that stay are not touched, and connections that exist go on.
func (r Redirects) Set(redirects map[Endpoint]uint16) error {
	have, err := r.List()
	if err != nil {
		return err
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("reaching nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: r.Table}
	ports, err := portsOf(table)
	if err != nil {
		return err
	}
	if len(have) == 0 || len(redirects) == 0 {
		conn.AddTable(table) // or there may be none to delete
		conn.DelTable(table)
		have = nil
	}
	if have == nil && len(redirects) > 0 {
		if err := write(conn, conn.AddTable(table), ports); err != nil {
			return fmt.Errorf("composing nftables table %s: %w", r.Table, err)
		}
	}
	var gone, added []nftables.SetElement
	for _, from := range slices.SortedFunc(maps.Keys(have), compareEndpoints) {
		if redirects[from] != have[from] {
			gone = append(gone, element(from, have[from]))
		}
	}
	for _, from := range slices.SortedFunc(maps.Keys(redirects), compareEndpoints) {
		if redirects[from] != have[from] {
			added = append(added, element(from, redirects[from]))
		}
	}
	if err := errors.Join(r.send(conn, ports, gone, conn.SetDeleteElements), r.send(conn, ports, added, conn.SetAddElements)); err != nil {
		return fmt.Errorf("writing nftables table %s (the agent needs CAP_NET_ADMIN, the kernel nf_tables and nft_nat): %w", r.Table, err)
	}
	return nil
}

// chunk is how many elements are sent at a time: a message of netlink has 64 KiB.
const chunk = 500

// send carries out what conn holds already, and changes elements.
func (r Redirects) send(conn *nftables.Conn, ports *nftables.Set, elements []nftables.SetElement, change func(*nftables.Set, []nftables.SetElement) error) error {
	for part := range slices.Chunk(elements, chunk) {
		if err := change(ports, part); err != nil {
			return err
		}
		if err := conn.Flush(); err != nil {
			return err
		}
	}
	return conn.Flush()
}

// portsOf returns the map from (address, protocol, port) to a port.
func portsOf(table *nftables.Table) (*nftables.Set, error) {
	key, err := nftables.ConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	if err != nil {
		return nil, fmt.Errorf("composing a map of nftables: %w", err)
	}
	return &nftables.Set{
		Table: table, Name: mapName, IsMap: true, Concatenation: true, KeyType: key, DataType: nftables.TypeInetService,
	}, nil
}

func element(from Endpoint, to uint16) nftables.SetElement {
	address := from.Address.As4()
	key := append(address[:], protocolNumber(from.Protocol), 0, 0, 0)
	key = append(binary.BigEndian.AppendUint16(key, from.Port), 0, 0)
	return nftables.SetElement{Key: key, Val: binaryutil.BigEndian.PutUint16(to)}
}

// write adds the map to a new table, and the one rule that looks into it:
//
//	chain output { type nat hook output priority dstnat; dnat to : ip daddr . meta l4proto . th dport map @ports }
func write(conn *nftables.Conn, table *nftables.Table, ports *nftables.Set) error {
	chain := conn.AddChain(&nftables.Chain{
		Name: chainName, Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	if err := conn.AddSet(ports, nil); err != nil {
		return err
	}
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG32_01},
		&expr.Payload{DestRegister: unix.NFT_REG32_02, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG_1, IsDestRegSet: true, SetName: ports.Name, SetID: ports.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegProtoMin: unix.NFT_REG_1, Specified: true},
	}})
	return nil
}

func compareEndpoints(a, b Endpoint) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}
