package domainxml

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

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
	Address schemas.Address
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
	// Volumes are where the volumes were found or made when the domain was defined.
	Volumes []Volume
	// Assignment is what was chosen on the host when the domain was defined.
	Assignment Assignment
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
		"pending", number(r.Pending), "native", strings.Join(r.Native, " "), "retired", number(r.Retired))
	for i := range r.Volumes {
		volume := &r.Volumes[i]
		w.leaf("volume", "name", volume.Name, "kind", volume.Kind, "path", volume.Path, "block", flag(volume.Block), "format", volume.Format,
			"capacity", number(volume.Capacity), "cached", flag(volume.Cached), "backing", volume.Backing, "backing-format", volume.BackingFormat,
			"logical-block", number(volume.LogicalBlock), "physical-block", number(volume.PhysicalBlock), "initrd", volume.Initrd)
	}
	if r.Assignment.CPUs != nil || len(r.Assignment.Devices) > 0 {
		assignment, err := json.Marshal(r.Assignment)
		if err != nil {
			return fmt.Errorf("writing the record of %s: %w", r.Address, err)
		}
		w.text("assignment", string(assignment))
	}
	w.text("spec", string(r.Spec))
	w.end(name)
	return nil
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

func readRecord(decoder *xml.Decoder, start xml.StartElement) (*Record, error) {
	record := &Record{}
	var err error
	for _, attribute := range start.Attr {
		switch attribute.Name.Local {
		case "address":
			if record.Address, err = schemas.ParseAddress(attribute.Value); err != nil {
				return nil, fmt.Errorf("reading gitvirt's record: %w", err)
			}
		case "fleet":
			record.Fleet = attribute.Value
		case "revision":
			record.Revision = attribute.Value
		case "source":
			record.Source = attribute.Value
		case "hash":
			record.Hash = attribute.Value
		case "ran":
			if record.Ran, err = strconv.ParseBool(attribute.Value); err != nil {
				return nil, fmt.Errorf("reading gitvirt's record: ran: %w", err)
			}
		case "stop":
			record.Stop = attribute.Value
		case "pending":
			if record.Pending, err = strconv.ParseInt(attribute.Value, 10, 64); err != nil {
				return nil, fmt.Errorf("reading gitvirt's record: pending: %w", err)
			}
		case "native":
			record.Native = strings.Fields(attribute.Value)
		case "retired":
			if record.Retired, err = strconv.ParseInt(attribute.Value, 10, 64); err != nil {
				return nil, fmt.Errorf("reading gitvirt's record: retired: %w", err)
			}
		}
	}
	var body struct {
		Volumes    []volumeXML `xml:"volume"`
		Assignment string      `xml:"assignment"`
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
	record.Spec = []byte(body.Spec)
	return record, nil
}
