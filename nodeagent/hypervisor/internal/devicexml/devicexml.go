// Package devicexml finds devices in domain XML by what names them, as libvirt and its operators do: a disk by its target, an
// interface by its MAC address, anything else by its alias. It knows no more of a device than that.
package devicexml

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Device is one device of a domain, or an element that names one.
type Device struct {
	Kind   string // the element's name, such as "disk"
	Target string // of a disk, such as "vda"
	MAC    string // of an interface, in lower case
	Alias  string
	// Start and End are where the element is in the text that it was read from, in bytes.
	Start, End int64
}

// element is what names a device.
type element struct {
	XMLName xml.Name
	Target  struct {
		Dev string `xml:"dev,attr"`
	} `xml:"target"`
	MAC struct {
		Address string `xml:"address,attr"`
	} `xml:"mac"`
	Alias struct {
		Name string `xml:"name,attr"`
	} `xml:"alias"`
}

func (e *element) device() Device {
	d := Device{Kind: e.XMLName.Local, Alias: e.Alias.Name}
	switch d.Kind {
	case "disk":
		d.Target = e.Target.Dev
	case "interface":
		d.MAC = strings.ToLower(e.MAC.Address)
	}
	return d
}

// Parse reads the element of one device. An error says where the text is wrong and quotes nothing of it, which may hold a
// password.
func Parse(text string) (Device, error) {
	decoder := xml.NewDecoder(strings.NewReader(text))
	var e element
	if err := decoder.Decode(&e); err != nil {
		return Device{}, NotXML(decoder)
	}
	d := e.device()
	d.End = decoder.InputOffset()
	if strings.TrimSpace(text[d.End:]) != "" {
		return Device{}, errors.New("there is more than one element")
	}
	return d, nil
}

// NotXML says where a decoder gave up.
func NotXML(decoder *xml.Decoder) error {
	line, column := decoder.InputPos()
	return fmt.Errorf("it is not XML: line %d, column %d", line, column)
}

// List returns the devices of a domain in their order.
func List(domain string) ([]Device, error) {
	decoder := xml.NewDecoder(strings.NewReader(domain))
	var found []Device
	inDevices := false
	for depth := 0; ; {
		at := decoder.InputOffset()
		token, err := decoder.Token()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return found, nil
			}
			return nil, NotXML(decoder)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if depth == 2 && inDevices {
				var e element
				if err := decoder.DecodeElement(&e, &token); err != nil {
					return nil, NotXML(decoder)
				}
				d := e.device()
				d.Start, d.End = at, decoder.InputOffset()
				found = append(found, d)
				continue
			}
			depth++
			inDevices = depth == 2 && token.Name.Local == "devices"
		case xml.EndElement:
			depth--
			inDevices = inDevices && depth >= 2
		}
	}
}

// Named reports whether there is anything that names the device.
func (d *Device) Named() bool { return d.Target != "" || d.MAC != "" || d.Alias != "" }

// Find returns the device of a list that another one names.
func Find(list []Device, named *Device) (Device, bool) {
	for _, d := range list {
		if d.Kind != named.Kind {
			continue
		}
		same := named.Alias != "" && d.Alias == named.Alias
		switch {
		case named.Target != "":
			same = d.Target == named.Target
		case named.MAC != "":
			same = d.MAC == named.MAC
		}
		if same {
			return d, true
		}
	}
	return Device{}, false
}

// assigned are the elements that libvirt gives a device when it has none: what it is called and where it is.
var assigned = []*regexp.Regexp{regexp.MustCompile(`<alias\s[^>]*>`), regexp.MustCompile(`<address\s[^>]*>`)}

// KeepAssigned returns a device with what libvirt assigned to the old one, where it does not say so itself.
func KeepAssigned(old, device string) string {
	for _, element := range assigned {
		if !element.MatchString(device) {
			device = Append(device, element.FindString(old))
		}
	}
	return device
}

// Append puts elements at the end of a device's element.
func Append(device, elements string) string {
	device = strings.TrimSpace(device)
	if elements == "" {
		return device
	}
	if open, empty := strings.CutSuffix(device, "/>"); empty && strings.Count(device, "<") == 1 {
		kind, _, _ := strings.Cut(strings.TrimPrefix(open, "<"), " ")
		return open + ">" + elements + "</" + kind + ">"
	}
	at := strings.LastIndex(device, "</")
	return device[:at] + elements + device[at:]
}
