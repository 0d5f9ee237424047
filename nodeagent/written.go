package nodeagent

import (
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// written reports whether the domain is what the step would define: it carries the very record, and its definition, as the
// step has just read it, does not differ from what the record renders to. Defining it again would change nothing, and is
// what costs most about a step that finds its work done. In doubt it is defined: a domain that is made anew, one that was adopted or
// renamed, and one with anything in its definition that is not understood.
func (e *execution) written(before, record *domainxml.Record) bool {
	if before == nil || !e.defined() || e.request.GetReplace() || e.now.problem != "" {
		return false
	}
	message, ok := e.now.message.(*api.Domain)
	if !ok || message.GetTransient() || len(e.now.changes) > 0 || len(e.now.unreadConfig) > 0 {
		return false
	}
	if record.Kept != nil || record.Domain != "" || !record.Origin.IsZero() {
		return false
	}
	return same(before, record)
}

// same reports whether two records say the same, every detail included.
func same(one, other *domainxml.Record) bool {
	first, err := one.Element()
	if err != nil {
		return false
	}
	second, err := other.Element()
	return err == nil && first == second
}
