package libvirtrpc

import (
	"encoding/binary"
	"errors"
)

// encoder collects a call's arguments as XDR (RFC 4506).
type encoder []byte

func (e *encoder) uint32(value uint32) { *e = binary.BigEndian.AppendUint32(*e, value) }

func (e *encoder) string(value string) {
	e.uint32(uint32(len(value))) //nolint:gosec // names of domains
	*e = append(*e, value...)
	*e = append(*e, make([]byte, padding(len(value)))...)
}

// padding is what fills up a multiple of four bytes.
func padding(length int) int { return -length & 3 }

// errShort tells of a message that ends too early.
var errShort = errors.New("the daemon's message ends too early")

// decoder reads XDR. Its first mistake stays in err, and everything after that is zero.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) take(length int) []byte {
	if d.err != nil || len(d.rest) < length {
		d.err = errors.Join(d.err, errShort)
		d.rest = nil
		return make([]byte, min(length, headerBytes))
	}
	taken := d.rest[:length]
	d.rest = d.rest[length:]
	return taken
}

func (d *decoder) uint32() uint32 { return binary.BigEndian.Uint32(d.take(4)) }

func (d *decoder) int32() int32 { return int32(d.uint32()) } //nolint:gosec // the same bits

func (d *decoder) string() string {
	length := int(d.uint32())
	if length > len(d.rest) {
		d.err = errShort
		return ""
	}
	value := string(d.take(length))
	d.take(padding(length))
	return value
}

// domain is remote_nonnull_domain.
type domain struct {
	name string
	uuid [uuidBytes]byte
	id   uint32
}

func (d *decoder) domain() domain {
	value := domain{name: d.string()}
	copy(value.uuid[:], d.take(uuidBytes))
	value.id = d.uint32()
	return value
}

// remoteError reads remote_error, which answers a call that failed.
func (d *decoder) remoteError() error {
	code, from := d.int32(), d.int32()
	message := ""
	if d.uint32() == 1 {
		message = d.string()
	}
	if d.err != nil {
		return d.err
	}
	return &Error{Code: code, From: from, Message: message}
}
