package schemas

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

// found describes a node in a sentence that begins with "found".
func found(n *yaml.Node, hide bool) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	what := "the text"
	switch tagOf(n) {
	case "!!int", "!!float":
		what = "the number"
	case "!!bool":
		what = "the boolean"
	case "!!null":
		return "nothing"
	}
	if hide {
		return what
	}
	if what == "the text" {
		return what + " " + quoteValue(n.Value)
	}
	return what + " " + strings.Trim(quoteValue(n.Value), `"`)
}

func (d *document) wrongType(n *yaml.Node, wanted, fix string) {
	d.errorAt(n, fmt.Sprintf("wanted %s, found %s", wanted, found(n, d.secret)), fix)
}

// decodeScalar reads a single value into v.
func (d *document) decodeScalar(n *yaml.Node, v reflect.Value, info *typeInfo) {
	if info.shape == shapeCustom || info.shape == shapeAny {
		d.decodeCustom(n, v, info)
		return
	}
	if n.Kind != yaml.ScalarNode {
		d.wrongType(n, info.shape.wanted(), "")
		return
	}
	switch info.shape {
	case shapeString:
		d.decodeString(n, v)
	case shapeBool:
		d.decodeBool(n, v)
	case shapeInt, shapeUint:
		d.decodeInteger(n, v, info)
	case shapeFloat:
		f, err := strconv.ParseFloat(n.Value, 64)
		if tag := tagOf(n); err != nil || (tag != "!!int" && tag != "!!float") {
			d.wrongType(n, info.shape.wanted(), "")
			return
		}
		v.SetFloat(f)
	case shapeBytes:
		d.decodeBytes(n, v)
	case shapeQuantity:
		d.decodeQuantity(n, v)
	}
}

func (d *document) decodeString(n *yaml.Node, v reflect.Value) {
	switch tag := tagOf(n); tag {
	case "!!str", "!!timestamp", "!!binary", "!!merge":
	case "!!int", "!!float", "!!bool":
		d.wrongType(n, shapeString.wanted(), "put it in quotes")
		return
	default:
		d.errorAt(n, fmt.Sprintf("the YAML tag %s is not used in manifests", quoteValue(tag)), "remove the tag")
		return
	}
	if n.Style&yaml.DoubleQuotedStyle != 0 && !d.secret {
		d.checkText(n, n.Value)
	}
	v.SetString(n.Value)
}

// checkText refuses characters that no XML 1.0 document can hold: every string may end up in domain XML.
func (d *document) checkText(n *yaml.Node, s string) {
	if r, bad := illegalInXML(s); bad {
		d.errorAt(n, fmt.Sprintf("holds the character %U, which cannot be part of a domain's XML", r), "remove the character")
	}
}

// illegalInXML returns the first character of s that XML 1.0 does not allow (https://www.w3.org/TR/xml/#charsets).
func illegalInXML(s string) (rune, bool) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c < 0x80 || c == '\t' || c == '\n' || c == '\r' {
			continue
		}
		for _, r := range s[i:] {
			switch {
			case r == '\t', r == '\n', r == '\r', r >= 0x20 && r <= 0xD7FF, r >= 0xE000 && r <= 0xFFFD, r >= 0x10000 && r <= 0x10FFFF:
			default:
				return r, true
			}
		}
		return 0, false
	}
	return 0, false
}

func (d *document) decodeBool(n *yaml.Node, v reflect.Value) {
	if tagOf(n) == "!!bool" {
		v.SetBool(strings.EqualFold(n.Value, "true"))
		return
	}
	fix := ""
	switch strings.ToLower(n.Value) {
	case "yes", "on", "y":
		if n.Style == 0 { // YAML 1.1, which kubectl reads, says that these are booleans
			v.SetBool(true)
			return
		}
		fix = "write true"
	case "no", "off", "n":
		if n.Style == 0 {
			v.SetBool(false)
			return
		}
		fix = "write false"
	case "true", "false":
		fix = "remove the quotes"
	}
	d.wrongType(n, shapeBool.wanted(), fix)
}

func (d *document) decodeInteger(n *yaml.Node, v reflect.Value, info *typeInfo) {
	digits := strings.ReplaceAll(n.Value, "_", "")
	// what does not fit into 64 bits is a float to YAML
	tooLong := tagOf(n) == "!!float" && strings.Trim(strings.TrimLeft(digits, "+-"), "0123456789") == ""
	if tagOf(n) != "!!int" && !tooLong {
		fix := ""
		if _, err := strconv.ParseInt(n.Value, 10, 64); err == nil && tagOf(n) == "!!str" {
			fix = "remove the quotes"
		}
		if f, err := strconv.ParseFloat(digits, 64); err == nil && tagOf(n) == "!!float" && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			fix = fmt.Sprintf("write %.0f", f)
		}
		d.wrongType(n, info.shape.wanted(), fix)
		return
	}
	bits := info.typ.Bits()
	var err error
	if info.shape == shapeInt {
		var i int64
		if i, err = strconv.ParseInt(digits, 0, bits); err == nil {
			v.SetInt(i)
			return
		}
	} else {
		var u uint64
		if u, err = strconv.ParseUint(strings.TrimPrefix(digits, "+"), 0, bits); err == nil {
			v.SetUint(u)
			return
		}
		if strings.HasPrefix(digits, "-") {
			d.errorAt(n, fmt.Sprintf("%s is negative", n.Value), "use a number from 0 on")
			return
		}
	}
	if errors.Is(err, strconv.ErrRange) {
		limit := "at most " + strconv.FormatUint(math.MaxUint64>>(64-bits), 10)
		if info.shape == shapeInt {
			limit = fmt.Sprintf("between %d and %d", int64(math.MinInt64)>>(64-bits), int64(math.MaxInt64)>>(64-bits))
		}
		d.errorAt(n, fmt.Sprintf("%s does not fit: it must be %s", n.Value, limit), "")
		return
	}
	d.wrongType(n, info.shape.wanted(), "")
}

