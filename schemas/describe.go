package schemas

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Field is one field of a manifest as people are told about it; the object itself is the field with an empty path.
type Field struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	// Path is the path from the object's root without list indices, such as "spec.template.spec.domain.cpu".
	Path string `json:"path,omitempty"`
	// Type is what is written there: string, boolean, integer, number, quantity, object, []object, map[string]string.
	Type string `json:"type"`
	// Description is that of the field's API, in as many lines as it has there.
	Description string `json:"description,omitempty"`
	// Values are all values that may be written; none means any of the type.
	Values []string `json:"values,omitempty"`
	// Default is what holds when nothing is written; empty when there is none, or none that is always the same.
	Default  string `json:"default,omitempty"`
	Required bool   `json:"required,omitempty"`
	// Support says what gitvirt does with it.
	Support SupportStatus `json:"support"`
	// Instead says why the field is refused or only kept, or what to use in its place.
	Instead string `json:"instead,omitempty"`
	// Below counts the fields that hold values, of those below an object.
	Below *SupportCount `json:"below,omitempty"`
	// MachineField is the path of the same field in a VirtualMachine; empty for what is no part of one.
	MachineField string `json:"-"`
	// Fields are the fields below, in the order of their names.
	Fields []Field `json:"fields,omitempty"`
}

// SupportCount counts fields by what gitvirt does with them. Those that only servers write are not counted.
type SupportCount struct {
	Carried int `json:"carried"`
	Kept    int `json:"kept"`
	Refused int `json:"refused"`
}

// Name is the last part of the path.
func (f *Field) Name() string { return f.Path[strings.LastIndexByte(f.Path, '.')+1:] }

// String names the status in a sentence about a field.
func (s SupportStatus) String() string {
	switch s {
	case SupportCarried:
		return "carried out"
	case SupportKept:
		return "kept"
	case SupportIgnored:
		return "not read"
	}
	return "refused"
}

// MarshalText is String, for JSON.
func (s SupportStatus) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Describe returns the field at a path that begins with a kind or its short name, such as "vm.spec.runStrategy", with
// the fields right below it or, when recursive, all of them. List indices in the path are skipped over. The error for
// a path that names nothing says what was probably meant.
func Describe(path string, recursive bool) (*Field, error) {
	p, err := placeAt(path)
	if err != nil {
		return nil, err
	}
	field := p.describe(depthOf(recursive))
	return &field, nil
}

// depthOf is how many levels below a field are listed; no manifest is deeper than the larger one.
func depthOf(recursive bool) int {
	if recursive {
		return maxDescribed
	}
	return 1
}

// maxDescribed bounds the depth of what is described, for types that hold themselves.
const maxDescribed = 24

// CompletePath returns the paths that begin with what was typed so far, and reports whether each of them is complete:
// none has fields below it.
func CompletePath(typed string) (paths []string, complete bool) {
	cut := strings.LastIndexByte(typed, '.')
	if cut < 0 {
		for _, kind := range DescribedKinds() {
			for _, name := range append([]string{strings.ToLower(kind.Name)}, kind.ShortNames...) {
				if strings.HasPrefix(name, strings.ToLower(typed)) {
					paths = append(paths, name)
				}
			}
		}
		return paths, false
	}
	p, err := placeAt(typed[:cut])
	if err != nil {
		return nil, true
	}
	complete = true
	for _, child := range p.children() {
		if path := typed[:cut+1] + child.name(); strings.HasPrefix(path, typed) && child.support() != SupportIgnored {
			paths = append(paths, path)
			complete = complete && len(structBelow(child.info).fields) == 0
		}
	}
	return paths, complete
}

// fieldPlace is a field on the way down from a kind, with what the support table says about it.
type fieldPlace struct {
	kind  *DescribedKind
	path  string
	field *fieldInfo   // nil for the object itself
	owner reflect.Type // the struct that declares the field
	info  *typeInfo
	// node is the place in the support table; nil where it says nothing more.
	node    *supportNode
	status  SupportStatus
	instead string
}

