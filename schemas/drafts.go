package schemas

import (
	"runtime"
	"sync"

	"go.yaml.in/yaml/v3"
)

// waiting is a draft whose instancetype and preference were found.
type waiting struct {
	draft                    *draft
	instancetype, preference *object
	expanded                 *expansion
}

// expandDrafts makes machines of the drafts of all files. A draft whose instancetype and preference are the same objects
// as the last time is not expanded again; the others are shared out among the processors, because each takes as long as
// reading its manifest.
func (a *assembly) expandDrafts(files []*File) {
	var all []waiting
	var stale []*waiting
	total := 0
	for _, f := range files {
		total += len(f.drafts)
	}
	if total == 0 {
		return
	}
	all = make([]waiting, 0, total)
	for _, f := range files {
		for _, w := range f.drafts {
			one := waiting{draft: w}
			var ok, also bool
			one.instancetype, ok = a.match(w, w.instancetype)
			one.preference, also = a.match(w, w.preference)
			if !ok || !also {
				a.broken(w)
				continue
			}
			all = append(all, one)
			last := w.expanded.Load()
			if last != nil && last.instancetype == one.instancetype && last.preference == one.preference {
				all[len(all)-1].expanded = last
				continue
			}
			stale = append(stale, &all[len(all)-1])
		}
	}
	expandAll(stale)
	for i := range all {
		one := &all[i]
		a.desired.Diagnostics = append(a.desired.Diagnostics, one.expanded.diagnostics...)
		if one.expanded.machines == nil && one.expanded.diagnostics.Errors() > 0 {
			a.broken(one.draft)
		}
		for _, vm := range one.expanded.machines {
			a.entries = append(a.entries, entry{address: vm.Address, position: vm.Position, previous: vm.Previous(), vm: vm})
		}
	}
}

// match finds what a draft refers to. ok is false when it is not there; nothing to find is fine.
func (a *assembly) match(w *draft, m *matcher) (found *object, ok bool) {
	if m == nil {
		return nil, true
	}
	if found = a.find(a.space(w.position.Source), m.address); found != nil {
		return found, true
	}
	allowed := a.allowMissing
	a.allowMissing = false
	a.missed(&entry{address: w.address, position: w.position}, &reference{address: m.address, position: m.position, path: m.path})
	a.allowMissing = allowed
	return nil, false
}

// broken adds a draft that cannot be expanded: all its machines exist and are left as they are.
func (a *assembly) broken(w *draft) {
	previous, _ := previousAddress(w.address, w.object.Annotations[AnnotationPreviousName])
	a.entries = append(a.entries, entry{address: w.address, position: w.position, previous: previous, broken: true})
	for _, member := range w.brokenMembers() {
		a.entries = append(a.entries, entry{address: member.Address, position: member.Position, broken: true})
	}
}

// expandAll expands drafts, those of one document by one processor one after the other, so that its text is read once.
func expandAll(stale []*waiting) {
	const enough = 64 // less is not worth a goroutine
	workers := max(1, min(runtime.GOMAXPROCS(0), len(stale)/enough))
	var group sync.WaitGroup
	for n := range workers {
		share := stale[len(stale)*n/workers : len(stale)*(n+1)/workers]
		expand := func() {
			var from *source
			var root *yaml.Node
			for _, one := range share {
				if w := one.draft; w.source != from {
					from, root = w.source, w.source.tree()
				}
				one.expanded = one.draft.expand(root, one.instancetype, one.preference)
				one.draft.expanded.Store(one.expanded)
			}
		}
		if workers == 1 {
			expand()
			return
		}
		group.Go(expand)
	}
	group.Wait()
}
