// Command ociimage makes container images of files, without a container engine: of a program on a layer that is there already, with how
// it is run, or of the files of a container disk. They go into an archive, into an OCI image layout on disk, or to a registry. Equal
// input makes an equal image, digest included.
//
//	ociimage -out launcher.tar -name gitvirt.io/gitvirt-launcher:1 -base base.tar.gz -file /usr/bin/gitvirt-launcher=bin/gitvirt-launcher -user 107:107
//	ociimage -layout guest.oci -name guest:latest -file /disk/disk.qcow2=disk.qcow2
//	ociimage -from guest.oci -name localhost:5000/gitvirt/guest:1 -push
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ociimage:", err)
		os.Exit(1)
	}
}

// file is one file of the image: where it goes and where its content comes from.
type file struct{ target, source string }

type options struct {
	out, layout, from, name, base, user string
	push                                bool
	files                               []file
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("ociimage", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.out, "out", "", "write an archive to this `file`")
	flags.StringVar(&o.layout, "layout", "", "write an OCI image layout to this `folder`, which is replaced")
	flags.BoolVar(&o.push, "push", false, "push the image to the registry that its name says")
	flags.StringVar(&o.name, "name", "", "the image's `name` with its tag")
	flags.StringVar(&o.from, "from", "", "take the image from this layout's `folder` instead of making one of -file")
	flags.StringVar(&o.base, "base", "", "`archive` (tar or tar.gz) that is the lowest layer")
	flags.StringVar(&o.user, "user", "", "`UID:GID` that the first file is run as; without it the image is a container disk, whose files are QEMU's")
	flags.Func("file", "put a file into the image, as `/target=source`; may be repeated", func(value string) error {
		target, source, ok := strings.Cut(value, "=")
		if !ok || !path.IsAbs(target) || source == "" {
			return errors.New("want /target=source")
		}
		o.files = append(o.files, file{path.Clean(target), source})
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	_, tag, tagged := strings.Cut(path.Base(o.name), ":")
	switch {
	case !tagged:
		return errors.New("want -name with a tag")
	case (o.from == "") == (len(o.files) == 0):
		return errors.New("want either -from or at least one -file")
	case o.out == "" && o.layout == "" && !o.push:
		return errors.New("want at least one of -out, -layout and -push")
	}
	image, err := load(o)
	if err != nil {
		return err
	}
	if err := o.hand(ctx, image, map[string]string{nameAnnotation: o.name, refAnnotation: tag}); err != nil {
		return err
	}
	return describe(stdout, o.name, image)
}

// load takes the image from a layout or makes it.
func load(o options) (v1.Image, error) {
	if o.from != "" {
		return read(o.from)
	}
	return build(o)
}

// hand brings the image where it was asked for.
func (o options) hand(ctx context.Context, image v1.Image, annotations map[string]string) error {
	if o.out != "" {
		if err := writeArchive(o.out, image, annotations); err != nil {
			return fmt.Errorf("writing %s: %w", o.out, err)
		}
	}
	if o.layout != "" {
		if err := writeLayout(o.layout, image, annotations); err != nil {
			return fmt.Errorf("writing the layout %s: %w", o.layout, err)
		}
	}
	if o.push {
		reference, err := name.ParseReference(o.name)
		if err != nil {
			return err
		}
		if err := remote.Write(reference, image, remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("pushing %s: %w", o.name, err)
		}
	}
	return nil
}
