package schemas

import (
	"bytes"
	"strconv"
	"strings"
)

// explainYAML turns an error of the YAML parser into a place (line of the document and column, from 1) and a message
// for people. The parser tells the line in its text only.
func explainYAML(text []byte, err error) (line, column int, message, fix string) {
	message = strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		if number, what, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				line, message = n, what
			}
		}
	}
	if _, rest, ok := strings.Cut(message, "unknown anchor '"); ok {
		name, _, _ := strings.Cut(rest, "'")
		if at := bytes.Index(text, []byte("*"+name)); at >= 0 {
			line = 1 + bytes.Count(text[:at], []byte("\n"))
		}
		return max(line, 1), 0, "not valid YAML: the alias *" + printable(name) + " has no anchor in this document", "define it (&" + printable(name) + ") earlier in the same document"
	}
	line = max(line, 1)
	if at, col := tabIndentation(text, line); at > 0 {
		return at, col, "the line is indented with a tab", "YAML allows only spaces there"
	}
	for _, known := range yamlMessages() {
		if strings.Contains(message, known.is) {
			return line, 0, "not valid YAML: " + known.say, known.fix
		}
	}
	return line, 0, "not valid YAML: " + message, ""
}

type yamlMessage struct{ is, say, fix string }

// yamlMessages rewords what the parser says most often.
func yamlMessages() []yamlMessage {
	return []yamlMessage{
		{"mapping values are not allowed in this context", "a colon where none can be", "check the indentation, or put the value in quotes"},
		{"did not find expected key", "a key is missing or indented differently from its neighbours", "check the indentation here and above"},
		{"did not find expected '-' indicator", "an entry of a list does not begin with a dash", "check the indentation here and above"},
		{"could not find expected ':'", "a key without a colon", "write key: value, or check the indentation and the quotes above"},
		{"found character that cannot start any token", "a character that no value can begin with", "put the value in quotes"},
		{"found unexpected end of stream", "a quote or bracket is not closed", "close it"},
		{"did not find expected ',' or ']'", "a list in brackets is not closed", "close it with ]"},
		{"did not find expected ',' or '}'", "a mapping in braces is not closed", "close it with }"},
		{"found unknown escape character", "an unknown escape after a backslash", "double the backslash, or use single quotes"},
		{"found undefined tag handle", "an unknown tag", "remove the tag, or put the value in quotes"},
		{"control characters are not allowed", "a control character", "remove it"},
		{"exceeded max depth", "nested too deeply", "flatten it"},
	}
}

// tabIndentation finds the line, at or just before the one the parser stopped at, that has a tab in its indentation.
func tabIndentation(text []byte, near int) (line, column int) {
	number := 0
	for rest := text; len(rest) > 0; {
		var this []byte
		this, rest, _ = bytes.Cut(rest, []byte("\n"))
		number++
		indent := this[:len(this)-len(bytes.TrimLeft(this, " \t"))]
		tab := bytes.IndexByte(indent, '\t')
		if tab >= 0 && len(bytes.TrimSpace(this)) > 0 && number >= near-1 {
			if number > near+1 {
				return 0, 0
			}
			return number, tab + 1
		}
	}
	return 0, 0
}
