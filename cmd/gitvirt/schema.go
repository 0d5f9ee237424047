package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) schemaCommand() *cobra.Command {
	var dir string
	command := &cobra.Command{
		Use:   "schema [KIND]",
		Short: "Print the JSON Schema of the manifests",
		Long: `Print the JSON Schema (draft 7) of one kind, or of all kinds in one, for editors that check and complete YAML while it
is typed. In an editor with the YAML language server, the first line of a manifest names it:

  # yaml-language-server: $schema=../schemas/gitvirt.json

A field that KubeVirt knows and gitvirt does not carry out is marked, with what to use instead.

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt schema >gitvirt.json
  gitvirt schema vm
  gitvirt schema --dir schemas`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeKind,
		RunE: func(_ *cobra.Command, args []string) error {
			kind := strings.Join(args, "")
			if dir != "" {
				if kind != "" {
					return fmt.Errorf("--dir writes the schemas of all kinds; leave out %s, or --dir", kind)
				}
				return writeSchemas(dir)
			}
			text, err := schemas.JSONSchema(kind)
			if err != nil {
				return err
			}
			_, err = c.stdout.Write(text)
			return err
		},
	}
	command.Flags().StringVar(&dir, "dir", "", "write the schema of each kind, and gitvirt.json with all of them, into this folder")
	return command
}

// writeSchemas writes one file per kind and one for all kinds.
func writeSchemas(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // schemas are for everybody
		return fmt.Errorf("writing the schemas: %w", err)
	}
	files := map[string]string{"gitvirt.json": ""}
	for _, kind := range schemas.DescribedKinds() {
		files[strings.ToLower(kind.Name)+".json"] = kind.Name
	}
	for file, kind := range files {
		text, err := schemas.JSONSchema(kind)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil { //nolint:gosec // schemas are for everybody
			return fmt.Errorf("writing the schemas: %w", err)
		}
	}
	return nil
}

// completeKind completes the name of a kind.
func completeKind(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || strings.Contains(typed, ".") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	kinds, _ := schemas.CompletePath(typed)
	return kinds, cobra.ShellCompDirectiveNoFileComp
}
