// Command scale measures the controller with thousands of VMs on Kubernetes. It starts an etcd, an API server and a scheduler of its own,
// and kwok, which plays the nodes and the kubelets; it plays the agents itself. The controller is bin/gitvirt as it is, with the rights that
// `gitvirt install` gives it, and a git repository with a file for each VM. Nothing of it touches another cluster on the machine.
//
//	scale -kubernetes DIR -kwok FILE -gitvirt FILE [-vms 5000] [-profile DIR]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	kubernetes, kwok, gitvirt string
	vms, nodes, changes       int
	steady                    time.Duration
	keep                      string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.kubernetes, "kubernetes", "", "the `folder` with the programs of Kubernetes")
	flags.StringVar(&o.kwok, "kwok", "", "the `file` that is kwok")
	flags.StringVar(&o.gitvirt, "gitvirt", "bin/gitvirt", "the `file` that is gitvirt")
	flags.IntVar(&o.vms, "vms", 5000, "how many VMs")
	flags.IntVar(&o.nodes, "nodes", 50, "how many nodes")
	flags.IntVar(&o.changes, "changes", 10, "how many commits to measure")
	flags.DurationVar(&o.steady, "steady", time.Minute, "how long to watch a fleet to which nothing happens")
	flags.StringVar(&o.keep, "keep", "", "keep logs and data in this `folder`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.kubernetes == "" || o.kwok == "" || o.vms < 1 || o.nodes < 1 {
		return errors.New("want -kubernetes and -kwok, and at least one VM and one node; see make bench-cluster-scale")
	}
	for _, path := range []*string{&o.kubernetes, &o.kwok, &o.gitvirt, &o.keep} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "gitvirt-scale-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	b := &bench{options: o, dir: dir, out: stdout}
	defer func() { err = errors.Join(err, b.close()) }()
	return b.run(ctx)
}
