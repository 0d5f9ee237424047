package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) createCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "create",
		Short: "Write manifests from flags",
		Long: `Write manifests from flags, in virtctl's syntax. Nothing is created on any host: commit what is printed.

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt create vm --name web-1 --volume-containerdisk src:quay.io/containerdisks/debian:12
  gitvirt create instancetype --name small --cpu 1 --memory 1Gi`,
	}
	command.AddCommand(c.createVMCommand(), c.createInstancetypeCommand(), c.createPreferenceCommand())
	return command
}

// manifest is one that is being written: the document, and which flag each part of it comes from.
type manifest struct {
	*mapping
	output, schema string
	origins        []origin
}

// origin says which flag a field comes from.
type origin struct{ path, flag string }

func (m *manifest) from(path, flag string) { m.origins = append(m.origins, origin{path, flag}) }

// addFlags adds the flags that every kind has.
func (m *manifest) addFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&m.output, "output", "", "write to this file, which must not exist (default: the standard output)")
	flags.StringVar(&m.schema, "schema", "", "JSON Schema for editors, a URL or a path, named in the first line")
	_ = command.MarkFlagFilename("output", "yaml", "yml") // it fails only for a flag that does not exist
}

// write checks the manifest as validate does, and writes it.
func (c *cli) write(m *manifest) error {
	text, err := m.encode()
	if err != nil {
		return err
	}
	if m.schema != "" {
		if strings.ContainsAny(m.schema, " \t\r\n") {
			return fmt.Errorf("--schema is %q; a path or URL holds no spaces", m.schema)
		}
		text = append([]byte("# yaml-language-server: $schema="+m.schema+"\n"), text...)
	}
	if err := m.check(text); err != nil {
		return err
	}
	if m.output == "" || m.output == "-" {
		_, err := c.stdout.Write(text)
		return err
	}
	return writeNew("--output", m.output, text)
}

// check holds a manifest against what gitvirt carries out. What it refers to may lie in other files.
func (m *manifest) check(text []byte) error {
	var problems []error
	for _, diagnostic := range schemas.Parse("manifest", text).Diagnostics {
		if diagnostic.Severity == schemas.SeverityError {
			problems = append(problems, m.blame(diagnostic))
		}
	}
	return errors.Join(problems...)
}

// blame turns a mistake at a path into one of the flag that the path comes from.
func (m *manifest) blame(diagnostic schemas.Diagnostic) error {
	best := origin{flag: diagnostic.Path}
	for _, o := range m.origins {
		rest, within := strings.CutPrefix(diagnostic.Path, o.path)
		if within && (rest == "" || rest[0] == '.' || rest[0] == '[') && len(o.path) > len(best.path) {
			best = o
		}
	}
	message := diagnostic.Message
	if diagnostic.Fix != "" {
		message += "; " + diagnostic.Fix
	}
	if best.path == "" {
		return fmt.Errorf("%s: %s", diagnostic.Path, message)
	}
	return fmt.Errorf("%s: %s", best.flag, message)
}

// writeNew writes a file that must not be there yet. It may hold hashed passwords, but goes into a repository that
// others read: its mode is that of any file.
func writeNew(flag, path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // see above
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s %s: the file exists; remove it first, or name another", flag, path)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}
