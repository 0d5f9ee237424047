package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// escapeKey is Ctrl-], which ends a console as it does in virsh and telnet.
const escapeKey = 0x1d

func (c *cli) consoleCommand() *cobra.Command {
	var guest guestFlags
	var lines uint32
	var force bool
	command := &cobra.Command{
		Use:   "console [NAMESPACE/]NAME",
		Short: "Open the serial console of a VM",
		Long: `Open the serial console of a VM and type in it, on this host or in a cluster. Ctrl-] leaves it; the guest does not notice. One at
a time has it: --force takes it from who has it, whose console then ends. With --lines it shows what the guest said last and ends.

In a cluster your kubeconfig says who you are. The call goes through the API server to the agent of the VM's node, encrypted between you
and the agent, with a certificate that is made for you for an hour and kept in memory. You need the ClusterRole and, in gitvirt's
namespace, the Role "gitvirt-user", and "create" on "pods/attach" where the VM is, which "edit" and "admin" have.

When what is typed comes from a file or a pipe, the console goes on after its end, until the guest is off or you interrupt it.

Exit codes: 0 you left it or the guest is off, 1 an error, 130 it was interrupted.`,
		Example: `  gitvirt console web-1
  gitvirt console shop/db-1 --kubernetes
  gitvirt console web-1 --lines 20
  kubectl gitvirt console shop/db-1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.askAgent(cmd.Context(), &guest, args[0], func(client api.AgentClient, vm schemas.Address) error {
				if cmd.Flags().Changed("lines") {
					return c.lastLines(cmd.Context(), client, vm, lines)
				}
				return c.console(cmd.Context(), client, vm, force)
			})
		},
	}
	guest.add(command, c)
	command.Flags().Uint32Var(&lines, "lines", 0, "show so many of the last lines, and end")
	command.Flags().BoolVar(&force, "force", false, "take the console from who has it")
	command.MarkFlagsMutuallyExclusive("lines", "force")
	return command
}

// lastLines shows what a guest said last.
func (c *cli) lastLines(ctx context.Context, client api.AgentClient, vm schemas.Address, lines uint32) error {
	said, err := client.ReadConsole(ctx, &api.ReadConsoleRequest{Address: vm.String(), Lines: lines})
	if err != nil {
		return guestError(vm, err)
	}
	for _, line := range said.GetLines() {
		c.printf("%s\n", line)
	}
	return nil
}

// errLeft ends a console by the escape key.
var errLeft = errors.New("left")

// console connects the terminal with a guest's console until one of them ends.
func (c *cli) console(ctx context.Context, client api.AgentClient, vm schemas.Address, force bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := client.Console(ctx)
	if err == nil {
		err = stream.Send(&api.ConsoleInput{Address: vm.String(), Force: force})
	}
	if err == nil || errors.Is(err, io.EOF) { // then the reason is to be received
		_, err = stream.Recv()
	}
	if err != nil {
		return guestError(vm, err)
	}
	fmt.Fprintf(c.stderr, "Connected to the console of %s/%s, Ctrl-] leaves it.\n", vm.Namespace, vm.Name)
	restore, err := c.raw()
	if err != nil {
		return err
	}
	go func() { // reading a terminal cannot be interrupted: it ends with the program
		if err := c.typing(stream); err != nil {
			cancel(err)
		}
	}()
	err = c.hear(stream)
	restore()
	fmt.Fprintln(c.stderr)
	switch {
	case errors.Is(context.Cause(ctx), errLeft):
		return nil
	case errors.Is(err, io.EOF):
		fmt.Fprintln(c.stderr, "The console has ended: the guest is off, or somebody else has taken it.")
		return nil
	case status.Code(err) == codes.Canceled:
		return errInterrupted
	}
	return guestError(vm, err)
}

// raw makes a terminal pass on every key. What is no terminal is left alone.
func (c *cli) raw() (restore func(), err error) {
	file, ok := c.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}, nil
	}
	before, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, fmt.Errorf("preparing the terminal: %w", err)
	}
	return func() { _ = term.Restore(int(file.Fd()), before) }, nil // whoever sees it types "reset"
}

// typing sends what is typed until the escape key, errLeft, or the end of it.
func (c *cli) typing(stream api.Agent_ConsoleClient) error {
	buffer := make([]byte, 4<<10)
	for {
		n, err := c.stdin.Read(buffer)
		typed, _, left := bytes.Cut(buffer[:n], []byte{escapeKey})
		if len(typed) > 0 {
			if sendErr := stream.Send(&api.ConsoleInput{Data: typed}); sendErr != nil {
				return nil // the reason is received
			}
		}
		switch {
		case left:
			return errLeft
		case errors.Is(err, io.EOF):
			return stream.CloseSend()
		case err != nil:
			return fmt.Errorf("reading what is typed: %w", err)
		}
	}
}

// hear shows what the guest says until the end.
func (c *cli) hear(stream api.Agent_ConsoleClient) error {
	for {
		said, err := stream.Recv()
		if err != nil {
			return err
		}
		if said.GetLost() > 0 {
			fmt.Fprintf(c.stdout, "\r\n[gitvirt: %d bytes left out]\r\n", said.GetLost())
		}
		if _, err := c.stdout.Write(said.GetData()); err != nil {
			return fmt.Errorf("showing the console: %w", err)
		}
	}
}
