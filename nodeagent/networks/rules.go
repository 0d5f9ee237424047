package networks

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// tableName is that of gitvirt's tables in a Pod's namespace. No other is touched.
const tableName = "gitvirt"

// ruleset is a table of nftables that is written as a whole or not at all. The last rule of each chain carries a digest of all of it, by which
// a table that is right is recognised and left alone.
type ruleset struct {
	table  *nftables.Table
	chains []*nftables.Chain
	rules  []*nftables.Rule
	sets   []filledSet
	// text has a line for each part, from which the digest is made.
	text bytes.Buffer
}

type filledSet struct {
	set      *nftables.Set
	elements []nftables.SetElement
}

func newRuleset(family nftables.TableFamily) *ruleset {
	return &ruleset{table: &nftables.Table{Family: family, Name: tableName}}
}

// chain adds a chain of a hook; device is that of netdev's chains.
func (r *ruleset) chain(name, device string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	fmt.Fprintf(&r.text, "chain %s %s %s %d %d\n", name, device, kind, *hook, *priority)
	chain := &nftables.Chain{Name: name, Device: device, Table: r.table, Type: kind, Hooknum: hook, Priority: priority}
	r.chains = append(r.chains, chain)
	return chain
}

// rule adds a rule to a chain.
func (r *ruleset) rule(chain *nftables.Chain, parts ...[]expr.Any) {
	rule := &nftables.Rule{Table: r.table, Chain: chain}
	fmt.Fprintf(&r.text, "rule %s", chain.Name)
	for _, part := range parts {
		for _, one := range part {
			fmt.Fprintf(&r.text, " %T%+v", one, one)
		}
		rule.Exprs = append(rule.Exprs, part...)
	}
	r.text.WriteByte('\n')
	r.rules = append(r.rules, rule)
}

// ports adds a set of ports.
func (r *ruleset) ports(name string, ranges []Ports) *nftables.Set {
	set := &nftables.Set{Table: r.table, Name: name, KeyType: nftables.TypeInetService, Interval: true}
	filled := filledSet{set: set}
	for _, one := range ranges {
		filled.elements = append(filled.elements, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(one.First)})
		if one.Last < 65535 {
			filled.elements = append(filled.elements, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(one.Last + 1), IntervalEnd: true})
		}
	}
	fmt.Fprintf(&r.text, "set %s %v\n", name, ranges)
	r.sets = append(r.sets, filled)
	return set
}

func (r *ruleset) digest() []byte {
	sum := sha256.Sum256(r.text.Bytes())
	return userdata.AppendString(nil, userdata.TypeComment, "gitvirt "+hex.EncodeToString(sum[:16]))
}

// ensureRules writes a table, unless it stands there already.
func (p *Pod) ensureRules(r *ruleset) error {
	conn, err := p.nftables()
	if err != nil {
		return err
	}
	digest, right := r.digest(), true
	for _, chain := range r.chains {
		last := r.last(chain)
		last.UserData = digest
		have, err := conn.GetRules(r.table, chain)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("reading nftables table %s: %w", tableName, err)
		}
		right = right && len(have) > 0 && bytes.Equal(have[len(have)-1].UserData, digest)
	}
	if right {
		return nil
	}
	if err := p.step("write rules of family %d", r.table.Family); err != nil {
		return err
	}
	conn.AddTable(r.table) // or there may be none to delete
	conn.DelTable(r.table)
	conn.AddTable(r.table)
	for _, chain := range r.chains {
		conn.AddChain(chain)
	}
	for _, filled := range r.sets {
		if err := conn.AddSet(filled.set, filled.elements); err != nil {
			return fmt.Errorf("composing nftables table %s: %w", tableName, err)
		}
	}
	for _, rule := range r.rules {
		for _, one := range rule.Exprs {
			if lookup, ok := one.(*expr.Lookup); ok {
				lookup.SetID = r.setID(lookup.SetName)
			}
		}
		conn.AddRule(rule)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("writing nftables table %s (it takes CAP_NET_ADMIN, and a kernel with nf_tables, nft_nat, nft_masq and nft_ct): %w", tableName, err)
	}
	return nil
}

// last returns the last rule of a chain; each has one.
func (r *ruleset) last(chain *nftables.Chain) *nftables.Rule {
	for _, rule := range slices.Backward(r.rules) {
		if rule.Chain == chain {
			return rule
		}
	}
	return nil
}

// setID is by what the kernel knows a set within the batch that makes it.
func (r *ruleset) setID(name string) uint32 {
	for _, filled := range r.sets {
		if filled.set.Name == name {
			return filled.set.ID
		}
	}
	return 0
}

// removeRules takes a table away, if it is there.
func (p *Pod) removeRules(family nftables.TableFamily) error {
	conn, err := p.nftables()
	if err != nil {
		return err
	}
	tables, err := conn.ListTablesOfFamily(family)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("listing tables of nftables: %w", err)
	}
	for _, table := range tables {
		if table.Name != tableName {
			continue
		}
		if err := p.step("remove rules of family %d", family); err != nil {
			return err
		}
		conn.DelTable(table)
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("removing nftables table %s: %w", tableName, err)
		}
	}
	return nil
}

// What rules are made of.

func interfaceName(name string) []byte {
	out := make([]byte, unix.IFNAMSIZ)
	copy(out, name)
	return out
}

func matchMeta(key expr.MetaKey, op expr.CmpOp, value []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: value}}
}

func from(device string) []expr.Any {
	return matchMeta(expr.MetaKeyIIFNAME, expr.CmpOpEq, interfaceName(device))
}

func notFrom(device string) []expr.Any {
	return matchMeta(expr.MetaKeyIIFNAME, expr.CmpOpNeq, interfaceName(device))
}

func to(device string) []expr.Any {
	return matchMeta(expr.MetaKeyOIFNAME, expr.CmpOpEq, interfaceName(device))
}

func notTo(device string) []expr.Any {
	return matchMeta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, interfaceName(device))
}

func protocol(number byte) []expr.Any {
	return matchMeta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{number})
}

func family(is4 bool) []expr.Any {
	if is4 {
		return matchMeta(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{unix.NFPROTO_IPV4})
	}
	return matchMeta(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{unix.NFPROTO_IPV6})
}

// address compares the source or destination of a packet, of the family that a rule has matched before, with a prefix.
func address(source bool, op expr.CmpOp, prefix netip.Prefix) []expr.Any {
	offset, size := uint32(16), uint32(4)
	if prefix.Addr().Is6() {
		offset, size = 24, 16
	}
	if source {
		offset -= size
	}
	out := []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}}
	if !prefix.IsSingleIP() {
		mask := make([]byte, size)
		for bit := range prefix.Bits() {
			mask[bit/8] |= 0x80 >> (bit % 8)
		}
		out = append(out, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)})
	}
	return append(out, &expr.Cmp{Op: op, Register: 1, Data: prefix.Masked().Addr().AsSlice()})
}

func single(one netip.Addr) netip.Prefix { return netip.PrefixFrom(one, one.BitLen()) }

func portIn(set *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name},
	}
}

func natTo(kind expr.NATType, one netip.Addr) []expr.Any {
	of := uint32(unix.NFPROTO_IPV4)
	if one.Is6() {
		of = unix.NFPROTO_IPV6
	}
	return []expr.Any{&expr.Immediate{Register: 1, Data: one.AsSlice()}, &expr.NAT{Type: kind, Family: of, RegAddrMin: 1}}
}

func ofKnownConnection() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func drop() []expr.Any { return verdict(expr.VerdictDrop) }

func accept() []expr.Any { return verdict(expr.VerdictAccept) }
