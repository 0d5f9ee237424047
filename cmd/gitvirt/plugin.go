package main

import (
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"
)

// The names by which kubectl calls its plugins, and what completes their command lines.
const (
	pluginName     = "kubectl-gitvirt"
	completionName = "kubectl_complete-gitvirt"
)

// called tells by the name of the program whether kubectl runs it as its plugin, and with which arguments.
func called(argv []string) (plugin bool, args []string) {
	switch filepath.Base(argv[0]) {
	case pluginName:
		return true, argv[1:]
	case completionName:
		return true, append([]string{cobra.ShellCompRequestCmd}, argv[1:]...)
	}
	return false, argv[1:]
}

// inTexts is where a command's texts name the program: at the start of a line of an example, and in quotes.
var inTexts = regexp.MustCompile(`(?m)^  gitvirt |"gitvirt `)

// asPlugin has the help of all commands say how they are called.
func asPlugin(root *cobra.Command) {
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gitvirt"}
	var say func(*cobra.Command)
	say = func(command *cobra.Command) {
		for _, text := range []*string{&command.Example, &command.Long} {
			*text = inTexts.ReplaceAllStringFunc(*text, func(found string) string {
				return found[:len(found)-len("gitvirt ")] + "kubectl gitvirt "
			})
		}
		for _, child := range command.Commands() {
			say(child)
		}
	}
	say(root)
}
