package schemas

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// said names the object in a sentence, with its place.
func (o *object) said() string {
	return fmt.Sprintf("the %s %s at %s", o.address.Kind, quoteValue(o.address.Name), o.position)
}

// givers returns a function that tells by which of the two objects, each of which may be nil, the draft got what is at a
// path. They are added to the draft once more for it, and only when there is a mistake to tell.
func (w *draft) givers(d *document, instance, prefer *object) func(path []any) string {
	trees := sync.OnceValue(func() []any {
		after := func(instance, prefer *object) any {
			scratch := *d
			scratch.file, scratch.told = &File{Path: d.file.Path}, nil
			vm := w.object.DeepCopy()
			x := expander{checker: newChecker(&scratch, w.address, w.spec), vm: vm, spec: &vm.Spec.Template.Spec}
			x.expand(instance, prefer)
			return w.tree(vm)
		}
		return []any{after(nil, nil), after(instance, nil), after(instance, prefer)}
	})
	return func(path []any) string {
		before, _ := walk(trees()[0], path)
		for i, giver := range []*object{instance, prefer} {
			if value, ok := walk(trees()[i+1], path); ok && !reflect.DeepEqual(value, before) {
				return giver.said()
			}
		}
		return ""
	}
}

// tree is the machine as its manifest would have it, in maps and lists.
func (w *draft) tree(vm *kubevirtv1.VirtualMachine) any {
	var object any = vm
	if len(w.spec) == 1 { // spec of a VirtualMachineInstance
		object = map[string]any{"spec": vm.Spec.Template.Spec}
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil
	}
	var tree any
	if json.Unmarshal(text, &tree) != nil {
		return nil
	}
	return tree
}

// walk returns what is at path; ok is false when nothing is.
func walk(tree any, path []any) (value any, ok bool) {
	for _, part := range path {
		switch p := part.(type) {
		case int:
			list, _ := tree.([]any)
			if p >= len(list) {
				return nil, false
			}
			tree = list[p]
			continue
		case string:
			part = key(p)
		}
		fields, _ := tree.(map[string]any)
		name, _ := part.(key)
		if tree, ok = fields[string(name)]; !ok {
			return nil, false
		}
	}
	return tree, true
}
