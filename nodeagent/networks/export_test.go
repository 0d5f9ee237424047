package networks

// OnStep has f called before each change of the namespace; its error stops the change.
func (p *Pod) OnStep(f func(string) error) { p.steps = f }
