// The functions that ports.go links to have no body there, which the compiler takes only in a package with assembly.
