package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Recorded is a record that was read back.
type Recorded struct {
	Object *kubevirtv1.VirtualMachine
	// Claims are VM.Claims without sensitive values.
	Claims map[string]Claim
	// Secrets and Contents are digests of what Secrets and ConfigMaps held, by the keys of VM.Contents.
	Secrets, Contents map[string]string
}

// recorded is a record as JSON has it.
type recorded struct {
	kubevirtv1.VirtualMachine
	recordedReferences
}

// recordedReferences are what references of a machine resolved to, as a record has it.
type recordedReferences struct {
	Claims   map[string]Claim  `json:"claims"`
	Secrets  map[string]string `json:"secrets"`
	Contents map[string]string `json:"contents"`
}

// ReadRecord reads a record back, with the defaults of this version filled in when asked for, so that two records can be
// compared by meaning. Fields that this version does not know are left out.
func ReadRecord(record []byte, defaults bool) (*Recorded, error) {
	var read recorded
	if err := readRecord(record, &read, nil); err != nil {
		return nil, err
	}
	return read.complete(defaults)
}

// complete checks that everything is there that every machine has.
func (r *recorded) complete(defaults bool) (*Recorded, error) {
	vm := &r.VirtualMachine
	if vm.Spec.Template == nil || vm.Name == "" || vm.Spec.RunStrategy == nil {
		return nil, fmt.Errorf("reading the record of a machine: it has no name, no run strategy or no template")
	}
	if defaults {
		applyDefaults(vm)
	}
	return &Recorded{Object: vm, Claims: r.Claims, Secrets: r.Secrets, Contents: r.Contents}, nil
}

// readRecord reads of a record what the struct has fields for that out points to.
func readRecord[T any](record []byte, out *T, memory *memory) error {
	reader := recordReader{data: record, memory: memory}
	if reader.readInto(reflect.ValueOf(out).Elem()) {
		return nil
	}
	var zero T
	*out = zero
	if err := json.Unmarshal(record, out); err != nil {
		return fmt.Errorf("reading the record of a machine: %w", err)
	}
	return nil
}

// ParseRecord is ReadRecord for those who only want the object and the digests of Secrets.
func ParseRecord(record []byte, defaults bool) (vm *kubevirtv1.VirtualMachine, secrets map[string]string, err error) {
	read, err := ReadRecord(record, defaults)
	if err != nil {
		return nil, nil, err
	}
	return read.Object, read.Secrets, nil
}

// RecordReader reads records to compare them, thousands one after the other. What it returns is good until it is asked for the
// next of the kind, because that is read into the same memory. The zero value is ready; it is not for several goroutines.
type RecordReader struct {
	memory memory
	read   recorded

	// wanted, template and volumes are what Of returns, where a machine's own cannot be used.
	wanted   kubevirtv1.VirtualMachine
	template kubevirtv1.VirtualMachineInstanceTemplateSpec
	volumes  []kubevirtv1.Volume
}

// Read is ReadRecord with defaults.
func (r *RecordReader) Read(record []byte) (*Recorded, error) {
	r.memory.forget()
	r.read = recorded{}
	if err := readRecord(record, &r.read, &r.memory); err != nil {
		return nil, err
	}
	return r.read.complete(true)
}

// Of returns what Read finds in the record of a machine. It is mostly there already, in VM.Object, with which the result shares:
// nobody may change it.
func (r *RecordReader) Of(vm *VM) (*Recorded, error) {
	object := &r.wanted
	*object = kubevirtv1.VirtualMachine{Spec: vm.Object.Spec}
	object.Name, object.Namespace = vm.Address.Name, vm.Address.Namespace
	object.Labels, object.Annotations = vm.Object.Labels, withoutTakeover(vm.Object.Annotations)
	object.Spec.Running, object.Spec.RunStrategy, object.Spec.DataVolumeTemplates = nil, &vm.RunStrategy, nil
	if slices.ContainsFunc(vm.Spec().Volumes, holdsSensitive) {
		r.template, r.volumes = *vm.Object.Spec.Template, append(r.volumes[:0], vm.Spec().Volumes...)
		for i := range r.volumes {
			vm.redact(&r.volumes[i])
		}
		r.template.Spec.Volumes = r.volumes
		object.Spec.Template = &r.template
	}
	out := &Recorded{Object: object}
	if bytes.HasPrefix(vm.Record[vm.resolvedAt:], []byte(specFollows)) {
		return out, nil // it refers to nothing
	}
	var references recordedReferences
	if err := readRecord(vm.Record, &references, nil); err != nil {
		return nil, err
	}
	out.Claims, out.Secrets, out.Contents = references.Claims, references.Secrets, references.Contents
	return out, nil
}

// holdsSensitive reports whether records have digests for something that a volume says.
func holdsSensitive(volume kubevirtv1.Volume) bool {
	return volume.CloudInitNoCloud != nil || volume.CloudInitConfigDrive != nil
}

// redact puts digests in place of what is sensitive in a volume, and leaves alone what it shares with others.
func (vm *VM) redact(volume *kubevirtv1.Volume) {
	hide := func(texts ...*string) {
		for _, text := range texts {
			if *text != "" {
				*text = digest(vm.Address, *text)
			}
		}
	}
	if volume.CloudInitNoCloud != nil {
		source := *volume.CloudInitNoCloud
		hide(&source.UserData, &source.UserDataBase64, &source.NetworkData, &source.NetworkDataBase64)
		volume.CloudInitNoCloud = &source
	}
	if volume.CloudInitConfigDrive != nil {
		source := *volume.CloudInitConfigDrive
		hide(&source.UserData, &source.UserDataBase64, &source.NetworkData, &source.NetworkDataBase64)
		volume.CloudInitConfigDrive = &source
	}
}
