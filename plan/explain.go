package plan

import (
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// ConsequenceOf returns what a change of a field means for a running guest, to tell people before they change it; for
// an instance type or a preference, for the guests of the machines that use it. It is empty for a field that is no
// part of a machine, or that changes nothing because it is not carried out.
func ConsequenceOf(field *schemas.Field) Consequence {
	switch {
	case field.Support == schemas.SupportIgnored, field.Support == schemas.SupportRefused, field.Path == "apiVersion", field.Path == "kind":
		return ""
	case field.MachineField != "":
		return consequenceOf(field.MachineField)
	case shapesMachines(field.Kind) && within(field.Path, "spec"):
		for _, harmless := range []string{"annotations", "nodeSelector", "schedulerName", "requirements", "preferredTerminationGracePeriodSeconds"} {
			if within(field.Path, "spec."+harmless) {
				return ConsequenceNone
			}
		}
		return consequenceOf("spec.domain")
	}
	return ""
}

// RowOf returns the row of the table that says what a change of a field means; nil for a field that ConsequenceOf says nothing
// about, and for those of instance types and preferences.
func RowOf(field *schemas.Field) *Row {
	if ConsequenceOf(field) == "" || field.MachineField == "" {
		return nil
	}
	row := *rowOf(field.MachineField)
	return &row
}

// shapesMachines tells the kinds whose fields become those of the machines that refer to them.
func shapesMachines(kind string) bool {
	return strings.HasSuffix(kind, "Instancetype") || strings.HasSuffix(kind, "Preference")
}
