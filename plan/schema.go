package plan

import (
	_ "embed" // the schema
	"slices"
)

//go:embed plan-2.1.json
var jsonSchema []byte

// SchemaName is the name of the file in which JSONSchema is published.
const SchemaName = "plan-" + FormatVersion + ".json"

// JSONSchema returns the JSON Schema (draft 7) of the JSON form of plans.
func JSONSchema() []byte { return slices.Clone(jsonSchema) }
