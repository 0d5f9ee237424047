package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// appendJSON appends a value of a change as encoding/json writes it: most are short and plain, and a plan has thousands of them.
func appendJSON(buf []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(buf, "null"...)
	case bool:
		return strconv.AppendBool(buf, v)
	case float64:
		if whole := int64(v); float64(whole) == v && whole < 1e15 && !math.Signbit(v) {
			return strconv.AppendInt(buf, whole, 10)
		}
	case string:
		return appendQuoted(buf, v)
	case []any:
		if v == nil {
			break
		}
		buf = append(buf, '[')
		for i, element := range v {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = appendJSON(buf, element)
		}
		return append(buf, ']')
	case map[string]any:
		if v == nil {
			break
		}
		buf = append(buf, '{')
		var few [8]string
		for i, key := range sortedKeys(few[:0], v) {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = append(appendQuoted(buf, key), ':')
			buf = appendJSON(buf, v[key])
		}
		return append(buf, '}')
	}
	return appendOther(buf, value)
}

func appendQuoted(buf []byte, text string) []byte {
	if !plainText(text) {
		return appendOther(buf, text)
	}
	return append(append(append(buf, '"'), text...), '"')
}

func appendOther(buf []byte, value any) []byte {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Append(buf, value) // cannot happen for what JSON has
	}
	return append(buf, encoded...)
}

// plainText reports whether a string stands in JSON as it is.
func plainText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// sortedKeys appends the keys of a mapping, in order.
func sortedKeys(keys []string, m map[string]any) []string {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
