package fake

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// definition is a domain's XML that was looked through.
type definition struct {
	name string
	uuid string // canonical
	xml  string // with a uuid, if it had none
}

// children are the elements that libvirt's schema (domain.rng) knows directly below <domain>, those of namespaces aside.
var children = map[string]bool{
	"name": true, "uuid": true, "genid": true, "hwuuid": true, "title": true, "description": true, "metadata": true,
	"bootloader": true, "bootloader_args": true, "os": true, "idmap": true, "cpu": true, "sysinfo": true,
	"memory": true, "maxMemory": true, "currentMemory": true, "memoryBacking": true, "memtune": true, "numatune": true,
	"vcpu": true, "vcpus": true, "iothreads": true, "iothreadids": true, "defaultiothread": true, "cputune": true,
	"blkiotune": true, "resource": true, "throttlegroups": true, "features": true, "clock": true, "perf": true,
	"on_poweroff": true, "on_reboot": true, "on_crash": true, "on_lockfailure": true, "pm": true, "devices": true,
	"seclabel": true, "keywrap": true, "launchSecurity": true,
}

// parse reads a definition and refuses what libvirt refuses of its outline.
func parse(text string) (definition, error) {
	var domain struct {
		XMLName xml.Name
		Type    string `xml:"type,attr"`
		Name    string `xml:"name"`
		UUID    string `xml:"uuid"`
		Others  []struct {
			XMLName xml.Name
		} `xml:",any"`
	}
	decoder := xml.NewDecoder(strings.NewReader(text))
	if err := decoder.Decode(&domain); err != nil {
		return definition{}, err
	}
	d := definition{name: domain.Name, xml: text}
	if domain.XMLName.Local != "domain" {
		return d, fmt.Errorf("the root element is <%s>, not <domain>", domain.XMLName.Local)
	}
	if domain.Type == "" {
		return d, errors.New("the domain has no type")
	}
	if d.name == "" || strings.ContainsAny(d.name, "/\n") {
		return d, fmt.Errorf("%q is not a name", d.name)
	}
	for _, other := range domain.Others {
		if other.XMLName.Space == "" && !children[other.XMLName.Local] {
			return d, fmt.Errorf("the schema has no element <%s> here", other.XMLName.Local)
		}
	}
	if domain.UUID == "" {
		d.uuid = uuid.NewString()
		d.xml = insertUUID(text, d.uuid)
		return d, nil
	}
	id, err := uuid.Parse(strings.TrimSpace(domain.UUID))
	if err != nil {
		return d, fmt.Errorf("%q is not a UUID", domain.UUID)
	}
	d.uuid = id.String()
	return d, nil
}

// insertUUID puts a UUID behind the name, where libvirt writes it.
func insertUUID(text, id string) string {
	const after = "</name>"
	at := strings.Index(text, after)
	if at < 0 {
		return text // parse found a name, so this is a name written in a way that nobody writes
	}
	at += len(after)
	return text[:at] + "<uuid>" + id + "</uuid>" + text[at:]
}

// withID gives the root element the id of a running domain.
func withID(text, id string) string {
	return strings.Replace(text, "<domain", "<domain id='"+id+"'", 1)
}

// qualify does to a metadata element what libvirt does (virXMLInjectNamespace): the root declares the namespace, and what has
// no namespace gets this one with its prefix. No element gives "".
func qualify(text, prefix, uri string) (string, error) {
	if text == "" {
		return "", nil
	}
	decoder := xml.NewDecoder(strings.NewReader(text))
	var out bytes.Buffer
	depth, roots := 0, 0
	for {
		token, err := decoder.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		switch token := token.(type) {
		case xml.StartElement:
			if depth == 0 {
				roots++
				if declares(token, prefix) {
					return "", fmt.Errorf("failed to create a new XML namespace: the element declares the prefix %q itself", prefix)
				}
				token.Attr = append([]xml.Attr{{Name: xml.Name{Space: "xmlns", Local: prefix}, Value: uri}}, token.Attr...)
			}
			depth++
			writeStart(&out, token, prefix)
		case xml.EndElement:
			depth--
			out.WriteString("</" + qualified(token.Name, prefix) + ">")
		case xml.CharData:
			writeText(&out, string(token))
		}
	}
	if roots != 1 || depth != 0 {
		return "", fmt.Errorf("metadata is one element, not %d", roots)
	}
	// RawToken does not check what it passes on; this does.
	return out.String(), xml.Unmarshal(out.Bytes(), new(struct{ XMLName xml.Name }))
}

