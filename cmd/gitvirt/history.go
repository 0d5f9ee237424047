package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/history"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources/git"
)

// historyFlags say which history is told.
type historyFlags struct {
	source sourceFlags
	rev    string
	limit  int
	output string
}

func (c *cli) historyCommand() *cobra.Command {
	var f historyFlags
	command := &cobra.Command{
		Use:   "history VM [SOURCE]",
		Short: "Tell who changed what of a VM, when, and what it meant",
		Long: `List the commits that changed what is wanted of a VM, newest first: who, when, which fields with their consequence for a
running guest, and from the status branch when it was applied and who approved it. Commits of instancetypes, Secrets and
whatever else the VM is made of count as well; a rename (gitvirt.io/previous-name) is followed. VM is a NAME, NAMESPACE/NAME
or an address.

Exit codes: 0 done, 1 an error, or no commit ever had the VM.`,
		Example: `  gitvirt history web-1 --git https://git.example.com/team/fleet.git
  gitvirt history shop/db-1 ./fleet.git -n 3
  gitvirt history web-1 --git ./fleet.git --rev v1.2 -o json`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.source.argument(args[1:]); err != nil {
				return err
			}
			return c.history(cmd.Context(), &f, args[0])
		},
	}
	f.source.add(command)
	flags := command.Flags()
	flags.StringVar(&f.rev, "rev", "", "revision to begin at (default: the head of the branch)")
	flags.IntVarP(&f.limit, "limit", "n", 10, "how many commits at most")
	addOutput(command, &f.output, "text", "json", "yaml")
	c.completesVMs(command, &f.source, nil, 1)
	return command
}

func (c *cli) history(ctx context.Context, f *historyFlags, name string) error {
	switch {
	case f.limit <= 0:
		return errors.New("--limit must be at least 1")
	case f.source.dir != "":
		return fmt.Errorf("%s is a directory, which has no history; name the repository with --git", f.source.dir)
	}
	source, err := c.openGit(&f.source, c.cacheDir())
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	var log *history.Log
	err = source.Browse(ctx, f.rev, func(h *git.History) error {
		snapshot, err := h.Snapshot(ctx, h.Head())
		if err != nil {
			return err
		}
		desired := schemas.Assemble(snapshot.Files)
		address, err := oneVM(name, machinesOf(desired))
		if err != nil {
			return err
		}
		if log, err = history.Of(ctx, h, h.Head(), address, history.Options{Limit: f.limit}); err != nil {
			return err
		}
		if len(log.Entries) == 0 && !log.CutOff {
			return unknownVM(name, machinesOf(desired))
		}
		if settings := desired.Fleet.Spec.Status; settings.IsEnabled() {
			return log.Observe(ctx, h, h.Branch(settings.Branch))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if f.output != "text" {
		return c.print(log, f.output)
	}
	c.showHistory(log)
	return nil
}

// machinesOf are the machines that a revision names.
func machinesOf(desired *schemas.Desired) []schemas.Address {
	var out []schemas.Address
	for _, vm := range desired.VMs {
		out = append(out, vm.Address)
	}
	for _, broken := range desired.Broken {
		if broken.Address.IsMachine() {
			out = append(out, broken.Address)
		}
	}
	return out
}

// oneVM finds the VM that an argument names. One that is not known may have been there once: it gets the address that
// its name stands for.
func oneVM(name string, known []schemas.Address) (schemas.Address, error) {
	if strings.ContainsAny(name, "*?[") {
		return schemas.Address{}, fmt.Errorf("%q is a pattern; name one VM", name)
	}
	var found []schemas.Address
	for _, address := range known {
		if selected(address, []string{name}) {
			found = append(found, address)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return schemas.Address{}, fmt.Errorf("%d VMs are named %s: %s; name one of them", len(found), name, addressList(found))
	}
	parts := strings.Split(name, "/")
	address := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: schemas.DefaultNamespace, Name: parts[len(parts)-1]}
	switch len(parts) {
	case 1:
	case 2:
		address.Namespace = parts[0]
	case 3:
		address.Kind, address.Namespace = parts[0], parts[1]
	default:
		return address, fmt.Errorf("%q names no VM; want NAME, NAMESPACE/NAME or KIND/NAMESPACE/NAME", name)
	}
	if address.Name == "" || address.Namespace == "" || !address.IsMachine() {
		return address, fmt.Errorf("%q names no VM; want NAME, NAMESPACE/NAME or KIND/NAMESPACE/NAME", name)
	}
	return address, nil
}

func addressList(addresses []schemas.Address) string {
	names := make([]string, len(addresses))
	for i, address := range addresses {
		names[i] = address.Namespace + "/" + address.Name
	}
	return strings.Join(names, ", ")
}

// unknownVM says that there is no such VM, and which ones look like it.
func unknownVM(name string, known []schemas.Address) error {
	text := "there is no VM " + name
	if near := plan.NearMisses(name, known); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}

func (c *cli) showHistory(log *history.Log) {
	c.printf("%s at revision %s\n", log.Address, status.ShortRevision(log.Revision))
	for i := range log.Entries {
		entry := &log.Entries[i]
		c.printf("\n%s  %s  %s\n  %s\n", status.ShortRevision(entry.Revision), entry.Time.Format(time.DateTime), entry.Author, dash(entry.Subject))
		what := string(entry.Kind)
		if entry.Previous != nil {
			what += " from " + entry.Previous.Namespace + "/" + entry.Previous.Name
		}
		if entry.Kind == history.Changed && entry.Consequence != "" {
			what += ", " + string(entry.Consequence)
		}
		if len(entry.Files) > 0 {
			what += " (" + strings.Join(entry.Files, ", ") + ")"
		}
		c.printf("  %s\n", what)
		if entry.Problem != "" {
			c.printf("    %s\n", entry.Problem)
		}
		for _, change := range entry.Changes {
			c.printf("    %s  # %s\n", change, change.Consequence)
		}
		for _, approval := range entry.Approvals {
			c.printf("  approved %s by %s\n", approval.At.Format(time.DateTime), approval.By)
		}
		if !entry.Applied.IsZero() {
			c.printf("  applied by %s\n", entry.Applied.Format(time.DateTime))
		}
	}
	switch {
	case log.More:
		c.printf("\nOlder commits were not looked at; --limit shows more.\n")
	case log.CutOff:
		c.printf("\nThe repository does not hold the commits before.\n")
	}
}
