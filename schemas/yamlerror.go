package schemas

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// explainYAML turns an error of the YAML parser into a place (line of the document and column, from 1) and a message
// for people. The parser tells the line in its text only, and often that of the mapping or list around the mistake.
func explainYAML(text []byte, err error) (line, column int, message, fix string) {
	message = strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		if number, what, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				line, message = n, what
			}
		}
	}
	if at, col := tabIndentation(text, max(line, 1)); at > 0 {
		return at, col, "the line is indented with a tab", "YAML allows only spaces there"
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	line = min(max(line, 1), len(lines))
	if len(text) <= maxBisected {
		if first := firstBroken(lines); first > 0 {
			line = first
		}
	}
	at := lines[line-1]
	if _, rest, ok := strings.Cut(message, "unknown anchor '"); ok {
		name, _, _ := strings.Cut(rest, "'")
		return line, columnAt(at, bytes.Index(at, []byte("*"+name))), "not valid YAML: the alias *" + printable(name) + " has no anchor in this document", "define it (&" + printable(name) + ") earlier in the same document"
	}
	for _, known := range yamlMessages() {
		if strings.Contains(message, known.is) {
			offset := -1
			if known.at != "" {
				offset = bytes.LastIndexAny(bytes.TrimRight(at, " \r\n"), known.at)
			}
			return line, columnAt(at, offset), "not valid YAML: " + known.say, known.fix
		}
	}
	return line, columnAt(at, -1), "not valid YAML: " + message, ""
}

// The text, in bytes, that is parsed again to find the line of a mistake: how long it may be, and how often as much as
// it is long may be parsed.
const (
	maxBisected  = 64 << 10
	maxReparsing = 30
)

// firstBroken returns the number of the line, from 1, up to which the text cannot be parsed, though it can be without
// that line; 0 when that takes too long. What spans several lines, such as a long quoted text, cannot be parsed in the
// middle either; so it is tried further down as well.
func firstBroken(lines [][]byte) int {
	text := bytes.Join(lines, nil)
	ends := make([]int, len(lines)+1)
	for i, line := range lines {
		ends[i+1] = ends[i] + len(line)
	}
	budget := maxReparsing * len(text)
	parses := func(count int) bool {
		budget -= ends[count]
		var node yaml.Node
		return budget >= 0 && yaml.Unmarshal(text[:ends[count]], &node) == nil
	}
	good, bad := 0, len(lines)
	for budget >= 0 {
		for bad-good > 1 {
			if middle := (good + bad) / 2; parses(middle) {
				good = middle
			} else {
				bad = middle
			}
		}
		further := 0
		for step := 2; good+step < len(lines) && further == 0 && budget >= 0; step += max(1, step/2) {
			if parses(good + step) {
				further = good + step
			}
		}
		if further == 0 && budget >= 0 {
			return min(good+1, len(lines))
		}
		good, bad = max(good, further), len(lines)
	}
	return 0
}

// columnAt turns an offset in a line into a column; a negative one means where the text of the line begins.
func columnAt(line []byte, offset int) int {
	if offset < 0 {
		offset = len(line) - len(bytes.TrimLeft(line, " "))
		if offset == len(line) {
			offset = 0
		}
	}
	return utf8.RuneCount(line[:offset]) + 1
}

// yamlMessage is a message of the parser, what to say instead, and the characters at the last of which on the line the
// mistake is; none means where the line begins.
type yamlMessage struct{ is, say, fix, at string }

// yamlMessages rewords what the parser says most often.
func yamlMessages() []yamlMessage {
	return []yamlMessage{
		{"mapping values are not allowed in this context", "a colon where none can be", "check the indentation, or put the value in quotes", ":"},
		{"did not find expected key", "a key is missing or indented differently from its neighbours", "check the indentation here and above", ""},
		{"did not find expected '-' indicator", "an entry of a list does not begin with a dash", "check the indentation here and above", ""},
		{"could not find expected ':'", "a key without a colon", "write key: value, or check the indentation and the quotes above", ""},
		{"found character that cannot start any token", "a character that no value can begin with", "put the value in quotes", "@`%"},
		{"found unexpected end of stream", "a quote or bracket is not closed", "close it", "\"'"},
		{"did not find expected ',' or ']'", "a list in brackets is not closed", "close it with ]", "["},
		{"did not find expected ',' or '}'", "a mapping in braces is not closed", "close it with }", "{"},
		{"did not find expected node content", "a value is missing, or a bracket is not closed", "write the value, or close the bracket", "[{"},
		{"found unknown escape character", "an unknown escape after a backslash", "double the backslash, or use single quotes", "\\"},
		{"found undefined tag handle", "an unknown tag", "remove the tag, or put the value in quotes", "!"},
		{"control characters are not allowed", "a control character", "remove it", ""},
		{"exceeded max depth", "nested too deeply", "flatten it", ""},
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
