package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// parseJSON reads a .json file. It builds the same nodes as the YAML parser, with JSON's own rules and errors.
func parseJSON(file *File, content []byte) {
	r := &jsonReader{text: content, decoder: json.NewDecoder(bytes.NewReader(content))}
	r.decoder.UseNumber()
	if at, message, fix := badText(content); message != "" {
		line, column := r.place(at)
		file.unreadable(Position{Source: file.Source, File: file.Path, Line: line, Column: column}, message, fix)
		return
	}
	for index := 0; ; index++ {
		root, err := r.value(0)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			line, column := r.place(r.errorOffset(err))
			file.unreadable(Position{Source: file.Source, File: file.Path, Line: line, Column: column}, "not valid JSON: "+r.explain(err), "")
			return
		}
		(&source{text: content, json: true, index: index}).read(file, root)
	}
}

type jsonReader struct {
	text    []byte
	decoder *json.Decoder
	// line and begin belong to the last place asked for; places are asked for in order.
	line, begin, until int
}

// place turns an offset into a line and a column, both from 1.
func (r *jsonReader) place(offset int) (line, column int) {
	offset = min(max(offset, 0), len(r.text))
	if offset < r.until {
		r.line, r.begin, r.until = 0, 0, 0
	}
	for i := r.until; i < offset; i++ {
		if r.text[i] == '\n' {
			r.line++
			r.begin = i + 1
		}
	}
	r.until = offset
	return r.line + 1, utf8.RuneCount(r.text[r.begin:offset]) + 1
}

// next is the offset of the token that follows.
func (r *jsonReader) next() int {
	at := int(r.decoder.InputOffset())
	for at < len(r.text) && strings.IndexByte(" \t\r\n,:", r.text[at]) >= 0 {
		at++
	}
	return at
}

func (r *jsonReader) errorOffset(err error) int {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return r.next()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return len(bytes.TrimRight(r.text, " \t\r\n"))
	}
	return r.next()
}

func (r *jsonReader) explain(err error) string {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "the file ends before its last bracket or quote is closed"
	}
	message := strings.TrimPrefix(err.Error(), "json: ")
	if !strings.HasPrefix(message, "invalid character '}' looking for") && !strings.HasPrefix(message, "invalid character ']' looking for") {
		return message
	}
	if before := bytes.TrimRight(r.text[:min(r.next(), len(r.text))], " \t\r\n"); bytes.HasSuffix(before, []byte(",")) {
		return "a comma after the last entry"
	}
	return "a closing bracket too many, or a value that is missing"
}

// value reads the next value as a node.
func (r *jsonReader) value(depth int) (*yaml.Node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	node := &yaml.Node{Kind: yaml.ScalarNode}
	node.Line, node.Column = r.place(r.next())
	token, err := r.decoder.Token()
	if err != nil {
		if depth > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		node.Kind = yaml.MappingNode
		if t == '[' {
			node.Kind = yaml.SequenceNode
		}
		for r.decoder.More() {
			child, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		if _, err := r.decoder.Token(); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	case string:
		node.Tag, node.Value, node.Style = "!!str", t, yaml.DoubleQuotedStyle
	case json.Number:
		node.Tag, node.Value = "!!int", t.String()
		if strings.ContainsAny(node.Value, ".eE") {
			node.Tag = "!!float"
		}
	case bool:
		node.Tag, node.Value = "!!bool", fmt.Sprint(t)
	case nil:
		node.Tag, node.Value = "!!null", "null"
	}
	return node, nil
}
