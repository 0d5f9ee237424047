package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// specFollows is what stands in a record before the spec, after what references resolved to.
const specFollows = `,"spec":`

// digestPrefix begins what stands in a record for a sensitive value.
const digestPrefix = "sha256:"

// digest stands for a sensitive value in records: equal values of the same machine have equal digests, and the same
// value in two machines has different ones.
func digest(a Address, value string) string {
	hash := sha256.New()
	hash.Write([]byte(a.String()))
	hash.Write([]byte{0})
	hash.Write([]byte(value))
	return digestPrefix + hex.EncodeToString(hash.Sum(nil))
}

// record sets Record and Hash from an object that has no defaults yet: canonical JSON in the shape of a
// VirtualMachine, ASCII only, with digests for what is sensitive. What dataVolumeTemplates say stands in claims, once
// references are resolved.
func (vm *VM) record(object *kubevirtv1.VirtualMachine) {
	e := &encoder{buf: make([]byte, 0, 1024), digest: func(value string) string { return digest(vm.Address, value) }}
	e.buf = append(e.buf, `{"kind":`...)
	e.buf = appendString(e.buf, vm.Address.Kind)
	e.buf = append(e.buf, `,"metadata":{`...)
	for _, m := range []struct {
		name   string
		values map[string]string
	}{{"annotations", withoutTakeover(object.Annotations)}, {"labels", object.Labels}} {
		if len(m.values) > 0 {
			e.buf = append(e.buf, '"')
			e.buf = append(e.buf, m.name...)
			e.buf = append(e.buf, '"', ':')
			e.encode(reflect.ValueOf(m.values), infoOf(reflect.TypeFor[map[string]string]()), false)
			e.buf = append(e.buf, ',')
		}
	}
	e.buf = append(e.buf, `"name":`...)
	e.buf = appendString(e.buf, vm.Address.Name)
	e.buf = append(e.buf, `,"namespace":`...)
	e.buf = appendString(e.buf, vm.Address.Namespace)
	e.buf = append(e.buf, `}`...)
	vm.resolvedAt = len(e.buf)
	e.buf = append(e.buf, specFollows...)
	spec := object.Spec
	strategy := vm.RunStrategy
	spec.Running, spec.RunStrategy, spec.DataVolumeTemplates = nil, &strategy, nil
	e.encode(reflect.ValueOf(spec), infoOf(reflect.TypeFor[kubevirtv1.VirtualMachineSpec]()), false)
	e.buf = append(e.buf, '}')
	vm.setRecord(e.buf)
}

// RecordAs returns the record that the machine would have under another address, to compare it with what was applied before
// the machine was renamed: digests of sensitive values depend on the address.
func (vm *VM) RecordAs(address Address) ([]byte, error) {
	read, err := ReadRecord(vm.Record, false)
	if err != nil {
		return nil, err
	}
	out := &VM{Address: address, RunStrategy: vm.RunStrategy}
	out.record(vm.Object)
	secret := map[string]bool{}
	for reference := range read.Secrets {
		secret[reference] = true
	}
	return out.with(&resolved{contents: vm.Contents, secret: secret, claims: vm.Claims}).Record, nil
}

func (vm *VM) setRecord(record []byte) {
	sum := sha256.Sum256(record)
	vm.Record, vm.Hash = slices.Clip(record), hex.EncodeToString(sum[:])
}

// with returns a copy of the VM that holds what its references resolved to. It becomes part of the record, so that a
// changed Secret or a larger claim is a changed wish: contents as digests, claims as they are. Credentials of registries
// and of sources are left out, because no guest notices when they change.
func (vm *VM) with(r *resolved) *VM {
	out := *vm
	out.Contents, out.Claims, out.HostDevices, out.uses = r.contents, r.claims, r.devices, r.uses
	digests := func(secret bool) map[string]string {
		var out map[string]string
		for reference, content := range r.contents {
			if r.secret[reference] != secret || strings.HasPrefix(reference, PullSecretContent("")) {
				continue
			}
			if out == nil {
				out = map[string]string{}
			}
			out[reference] = digest(vm.Address, content.text())
		}
		return out
	}
	e := &encoder{
		buf:    slices.Concat(vm.Record[:vm.resolvedAt], make([]byte, 0, 512)),
		digest: func(value string) string { return digest(vm.Address, value) },
	}
	for _, part := range []struct {
		name  string
		value any
	}{{"claims", r.claims}, {"contents", digests(false)}, {"secrets", digests(true)}} {
		if v := reflect.ValueOf(part.value); v.Len() > 0 {
			e.buf = append(e.buf, `,"`+part.name+`":`...)
			e.encode(v, infoOf(v.Type()), false)
		}
	}
	out.setRecord(append(e.buf, vm.Record[vm.resolvedAt:]...))
	return &out
}

// text is the content as one string, from which nothing can be shifted to another key without a difference.
func (c Content) text() string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&text, "%d:%s%d:%s", len(key), key, len(c[key]), c[key])
	}
	return text.String()
}
