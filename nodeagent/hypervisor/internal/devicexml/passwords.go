package devicexml

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// screen is a <graphics> element of a definition.
type screen struct {
	kind     string // "vnc"
	password string
	has      bool // a password, which may be empty: that lets nobody in
	// inside is where its start tag ends, before "/>" or ">".
	inside int
}

// KeepPasswords gives the screens of a definition the passwords that those of another one have, where it says nothing of a
// password itself. Screens have no names: the second of a kind is the second of that kind. Errors quote nothing of the texts.
func KeepPasswords(definition, before string) (string, error) {
	if !strings.Contains(before, " passwd=") {
		return definition, nil
	}
	had, err := screens(before)
	if err != nil {
		return "", err
	}
	have, err := screens(definition)
	if err != nil {
		return "", err
	}
	for i, now := range slices.Backward(have) {
		earlier := len(slices.DeleteFunc(slices.Clone(have[:i]), func(s screen) bool { return s.kind != now.kind }))
		same := slices.DeleteFunc(slices.Clone(had), func(s screen) bool { return s.kind != now.kind })
		if now.has || earlier >= len(same) || !same[earlier].has {
			continue
		}
		var attribute strings.Builder
		attribute.WriteString(` passwd="`)
		_ = xml.EscapeText(&attribute, []byte(same[earlier].password)) // a strings.Builder takes everything
		attribute.WriteString(`"`)
		definition = definition[:now.inside] + attribute.String() + definition[now.inside:]
	}
	return definition, nil
}

// HasPasswords reports whether a screen of a definition has a password.
func HasPasswords(definition string) (bool, error) {
	found, err := screens(definition)
	return slices.ContainsFunc(found, func(s screen) bool { return s.has }), err
}

// screens finds the screens of a domain.
func screens(definition string) ([]screen, error) {
	decoder := xml.NewDecoder(strings.NewReader(definition))
	var out []screen
	for depth := 0; ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("looking for screens: %w", NotXML(decoder))
		}
		switch token := token.(type) {
		case xml.StartElement:
			if depth++; depth != 3 || token.Name.Local != "graphics" {
				continue
			}
			end := int(decoder.InputOffset()) - 1
			if definition[end-1] == '/' {
				end--
			}
			found := screen{inside: end}
			for _, attribute := range token.Attr {
				switch attribute.Name.Local {
				case "type":
					found.kind = attribute.Value
				case "passwd":
					found.password, found.has = attribute.Value, true
				}
			}
			out = append(out, found)
		case xml.EndElement:
			depth--
		}
	}
}
