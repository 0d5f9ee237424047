package domainxml_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// TestReadTellsWhatIsUnread reads each document of testdata/read and compares the paths that it tells.
func TestReadTellsWhatIsUnread(t *testing.T) {
	for path, archive := range archives(t) {
		domain, unread, err := domainxml.Read(string(archive.Files[0].Data))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		got := ""
		for _, line := range unread {
			got += line + "\n"
		}
		if *update {
			archive.Files[1].Data = []byte(got)
			if err := os.WriteFile(path, txtar.Format(archive), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(string(archive.Files[1].Data), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		if domain.Name != "a" {
			t.Errorf("%s: the domain's name is %q", path, domain.Name)
		}
	}
}

func archives(t testing.TB) map[string]*txtar.Archive {
	t.Helper()
	paths, err := filepath.Glob("testdata/read/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	all := map[string]*txtar.Archive{}
	for _, path := range paths {
		if all[path], err = txtar.ParseFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestReadRefuses(t *testing.T) {
	for _, test := range []struct{ reason, document, want string }{
		{"nothing", "", "not a domain"},
		{"another root", "<network/>", "not a domain"},
		{"another namespace", `<domain xmlns="https://other"/>`, "not a domain"},
		{"two roots", "<domain/><domain/>", "not a domain"},
		{"words behind it", "<domain/>garbage", "text outside"},
		{"words before it", "garbage<domain/>", "text outside"},
		{"an element that does not end", "<domain><name>", "EOF"},
		{"an end without an element", "<domain></name></domain>", "</name>"},
		{"a document type", `<!DOCTYPE domain SYSTEM "file:///etc/passwd"><domain/>`, "document type"},
		{"entities that multiply", `<!DOCTYPE d [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><domain><name>&b;</name></domain>`, "document type"},
		{"an unknown entity", "<domain><name>&evil;</name></domain>", "entity"},
		{"an attribute twice", `<domain type="kvm" type="qemu"/>`, "twice"},
		{"another encoding", `<?xml version="1.0" encoding="UTF-16"?><domain/>`, "encoding"},
		{"broken UTF-8", "<domain><name>\xff</name></domain>", "UTF-8"},
		{"a NUL", "<domain><name>\x00</name></domain>", "illegal"},
		{"too deep", "<domain>" + strings.Repeat("<a>", 300) + strings.Repeat("</a>", 300) + "</domain>", "deeper"},
		{"too many", "<domain>" + strings.Repeat("<a/>", 200_000) + "</domain>", "more than"},
		{"too large", "<domain><name>" + strings.Repeat("x", 5<<20) + "</name></domain>", "bytes"},
		{"a name of no measure", "<domain><" + strings.Repeat("x", 1000) + "/></domain>", "measure"},
	} {
		_, _, err := domainxml.Read(test.document)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.reason, err, test.want)
		}
		if _, err := domainxml.Compare("<domain/>", test.document); err == nil && test.reason != "another namespace" {
			t.Errorf("%s: Compare takes it", test.reason)
		}
	}
}

// TestReadIsBounded reads the worst documents within the limits: none may take memory out of proportion.
func TestReadIsBounded(t *testing.T) {
	deep := func(name string, depth int, inner string) string {
		return "<domain>" + strings.Repeat("<"+name+">", depth) + inner + strings.Repeat("</"+name+">", depth) + "</domain>"
	}
	for reason, document := range map[string]string{
		"unknown elements":            "<domain>" + strings.Repeat("<a/>", 22_000) + "</domain>",
		"unknown elements, deep down": deep(strings.Repeat("x", 200), 250, strings.Repeat("<a/>", 22_000)),
		"refused elements":            "<domain><devices>" + strings.Repeat("<memory><target><size>x</size></target></memory>", 5_000) + "</devices></domain>",
		"a refused element, large":    "<domain><devices><memory><target><size>" + strings.Repeat("x", 1_000_000) + "</size></target></memory></devices></domain>",
		"text in pieces":              "<domain><name>" + strings.Repeat("a<!---->", 100_000) + "</name></domain>",
		"schedulers":                  "<domain><cputune>" + strings.Repeat("<vcpusched vcpus='0-4095'/>", 10_000) + "</cputune></domain>",
		"one label for all":           "<domain><devices>" + strings.Repeat("<disk><target dev='a'/></disk>", 6_000) + "</devices></domain>",
		"large attributes":            "<domain><os>" + strings.Repeat("<a b='"+strings.Repeat("x", 1000)+"'/>", 1000) + "</os></domain>",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, unread, _ := domainxml.Read(document)
		if len(unread) > 65 {
			t.Errorf("%s: %d paths", reason, len(unread))
		}
		if differences, err := domainxml.Compare("<domain/>", document); err == nil && len(differences) > 1000 {
			t.Errorf("%s: %d differences", reason, len(differences))
		}
		runtime.ReadMemStats(&after)
		t.Logf("%s: %d MiB allocated", reason, (after.TotalAlloc-before.TotalAlloc)>>20)
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 1<<28 {
			t.Errorf("%s: %d MiB were allocated for %d KiB", reason, spent>>20, len(document)>>10)
		}
	}
}

// TestReaderSaysWhatReadSays asks for every document twice, and for variants whose shape differs in what decides.
func TestReaderSaysWhatReadSays(t *testing.T) {
	reader := domainxml.NewReader()
	documents := []string{printed(t)}
	for _, archive := range archives(t) {
		documents = append(documents, string(archive.Files[0].Data))
	}
	for _, change := range []struct{ old, new string }{
		{`<rng model='virtio-non-transitional'>`, `<rng model='virtio-non-transitional' foo='1'>`},
		{"<backend model='random'>", "<backend model='dice'>"},
		{"<memballoon model='none'/>", "<memballoon model='none'/><unknown/>"},
		{"<vcpu placement='static'>2<", "<vcpu placement='static'>x<"},
		{"<panic model='hyperv'/>", "<panic model='hyperv'>words</panic>"},
		{"<interface type='user'>", "<interface type='wormhole'>"},
	} {
		changed := strings.Replace(printed(t), change.old, change.new, 1)
		if changed == printed(t) {
			t.Fatalf("%q is not there", change.old)
		}
		documents = append(documents, changed)
	}
	for range 2 {
		for _, document := range documents {
			_, want, err := domainxml.Read(document)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, reader.Unread(document)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		}
	}
}

// TestInspectSaysWhatCompareSays compares every example with the others' definitions and its own: the machine itself and
// the document that it renders to are the same to compare with.
func TestInspectSaysWhatCompareSays(t *testing.T) {
	reader := domainxml.NewReader()
	other := printed(t)
	for _, example := range append(examples(t), corpus(t)...) {
		machine := example.machine()
		document, err := domainxml.Render(machine)
		if err != nil {
			t.Fatal(err)
		}
		for _, defined := range []string{document, other} {
			want, err := domainxml.Compare(document, defined)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := reader.Inspect(machine, defined)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s: %v (-want +got):\n%s", example.name, err, diff)
			}
			if defined == document && len(got) > 0 {
				t.Errorf("%s differs from itself: %v", example.name, got)
			}
		}
	}
}
