package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	v1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	poolv1beta1 "kubevirt.io/api/pool/v1beta1"
	"sigs.k8s.io/yaml"
)

// machine is a manifest that becomes a domain.
type machine struct {
	name string // of the file
	kind string
	text []byte
}

// read gathers the machines of the files, and keeps instancetypes and preferences.
func (c *cluster) read(paths []string) ([]machine, error) {
	var machines []machine
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			kind, err := c.keep(document)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			switch kind {
			case "VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceReplicaSet", "VirtualMachinePool":
				machines = append(machines, machine{strings.TrimSuffix(filepath.Base(path), ".yaml"), kind, document})
			}
		}
	}
	return machines, nil
}

// keep returns the kind of a document and remembers what machines may refer to.
func (c *cluster) keep(document []byte) (string, error) {
	var header struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(document, &header); err != nil {
		return "", err
	}
	switch header.Kind {
	case "VirtualMachineInstancetype", "VirtualMachineClusterInstancetype":
		object := &instancetypev1beta1.VirtualMachineInstancetype{}
		c.instancetypes[header.Name] = &object.Spec
		return header.Kind, yaml.Unmarshal(document, object)
	case "VirtualMachinePreference", "VirtualMachineClusterPreference":
		object := &instancetypev1beta1.VirtualMachinePreference{}
		c.preferences[header.Name] = &object.Spec
		return header.Kind, yaml.Unmarshal(document, object)
	}
	return header.Kind, nil
}

// decode reads a machine strictly. vm is nil for what is no VirtualMachine.
func decode(m machine) (vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, err error) {
	switch m.kind {
	case "VirtualMachine":
		vm = &v1.VirtualMachine{}
		err = yaml.UnmarshalStrict(m.text, vm)
	case "VirtualMachinePool":
		pool := &poolv1beta1.VirtualMachinePool{}
		if err = yaml.UnmarshalStrict(m.text, pool); err == nil && pool.Spec.VirtualMachineTemplate != nil {
			vm = &v1.VirtualMachine{ObjectMeta: pool.ObjectMeta, Spec: pool.Spec.VirtualMachineTemplate.Spec}
		}
	case "VirtualMachineInstanceReplicaSet":
		set := &v1.VirtualMachineInstanceReplicaSet{}
		if err = yaml.UnmarshalStrict(m.text, set); err == nil && set.Spec.Template != nil {
			vmi = &v1.VirtualMachineInstance{ObjectMeta: set.ObjectMeta, Spec: set.Spec.Template.Spec}
		}
	default:
		vmi = &v1.VirtualMachineInstance{}
		err = yaml.UnmarshalStrict(m.text, vmi)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case vm != nil && vm.Spec.Template == nil, vm == nil && vmi == nil:
		return nil, nil, errors.New("no template")
	case vm != nil:
		vmi = &v1.VirtualMachineInstance{ObjectMeta: *vm.ObjectMeta.DeepCopy(), Spec: *vm.Spec.Template.Spec.DeepCopy()}
		vmi.Labels, vmi.Annotations = vm.Spec.Template.ObjectMeta.Labels, vm.Spec.Template.ObjectMeta.Annotations
	}
	return vm, vmi, nil
}
