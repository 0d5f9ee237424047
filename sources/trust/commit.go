package trust

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Commit is a commit as its signature sees it.
type Commit struct {
	// Tree and Parents are hashes.
	Tree    string
	Parents []string
	// Committed is when it came to be as it is. Subject is the first line of its message, Author "Name <address>"; they
	// are as whoever made it wrote them.
	Committed       time.Time
	Subject, Author string
	// Payload is what was signed: all of the commit but the signature. Signature is armored; "" when there is none.
	Payload   []byte
	Signature string
}

// maxCommit is the largest commit that is looked at, in bytes; one is a few hundred.
const maxCommit = 1 << 20

// ParseCommit reads a commit object, as git-commit-tree(1) writes it and as git itself takes the signature out of it
// (commit.c, parse_buffer_signed_by_header). What git would not write is an error: two readers must not disagree about
// what was signed.
func ParseCommit(raw []byte) (*Commit, error) {
	if len(raw) > maxCommit {
		return nil, errors.New("the commit is too large")
	}
	header, message, ok := bytes.Cut(raw, []byte("\n\n"))
	if !ok {
		return nil, errors.New("the commit has no end of its header")
	}
	c := &Commit{Payload: make([]byte, 0, len(raw))}
	var signature strings.Builder
	in := "" // the header that the lines belong to
	order := 0
	for line := range bytes.SplitSeq(header, []byte("\n")) {
		if rest, continued := bytes.CutPrefix(line, []byte(" ")); continued {
			if in == "" {
				return nil, errors.New("the commit begins with the continuation of a line")
			}
			if in == "gpgsig" {
				signature.Write(rest)
				signature.WriteByte('\n')
			}
			if !isSignature(in) {
				c.Payload = append(append(c.Payload, line...), '\n')
			}
			continue
		}
		name, value, found := bytes.Cut(line, []byte(" "))
		in = string(name)
		if !found || in == "" {
			return nil, errors.New("the commit has a malformed header")
		}
		if isSignature(in) {
			if order < 4 || in == "gpgsig" && signature.Len() > 0 {
				return nil, errors.New("the commit has two signatures, or one before its headers")
			}
			if in == "gpgsig" {
				signature.Write(value)
				signature.WriteByte('\n')
			}
			continue
		}
		c.Payload = append(append(c.Payload, line...), '\n')
		var err error
		if order, err = c.header(order, in, string(value)); err != nil {
			return nil, err
		}
	}
	if order < 4 {
		return nil, errors.New("the commit lacks a header")
	}
	c.Payload = append(c.Payload, raw[len(header)+1:]...)
	c.Signature = signature.String()
	subject, _, _ := strings.Cut(strings.TrimLeft(string(message), "\n"), "\n")
	c.Subject = subject
	return c, nil
}

func isSignature(header string) bool { return header == "gpgsig" || header == "gpgsig-sha256" }

// header takes one of the headers that every commit has, in their order: tree, parents, author, committer. It returns
// how far that came.
func (c *Commit) header(order int, name, value string) (int, error) {
	wrong := errors.New("the commit has its headers twice or in another order")
	switch name {
	case "tree":
		if order != 0 || !isHash(value) {
			return 0, wrong
		}
		c.Tree = value
		return 1, nil
	case "parent":
		if order != 1 || !isHash(value) {
			return 0, wrong
		}
		c.Parents = append(c.Parents, value)
		return 1, nil
	case "author":
		if order != 1 {
			return 0, wrong
		}
		c.Author, _ = splitIdentity(value)
		return 2, nil
	case "committer":
		if order != 2 {
			return 0, wrong
		}
		_, c.Committed = splitIdentity(value)
		return 4, nil
	}
	if order != 4 {
		return 0, wrong
	}
	return order, nil
}

// splitIdentity cuts "Name <address> 1700000000 +0000". A time that cannot be read is 1970.
func splitIdentity(text string) (who string, when time.Time) {
	end := strings.LastIndexByte(text, '>')
	if end < 0 {
		return text, time.Unix(0, 0)
	}
	seconds, _, _ := strings.Cut(strings.TrimSpace(text[end+1:]), " ")
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		n = 0
	}
	return text[:end+1], time.Unix(n, 0)
}

func isHash(text string) bool {
	return len(text) == 40 && strings.Trim(text, "0123456789abcdef") == ""
}
