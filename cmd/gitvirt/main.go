// Command gitvirt plans, applies and keeps virtual machines as git says. It is pure Go; what needs libvirt is
// gitvirt-agent's work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	_ "time/tzdata" // windows have time zones, and a container may have no database of them

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// version is set by the build.
var version = "devel" //nolint:gochecknoglobals // the linker sets it

// The exit codes, as Terraform has them.
const (
	exitOK      = 0
	exitError   = 1
	exitChanges = 2
	// exitInterrupted is what shells give a command that ended by an interrupt.
	exitInterrupted = 130
)

// errChanges ends a plan that has changes when --detailed-exitcode asks for it.
var errChanges = errors.New("there are changes")

// errInterrupted ends a command that was interrupted before all was done.
var errInterrupted = errors.New("interrupted")

// errSilent ends a command that has already said what is wrong.
var errSilent = errors.New("failed")

func main() {
	plugin, args := called(os.Args)
	c := &cli{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, plugin: plugin}
	os.Exit(c.run(context.Background(), args))
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	c := &cli{stdin: stdin, stdout: stdout, stderr: stderr, getenv: getenv}
	return c.run(ctx, args)
}

func (c *cli) run(ctx context.Context, args []string) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	command := c.root()
	command.SetArgs(args)
	command.SetIn(c.stdin)
	command.SetOut(c.stdout)
	command.SetErr(c.stderr)
	err := command.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errChanges):
		return exitChanges
	case errors.Is(err, errSilent):
		return exitError
	}
	fmt.Fprintln(c.stderr, "Error:", err)
	if errors.Is(err, errInterrupted) {
		return exitInterrupted
	}
	return exitError
}

// cli is what every command has in common.
type cli struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	getenv func(string) string
	// plugin is set when kubectl runs this program.
	plugin bool
}

func (c *cli) printf(format string, args ...any) {
	fmt.Fprintf(c.stdout, format, args...)
}

// color reports whether the output is a terminal that wants colours (https://no-color.org).
func (c *cli) color() bool {
	file, ok := c.stdout.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb"
}

// interactive reports whether somebody can answer a question.
func (c *cli) interactive() bool {
	file, ok := c.stdin.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gitvirt",
		Short: "Git is the API server for virtual machines",
		Long: `gitvirt keeps virtual machines as a git repository of KubeVirt manifests says: it shows a plan with the
consequence of every change, applies it through libvirt, keeps it so, and commits the status back to git.

Exit codes: 0 success, 1 an error, 2 "plan --detailed-exitcode" found changes, 130 "apply" was
interrupted before all was done.`,
		Example: `  gitvirt validate ./fleet
  gitvirt plan ./fleet
  gitvirt apply ./fleet
  gitvirt run --git https://git.example.com/team/fleet.git`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.AddCommand(
		c.validateCommand(), c.renderCommand(), c.importCommand(), c.planCommand(), c.snapshotCommand(), c.previewCommand(), c.approveCommand(), c.applyCommand(), c.runCommand(),
		c.historyCommand(), c.whyCommand(),
		c.explainCommand(), c.schemaCommand(), c.createCommand(), c.exposeCommand(),
		c.getCommand(), c.describeCommand(), c.consoleCommand(), c.statsCommand(), c.eventsCommand(), c.disksCommand(), c.doctorCommand(), c.installCommand(), c.versionCommand(),
	)
	root.InitDefaultCompletionCmd()
	explainCompletion(root)
	if c.plugin {
		asPlugin(root)
	}
	return root
}

// explainCompletion adds to the commands that cobra brings what all others have.
func explainCompletion(root *cobra.Command) {
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		return // without it there is nothing to explain
	}
	completion.Example = "  gitvirt completion bash >/etc/bash_completion.d/gitvirt"
	for _, shell := range completion.Commands() {
		shell.Example = "  gitvirt completion " + shell.Name()
		shell.Long += "\n\nExit codes: 0 done, 1 an error."
	}
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    "Print the version of gitvirt, the platform and the Go release that it was built with.\n\nExit codes: 0 done, 1 an error.",
		Example: "  gitvirt version",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c.printf("gitvirt %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return nil
		},
	}
}
