package libvirt

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/devicexml"
)

// What libvirt refuses in the name of a domain: the first after it has compared the definition with its schema, the second
// after its drivers have seen it and before there is a domain (virDomainDefParseXML, and virXMLCheckIllegalChars in the
// Define of each driver).
const (
	refusedAfterSchema  = "/"
	refusedAfterDrivers = "&#10;"
)

// anyDomain is a definition without a fault but its name.
const anyDomain = "<domain type='qemu'><name>a" + refusedAfterSchema + "</name><memory>16384</memory><os><type>hvm</type></os></domain>"

// Validate implements hypervisor.Hypervisor. libvirt has no call for it, so it is asked to define what it must refuse for the
// name alone, once after the schema and once after the drivers have seen the rest. Nothing is ever defined, so nobody can
// see it and nothing is left when this process dies. docs/adr/0035 weighs this against a domain that is undefined at once.
func (h *Hypervisor) Validate(ctx context.Context, definition string) error {
	name, end, err := nameOf(definition)
	if err != nil {
		return doing(fmt.Errorf("%w: %w", hypervisor.ErrInvalid, err), "validate", name)
	}
	err = do(ctx, h, func(c *lv.Connect) error {
		err := refused(c, definition[:end]+refusedAfterSchema+definition[end:], lv.DOMAIN_DEFINE_VALIDATE)
		if schemaSays(err) && !schemaSays(refused(c, anyDomain, lv.DOMAIN_DEFINE_VALIDATE)) {
			return err // and a schema that refuses the name in itself is left out
		}
		err = refused(c, definition[:end]+refusedAfterDrivers+definition[end:], 0)
		if err != nil && !refusedForName(err) {
			return definitionError(err)
		}
		if conflicts(c, definition) {
			return &Error{Kind: hypervisor.ErrConflict, Cause: errors.New("the name or the UUID is taken")}
		}
		return nil
	})
	return doing(err, "validate", name)
}

// refused defines what libvirt refuses and returns why. A libvirt that takes it has checked everything.
func refused(c *lv.Connect, definition string, flags lv.DomainDefineFlags) error {
	dom, err := c.DomainDefineXMLFlags(definition, flags)
	if err != nil {
		return err
	}
	defer free(dom)
	return dom.Undefine()
}

func schemaSays(err error) bool { return hasCode(err, lv.ERR_XML_INVALID_SCHEMA) }

// refusedForName reports whether libvirt found nothing wrong but the name: its message ends with the character, in whatever
// language the rest is.
func refusedForName(err error) bool {
	var cause lv.Error
	return errors.As(err, &cause) && cause.Code == lv.ERR_XML_DETAIL && strings.HasSuffix(cause.Message, "\n")
}

// nameOf returns the name of a definition and where in it the name ends. What libvirt would refuse before it looks at the
// name is refused here, without a word of what it holds.
func nameOf(definition string) (name string, end int64, err error) {
	decoder := xml.NewDecoder(strings.NewReader(definition))
	inName := false
	for depth := 0; ; {
		at := decoder.InputOffset()
		token, err := decoder.Token()
		if err != nil {
			return name, end, checkName(name, end, definition)
		}
		switch token := token.(type) {
		case xml.StartElement:
			depth++
			inName = depth == 2 && token.Name.Local == "name" && end == 0
		case xml.CharData:
			if inName {
				name += string(token)
			}
		case xml.EndElement:
			if inName {
				end, inName = at, false
			}
			depth--
		}
	}
}

// checkName refuses a definition that is not XML, or has no name, or one that libvirt's drivers refuse.
func checkName(name string, end int64, definition string) error {
	decoder := xml.NewDecoder(strings.NewReader(definition))
	switch err := decoder.Decode(new(struct{ XMLName xml.Name })); {
	case err != nil:
		return devicexml.NotXML(decoder) // libvirt would quote the line, which may hold a password
	case end == 0 || name == "":
		return errors.New("the definition has no name")
	case strings.ContainsAny(name, "/\n"):
		return fmt.Errorf("the name %q has a slash or more than one line", name)
	}
	return nil
}
