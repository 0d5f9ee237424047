package domainxml

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// The place of gitvirt's record in a domain's metadata.
const (
	MetadataURI    = "https://gitvirt.io/xml/domain/v1"
	MetadataPrefix = "gitvirt"
)

// ErrForeign says that the domain carries no record of gitvirt and is nobody's business here.
var ErrForeign = errors.New("not a domain of gitvirt")

// Record is what a domain carries about itself, so that no state file is needed.
type Record struct {
	// Address is the VM's in git.
	Address schemas.Address
	// Origin is the address under which the domain was made or adopted, when the VM was renamed since: what derives from an
	// address (name, UUID, MAC addresses, files on the host) derives from this one. Zero means Address.
	Origin schemas.Address
	// Former are the addresses that the VM had, the latest last.
	Former []schemas.Address
	// Domain and UUID are those of the domain that the record is for, where they do not derive from Origin.
	Domain, UUID string
	// Fleet owns the domain; only this fleet changes or removes it.
	Fleet string
	// Revision is the commit that was applied, Source the manifest's file and line.
	Revision string
	Source   string
	// Hash and Spec are schemas.VM's Hash and Record.
	Hash string
	Spec []byte
	// Ran says that the guest was started since it was created or since gitvirt last stopped it.
	Ran bool
	// Stop is why the guest was last seen to stop; libvirt itself forgets it when its daemon restarts.
	Stop string
	// Pending is since when the definition is one that the running guest did not get, in Unix seconds; 0 for one that it has.
	Pending int64
	// Native are the paths in which the running guest differed already when gitvirt had just started it from this very
	// definition: that is what libvirt made of it, and nobody's change.
	Native []string
	// Retired is since when the domain is kept only for the grace period of a removed VM, in Unix seconds; 0 when it is not.
	Retired int64
	// Replacing is only in the trace of a domain that is being made anew: who finds it without the domain brings that to its end.
	// Closed says that the domain had screens with passwords, which are not known any more then.
	Replacing, Closed bool
	// Volumes are where the volumes were found or made when the domain was defined.
	Volumes []Volume
	// Assignment is what was chosen on the host when the domain was defined.
	Assignment Assignment
	// Kept is what an adopted domain was before; nil for one that gitvirt made.
	Kept *Kept
}

// Made returns the address that everything of the domain derives from which derives from an address.
func (r *Record) Made() schemas.Address {
	if r.Origin.IsZero() {
		return r.Address
	}
	return r.Origin
}

// DomainName returns the name of the domain that the record is for.
func (r *Record) DomainName() string {
	if r.Domain != "" {
		return r.Domain
	}
	return DomainName(r.Made())
}

// IsFor reports whether the record is for the domain that carries it: a copy of a domain (virt-clone) carries the record of another one.
func (r *Record) IsFor(name, uuid string) bool {
	return r.DomainName() == name && (r.UUID == "" || strings.EqualFold(r.UUID, uuid))
}

// Was reports whether the VM had an address before.
func (r *Record) Was(address schemas.Address) bool { return slices.Contains(r.Former, address) }

// Machine is the VM that the record stands for, with a spec that is the record's or is to become it.
func (r *Record) Machine(spec *kubevirtv1.VirtualMachineInstanceSpec, host Host) Machine {
	host.Assignment = r.Assignment
	return Machine{Address: r.Made(), Name: r.Domain, UUID: r.UUID, Spec: spec, Host: host, Volumes: r.Volumes, Kept: r.Kept}
}

// volumeXML is how a Volume is read; write writes it.
type volumeXML struct {
	Name          string `xml:"name,attr"`
	Kind          string `xml:"kind,attr"`
	Path          string `xml:"path,attr"`
	Block         bool   `xml:"block,attr,omitempty"`
	Format        string `xml:"format,attr,omitempty"`
	Capacity      int64  `xml:"capacity,attr,omitempty"`
	Cached        bool   `xml:"cached,attr,omitempty"`
	Backing       string `xml:"backing,attr,omitempty"`
	BackingFormat string `xml:"backing-format,attr,omitempty"`
	LogicalBlock  uint   `xml:"logical-block,attr,omitempty"`
	PhysicalBlock uint   `xml:"physical-block,attr,omitempty"`
	Initrd        string `xml:"initrd,attr,omitempty"`
	Content       string `xml:"content,attr,omitempty"`
}

// XML returns the record as the element that stands in a domain's metadata.
func (r *Record) XML() (string, error) {
	return r.marshal(MetadataPrefix+":vm", MetadataURI)
}

// Element returns the record without a namespace, for hypervisor.SetMetadata: libvirt puts it in one and refuses an
// element that declares it already.
func (r *Record) Element() (string, error) { return r.marshal("vm", "") }

func (r *Record) marshal(name, namespace string) (string, error) {
	w := xmlWriter{out: make([]byte, 0, 1024+len(r.Spec)+256*len(r.Volumes))}
	if err := r.write(&w, name, namespace); err != nil {
		return "", err
	}
	if w.err != nil {
		return "", fmt.Errorf("writing the record of %s: %w", r.Address, w.err)
	}
	return string(w.out), nil
}

