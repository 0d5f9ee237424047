package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// rightful returns what is wanted without the manifests with mistakes that speak of what their source may not speak of: they hold
// only what was made from there.
func rightful(want *schemas.Desired, have Observed) *schemas.Desired {
	fromSource := func(broken schemas.Broken) bool { return broken.Position.Source != "" }
	if !slices.ContainsFunc(want.Broken, fromSource) {
		return want
	}
	out := *want
	out.Broken = make([]schemas.Broken, 0, len(want.Broken))
	for _, broken := range want.Broken {
		source := broken.Position.Source
		if !speaksOf(want.Fleet, have, source, broken.Previous) {
			broken.Previous = schemas.Address{}
		}
		if speaksOf(want.Fleet, have, source, broken.Address) || isSet(broken.Address.Kind) { // for sets see member
			out.Broken = append(out.Broken, broken)
		}
	}
	return &out
}

func isSet(kind string) bool { return kind == schemas.KindReplicaSet || kind == schemas.KindPool }

// speaksOf reports whether what a source says of an address counts: it may have something there, or what lives there was made from it.
func speaksOf(fleet *schemas.Fleet, have Observed, source string, address schemas.Address) bool {
	if fleet.AllowsNamespace(source, address.Namespace) {
		return true
	}
	held, lives := have.Holder(address)
	return lives && held.Source == source
}

// asking are the repositories that ask for any machine at all, be it with mistakes.
func asking(want *schemas.Desired) map[string]bool {
	out := map[string]bool{}
	for _, vm := range want.VMs {
		out[vm.Position.Source] = true
	}
	for _, list := range [][]schemas.Broken{want.Broken, want.Paused} {
		for _, object := range list {
			if object.Address.IsMachine() || isSet(object.Address.Kind) {
				out[object.Position.Source] = true
			}
		}
	}
	return out
}

// unread reports whether nothing is known of what a source asks for.
func (b *builder) unread(source string) bool {
	return source != "" && slices.Contains(b.want.Opaque, schemas.Position{Source: source})
}

// withheld says why nothing may be destroyed at this revision that was made from a source, or "". A source withholds only what is its
// own; what cannot be read in the repository of the Fleet may be about everything.
func (b *builder) withheld(source string) string {
	var unread []string
	for _, file := range b.want.Opaque {
		if file.Source == "" || file.Source == source {
			unread = append(unread, file.String())
		}
	}
	switch {
	case b.want.Partial:
		return "only one file was read; removals need the whole directory or repository"
	case len(unread) > 0:
		return "nothing is destroyed while a file cannot be read: " + strings.Join(unread, ", ")
	case source != "":
		return b.withheldFrom(source)
	case len(b.want.VMs) == 0 && len(b.want.Broken) == 0 && len(b.want.Paused) == 0 && !b.want.HasFleet:
		return "the revision holds no VM at all and no Fleet (gitvirt.yaml) that says it is meant so"
	}
	return ""
}

// withheldFrom is withheld for what was made from another repository. A source that is gone from the Fleet is meant to be gone with
// its machines; one that is empty may be a mistake.
func (b *builder) withheldFrom(source string) string {
	fleet := cmp.Or(b.want.Proposed, b.want.Fleet) // who is named is what is proposed, whoever judges
	if b.asking == nil {
		b.asking = asking(b.want)
	}
	switch entry := fleet.Source(source); {
	case !b.want.HasFleet:
		return fmt.Sprintf("it was made from the source %s, and no Fleet (gitvirt.yaml) says that it is gone", source)
	case fleet.Spec.SourcesDoubt, entry != nil && entry.Doubt:
		return fmt.Sprintf("it was made from the source %s, and what the Fleet at %s says of its sources has mistakes", source, fleet.Position.Short())
	case entry != nil && !b.asking[source]:
		return fmt.Sprintf("the source %s asks for no machine at all; take it out of spec.sources of the Fleet if that is meant", source)
	}
	return ""
}

// recorded is what is recorded as the revision of what comes from a source; empty where that is the plan's.
func (b *builder) recorded(source string) string {
	if b.provenance == nil {
		return ""
	}
	if revision := b.provenance(source); revision != b.plan.Revision {
		return revision
	}
	return ""
}

// otherSource is the change of a manifest that has moved from one repository to another: only the record says so.
func otherSource(before, after string) Change {
	const own = "the Fleet's repository"
	return Change{Path: "source", Before: cmp.Or(before, own), After: cmp.Or(after, own), Consequence: ConsequenceNone}
}
