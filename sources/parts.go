package sources

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

// Part is one of the repositories that a snapshot was read from.
type Part struct {
	// Name is what the Fleet calls it; empty for the repository that the Fleet is in.
	Name string
	// Revision, Subject, Author and Time are those of its commit, as in a Snapshot; empty when nothing was ever read of it.
	Revision        string
	Subject, Author string
	Time            time.Time
	// Rewritten is its previous revision when its history was rewritten (a force-push), else "".
	Rewritten string
	// Problem says why it cannot be read now; what was read before still counts. Pending says that it is being read for the first
	// time, which is no failure yet.
	Problem string
	Pending bool
}

// partsMark stands between the commit of the Fleet's repository and the digest of the others.
const partsMark = "+"

// Combined is the revision of a snapshot with these parts, the Fleet's own first: its commit, and something that changes with
// every other one.
func Combined(parts []Part) string {
	hash := sha256.New()
	for _, part := range parts[1:] {
		fmt.Fprintf(hash, "%s\x00%s\x00", part.Name, part.Revision)
	}
	return parts[0].Revision + partsMark + hex.EncodeToString(hash.Sum(nil)[:6])
}

// CommitOf returns what of a Snapshot's revision is the commit of the repository that the Fleet is in.
func CommitOf(revision string) string {
	commit, _, _ := strings.Cut(revision, partsMark)
	return commit
}

// Commit is the commit of the repository that the Fleet is in.
func (s *Snapshot) Commit() string { return CommitOf(s.Revision) }

// Provenance says where and when something of a source comes from, as it is recorded with a machine; the source "" is the
// repository that the Fleet is in.
func (s *Snapshot) Provenance(source string) string {
	if source == "" {
		return s.Commit()
	}
	for i := range s.Parts {
		if s.Parts[i].Name == source {
			return schemas.Provenance(source, s.Parts[i].Revision)
		}
	}
	return schemas.Provenance(source, "")
}
