package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// serverFlags say where the controller is.
type serverFlags struct{ server string }

func (f *serverFlags) add(command *cobra.Command, c *cli) {
	command.Flags().StringVar(&f.server, "server", c.controllerAddress(), "the controller's API (or GITVIRT_SERVER)")
}

// controllerAddress is where the controller is unless --server says otherwise.
func (c *cli) controllerAddress() string {
	if value := c.getenv("GITVIRT_SERVER"); value != "" {
		return value
	}
	return "http://" + httpapi.DefaultAddress
}

// errNotFound is the controller's answer about what it does not have.
var errNotFound = errors.New("not found")

// fetch reads one resource of the controller's API.
func (f *serverFlags) fetch(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(f.server, "/")+path, nil)
	if err != nil {
		return fmt.Errorf("the controller's address: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking the controller: %w; is \"gitvirt run\" running? --server or GITVIRT_SERVER name another address", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("asking the controller: %w", err)
	case response.StatusCode == http.StatusNotFound:
		return errNotFound
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("asking the controller: %s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("reading the controller's answer: %w", err)
	}
	return nil
}

// fleetAnswer is what /api/v1/fleet says.
type fleetAnswer struct {
	// Refused says why the head of the branch is not applied.
	Refused string `json:"refused"`
	// Sources are the repositories that the Fleet names.
	Sources []httpapi.Source `json:"sources"`

	VMs []status.VM `json:"vms"`
}

func (c *cli) getCommand() *cobra.Command {
	var server serverFlags
	var output, namespace string
	command := &cobra.Command{
		Use:     "get [vms] [NAME...]",
		Aliases: []string{"list"},
		Short:   "List the VMs and their state",
		Long: `List the VMs of the fleet as the running controller sees them.

Exit codes: 0 done, 1 an error or a VM that does not exist.`,
		Example: `  gitvirt get
  gitvirt get vms web-1 -o yaml
  gitvirt get vms -n shop -o wide`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && slices.Contains([]string{"vms", "vm"}, args[0]) {
				args = args[1:]
			}
			return c.get(cmd.Context(), &server, args, namespace, output)
		},
	}
	server.add(command, c)
	c.completesVMs(command, nil, &server, 100)
	command.Flags().StringVarP(&namespace, "namespace", "n", "", "only this namespace")
	addOutput(command, &output, "table", "wide", "json", "yaml")
	return command
}

