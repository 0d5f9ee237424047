package nodeagent

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// guestTextLimit is how many bytes of what a guest said are told and logged.
const guestTextLimit = 300

// guestText makes what a guest may have had a hand in fit to be told and logged: valid, printable, on one line and short.
func guestText(text string) string {
	// What is far beyond the limit is not looked at.
	text = text[:min(len(text), 4*guestTextLimit)]
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) <= guestTextLimit {
		return text
	}
	end := guestTextLimit
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}

// errNotUTF8 ends a walk through a message.
var errNotUTF8 = errors.New("a string is not valid UTF-8")

// encodable returns the message, or a copy with those strings mended that no message may hold: one VM with a text that cannot
// be encoded would end the stream for all.
func encodable(message proto.Message) proto.Message {
	err := protorange.Range(message.ProtoReflect(), func(at protopath.Values) error {
		if text, ok := at.Index(-1).Value.Interface().(string); ok && !utf8.ValidString(text) {
			return errNotUTF8
		}
		return nil
	})
	if err == nil {
		return message
	}
	message = proto.Clone(message)
	// The walk mends the place itself and so has no error.
	_ = protorange.Range(message.ProtoReflect(), func(at protopath.Values) error {
		last, parent := at.Index(-1), at.Index(-2)
		text, ok := last.Value.Interface().(string)
		if !ok || utf8.ValidString(text) {
			return nil
		}
		mended := protoreflect.ValueOfString(strings.ToValidUTF8(text, "\uFFFD"))
		switch last.Step.Kind() { //nolint:exhaustive // the other steps lead to no string
		case protopath.FieldAccessStep:
			parent.Value.Message().Set(last.Step.FieldDescriptor(), mended)
		case protopath.ListIndexStep:
			parent.Value.List().Set(last.Step.ListIndex(), mended)
		case protopath.MapIndexStep:
			parent.Value.Map().Set(last.Step.MapIndex(), mended)
		}
		return nil
	})
	return message
}
