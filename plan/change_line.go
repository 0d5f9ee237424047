package plan

// String says in a line what a change does: "+ path: new", "- path: old" or "~ path: old -> new". Sensitive values and
// contents are not in it.
func (c Change) String() string {
	sign, text := c.line()
	return sign + " " + text
}

// line is String, with the sign apart.
func (c *Change) line() (sign, text string) {
	switch {
	case c.Sensitive:
		return "~", c.Path + ": (sensitive)"
	case c.isDigest():
		return "~", c.Path + ": other content"
	case c.Before == nil:
		return "+", c.Path + ": " + brief(c.After)
	case c.After == nil:
		return "-", c.Path + ": " + brief(c.Before)
	}
	return "~", c.Path + ": " + brief(c.Before) + " -> " + brief(c.After)
}