func (c *cli) get(ctx context.Context, server *serverFlags, names []string, namespace, output string) error {
	var fleet fleetAnswer
	if err := server.fetch(ctx, "/api/v1/fleet", &fleet); err != nil {
		return err
	}
	vms := []status.VM{}
	for _, vm := range fleet.VMs {
		if selected(vm.Address, names) && (namespace == "" || vm.Address.Namespace == namespace) {
			vms = append(vms, vm)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(vms, func(vm status.VM) bool { return selected(vm.Address, []string{name}) }) {
			return fmt.Errorf("no VM is named %s", name)
		}
	}
	if output == "json" || output == "yaml" {
		return c.print(vms, output)
	}
	if fleet.Refused != "" {
		fmt.Fprintf(c.stderr, "A revision is not applied: %s\n", status.OneLine(fleet.Refused))
	}
	for _, source := range fleet.Sources {
		if source.Problem != "" {
			fmt.Fprintf(c.stderr, "The source %s is not up to date: %s\n", source.Name, status.OneLine(source.Problem))
		}
	}
	rows := [][]string{{"NAMESPACE", "NAME", "PHASE", "READY", "ADDRESSES", "REVISION", "MESSAGE"}}
	if output == "wide" {
		rows[0] = []string{"NAMESPACE", "NAME", "PHASE", "READY", "ADDRESSES", "REVISION", "NODE", "DOMAIN", "SOURCE", "MESSAGE"}
	}
	for _, vm := range vms {
		row := []string{vm.Address.Namespace, vm.Address.Name, string(vm.Phase), string(vm.Condition(status.ConditionReady).Status), dash(strings.Join(vm.Addresses, ",")), dash(status.ShortRevision(vm.ObservedRevision))}
		if output == "wide" {
			row = append(row, dash(vm.Node), dash(vm.Domain), dash(vm.Source))
		}
		rows = append(rows, append(row, dash(vm.Message)))
	}
	return c.table(rows)
}

func (c *cli) describeCommand() *cobra.Command {
	var server serverFlags
	var output string
	command := &cobra.Command{
		Use:   "describe [NAMESPACE/]NAME",
		Short: "Say everything about one VM: state, conditions, last plan, events",
		Long: `Show one VM as the running controller sees it.

Exit codes: 0 done, 1 an error or a VM that does not exist.`,
		Example: `  gitvirt describe web-1
  gitvirt describe shop/web-1 -o yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.describe(cmd.Context(), &server, args[0], output)
		},
	}
	server.add(command, c)
	c.completesVMs(command, nil, &server, 1)
	addOutput(command, &output, "text", "json", "yaml")
	return command
}

func (c *cli) describe(ctx context.Context, server *serverFlags, argument, output string) error {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(argument, "VirtualMachine/"), "/")
	if !ok {
		namespace, name = "default", namespace
	}
	var vm status.VM
	err := server.fetch(ctx, "/api/v1/vms/"+url.PathEscape(namespace)+"/"+url.PathEscape(name), &vm)
	if errors.Is(err, errNotFound) {
		return fmt.Errorf("there is no VM %s/%s; gitvirt get lists them", namespace, name)
	}
	if err != nil {
		return err
	}
	if output != "text" {
		return c.print(vm, output)
	}
	c.showVM(&vm)
	var events eventsAnswer
	if err := server.fetch(ctx, "/api/v1/events", &events); err != nil {
		return err
	}
	events.Events = slices.DeleteFunc(events.Events, func(event reconciler.Event) bool { return event.Address != vm.Address })
	if len(events.Events) > 0 {
		c.printf("\nEvents:\n")
		return c.table(eventRows(events.Events))
	}
	return nil
}

func (c *cli) showVM(vm *status.VM) {
	for _, row := range [][2]string{
		{"Name", vm.Address.Name},
		{"Namespace", vm.Address.Namespace},
		{"Kind", vm.Address.Kind},
		{"Phase", string(vm.Phase)},
		{"Message", vm.Message},
		{"Node", vm.Node},
		{"Domain", vm.Domain},
		{"Addresses", strings.Join(vm.Addresses, ", ")},
		{"Manifest", vm.Source},
		{"Wanted revision", vm.WantedRevision},
		{"Observed revision", vm.ObservedRevision},
	} {
		if row[1] != "" {
			c.printf("%-18s %s\n", row[0]+":", row[1])
		}
	}
	c.printf("\nConditions:\n")
	for _, condition := range vm.Conditions {
		c.printf("  %-16s %-8s %-20s %s\n", condition.Type, condition.Status, condition.Reason, dash(condition.Message))
	}
	if len(vm.Disks) > 0 {
		c.printf("\nDisks that outlive the VM:\n")
		for _, disk := range vm.Disks {
			c.printf("  %-16s %-10s %s\n", disk.Volume, disk.Kind, disk.Path)
		}
	}
	if len(vm.Unread) > 0 {
		c.printf("\nIn its domain XML, unknown to gitvirt:\n")
		for _, path := range vm.Unread {
			c.printf("  %s\n", path)
		}
	}
	if last := vm.LastPlan; last != nil {
		c.printf("\nLast plan (%s, %s): %s, %s\n", last.ID, last.Time.Format(time.DateTime), last.Action, last.Summary)
	}
}

// eventsAnswer is what /api/v1/events says.
type eventsAnswer struct {
	Events []reconciler.Event `json:"events"`
}

func (c *cli) eventsCommand() *cobra.Command {
	var server serverFlags
	var output string
	var follow bool
	command := &cobra.Command{
		Use:   "events",
		Short: "List what happened lately",
		Long: `List what the running controller saw and did, oldest first. It keeps the last thousand events.

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt events
  gitvirt events --follow`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.events(cmd.Context(), &server, output, follow) },
	}
	server.add(command, c)
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events")
	addOutput(command, &output, "table", "json", "yaml")
	return command
}

func (c *cli) events(ctx context.Context, server *serverFlags, output string, follow bool) error {
	since := uint64(0)
	for {
		var answer eventsAnswer
		if err := server.fetch(ctx, fmt.Sprintf("/api/v1/events?since=%d", since), &answer); err != nil {
			return err
		}
		if output != "table" {
			return c.print(answer.Events, output)
		}
		rows := eventRows(answer.Events)
		if since > 0 {
			rows = rows[1:]
		}
		if err := c.table(rows); err != nil {
			return err
		}
		for _, event := range answer.Events {
			since = max(since, event.ID)
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

func eventRows(events []reconciler.Event) [][]string {
	rows := [][]string{{"TIME", "TYPE", "REASON", "VM", "COUNT", "MESSAGE"}}
	for _, event := range events {
		vm := "-"
		if !event.Address.IsZero() {
			vm = event.Address.Namespace + "/" + event.Address.Name
		}
		rows = append(rows, []string{
			event.Time.Local().Format(time.TimeOnly), string(event.Type), string(event.Reason), vm, fmt.Sprint(event.Count), event.Message,
		})
	}
	return rows
}
