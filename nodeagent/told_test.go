package nodeagent

import (
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

func TestGuestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "",
		"the answer is 500":                   "the answer is 500",
		"a\nb\x1b[2Jc\xff":                    "a b [2Jc\uFFFD",
		strings.Repeat("x", 300):              strings.Repeat("x", 300),
		strings.Repeat("x", 1<<20):            strings.Repeat("x", 300) + "...",
		"x" + strings.Repeat("\u00e9", 1<<20): "x" + strings.Repeat("\u00e9", 149) + "...",
	} {
		if got := guestText(text); got != want {
			t.Errorf("%.20q: got %q, want %q", text, got, want)
		}
	}
}

func TestEncodable(t *testing.T) {
	good := &api.Domain{Name: "a", Addresses: []string{"192.0.2.1"}}
	if encodable(good) != proto.Message(good) {
		t.Error("a good message was copied")
	}
	bad := &api.Domain{Name: "a\xff", Addresses: []string{"b", "\xff"}, Disks: []*api.Disk{{Path: "/\xff"}}}
	mended, ok := encodable(bad).(*api.Domain)
	if !ok {
		t.Fatal("another message")
	}
	if _, err := proto.Marshal(mended); err != nil {
		t.Error(err)
	}
	if mended.GetName() != "a\uFFFD" || mended.GetAddresses()[1] != "\uFFFD" || mended.GetDisks()[0].GetPath() != "/\uFFFD" {
		t.Errorf("mended: %v", mended)
	}
	if utf8.ValidString(bad.GetName()) {
		t.Error("the message itself was changed")
	}
}
