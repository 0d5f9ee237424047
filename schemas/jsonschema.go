package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// SchemaDraft is the version of JSON Schema that is written: the newest one that every editor's YAML support reads in
// full.
const SchemaDraft = "http://json-schema.org/draft-07/schema#"

// JSONSchema returns the JSON Schema of a kind, named as [Describe] takes it; of all kinds in one, chosen by what each
// document says of itself, for the empty name.
//
// The schema takes what [Parse] takes as far as a schema can say it. A field that KubeVirt knows and gitvirt does not
// carry out takes only values that ask for nothing, as Parse does, and says what to use instead.
func JSONSchema(kind string) ([]byte, error) {
	w := &schemaWriter{definitions: map[string]any{}}
	var root map[string]any
	if kind == "" {
		root = w.allKinds()
	} else {
		described, near, ok := kindNamed(kind)
		if !ok {
			return nil, fmt.Errorf("unknown kind %s; %s", quoteValue(kind), kindHint(near))
		}
		root = w.object(&described)
	}
	root["$schema"] = SchemaDraft
	if len(w.definitions) > 0 {
		root["definitions"] = w.definitions
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(root); err != nil {
		return nil, fmt.Errorf("encoding the schema of %s: %w", kind, err)
	}
	return out.Bytes(), nil
}

// schemaWriter writes schemas that share definitions.
type schemaWriter struct{ definitions map[string]any }

// object is the schema of a whole document.
func (w *schemaWriter) object(kind *DescribedKind) map[string]any {
	root := rootPlace(kind)
	schema := w.structSchema(&root)
	schema["title"] = kind.Name
	if text := root.description(); text != "" {
		schema["description"] = text
	}
	return schema
}

// allKinds picks the schema of a document by its kind. A choice by if and then gives one clear message per mistake,
// where oneOf would give those of every kind.
func (w *schemaWriter) allKinds() map[string]any {
	var known, lists []string
	var choices []any
	choose := func(kinds []string, schema any) {
		choices = append(choices, map[string]any{
			"if":   map[string]any{"required": []string{"kind"}, "properties": map[string]any{"kind": map[string]any{"enum": kinds}}},
			"then": schema,
		})
		known = append(known, kinds...)
	}
	for _, kind := range DescribedKinds() {
		w.definitions[kind.Name] = w.object(&kind)
		choose([]string{kind.Name}, definitionRef(kind.Name))
		lists = append(lists, kind.Name+"List")
	}
	choose([]string{"List"}, map[string]any{"properties": map[string]any{"items": map[string]any{"type": "array", "items": map[string]any{"$ref": "#"}}}})
	choose(lists, map[string]any{"properties": map[string]any{"items": map[string]any{"type": "array", "items": map[string]any{"type": "object"}}}})
	return map[string]any{
		"title": "gitvirt manifest", "type": "object", "required": []string{"apiVersion", "kind"},
		"description": "A manifest that gitvirt reads: a virtual machine of KubeVirt, or what belongs to one.",
		"properties": map[string]any{
			"apiVersion": map[string]any{"type": "string"},
			"kind":       map[string]any{"type": "string", "enum": known},
		},
		"allOf": choices,
	}
}

func definitionRef(name string) map[string]any {
	return map[string]any{"$ref": "#/definitions/" + name}
}

// property is the schema of one field, with its description.
func (w *schemaWriter) property(p *fieldPlace) map[string]any {
	text := p.description()
	switch p.support() {
	case SupportIgnored:
		return map[string]any{"description": join2("Written by servers; accepted and not read.", text), "doNotSuggest": true}
	case SupportRefused:
		return refusedSchema(p, text)
	}
	schema := w.value(p, p.info)
	rule := p.rule()
	switch p.path {
	case "apiVersion":
		schema["enum"] = p.kind.Versions
	case "kind":
		schema["enum"] = []string{p.kind.Name}
	case "metadata.annotations":
		schema["properties"] = annotationSchemas()
	}
	applyRule(schema, p.info, rule)
	if p.support() == SupportKept && p.instead != "" {
		text = join2(text, "gitvirt: kept; "+p.instead)
	}
	if text != "" {
		schema["description"] = text
	}
	return schema
}

func join2(first, second string) string { return strings.TrimSpace(first + "\n\n" + second) }

// refusedSchema takes what asks for nothing, and says why it takes nothing else: to validators by its values, to
// editors by keywords of theirs, which show the message and do not offer the field.
func refusedSchema(p *fieldPlace, text string) map[string]any {
	message := "known to KubeVirt, not carried out by gitvirt"
	if p.instead != "" {
		message += "; " + p.instead
	}
	return map[string]any{
		"enum": []any{nil, false, 0, "", []any{}}, "description": join2(message, text), "errorMessage": message,
		"deprecated": true, "doNotSuggest": true,
	}
}

func annotationSchemas() map[string]any {
	text := func(about string, more map[string]any) map[string]any {
		out := map[string]any{"type": "string", "description": about}
		maps.Copy(out, more)
		return out
	}
	return map[string]any{
		AnnotationProtect: text("\"true\" keeps the machine from being destroyed or replaced, also when its manifest is removed.",
			map[string]any{"enum": []string{"true", "false"}}),
		AnnotationAdopt:        text("The libvirt domain that becomes this machine, as virsh list --all names it.", nil),
		AnnotationPreviousName: text("NAME or NAMESPACE/NAME that this machine had; its domain and disks go with it.", nil),
		AnnotationDependsOn: text("Machines or sets that have to be ready first: NAME or NAMESPACE/NAME, where wanted with =agent, =tcp:53 and so on.",
			map[string]any{"examples": []string{"db-1, infra/dns=tcp:53"}}),
		AnnotationReady: text("When the machine counts as ready: running, agent, tcp:PORT, cloud-init or probe.",
			map[string]any{"pattern": `^ *(running|agent|tcp:[0-9]+|cloud-init|probe) *$`, "patternErrorMessage": "wanted running, agent, tcp:PORT, cloud-init or probe", "examples": []string{"agent", "tcp:22"}}),
	}
}

// value is the schema of what a type's values look like.
func (w *schemaWriter) value(p *fieldPlace, info *typeInfo) map[string]any {
	switch info.shape {
	case shapePointer:
		return w.value(p, info.elem)
	case shapeSlice:
		return map[string]any{"type": "array", "items": w.value(p, info.elem)}
	case shapeMap:
		return map[string]any{"type": "object", "additionalProperties": w.value(p, info.elem)}
	case shapeStruct:
		return definitionRef(w.define(p, info))
	case shapeString:
		return map[string]any{"type": "string"}
	case shapeBool:
		return map[string]any{"type": "boolean"}
	case shapeInt, shapeUint:
		return integerSchema(info.typ)
	case shapeFloat:
		return map[string]any{"type": "number"}
	case shapeBytes:
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	case shapeQuantity:
		return map[string]any{
			"type":     []string{"string", "number"},
			"pattern":  `^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`,
			"examples": []string{"1Gi", "512Mi"}, "patternErrorMessage": "wanted a quantity such as 512Mi",
		}
	}
	switch typeName(info) {
	case "integer or string":
		return map[string]any{"type": []string{"integer", "string"}}
	case "timestamp", "duration":
		return map[string]any{"type": []string{"string", "null"}}
	}
	return map[string]any{}
}

// integerSchema bounds a whole number by its Go type, as far as JSON's numbers tell the bounds apart.
func integerSchema(t reflect.Type) map[string]any {
	schema := map[string]any{"type": "integer"}
	switch t.Kind() {
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		schema["minimum"] = 0
		if t.Bits() <= 32 {
			schema["maximum"] = uint64(math.MaxUint64) >> (64 - t.Bits())
		}
	default:
		if t.Bits() <= 32 {
			schema["minimum"], schema["maximum"] = -(int64(1) << (t.Bits() - 1)), int64(1)<<(t.Bits()-1)-1
		}
	}
	return schema
}

// applyRule adds what the table of rules says. Values and patterns of a list are those of its elements.
func applyRule(schema map[string]any, info *typeInfo, rule fieldRule) {
	inner := schema
	if items, ok := schema["items"].(map[string]any); ok {
		inner = items
	}
	switch {
	case len(rule.values) > 0 && rule.anyCase:
		inner["examples"] = rule.values
	case len(rule.values) > 0:
		inner["enum"] = rule.values
	}
	if rule.pattern != "" {
		inner["pattern"], inner["patternErrorMessage"] = rule.pattern, rule.wanted
	}
	if rule.least != 0 {
		inner["minimum"] = rule.least
	}
	if rule.fallback != "" {
		schema["default"] = typed(info, rule.fallback)
	}
}

// typed turns the text of a default into a value of the field's type.
func typed(info *typeInfo, text string) any {
	switch structBelow(info).shape {
	case shapeBool:
		return text == "true"
	case shapeInt, shapeUint:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	}
	return text
}

// define adds the schema of a struct to the definitions and returns its name there. The same type has more than one
// definition where the support table says different things about its fields.
func (w *schemaWriter) define(p *fieldPlace, info *typeInfo) string {
	base := definitionName(info.typ)
	schema := any(map[string]any{})
	if strings.Count(p.path, ".") < maxDescribed {
		schema = w.structSchema(p)
	}
	name := base
	for i := 2; ; i++ {
		have, taken := w.definitions[name]
		if !taken {
			w.definitions[name] = schema
			return name
		}
		if reflect.DeepEqual(have, schema) {
			return name
		}
		name = base + "." + strconv.Itoa(i)
	}
}

// structSchema is the schema of a mapping with the fields below p.
func (w *schemaWriter) structSchema(p *fieldPlace) map[string]any {
	properties := map[string]any{}
	var required []string
	for _, child := range p.children() {
		properties[child.name()] = w.property(&child)
		if child.required() {
			required = append(required, child.name())
		}
	}
	schema := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		schema["required"] = slices.Sorted(slices.Values(required))
	}
	return schema
}

// definitionName names a Go type after the API it belongs to.
func definitionName(t reflect.Type) string {
	pkg := t.PkgPath()
	for prefix, group := range apiPackages() {
		if rest, ok := strings.CutPrefix(pkg, prefix); ok {
			return strings.TrimSuffix(group+"."+strings.ReplaceAll(strings.Trim(rest, "/"), "/", "."), ".") + "." + t.Name()
		}
	}
	return path.Base(pkg) + "." + t.Name()
}

func apiPackages() map[string]string {
	return map[string]string{
		"kubevirt.io/api/core/": "kubevirt", "kubevirt.io/api/instancetype/": "instancetype", "kubevirt.io/api/pool/": "pool",
		"kubevirt.io/containerized-data-importer-api/pkg/apis/core/": "cdi", "k8s.io/api/core/": "core",
		"k8s.io/apimachinery/pkg/apis/meta/": "meta", "github.com/gitvirt/gitvirt/schemas": "gitvirt",
	}
}
