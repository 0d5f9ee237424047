// Command gendeploy writes what deploy/ has for kustomize and Helm, below a folder: gendeploy FOLDER. hack/generate.sh calls it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gitvirt/gitvirt/install"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendeploy FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gendeploy:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	files, err := install.Files()
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(folder, "deploy", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // documents of the repository
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // documents of the repository
			return err
		}
	}
	return nil
}
