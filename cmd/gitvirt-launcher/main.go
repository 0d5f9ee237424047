// Command gitvirt-launcher is PID 1 of a VM's Pod: it runs the Pod's libvirt daemon and ends with the guest's fate.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gitvirt/gitvirt/launcher"
	"github.com/gitvirt/gitvirt/launcher/images"
	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// version is set by the build.
var version = "devel" //nolint:gochecknoglobals // the linker sets it

const usage = `gitvirt-launcher is PID 1 of a VM's Pod. It starts the Pod's libvirt daemon, hands termination on to the guest and
ends with the guest's fate. Flags may be given in the environment as well.

Exit codes: 0 the guest shut down (or was saved, or migrated away), 1 the launcher failed, 2 wrong arguments, 10 the guest
crashed, 11 it did not shut down in time and was stopped, 12 somebody switched it off, 13 it was never started.

`

// gcPercent keeps the heap to what is in use, which is little.
const gcPercent = 20

// exitUsage is for arguments that are wrong.
const exitUsage = 2

func main() {
	runtime.GOMAXPROCS(1)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

func run(ctx context.Context, args []string, stdout io.Writer, stderr *os.File, getenv func(string) string) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	flags := flag.NewFlagSet("gitvirt-launcher", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	dir := flags.String("dir", protocol.Dir, "`folder` that is shared with the node agent; the only one that is written to")
	grace := flags.Duration("grace", 0, "how long the guest may take to shut down when the Pod ends (GITVIRT_GRACE; default 30s)")
	console := flags.Bool("console", false, "print the guest's serial console (GITVIRT_CONSOLE)")
	shared := flags.String("images", "", "container disks that containers of their own hand over: `names` with commas between them")
	install := flags.String("install-to", "", "copy this program to a `file`, for containers that hand over their image, and end")
	share := flags.String("share-at", "", "hand over the file system of this container at a `socket`, instead of all else")
	message := flags.String("termination-message", "/dev/termination-log", "`file` that is told how the guest ended, if it is there")
	showVersion := flags.Bool("version", false, "print the version")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitUsage
	case *showVersion:
		fmt.Fprintln(stdout, "gitvirt-launcher", version)
		return 0
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "Error: unexpected argument %q\n", flags.Arg(0))
		return exitUsage
	}
	switch {
	case *install != "":
		return outcome(stderr, images.Install(*install))
	case *share != "":
		return outcome(stderr, images.Share(ctx, "/", *share))
	}
	if err := fromEnvironment(getenv, grace, console); err != nil {
		fmt.Fprintln(stderr, "Error:", err)
		return exitUsage
	}

	logger := slog.New(slog.NewTextHandler(stderr, nil))
	logger.Info("launcher starts", "version", version, "dir", *dir, "grace", *grace, "console", *console)
	config := launcher.Config{Dir: *dir, Grace: *grace, DaemonOutput: stderr, Logger: logger}
	if *shared != "" {
		config.Images = strings.Split(*shared, ",")
	}
	if *console {
		config.Console = stdout
	}
	ending := launcher.Run(ctx, config)
	logger.Info("launcher ends", "fate", ending.Fate, "domain", ending.Domain, "qemu", ending.QEMU, "detail", ending.Detail, "exit_code", ending.ExitCode())
	if err := report(*message, ending); err != nil {
		logger.Warn("the termination message is not written", "error", err)
	}
	return ending.ExitCode()
}

// outcome is the exit code of what is no launcher's work.
func outcome(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "Error:", err)
	return 1
}

// fromEnvironment fills in what no flag said.
func fromEnvironment(getenv func(string) string, grace *time.Duration, console *bool) error {
	const defaultGrace = 30 * time.Second
	if value := getenv("GITVIRT_GRACE"); value != "" && *grace == 0 {
		parsed, err := time.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("GITVIRT_GRACE: %w", err)
		}
		*grace = parsed
	}
	if *grace == 0 {
		*grace = defaultGrace
	}
	if *grace < 0 {
		return fmt.Errorf("a grace of %s: a guest cannot shut down in the past", *grace)
	}
	if value := getenv("GITVIRT_CONSOLE"); value != "" && !*console {
		parsed, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("GITVIRT_CONSOLE: %w", err)
		}
		*console = parsed
	}
	return nil
}

// report tells Kubernetes how the guest ended. The kubelet has made the file; where there is no kubelet nobody reads it.
func report(path string, ending protocol.Ending) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(file).Encode(ending), file.Close())
}
