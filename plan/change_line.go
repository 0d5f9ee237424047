package plan

import "fmt"

// String says in a line what a change does: "+ path: new", "- path: old" or "~ path: old -> new". Sensitive values and
// contents are not in it.
func (c Change) String() string {
	switch {
	case c.Sensitive:
		return "~ " + c.Path + ": (sensitive)"
	case c.isDigest():
		return "~ " + c.Path + ": other content"
	case c.Before == nil:
		return fmt.Sprintf("+ %s: %s", c.Path, brief(c.After))
	case c.After == nil:
		return fmt.Sprintf("- %s: %s", c.Path, brief(c.Before))
	}
	return fmt.Sprintf("~ %s: %s -> %s", c.Path, brief(c.Before), brief(c.After))
}
