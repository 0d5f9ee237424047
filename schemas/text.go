package schemas

import (
	"fmt"
	"path"
	"strings"
)

// isToken tells text of the characters that libvirt takes in serial numbers and machine types: [A-Za-z0-9_.+-].
func isToken(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '+', c == '-':
		default:
			return false
		}
	}
	return s != ""
}

// pathProblem says why p is not the absolute path of a file; "" when it is.
func pathProblem(p string) string {
	switch {
	case !strings.HasPrefix(p, "/"):
		return quoteValue(p) + " is not an absolute path"
	case hasDotDot(p):
		return quoteValue(p) + " climbs up with .."
	case p == "/" || strings.HasSuffix(p, "/"):
		return quoteValue(p) + " is a directory, not a file"
	case path.Clean(p) != p:
		return fmt.Sprintf("%s is not clean, it means %s", quoteValue(p), quoteValue(path.Clean(p)))
	case len(p) > 4095:
		return "the path is longer than 4095 bytes"
	}
	for _, r := range p {
		if r < 0x20 || r == 0x7f {
			return "the path holds a control character"
		}
	}
	return ""
}

func hasDotDot(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// imageProblem says why s cannot be the reference of an image; "" when it can.
func imageProblem(s string) string {
	if strings.ContainsAny(s, " \t\r\n\"'<>") {
		return quoteValue(s) + " is not an image reference"
	}
	if strings.HasPrefix(s, "docker://") {
		return quoteValue(s) + " has a scheme, image references have none"
	}
	return ""
}
