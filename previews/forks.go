package previews

import (
	"slices"

	"github.com/gitvirt/gitvirt/schemas"
)

// guarded takes out of a fork's files what was decrypted of those that it changes: whoever opens a pull request could have moved what is
// encrypted to where a plan shows it. Files that are as in the base are the same pointers.
func guarded(files, base []*schemas.File) []*schemas.File {
	files = slices.Clone(files)
	known := make(map[*schemas.File]bool, len(base))
	for _, file := range base {
		known[file] = true
	}
	for i, file := range files {
		if file.Decrypted() && !known[file] {
			files[i] = schemas.Unreadable(schemas.Position{File: file.Path, Line: 1},
				"the file is encrypted with SOPS, and a pull request from a fork that changes it does not have it decrypted",
				"have somebody who may push to the repository open the pull request")
		}
	}
	return files
}
