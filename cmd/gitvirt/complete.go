package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources/directory"
)

// completionPatience is how long somebody who pressed the tabulator waits.
const completionPatience = 2 * time.Second

// completesVMs has the shell complete the names of VMs: most of them at a time, as arguments and after flags. They come
// from the source that the command line names, as it was fetched last, or from the controller.
func (c *cli) completesVMs(command *cobra.Command, source *sourceFlags, server *serverFlags, most int, flags ...string) {
	names := func(cmd *cobra.Command) []string {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		return vmNames(c.knownVMs(ctx, source, server))
	}
	if most > 0 {
		command.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= most {
				return nil, cobra.ShellCompDirectiveDefault // a source: files
			}
			return names(cmd), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, flag := range flags {
		// It fails only for a flag that does not exist.
		_ = command.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if source != nil && source.dir == "" && source.config.URL == "" && len(args) > 0 {
				_ = source.argument(args) // a source that is none completes nothing
			}
			return names(cmd), cobra.ShellCompDirectiveNoFileComp
		})
	}
}

// knownVMs never waits for a server other than the controller, and says nothing when it finds nothing.
func (c *cli) knownVMs(ctx context.Context, source *sourceFlags, server *serverFlags) []schemas.Address {
	switch {
	case source != nil && source.dir != "":
		folder, err := directory.Open(source.dir, source.config.Limits)
		if err != nil {
			return nil
		}
		if snapshot, err := folder.Poll(ctx); err == nil {
			return machinesOf(schemas.Assemble(snapshot.Files))
		}
	case source != nil && source.config.URL != "":
		repository, err := c.openGit(source, c.cacheDir())
		if err != nil {
			return nil
		}
		defer func() { _ = repository.Close() }()
		if snapshot, err := repository.Last(ctx); err == nil {
			return machinesOf(schemas.Assemble(snapshot.Files))
		}
	default:
		if server == nil {
			server = &serverFlags{server: c.controllerAddress()}
		}
		var fleet fleetAnswer
		if server.fetch(ctx, "/api/v1/fleet", &fleet) != nil {
			return nil
		}
		var known []schemas.Address
		for i := range fleet.VMs {
			known = append(known, fleet.VMs[i].Address)
		}
		return known
	}
	return nil
}

// vmNames are the shortest names that mean one VM each.
func vmNames(known []schemas.Address) []string {
	count := map[string]int{}
	for _, address := range known {
		count[address.Name]++
	}
	names := make([]string, 0, len(known))
	for _, address := range known {
		if count[address.Name] > 1 || address.Namespace != schemas.DefaultNamespace {
			names = append(names, address.Namespace+"/"+address.Name)
		} else {
			names = append(names, address.Name)
		}
	}
	return names
}
