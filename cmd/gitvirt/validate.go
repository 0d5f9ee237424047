package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) validateCommand() *cobra.Command {
	var source sourceFlags
	var rev, output string
	command := &cobra.Command{
		Use:   "validate [SOURCE | FILE...]",
		Short: "Check manifests without touching any host",
		Long: `Check every manifest of a directory, a file or a git repository and print all mistakes with file, line and column.
Of single files, Secrets, ConfigMaps, claims and the like that are not in them are only warned of: they may be in other
files. Instance types and preferences have to be named as well, because nothing can be checked without them.

Exit codes: 0 everything is right, 1 there are mistakes or the source cannot be read.`,
		Example: `  gitvirt validate ./fleet
  gitvirt validate --git https://git.example.com/team/fleet.git --rev v1.2
  gitvirt validate vm.yaml instancetype.yaml
  gitvirt validate ./fleet -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := source.argument(args); err != nil {
				return err
			}
			var options []schemas.Option
			if source.isFile() {
				options = append(options, schemas.AllowMissing())
			}
			_, desired, err := c.read(cmd.Context(), &source, rev, options...)
			if err != nil {
				return err
			}
			for _, doubt := range source.doubts() {
				fmt.Fprintln(c.stderr, "warning: "+doubt)
			}
			return c.validate(desired, output)
		},
	}
	source.add(command)
	source.trust.add(command)
	source.others.addNone(command)
	command.Flags().StringVar(&rev, "rev", "", "revision of the repository (default: the head of the branch)")
	addOutput(command, &output, "text", "json", "yaml")
	return command
}

func (c *cli) validate(desired *schemas.Desired, output string) error {
	if output != "text" {
		out := struct {
			VMs         int                 `json:"vms"`
			Files       int                 `json:"files"`
			Diagnostics schemas.Diagnostics `json:"diagnostics"`
		}{len(desired.VMs), desired.Files, desired.Diagnostics}
		if out.Diagnostics == nil {
			out.Diagnostics = schemas.Diagnostics{}
		}
		if err := c.print(out, output); err != nil {
			return err
		}
		if desired.Diagnostics.Errors() > 0 {
			return errSilent
		}
		return nil
	}
	broken := c.tell(desired.Diagnostics)
	if broken {
		return fmt.Errorf("%d mistake%s in %d file%s; %d VM%s right", desired.Diagnostics.Errors(), plural(desired.Diagnostics.Errors()),
			desired.Files, plural(desired.Files), len(desired.VMs), map[bool]string{true: " is", false: "s are"}[len(desired.VMs) == 1])
	}
	c.printf("%d VM%s in %d file%s: valid\n", len(desired.VMs), plural(len(desired.VMs)), desired.Files, plural(desired.Files))
	return nil
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