// declares reports whether an element declares a prefix, which libvirt refuses where it declares it itself.
func declares(element xml.StartElement, prefix string) bool {
	return slices.ContainsFunc(element.Attr, func(attribute xml.Attr) bool {
		return attribute.Name.Space == "xmlns" && attribute.Name.Local == prefix
	})
}

func writeStart(out *bytes.Buffer, element xml.StartElement, prefix string) {
	out.WriteString("<" + qualified(element.Name, prefix))
	for _, attr := range element.Attr {
		name := attr.Name.Local
		if attr.Name.Space != "" {
			name = attr.Name.Space + ":" + name
		}
		out.WriteString(" " + name + `="`)
		writeText(out, attr.Value)
		out.WriteString(`"`)
	}
	out.WriteString(">")
}

func writeText(out *bytes.Buffer, text string) { _ = xml.EscapeText(out, []byte(text)) } // a Buffer never fails

func qualified(name xml.Name, prefix string) string {
	if name.Space == "" {
		return prefix + ":" + name.Local
	}
	return name.Space + ":" + name.Local
}

// replaceMetadata puts an element, or nothing, in place of the metadata element of a namespace.
func replaceMetadata(text, uri, element string) string {
	outline := outlineOf(text, uri)
	switch {
	case outline.own.end > 0:
		return text[:outline.own.start] + element + text[outline.own.end:]
	case element == "":
		return text
	case outline.metadata.end > 0 && outline.inside == outline.metadata.end: // <metadata/>
		return text[:outline.metadata.start] + "<metadata>" + element + "</metadata>" + text[outline.metadata.end:]
	case outline.metadata.end > 0:
		return text[:outline.inside] + element + text[outline.inside:]
	default:
		at := strings.LastIndex(text, "</domain>")
		return text[:at] + "<metadata>" + element + "</metadata>" + text[at:]
	}
}

// span is a part of a text, from byte to byte.
type span struct{ start, end int64 }

// outline says where metadata is in a definition.
type outline struct {
	metadata span  // <metadata>...</metadata>
	inside   int64 // after <metadata>
	own      span  // the element of the namespace that was asked for
}

func outlineOf(text, uri string) outline {
	var o outline
	decoder := xml.NewDecoder(strings.NewReader(text))
	for depth := 0; ; {
		start := decoder.InputOffset()
		token, err := decoder.Token()
		if err != nil {
			return o // the definition was read before: this is its end
		}
		switch token := token.(type) {
		case xml.StartElement:
			depth++
			if depth == 2 && token.Name.Local == "metadata" {
				o.metadata.start, o.inside = start, decoder.InputOffset()
			}
			if depth == 3 && o.inside > 0 && o.metadata.end == 0 && token.Name.Space == uri {
				o.own.start = start
				if decoder.Skip() != nil {
					return o
				}
				depth--
				o.own.end = decoder.InputOffset()
			}
		case xml.EndElement:
			if depth == 2 && o.inside > 0 && o.metadata.end == 0 {
				o.metadata.end = decoder.InputOffset()
			}
			depth--
		}
	}
}

var passwordPattern = regexp.MustCompile(` passwd=("[^"]*"|'[^']*')`)

// withoutPasswords is a definition as libvirt tells it.
func withoutPasswords(text string) string {
	if !strings.Contains(text, " passwd=") {
		return text
	}
	return passwordPattern.ReplaceAllString(text, "")
}
