package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// Object is an object that a cluster got as it is in git, as it lives there.
type Object struct {
	Address schemas.Address `json:"address"`
	Fleet   string          `json:"fleet"`
	// Revision is the commit that was applied (schemas.Provenance).
	Revision string `json:"revision,omitempty"`
	Hash     string `json:"hash"`
	// Record is what was applied, as schemas.Object.Content.
	Record []byte `json:"record,omitempty"`
	// Drift is how the object differs from that, in what was applied.
	Drift []Change `json:"drift,omitempty"`
	// Fingerprint changes with the object.
	Fingerprint string `json:"fingerprint"`
}

// Holder is the source that it was made from; empty for the repository of the Fleet.
func (o *Object) Holder() string {
	source, _ := schemas.SplitProvenance(o.Revision)
	return source
}

// objects plans what a cluster gets as it is: both sides are ordered by address.
func (b *builder) objects() {
	have := make(map[schemas.Address]*Object, len(b.have.Objects))
	for _, object := range b.have.Objects {
		have[object.Address] = object
	}
	wanted := make(map[schemas.Address]bool, len(b.want.Objects))
	for _, object := range b.want.Objects {
		wanted[object.Address] = true
		if live := have[object.Address]; live == nil {
			b.add(b.passing(object, ActionCreate, ReasonNew, "will be created"))
		} else {
			b.updateObject(object, live)
		}
	}
	for _, live := range b.have.Objects {
		if !wanted[live.Address] {
			b.destroyObject(live)
		}
	}
	slices.SortStableFunc(b.plan.Steps, func(x, y Step) int { return x.Address.Compare(y.Address) })
}

func (b *builder) passing(object *schemas.Object, action Action, reason Reason, summary string) Step {
	return Step{
		Address: object.Address, Action: action, Reason: reason, Consequence: ConsequenceNone, Define: true, Summary: summary,
		Source: object.Position.Short(), Revision: b.recorded(object.Position.Source), Object: object,
	}
}

func (b *builder) updateObject(object *schemas.Object, live *Object) {
	step := b.passing(object, ActionUpdate, ReasonChanged, "will be updated in place")
	step.Precondition = live.Fingerprint
	switch {
	case live.Fleet != b.plan.Fleet:
		b.hold(object.Address, fmt.Sprintf("it belongs to the fleet %q, not to %q; remove it there first", live.Fleet, b.plan.Fleet))
		return
	case live.Hash != object.Hash:
		step.Changes = Differences(live.Record, object.Content)
		step.Drift = live.Drift
	case live.Holder() != object.Position.Source:
		step.Changes, step.Drift = []Change{otherSource(live.Holder(), object.Position.Source)}, live.Drift
	case len(live.Drift) > 0:
		step.Reason, step.Drift, step.Summary = ReasonDrift, live.Drift, "was changed outside gitvirt; it will be corrected"
	default:
		b.plan.Unchanged++
		return
	}
	b.block(&step)
	b.add(step)
}

// destroyObject plans the end of an object that git no longer has. A claim stays: it holds data, and people delete it.
func (b *builder) destroyObject(live *Object) {
	if live.Fleet != b.plan.Fleet || live.Address.Kind == schemas.KindPersistentVolumeClaim || b.wanted(live.Address) || b.unread(live.Holder()) {
		return
	}
	b.add(Step{
		Address: live.Address, Action: ActionDestroy, Reason: ReasonRemoved, Consequence: ConsequenceDestroy, Precondition: live.Fingerprint,
		Summary: "will be destroyed: git no longer has it", Blocked: b.withheld(live.Holder()),
	})
}

// Differences compares two JSON documents field by field. What cannot be read has no fields.
func Differences(before, after []byte) []Change {
	var old, wanted any
	_, _ = json.Unmarshal(before, &old), json.Unmarshal(after, &wanted)
	var out []Change
	differ(&out, "", old, wanted)
	return out
}

// Undone returns what of a document that was applied lives otherwise; what else the living one has, such as what Kubernetes fills in, is
// not the document's.
func Undone(applied, live []byte) []Change {
	var wanted, have any
	_, _ = json.Unmarshal(applied, &wanted), json.Unmarshal(live, &have)
	var out []Change
	undone(&out, "", wanted, have)
	return out
}

func undone(out *[]Change, path string, applied, live any) {
	switch wanted := applied.(type) {
	case map[string]any:
		if have, ok := live.(map[string]any); ok {
			for _, name := range slices.Sorted(maps.Keys(wanted)) {
				undone(out, path+"."+name, wanted[name], have[name])
			}
			return
		}
	case []any:
		if have, ok := live.([]any); ok && len(have) == len(wanted) {
			for i := range wanted {
				undone(out, fmt.Sprintf("%s[%d]", path, i), wanted[i], have[i])
			}
			return
		}
	}
	if !reflect.DeepEqual(applied, live) {
		*out = append(*out, Change{Path: strings.TrimPrefix(path, "."), Before: applied, After: live, Consequence: ConsequenceNone})
	}
}

func differ(out *[]Change, path string, before, after any) {
	if reflect.DeepEqual(before, after) {
		return
	}
	old, isOld := before.(map[string]any)
	wanted, isWanted := after.(map[string]any)
	if !isOld && !isWanted || (before != nil && !isOld) || (after != nil && !isWanted) {
		*out = append(*out, Change{Path: strings.TrimPrefix(path, "."), Before: before, After: after, Consequence: ConsequenceNone})
		return
	}
	names := map[string]bool{}
	for name := range old {
		names[name] = true
	}
	for name := range wanted {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		differ(out, path+"."+name, old[name], wanted[name])
	}
}