// write appends the record; a value that XML cannot hold is the writer's error.
func (r *Record) write(w *xmlWriter, name, namespace string) error {
	w.start(name, "xmlns:"+MetadataPrefix, namespace, "address", r.Address.String(), "fleet", r.Fleet, "revision", r.Revision,
		"source", r.Source, "hash", r.Hash, "ran", strconv.FormatBool(r.Ran), "stop", r.Stop,
		"pending", number(r.Pending), "native", strings.Join(r.Native, " "), "retired", number(r.Retired),
		"origin", text(r.Origin), "former", addresses(r.Former), "domain", r.Domain, "uuid", r.UUID,
		"replacing", flag(r.Replacing), "closed", flag(r.Closed))
	for i := range r.Volumes {
		volume := &r.Volumes[i]
		w.leaf("volume", "name", volume.Name, "kind", volume.Kind, "path", volume.Path, "block", flag(volume.Block), "format", volume.Format,
			"capacity", number(volume.Capacity), "cached", flag(volume.Cached), "backing", volume.Backing, "backing-format", volume.BackingFormat,
			"logical-block", number(volume.LogicalBlock), "physical-block", number(volume.PhysicalBlock), "initrd", volume.Initrd,
			"content", volume.Content)
	}
	if a := &r.Assignment; a.CPUs != nil || len(a.Devices) > 0 || len(a.Taps) > 0 {
		assignment, err := json.Marshal(r.Assignment)
		if err != nil {
			return fmt.Errorf("writing the record of %s: %w", r.Address, err)
		}
		w.text("assignment", string(assignment))
	}
	if r.Kept != nil {
		kept, err := r.Kept.encode()
		if err != nil {
			return fmt.Errorf("writing the record of %s: %w", r.Address, err)
		}
		w.text("kept", kept)
	}
	w.text("spec", string(r.Spec))
	w.end(name)
	return nil
}

// text is an address as an attribute; the zero address is none.
func text(address schemas.Address) string {
	if address.IsZero() {
		return ""
	}
	return address.String()
}

func addresses(list []schemas.Address) string {
	out := make([]string, len(list))
	for i, address := range list {
		out[i] = address.String()
	}
	return strings.Join(out, " ")
}

func parseAddresses(text string) (list []schemas.Address, err error) {
	for _, field := range strings.Fields(text) {
		address, err := schemas.ParseAddress(field)
		if err != nil {
			return nil, err
		}
		list = append(list, address)
	}
	return list, nil
}

// flag is an attribute that is there when it is true.
func flag(on bool) string {
	if on {
		return "true"
	}
	return ""
}

// number is an attribute that is there when it is not 0.
func number[T uint | int64](n T) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}

// ParseRecord finds and reads gitvirt's record in a domain's XML. Without one it returns ErrForeign.
func ParseRecord(domain string) (*Record, error) {
	decoder := xml.NewDecoder(bytes.NewReader([]byte(domain)))
	depth := 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil, ErrForeign
		}
		if err != nil {
			return nil, fmt.Errorf("reading domain XML: %w", err)
		}
		switch element := token.(type) {
		case xml.StartElement:
			depth++
			if depth == 2 && element.Name.Local == "devices" {
				if err := decoder.Skip(); err != nil {
					return nil, fmt.Errorf("reading domain XML: %w", err)
				}
				depth--
			}
			if depth == 3 && element.Name.Space == MetadataURI && element.Name.Local == "vm" {
				return readRecord(decoder, element)
			}
		case xml.EndElement:
			depth--
		}
	}
}

// attribute takes over one attribute of the record's element.
func (r *Record) attribute(name, value string) (err error) {
	switch name {
	case "address":
		r.Address, err = schemas.ParseAddress(value)
	case "origin":
		r.Origin, err = schemas.ParseAddress(value)
	case "former":
		r.Former, err = parseAddresses(value)
	case "domain":
		r.Domain = value
	case "uuid":
		r.UUID = value
	case "fleet":
		r.Fleet = value
	case "revision":
		r.Revision = value
	case "source":
		r.Source = value
	case "hash":
		r.Hash = value
	case "ran":
		r.Ran, err = strconv.ParseBool(value)
	case "stop":
		r.Stop = value
	case "pending":
		r.Pending, err = strconv.ParseInt(value, 10, 64)
	case "native":
		r.Native = strings.Fields(value)
	case "retired":
		r.Retired, err = strconv.ParseInt(value, 10, 64)
	case "replacing":
		r.Replacing, err = strconv.ParseBool(value)
	case "closed":
		r.Closed, err = strconv.ParseBool(value)
	}
	if err != nil {
		return fmt.Errorf("reading gitvirt's record: %s: %w", name, err)
	}
	return nil
}

func readRecord(decoder *xml.Decoder, start xml.StartElement) (*Record, error) {
	record := &Record{}
	for _, attribute := range start.Attr {
		if err := record.attribute(attribute.Name.Local, attribute.Value); err != nil {
			return nil, err
		}
	}
	var body struct {
		Volumes    []volumeXML `xml:"volume"`
		Assignment string      `xml:"assignment"`
		Kept       string      `xml:"kept"`
		Spec       string      `xml:"spec"`
	}
	if err := decoder.DecodeElement(&body, &start); err != nil {
		return nil, fmt.Errorf("reading gitvirt's record: %w", err)
	}
	if record.Address.IsZero() || record.Hash == "" || body.Spec == "" {
		return nil, errors.New("reading gitvirt's record: it has no address, hash or spec")
	}
	for _, volume := range body.Volumes {
		record.Volumes = append(record.Volumes, Volume(volume))
	}
	if body.Assignment != "" {
		if err := json.Unmarshal([]byte(body.Assignment), &record.Assignment); err != nil {
			return nil, fmt.Errorf("reading gitvirt's record: assignment: %w", err)
		}
	}
	if body.Kept != "" {
		record.Kept = &Kept{}
		if err := json.Unmarshal([]byte(body.Kept), record.Kept); err != nil {
			return nil, fmt.Errorf("reading gitvirt's record: kept: %w", err)
		}
	}
	record.Spec = []byte(body.Spec)
	return record, nil
}
