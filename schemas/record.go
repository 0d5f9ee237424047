package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

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
// VirtualMachine, ASCII only, with digests for what is sensitive. secrets is the encoded object of digests of the
// resolved Secrets, or "".
func (vm *VM) record(object *kubevirtv1.VirtualMachine, secrets string) {
	e := &encoder{buf: make([]byte, 0, 1024), digest: func(value string) string { return digest(vm.Address, value) }}
	e.buf = append(e.buf, `{"kind":`...)
	e.buf = appendString(e.buf, vm.Address.Kind)
	e.buf = append(e.buf, `,"metadata":{`...)
	for _, m := range []struct {
		name   string
		values map[string]string
	}{{"annotations", object.Annotations}, {"labels", object.Labels}} {
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
	vm.secretsAt = len(e.buf)
	e.buf = append(e.buf, secrets...)
	e.buf = append(e.buf, `,"spec":`...)
	spec := object.Spec
	strategy := vm.RunStrategy
	spec.Running, spec.RunStrategy = nil, &strategy
	e.encode(reflect.ValueOf(spec), infoOf(reflect.TypeFor[kubevirtv1.VirtualMachineSpec]()), false)
	e.buf = append(e.buf, '}')
	vm.setRecord(e.buf)
}

func (vm *VM) setRecord(record []byte) {
	sum := sha256.Sum256(record)
	vm.Record, vm.Hash = slices.Clip(record), hex.EncodeToString(sum[:])
}

// withContents returns a copy of the VM that holds what its references resolved to; their digests become part of the
// record, so that a changed Secret is a changed wish.
func (vm *VM) withContents(contents map[string]Content) *VM {
	out := *vm
	out.Contents = contents
	var buf []byte
	buf = append(buf, vm.Record[:vm.secretsAt]...)
	buf = append(buf, `,"secrets":{`...)
	for i, reference := range slices.Sorted(maps.Keys(contents)) {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = appendString(buf, reference)
		buf = append(buf, ':')
		buf = appendString(buf, digest(vm.Address, contents[reference].text()))
	}
	buf = append(buf, '}')
	buf = append(buf, vm.Record[vm.secretsAt:]...)
	out.setRecord(buf)
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

// ParseRecord reads a record back, with the defaults of this version filled in when asked for, so that two records
// can be compared by meaning. secrets holds the digests of the Secret volumes by volume name. Fields that this version
// does not know are left out.
func ParseRecord(record []byte, defaults bool) (vm *kubevirtv1.VirtualMachine, secrets map[string]string, err error) {
	var read struct {
		kubevirtv1.VirtualMachine
		Secrets map[string]string `json:"secrets"`
	}
	if err := json.Unmarshal(record, &read); err != nil {
		return nil, nil, fmt.Errorf("reading the record of a machine: %w", err)
	}
	vm = &read.VirtualMachine
	if vm.Spec.Template == nil || vm.Name == "" || vm.Spec.RunStrategy == nil {
		return nil, nil, fmt.Errorf("reading the record of a machine: it has no name, no run strategy or no template")
	}
	if defaults {
		applyDefaults(vm)
	}
	return vm, read.Secrets, nil
}
