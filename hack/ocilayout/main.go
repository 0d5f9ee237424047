// Command ocilayout makes a container image of a few files, the way container disks are made, as an OCI image layout
// on disk or in a registry. Equal files make an equal image, digest included. It serves the demo and the tests; it is
// no image builder.
//
//	ocilayout -out guest.oci -tag latest -file /disk/disk.qcow2=disk.qcow2
//	ocilayout -from guest.oci -push localhost:5000/gitvirt/guest:1
package main

import (
	"archive/tar"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refNameAnnotation is where an OCI layout's index keeps an image's tag (OCI image specification, annotations).
const refNameAnnotation = "org.opencontainers.image.ref.name"

// qemuUser owns the files in the image, as KubeVirt asks of container disks.
const qemuUser = 107

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ocilayout:", err)
		os.Exit(1)
	}
}

// file is one file of the image: where it goes and where its content comes from.
type file struct{ target, source string }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("ocilayout", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("out", "", "write an OCI image layout to this `folder`")
	tag := flags.String("tag", "latest", "the image's `tag` in the layout")
	from := flags.String("from", "", "take the image from this layout `folder` instead of from -file")
	push := flags.String("push", "", "push the image to this `reference`")
	var files []file
	flags.Func("file", "put a file into the image, as `/target=source`; may be repeated", func(value string) error {
		target, source, ok := strings.Cut(value, "=")
		if !ok || !path.IsAbs(target) || source == "" {
			return errors.New("want /target=source")
		}
		files = append(files, file{path.Clean(target), source})
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if (*from == "") == (len(files) == 0) {
		return errors.New("want either -from or at least one -file")
	}
	if *out == "" && *push == "" {
		return errors.New("want -out, -push or both")
	}

	image, err := load(*from, *tag, files)
	if err != nil {
		return err
	}
	if *out != "" {
		if err := write(*out, *tag, image); err != nil {
			return fmt.Errorf("writing the layout %s: %w", *out, err)
		}
	}
	if *push != "" {
		reference, err := name.ParseReference(*push)
		if err != nil {
			return err
		}
		if err := remote.Write(reference, image, remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("pushing %s: %w", *push, err)
		}
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, digest)
	return err
}

// load takes the image with a tag from a layout, or makes one of files.
func load(from, tag string, files []file) (v1.Image, error) {
	if from == "" {
		return build(files)
	}
	index, err := layout.ImageIndexFromPath(from)
	if err != nil {
		return nil, fmt.Errorf("reading the layout %s: %w", from, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("reading the index of %s: %w", from, err)
	}
	for _, descriptor := range manifest.Manifests {
		if descriptor.Annotations[refNameAnnotation] == tag {
			return index.Image(descriptor.Digest)
		}
	}
	return nil, fmt.Errorf("the layout %s has no image with the tag %q", from, tag)
}

// build makes an image with one layer. Every time in it is the epoch and every order is sorted.
func build(files []file) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(writeTar(writer, files)) }()
		return reader, nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("making the layer: %w", err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.AppendLayers(image, layer)
	if err != nil {
		return nil, fmt.Errorf("making the image: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	return mutate.ConfigFile(image, config)
}

// writeTar writes files, and the folders they are in, as a tar stream.
func writeTar(w io.Writer, files []file) error {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.target, b.target) })
	archive := tar.NewWriter(w)
	made := map[string]bool{"/": true}
	for _, f := range files {
		for _, folder := range parents(f.target) {
			if made[folder] {
				continue
			}
			made[folder] = true
			header := &tar.Header{
				Typeflag: tar.TypeDir, Name: folder[1:] + "/", Mode: 0o755,
				Uid: qemuUser, Gid: qemuUser, ModTime: time.Unix(0, 0),
			}
			if err := archive.WriteHeader(header); err != nil {
				return err
			}
		}
		if err := writeFile(archive, f); err != nil {
			return fmt.Errorf("adding %s: %w", f.source, err)
		}
	}
	return archive.Close()
}

// parents lists the folders a file is in, outermost first, without the root.
func parents(target string) []string {
	var folders []string
	for folder := path.Dir(target); folder != "/"; folder = path.Dir(folder) {
		folders = append(folders, folder)
	}
	slices.Reverse(folders)
	return folders
}

func writeFile(archive *tar.Writer, f file) (err error) {
	source, err := os.Open(f.source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: f.target[1:], Size: info.Size(), Mode: 0o444,
		Uid: qemuUser, Gid: qemuUser, ModTime: time.Unix(0, 0),
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, source)
	return err
}

// write makes a layout with the image under tag, replacing one that is there.
func write(folder, tag string, image v1.Image) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	target, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	return target.AppendImage(image, layout.WithAnnotations(map[string]string{refNameAnnotation: tag}))
}