func rootPlace(kind *DescribedKind) fieldPlace {
	node, status := supportTrees()[kind.Name], SupportUndecided
	if node == nil { // as the decoder has it
		node, status = supportTrees()[""], SupportCarried
	}
	return fieldPlace{kind: kind, info: infoOf(kind.typ), node: node, status: status}
}

// support is what the decoder does with the field: what the table leaves open is refused, unless it decides about
// something below.
func (p *fieldPlace) support() SupportStatus {
	switch {
	case p.status != SupportUndecided:
		return p.status
	case p.node != nil && len(p.node.children) > 0:
		return SupportCarried
	}
	return SupportRefused
}

func (p *fieldPlace) name() string { return p.path[strings.LastIndexByte(p.path, '.')+1:] }

// placeAt walks from a kind down to a field.
func placeAt(path string) (fieldPlace, error) {
	name, rest, _ := strings.Cut(strings.TrimSpace(path), ".")
	kind, near, ok := kindNamed(name)
	if !ok {
		return fieldPlace{}, fmt.Errorf("unknown kind %s; %s", quoteValue(name), kindHint(near))
	}
	p := rootPlace(&kind)
	if rest == "" {
		return p, nil
	}
	for part := range strings.SplitSeq(rest, ".") {
		part, _, _ = strings.Cut(part, "[")
		if p.info.shape == shapeMap {
			return fieldPlace{}, fmt.Errorf("%s is a %s: nothing is below it but the keys that you choose", p.path, typeName(p.info))
		}
		below := structBelow(p.info)
		i, ok := below.byName[part]
		if !ok {
			at := strings.TrimSuffix(name+"."+p.path, ".")
			if len(below.fields) == 0 {
				return fieldPlace{}, fmt.Errorf("%s has no field %s: it is a %s", at, quoteValue(part), typeName(p.info))
			}
			_, hint := suggestField(below, part)
			return fieldPlace{}, fmt.Errorf("%s has no field %s; %s", at, quoteValue(part), strings.Replace(hint, "look it up in KubeVirt's API reference", "see gitvirt explain "+at, 1))
		}
		p = p.child(below, i)
	}
	return p, nil
}

func kindHint(near string) string {
	if near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	var known []string
	for _, kind := range DescribedKinds() {
		known = append(known, strings.ToLower(kind.Name))
	}
	return "known: " + strings.Join(known, ", ")
}

// structBelow returns the struct that a field holds, or holds a list or a pointer of.
func structBelow(info *typeInfo) *typeInfo {
	for info.shape == shapePointer || info.shape == shapeSlice {
		info = info.elem
	}
	return info
}

// child returns the i-th field of the struct below p.
func (p *fieldPlace) child(below *typeInfo, i int) fieldPlace {
	field := &below.fields[i]
	child := fieldPlace{kind: p.kind, path: field.name, field: field, owner: ownerOf(below.typ, field), info: field.info, instead: p.instead}
	if p.path != "" {
		child.path = p.path + "." + field.name
	}
	child.node, child.status = p.node.below(field.name, p.status)
	if child.node != nil && child.node.decided {
		child.instead = child.node.instead
	}
	if child.path == "metadata.generateName" {
		child.status, child.instead = SupportRefused, "the same manifest must always mean the same object; write metadata.name"
	}
	return child
}

func (p *fieldPlace) children() []fieldPlace {
	below := structBelow(p.info)
	out := make([]fieldPlace, len(below.fields))
	for i := range below.fields {
		out[i] = p.child(below, i)
	}
	return out
}

