package sources_test

import (
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/sources"
)

func TestRevisionOfParts(t *testing.T) {
	commit, other := strings.Repeat("a", 40), strings.Repeat("b", 40)
	parts := []sources.Part{{Revision: commit}, {Name: "shop", Revision: other}, {Name: "wiki"}}
	revision := sources.Combined(parts)
	seen := map[string]string{revision: "as it is"}
	for name, change := range map[string]func(parts []sources.Part) []sources.Part{
		"another commit":       func(p []sources.Part) []sources.Part { p[1].Revision = commit; return p },
		"read for once":        func(p []sources.Part) []sources.Part { p[2].Revision = other; return p },
		"taken out":            func(p []sources.Part) []sources.Part { return p[:2] },
		"another name":         func(p []sources.Part) []sources.Part { p[1].Name = "store"; return p },
		"the commits swapped":  func(p []sources.Part) []sources.Part { p[1].Revision, p[2].Revision = "", other; return p },
		"the Fleet's own next": func(p []sources.Part) []sources.Part { p[0].Revision = other; return p },
	} {
		changed := sources.Combined(change(append([]sources.Part(nil), parts...)))
		if before, taken := seen[changed]; taken {
			t.Errorf("%s: the revision is that of %s", name, before)
		}
		seen[changed] = name
	}
	down := append([]sources.Part(nil), parts...)
	down[1].Problem = "the server is down"
	if sources.Combined(down) != revision {
		t.Error("a source that is down is another revision")
	}
	snapshot := &sources.Snapshot{Revision: revision, Parts: parts}
	if snapshot.Commit() != commit {
		t.Errorf("the commit of %s is %s", revision, snapshot.Commit())
	}
	for source, want := range map[string]string{"": commit, "shop": "shop@" + other, "wiki": "wiki@"} {
		if got := snapshot.Provenance(source); got != want {
			t.Errorf("the provenance of %q is %q, want %q", source, got, want)
		}
	}
}

func TestRevisionOfOneRepository(t *testing.T) {
	for _, revision := range []string{strings.Repeat("a", 40), "sha256:" + strings.Repeat("0", 64), "vm.yaml", ""} {
		snapshot := &sources.Snapshot{Revision: revision}
		if snapshot.Commit() != revision || snapshot.Provenance("") != revision {
			t.Errorf("%q became %q and %q", revision, snapshot.Commit(), snapshot.Provenance(""))
		}
	}
}
