package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

func (c *cli) disksCommand() *cobra.Command {
	var agent agentFlags
	var output string
	command := &cobra.Command{
		Use:   "disks",
		Short: "List the disks that hold data, also those whose VM is gone",
		Long: `List the disks that hold data on this host: those of VMs (NAMESPACE/VM/VOLUME) and the claims that any VM may use
(NAMESPACE/CLAIM). A disk outlives its VM: when the VM comes back under its name it gets the disk again, and "gitvirt disks
prune" deletes it only when told which.

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt disks
  gitvirt disks -o json
  gitvirt disks prune default/db-1/data`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.disks(cmd.Context(), &agent, output) },
	}
	agent.add(command)
	addOutput(command, &output, "table", "wide", "json", "yaml")
	command.AddCommand(c.pruneCommand())
	return command
}

// diskRow is a disk in JSON and YAML.
type diskRow struct {
	ID             string    `json:"id"`
	VM             string    `json:"vm"`
	Volume         string    `json:"volume"`
	Kind           string    `json:"kind"`
	InUse          bool      `json:"in_use"`
	CapacityBytes  int64     `json:"capacity_bytes"`
	AllocatedBytes int64     `json:"allocated_bytes"`
	Modified       time.Time `json:"modified"`
	Format         string    `json:"format"`
	Path           string    `json:"path"`
}

// isClaim tells a claim, which any VM may use, from a disk that belongs to one.
func (r diskRow) isClaim() bool { return r.Volume == "" }

func (c *cli) disks(ctx context.Context, agent *agentFlags, output string) error {
	platform, err := c.connect(ctx, agent)
	if err != nil {
		return err
	}
	defer platform.close()
	if _, err := platform.read(ctx); err != nil {
		return err
	}
	found, err := platform.host.Disks(ctx)
	if err != nil {
		return err
	}
	rows := []diskRow{}
	for _, disk := range found {
		rows = append(rows, diskRow{
			ID: disk.GetId(), VM: disk.GetAddress(), Volume: disk.GetVolume(), Kind: disk.GetKind(), InUse: disk.GetInUse(),
			CapacityBytes: disk.GetCapacityBytes(), AllocatedBytes: disk.GetAllocatedBytes(),
			Modified: time.Unix(disk.GetModifiedUnix(), 0).UTC(), Format: disk.GetFormat(), Path: disk.GetPath(),
		})
	}
	if output == "json" || output == "yaml" {
		return c.print(rows, output)
	}
	if len(rows) == 0 {
		c.printf("No disks with data on this host.\n")
		return nil
	}
	table := [][]string{{"DISK", "KIND", "VM", "CAPACITY", "USED", "MODIFIED"}}
	if output == "wide" {
		table[0] = append(table[0], "FORMAT", "PATH")
	}
	for _, row := range rows {
		state := "gone"
		switch {
		case row.InUse && row.isClaim():
			state = "uses it"
		case row.InUse:
			state = "exists"
		case row.isClaim():
			state = "none"
		}
		cells := []string{row.ID, row.Kind, state, bytesOf(row.CapacityBytes), bytesOf(row.AllocatedBytes), row.Modified.Format(time.DateTime)}
		if output == "wide" {
			cells = append(cells, row.Format, row.Path)
		}
		table = append(table, cells)
	}
	return c.table(table)
}

func bytesOf(n int64) string {
	if n >= 1<<20 {
		n = n >> 20 << 20
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

func (c *cli) pruneCommand() *cobra.Command {
	var agent agentFlags
	var approved bool
	command := &cobra.Command{
		Use:   "prune DISK...",
		Short: "Delete disks whose VM is gone, only those that are named",
		Long: `Delete the named disks with their data, for ever. Name them as "gitvirt disks" does; a disk whose VM exists, or a
claim that a VM uses, is refused.

Exit codes: 0 all named disks are deleted, 1 an error; then nothing more was deleted than is printed.`,
		Example: `  gitvirt disks prune default/db-1/data
  gitvirt disks prune default/db-1/data default/golden-image --auto-approve`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return c.prune(cmd.Context(), &agent, args, approved) },
	}
	agent.add(command)
	command.Flags().BoolVar(&approved, "auto-approve", false, "delete without asking")
	return command
}

func (c *cli) prune(ctx context.Context, agent *agentFlags, ids []string, approved bool) error {
	platform, err := c.connect(ctx, agent)
	if err != nil {
		return err
	}
	defer platform.close()
	if _, err := platform.read(ctx); err != nil {
		return err
	}
	found, err := platform.host.Disks(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		at := slices.IndexFunc(found, func(disk *api.DataDisk) bool { return disk.GetId() == id })
		if at < 0 {
			return fmt.Errorf("there is no disk %q; gitvirt disks lists them", id)
		}
		disk := found[at]
		if disk.GetInUse() {
			if disk.GetVolume() == "" {
				return fmt.Errorf("claim %s is used by a VM that exists; remove the VM or the volume from git first", id)
			}
			return fmt.Errorf("disk %s belongs to %s, which exists; remove the VM from git first", id, disk.GetAddress())
		}
		c.printf("%s  %s, %s used, %s\n", id, disk.GetKind(), bytesOf(disk.GetAllocatedBytes()), disk.GetPath())
	}
	if err := c.approve("Delete these disks and what is on them?", approved); err != nil {
		return err
	}
	deleted, err := platform.host.DeleteDisks(ctx, ids)
	for _, disk := range deleted {
		if disk.GetKept() != "" {
			c.printf("forgot %s; %s stays: %s\n", disk.GetId(), disk.GetPath(), disk.GetKept())
			continue
		}
		c.printf("deleted %s, %s freed\n", disk.GetId(), bytesOf(disk.GetFreedBytes()))
	}
	if err == nil && len(deleted) != len(ids) {
		err = errors.New("not all disks were deleted")
	}
	return err
}
