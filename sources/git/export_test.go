package git

// SetSlack says by how many bytes a mirror of heads may grow before it is made anew.
func (s *Source) SetSlack(bytes int64) { s.slack = bytes }