func (d *document) decodeBytes(n *yaml.Node, v reflect.Value) {
	if tag := tagOf(n); tag != "!!str" && tag != "!!binary" {
		d.wrongType(n, shapeBytes.wanted(), "put it in quotes")
		return
	}
	decoded, err := decodeBase64(n.Value)
	if err != nil {
		d.errorAt(n, "is not base64", "encode the value (base64 -w0), or put it as it is under stringData")
		return
	}
	v.SetBytes(decoded)
}

// decodeBase64 reads standard base64; line breaks in it are allowed, as in YAML block scalars.
func decodeBase64(s string) ([]byte, error) {
	return base64.StdEncoding.DecodeString(s)
}

func (d *document) decodeQuantity(n *yaml.Node, v reflect.Value) {
	switch tagOf(n) {
	case "!!str", "!!int", "!!float":
	default:
		d.wrongType(n, shapeQuantity.wanted(), "")
		return
	}
	q, err := resource.ParseQuantity(n.Value)
	if err != nil || !strings.ContainsAny(n.Value, "0123456789") { // a unit alone passes for 0
		message, fix := explainQuantity(n.Value)
		d.errorAt(n, message, fix)
		return
	}
	if q.CmpInt64(math.MaxInt64) >= 0 || q.CmpInt64(-math.MaxInt64) <= 0 {
		d.errorAt(n, fmt.Sprintf("%s does not fit: it must be below 8Ei", quoteValue(n.Value)), "use a smaller quantity")
		return
	}
	v.Set(reflect.ValueOf(q))
}

// explainQuantity says what is wrong with text that is no quantity.
func explainQuantity(s string) (message, fix string) {
	const units = "the units are Ki, Mi, Gi, Ti (powers of 1024) and k, M, G, T (powers of 1000)"
	trimmed := strings.TrimSpace(s)
	end := strings.IndexFunc(trimmed, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != '-' && r != '+' })
	if trimmed == "" || end <= 0 {
		return fmt.Sprintf("%s is not a quantity", quoteValue(s)), "write a number with a unit, such as 512Mi or 2Gi"
	}
	number, unit := trimmed[:end], strings.TrimSpace(trimmed[end:])
	if strings.ContainsFunc(unit, func(r rune) bool { return !unicode.IsLetter(r) && r != ' ' }) || strings.Trim(number, "+-.") == "" {
		return fmt.Sprintf("%s is not a quantity", quoteValue(s)), "write a number with a unit, such as 512Mi or 2Gi"
	}
	meant := map[string]string{
		"kb": "k", "kib": "Ki", "ki": "Ki", "mb": "M", "mib": "Mi", "mi": "Mi", "gb": "G", "gib": "Gi", "gi": "Gi", "g": "G",
		"tb": "T", "tib": "Ti", "ti": "Ti", "t": "T", "k": "k", "m": "M", "b": "", "bytes": "",
	}
	if suffix, ok := meant[strings.ToLower(unit)]; ok {
		return fmt.Sprintf("%s is not a quantity", quoteValue(s)), fmt.Sprintf("did you mean %s%s?", number, suffix)
	}
	return fmt.Sprintf("%s has the unknown unit %s", quoteValue(s), quoteValue(unit)), units
}

// decodeCustom reads a type that knows its own JSON form.
func (d *document) decodeCustom(n *yaml.Node, v reflect.Value, info *typeInfo) {
	plain, ok := d.plain(n)
	if !ok {
		return
	}
	encoded, err := json.Marshal(plain)
	if err == nil {
		err = json.Unmarshal(encoded, v.Addr().Interface())
	}
	if err != nil {
		if info.typ == reflect.TypeFor[Duration]() {
			d.errorAt(n, fmt.Sprintf("wanted a duration, found %s", found(n, d.secret)), "write a number with a unit, such as 30s or 5m")
			return
		}
		d.errorAt(n, fmt.Sprintf("%s is not valid here", found(n, d.secret)), "KubeVirt reads it as "+info.typ.Name())
	}
}

// plain turns a node into what encoding/json would have read.
func (d *document) plain(n *yaml.Node) (any, bool) {
	n = resolve(n)
	if !d.spend(n) {
		return nil, false
	}
	switch n.Kind {
	case yaml.MappingNode:
		object := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := resolve(n.Content[i])
			d.push(key.Value)
			value, ok := d.plain(n.Content[i+1])
			d.pop()
			if !ok {
				return nil, false
			}
			object[key.Value] = value
		}
		return object, true
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			d.pushIndex(i)
			value, ok := d.plain(item)
			d.pop()
			if !ok {
				return nil, false
			}
			list[i] = value
		}
		return list, true
	}
	switch tagOf(n) {
	case "!!null":
		return nil, true
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), true
	case "!!int":
		if i, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64); err == nil {
			return i, true
		}
	case "!!float":
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f, true
		}
	}
	return n.Value, true
}
