package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// addOutput adds -o with the formats a command has; the first is the default.
func addOutput(command *cobra.Command, value *string, formats ...string) {
	choices := outputValue{value: value, formats: formats}
	*value = formats[0]
	command.Flags().VarP(&choices, "output", "o", "output format: "+strings.Join(formats, ", "))
	// It fails only for a flag that does not exist, and this one was added just now.
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// outputValue is a flag with a closed set of values.
type outputValue struct {
	value   *string
	formats []string
}

func (o *outputValue) String() string { return *o.value }

func (o *outputValue) Type() string { return "format" }

func (o *outputValue) Set(format string) error {
	if !slices.Contains(o.formats, format) {
		return fmt.Errorf("want one of %s", strings.Join(o.formats, ", "))
	}
	*o.value = format
	return nil
}

// print writes a value as JSON or YAML.
func (c *cli) print(value any, format string) error {
	encoded, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the output: %w", err)
	}
	if format == "yaml" {
		if encoded, err = yaml.JSONToYAML(encoded); err != nil {
			return fmt.Errorf("encoding the output: %w", err)
		}
		_, err = c.stdout.Write(encoded)
		return err
	}
	_, err = fmt.Fprintf(c.stdout, "%s\n", encoded)
	return err
}

// table writes rows in aligned columns; the first row is the header.
func (c *cli) table(rows [][]string) error {
	w := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// dash stands for an empty cell.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
