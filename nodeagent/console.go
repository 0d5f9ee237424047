package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"unicode"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// The bounds of what is shown of a console.
const (
	consoleTail      = 64 << 10 // bytes that are looked at
	consoleLines     = 500
	consoleLineLimit = 500 // bytes of one line
)

// ReadConsole returns the last lines of a guest's serial console, without what moves a terminal's cursor.
func (a *Agent) ReadConsole(ctx context.Context, request *api.ReadConsoleRequest) ([]string, error) {
	address, name, err := a.find(request.GetAddress(), request.GetDomain())
	if err != nil {
		return nil, err
	}
	if a.view.has(name, address) {
		address = a.view.get(name).record.Made() // the file keeps the name that the domain was made under
	}
	text, err := a.volumes.console(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("reading the console of %s: %w", address, err)
	}
	return lastLines(text, min(int(request.GetLines()), consoleLines)), nil
}

// console implements volumeStore. The folder belongs to root; a link in it would be somebody's who should not be there.
func (v *hostVolumes) console(_ context.Context, address schemas.Address) (string, error) {
	file, err := os.OpenFile(v.files.ConsoleLog(address), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	return tail(file, consoleTail)
}

// tail reads the end of a file; the first line of it is left out when it is only the end of one.
func tail(file *os.File, limit int64) (string, error) {
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("it is no regular file")
	}
	from := max(info.Size()-limit, 0)
	content, err := io.ReadAll(io.NewSectionReader(file, from, limit))
	if err != nil {
		return "", err
	}
	text := string(content)
	if from > 0 {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text, nil
}

// lastLines returns at most n lines that are not empty, the last of a text.
func lastLines(text string, n int) []string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = consoleLine(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(len(lines)-max(n, 0), 0):]
}

// consoleLine makes a line of a console one that a terminal only shows: without escape sequences and control characters,
// valid and of bounded length. Of what a carriage return wrote over, the last is left.
func consoleLine(line string) string {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	line = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, withoutEscapes(strings.ToValidUTF8(line, "\uFFFD")))
	line = strings.TrimRight(line, " ")
	if len(line) > consoleLineLimit {
		line = strings.ToValidUTF8(line[:consoleLineLimit], "") + "..."
	}
	return line
}

// withoutEscapes drops the escape sequences of ECMA-48: ESC [ ... final byte, ESC ] ... BEL or ESC \, and ESC with one byte.
func withoutEscapes(text string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "\x1b")
		out.WriteString(before)
		switch {
		case !found || rest == "":
			return out.String()
		case rest[0] == '[':
			text = afterFunc(rest[1:], func(r rune) bool { return r >= '@' && r <= '~' })
		case rest[0] == ']':
			text = afterFunc(rest[1:], func(r rune) bool { return r == '\a' || r == '\x1b' })
			text = strings.TrimPrefix(text, "\\")
		default:
			text = afterFunc(rest, func(r rune) bool { return r >= '0' })
		}
	}
}

// afterFunc returns what follows the first character that ends something.
func afterFunc(text string, ends func(rune) bool) string {
	for i, r := range text {
		if ends(r) {
			return text[i+len(string(r)):]
		}
	}
	return ""
}
