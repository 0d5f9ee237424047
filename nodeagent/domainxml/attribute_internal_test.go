package domainxml

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// TestAttributedFieldsExist: every path that the table makes is one that manifests have.
func TestAttributedFieldsExist(t *testing.T) {
	names := regexp.MustCompile(`\[[^]]*\]`)
	fill := strings.NewReplacer("{kind}", "cdrom", "{list}", "interfaces", "chassis.{key}", "chassis.asset")
	for element, row := range fields {
		at := reflect.TypeFor[kubevirtv1.VirtualMachineInstanceSpec]()
		for part := range strings.SplitSeq(names.ReplaceAllString(fill.Replace(row.path), ""), ".") {
			next, ok := fieldNamed(at, part)
			if !ok {
				t.Errorf("%s: %s: %s has no field %s", element, row.path, at, part)
				break
			}
			at = next
		}
	}
}

// fieldNamed returns the type of the field of a JSON name, that of the elements of a list.
func fieldNamed(in reflect.Type, name string) (reflect.Type, bool) {
	if in.Kind() != reflect.Struct {
		return nil, false
	}
	for i := range in.NumField() {
		field := in.Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if tag == "" && field.Anonymous {
			if found, ok := fieldNamed(field.Type, name); ok {
				return found, true
			}
		}
		if tag != name {
			continue
		}
		out := field.Type
		for out.Kind() == reflect.Pointer || out.Kind() == reflect.Slice {
			out = out.Elem()
		}
		return out, true
	}
	return nil, false
}
