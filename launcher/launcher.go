// Package launcher is what runs as PID 1 in the Pod of a VM. It starts the Pod's own libvirt daemon and keeps one running, reaps
// what dies, hands the Pod's termination on to the guest, prints the guest's console when asked to, and ends with the guest's fate.
//
// It defines and starts nothing: the node agent does that, over the daemon's socket in the shared folder. What both agree upon is
// in package protocol. It does as little as it can, because it is the one program whose fault ends the guest: no part of it runs
// for long, none waits for the daemon, and the guest survives the daemon.
package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/files"
	"github.com/gitvirt/gitvirt/launcher/images"
	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// Config is how the launcher is told what to do. All but Images and Console is needed.
type Config struct {
	// Dir is the folder that is shared with the node agent. The launcher itself writes to nothing else; the agent has it make files for
	// the guest elsewhere (package files).
	Dir string
	// Grace is how long the guest may take to shut down after it was asked to.
	Grace time.Duration
	// Images are the container disks that come with containers of their own instead of image volumes; they are folders of protocol.ImagesDir.
	Images []string
	// Console is where the guest's console goes; nil if it was not asked for.
	Console io.Writer
	// DaemonOutput is where the daemon writes what it has to say.
	DaemonOutput *os.File
	Logger       *slog.Logger
}

// lookAgain is how often the launcher looks whether it still has to wait for a guest to be started again.
const lookAgain = 200 * time.Millisecond

// launcher is the state of Run. It belongs to one goroutine; what takes time happens in others, which answer over channels.
type launcher struct {
	folder folder
	grace  time.Duration
	logger *slog.Logger

	daemon  daemon
	reached bool // a daemon has answered
	guests  map[string]*guest
	last    *protocol.Ending // of the guest that ended last

	verdicts chan verdict
	settled  chan settled
	settling bool
	look     <-chan time.Time

	termination termination
	ending      *protocol.Ending // set when all is over

	background sync.WaitGroup
}

// Run does the launcher's work until the guest has ended, or the context ends and the guest, asked to shut down, is gone. It
// returns what became of it.
func Run(ctx context.Context, config Config) protocol.Ending {
	l := &launcher{
		folder: folder(config.Dir), grace: config.Grace, logger: config.Logger,
		guests:   map[string]*guest{},
		verdicts: make(chan verdict), settled: make(chan settled),
	}
	if err := l.begin(config.DaemonOutput); err != nil {
		return failed(err)
	}
	if err := takeImages(ctx, config.Images); err != nil {
		return failed(err)
	}
	defer l.daemon.stop()
	console, err := openConsole(l.folder.path(protocol.ConsolePipe), config.Console)
	if err != nil {
		return failed(err)
	}
	defer console.finish()

	// A context of its own: the end of the caller's is where the guest's begins.
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer l.background.Wait()
	defer cancel()
	if err := l.serveFiles(working, console); err != nil {
		return failed(err)
	}
	heard := make(chan news)
	l.background.Go(func() { l.folder.watch(working, heard) })

	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	if err := l.daemon.start(); err != nil {
		return failed(err)
	}
	return l.loop(working, ctx.Done(), children, heard)
}

// imagePatience is how long the containers of images may take until they share them. The kubelet has started them before the launcher.
const imagePatience = time.Minute

// takeImages fetches the container disks before anybody asks for files of theirs.
func takeImages(ctx context.Context, names []string) error {
	limited, cancel := context.WithTimeout(ctx, imagePatience)
	defer cancel()
	for _, name := range names {
		at := filepath.Join(protocol.ImagesDir, name)
		if err := images.Take(limited, at+protocol.ImageSocket, at); err != nil {
			return err
		}
	}
	return nil
}

// serveFiles answers the node agent that needs files for the guest.
func (l *launcher) serveFiles(ctx context.Context, console *console) error {
	listener, err := files.Listen(l.folder.path(protocol.FilesSocket))
	if err != nil {
		return err
	}
	pod := files.Pod{Capabilities: l.folder.path(capabilities), Console: console.last}
	l.background.Go(func() { pod.Serve(ctx, listener) })
	return nil
}

func failed(err error) protocol.Ending {
	return protocol.Ending{Fate: protocol.Failed, Detail: err.Error()}
}

// begin checks what has to be so, and makes the files of the daemon.
func (l *launcher) begin(output *os.File) error {
	if os.Geteuid() == 0 {
		return errors.New("the launcher runs as root: give its container a user (runAsUser: 107), it needs no privilege")
	}
	if !prctl(unix.PR_SET_CHILD_SUBREAPER) {
		return errors.New("becoming the parent of orphans: the kernel refuses")
	}
	program, err := findDaemon()
	if err != nil {
		return err
	}
	l.daemon = daemon{program: program, folder: l.folder, output: output}
	return l.folder.prepare()
}

func prctl(option int) bool { return unix.Prctl(option, 1, 0, 0, 0) == nil }

func (l *launcher) loop(ctx context.Context, terminate <-chan struct{}, children <-chan os.Signal, heard <-chan news) protocol.Ending {
	for l.ending == nil {
		select {
		case <-children:
			l.reap()
		case <-l.daemon.restart:
			if err := l.daemon.start(); err != nil {
				l.daemonDied(err.Error())
			}
		case what := <-heard:
			l.hear(ctx, what)
		case v := <-l.verdicts:
			l.judge(ctx, v)
		case <-l.look:
			l.settle(ctx)
		case s := <-l.settled:
			l.conclude(ctx, s)
		case <-terminate:
			terminate = nil
			l.terminate(ctx)
		case <-l.termination.press:
			l.pressPowerButton(ctx)
		case <-l.termination.next:
			l.stopHard()
		}
		l.askAboutTheDead(ctx)
	}
	return *l.ending
}

// hear takes in what the daemon said.
func (l *launcher) hear(ctx context.Context, what news) {
	// Who is dead is dead before libvirt says so.
	l.reap()
	switch {
	case what.synced:
		if !l.reached {
			l.logger.Info("libvirt answers", "daemon", l.daemon.program)
		}
		l.reached = true
		l.sync(ctx, what.active)
	case what.fate == "":
		l.began(ctx, what.domain, l.folder.guestPID(what.domain))
	default:
		if g := l.guests[what.domain]; g != nil {
			l.ended(ctx, g, what.fate)
		}
	}
}

// daemonDied sees to it that the daemon is started again, and gives up on one that never lived.
func (l *launcher) daemonDied(how string) {
	delay := l.daemon.died(time.Now())
	l.logger.Warn("the libvirt daemon is gone; guests go on without", "daemon", l.daemon.program, "how", how, "again_in", delay)
	if !l.reached && l.daemon.deaths >= hopeless {
		ending := failed(fmt.Errorf("%s does not start: %s (its messages are in the container's log)", l.daemon.program, how))
		l.ending = &ending
	}
}
