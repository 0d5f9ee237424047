package domainxml_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// seed adds every domain document that the tests have.
func seed(f *testing.F) {
	f.Helper()
	for _, pattern := range []string{"testdata/*.xml", "testdata/*/*.xml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(content))
		}
	}
	for _, archive := range archives(f) {
		f.Add(string(archive.Files[0].Data))
	}
	f.Add("<domain type='qemu'><memory unit='KiB'>1</memory><devices><disk><target dev='vda'/></disk></devices></domain>")
}

// FuzzRead reads any bytes: whatever they are, there is no panic, and what is read and written again is read as the same,
// with nothing lost any more.
func FuzzRead(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, document string) {
		domain, unread, err := domainxml.Read(document)
		if err != nil {
			return
		}
		if len(unread) > 65 {
			t.Errorf("%d paths", len(unread))
		}
		for _, path := range unread {
			if strings.ContainsFunc(path, func(c rune) bool { return c < ' ' }) {
				t.Errorf("path %q does not fit on a line", path)
			}
		}
		written, err := domain.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if len(unread) > 0 {
			return // without what was lost it may be something that libvirtxml does not take
		}
		if _, lost, err := domainxml.Read(written); err != nil || len(lost) > 0 {
			t.Errorf("reading what was read loses %q, %v", lost, err)
		}
	})
}

// FuzzCompare compares any bytes: no document differs from itself, and one that differs does so both ways.
func FuzzCompare(f *testing.F) {
	seed(f)
	rendered := definitions(f)["tuned"]
	f.Fuzz(func(t *testing.T, document string) {
		differences, err := domainxml.Compare(document, document)
		if err != nil {
			return
		}
		if len(differences) > 0 {
			t.Errorf("a document differs from itself: %v", differences)
		}
		differences, err = domainxml.Compare(rendered, document)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(differences, func(a, b domainxml.Difference) int { return strings.Compare(a.Path, b.Path) }) {
			t.Errorf("not in order: %v", differences)
		}
	})
}

// FuzzParseRecord reads records from any bytes; what is read can be written and read again as the same.
func FuzzParseRecord(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, document string) {
		record, err := domainxml.ParseRecord(document)
		if err != nil {
			return
		}
		content, err := record.XML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := domainxml.ParseRecord("<domain><metadata>" + content + "</metadata></domain>")
		if err != nil {
			t.Fatalf("%v\n%s", err, content)
		}
		if again.Hash != record.Hash || again.Address != record.Address || string(again.Spec) != string(record.Spec) {
			t.Errorf("%+v became %+v", record, again)
		}
	})
}

// FuzzMACs reads addresses from any bytes.
func FuzzMACs(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, document string) {
		for _, mac := range domainxml.MACs(document) {
			if mac == "" || mac != strings.ToLower(mac) {
				t.Errorf("MAC address %q", mac)
			}
		}
	})
}