// ownerOf returns the struct that declares a field: t, or one that is inlined in it.
func ownerOf(t reflect.Type, field *fieldInfo) reflect.Type {
	for _, i := range field.index[:len(field.index)-1] {
		t = t.Field(i).Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return t
}

func (p *fieldPlace) describe(depth int) Field {
	rule := p.rule()
	field := Field{
		Kind: p.kind.Name, APIVersion: p.kind.Versions[0], Path: p.path, Type: typeName(p.info), Description: p.description(),
		Values: rule.values, Default: rule.fallback, Required: p.required(), Support: p.support(), Instead: p.instead,
		MachineField: p.machineField(),
	}
	if len(structBelow(p.info).fields) > 0 && field.Support != SupportIgnored {
		field.Below = &SupportCount{}
		p.count(field.Below, maxDescribed)
	}
	if depth == 0 || field.Support == SupportIgnored {
		return field
	}
	for _, child := range p.children() {
		field.Fields = append(field.Fields, child.describe(depth-1))
	}
	return field
}

// count adds the fields below p that hold values, or p when nothing is below it.
func (p *fieldPlace) count(to *SupportCount, depth int) {
	status := p.support()
	children := p.children()
	if len(children) > 0 && depth > 0 && status != SupportIgnored {
		for _, child := range children {
			child.count(to, depth-1)
		}
		return
	}
	switch status {
	case SupportCarried:
		to.Carried++
	case SupportKept:
		to.Kept++
	case SupportRefused:
		to.Refused++
	}
}

// machineField is the path that the field has in a VirtualMachine.
func (p *fieldPlace) machineField() string {
	below := func(outer string) (string, bool) {
		rest, ok := strings.CutPrefix(p.path, outer)
		return rest, ok && outer != "" && (rest == "" || rest[0] == '.')
	}
	if p.kind.Name == KindVirtualMachine {
		return p.path
	}
	if rest, ok := below(p.kind.machine); ok {
		return "spec.template.spec" + rest
	}
	if rest, ok := below(p.kind.template); ok {
		return strings.TrimPrefix(rest, ".")
	}
	if p.kind.Name == KindVirtualMachineInstance {
		return p.path
	}
	return ""
}

// required reports whether the field must be written wherever what holds it is: KubeVirt marks such scalars by never
// leaving them out, and the table of rules says the rest.
func (p *fieldPlace) required() bool {
	if p.field == nil {
		return false
	}
	switch p.path {
	case "apiVersion", "kind":
		return true
	case "metadata", "metadata.name":
		return p.kind.Name != KindFleet
	}
	if rule := p.rule(); rule.optional || rule.required {
		return rule.required
	}
	switch p.info.shape {
	case shapeStruct, shapePointer, shapeSlice, shapeMap, shapeBool:
		return false
	}
	declared, ok := p.owner.FieldByName(p.owner.Field(p.field.index[len(p.field.index)-1]).Name)
	_, options, _ := strings.Cut(declared.Tag.Get("json"), ",")
	return ok && !slices.Contains(strings.Split(options, ","), "omitempty") && !slices.Contains(strings.Split(options, ","), "omitzero")
}

// documented are the Go types that carry the descriptions of their fields.
type documented interface{ SwaggerDoc() map[string]string }

// description returns what the API says about the field; about its type when it says nothing of the field.
func (p *fieldPlace) description() string {
	var text string
	if p.field != nil {
		text = p.rule().doc
		if text == "" {
			text = docOf(p.owner, p.field.name)
		}
	}
	if text == "" {
		text = docOf(structBelow(p.info).typ, "")
	}
	return tidy(text)
}

func docOf(t reflect.Type, field string) string {
	if t.Kind() != reflect.Struct {
		return ""
	}
	if with, ok := reflect.New(t).Interface().(documented); ok {
		return with.SwaggerDoc()[field]
	}
	return ""
}

// tidy drops what a description holds for generators, such as "+optional".
func tidy(text string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if trimmed := strings.TrimSpace(line); !strings.HasPrefix(trimmed, "+") && trimmed != "---" {
			lines = append(lines, trimmed)
		}
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// typeName names a type in a manifest.
func typeName(info *typeInfo) string {
	switch info.shape {
	case shapePointer:
		return typeName(info.elem)
	case shapeSlice:
		return "[]" + typeName(info.elem)
	case shapeMap:
		return "map[string]" + typeName(info.elem)
	case shapeStruct:
		return "object"
	case shapeBool:
		return "boolean"
	case shapeInt, shapeUint:
		return "integer"
	case shapeFloat:
		return "number"
	case shapeBytes:
		return "base64"
	case shapeQuantity:
		return "quantity"
	case shapeString:
		return "string"
	}
	switch info.typ {
	case reflect.TypeFor[intstr.IntOrString]():
		return "integer or string"
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "timestamp"
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[Duration]():
		return "duration"
	case reflect.TypeFor[json.RawMessage]():
		return "any"
	}
	return "any"
}
