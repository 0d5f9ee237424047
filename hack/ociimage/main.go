// Command ociimage makes the container image of a program, as an OCI archive: a layer that is there already, files on top of it, and
// how it is run. Equal input makes an equal image, digest included. hack/image.sh calls it.
//
//	ociimage -out launcher.tar -name gitvirt.io/gitvirt-launcher:1 -base base.tar.gz -file /usr/bin/gitvirt-launcher=bin/gitvirt-launcher -user 107:107
package main

import (
	"archive/tar"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The annotations by which an archive's importers find the image's name: containerd's, and that of the OCI image specification.
const (
	nameAnnotation = "io.containerd.image.name"
	refAnnotation  = "org.opencontainers.image.ref.name"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "ociimage:", err)
		os.Exit(1)
	}
}

// file is one file of the image: where it goes and where its content comes from.
type file struct{ target, source string }

type options struct {
	out, name, base, user string
	files                 []file
}

func run(args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("ociimage", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.out, "out", "", "write the archive to this `file`")
	flags.StringVar(&o.name, "name", "", "the image's `name` with its tag")
	flags.StringVar(&o.base, "base", "", "`archive` (tar or tar.gz) that is the lowest layer")
	flags.StringVar(&o.user, "user", "", "`UID:GID` that the program runs as")
	flags.Func("file", "put a file into the image, as `/target=source`; the first is the program", func(value string) error {
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
	if o.out == "" || !tagged || o.user == "" || len(o.files) == 0 {
		return errors.New("want -out, -name with a tag, -user and at least one -file")
	}
	image, err := build(o)
	if err != nil {
		return err
	}
	if err := write(o.out, image, map[string]string{nameAnnotation: o.name, refAnnotation: tag}); err != nil {
		return fmt.Errorf("writing %s: %w", o.out, err)
	}
	return describe(stdout, o, image)
}

// build makes the image.
func build(o options) (v1.Image, error) {
	var layers []v1.Layer
	if o.base != "" {
		base, err := tarball.LayerFromFile(o.base, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, fmt.Errorf("reading the layer %s: %w", o.base, err)
		}
		layers = append(layers, base)
	}
	top, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(writeLayer(writer, o.files)) }()
		return reader, nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("making the layer: %w", err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.AppendLayers(image, append(layers, top)...)
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
	config.Config = v1.Config{
		User: o.user, WorkingDir: "/", Entrypoint: []string{o.files[0].target},
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
	}
	return mutate.ConfigFile(image, config)
}

// writeLayer writes files as a tar stream. The folders that they are in come first, and /tmp: an image of one file has none.
func writeLayer(w io.Writer, files []file) error {
	archive := tar.NewWriter(w)
	folders := map[string]int64{"/tmp": 0o1777}
	for _, f := range files {
		for folder := path.Dir(f.target); folder != "/"; folder = path.Dir(folder) {
			folders[folder] = 0o755
		}
	}
	for _, folder := range slices.Sorted(keys(folders)) {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: folder[1:] + "/", Mode: folders[folder], ModTime: time.Unix(0, 0)}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
	}
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.target, b.target) })
	for _, f := range files {
		if err := writeFile(archive, f.target[1:], f.source, true); err != nil {
			return fmt.Errorf("adding %s: %w", f.source, err)
		}
	}
	return archive.Close()
}

func keys(of map[string]int64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for key := range of {
			if !yield(key) {
				return
			}
		}
	}
}

// writeFile adds a file, readable for all, with the execute bits of the source or without any.
func writeFile(archive *tar.Writer, name, source string, executable bool) (err error) {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if executable && info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: mode, ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	_, err = io.Copy(archive, from)
	return err
}

// write makes an archive of an OCI image layout with the image, replacing one that is there.
func write(out string, image v1.Image, annotations map[string]string) (err error) {
	folder, err := os.MkdirTemp(filepath.Dir(out), ".ociimage")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	target, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	if err := target.AppendImage(image, layout.WithAnnotations(annotations)); err != nil {
		return err
	}
	unfinished := out + ".new"
	file, err := os.Create(unfinished)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(file)
	err = fs.WalkDir(os.DirFS(folder), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return writeFile(archive, name, filepath.Join(folder, name), false)
	})
	if err := errors.Join(err, archive.Close(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	return os.Rename(unfinished, out)
}

// describe says what was made: its name, digest, and sizes in MiB as it is sent and as it lies on a node.
func describe(w io.Writer, o options, image v1.Image) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	var sent, unpacked int64
	for _, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return err
		}
		sent += size
		content, err := layer.Uncompressed()
		if err != nil {
			return err
		}
		size, err = io.Copy(io.Discard, content)
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
		unpacked += size
	}
	const mib = 1 << 20
	_, err = fmt.Fprintf(w, "%s: %s %s, %.1f MiB compressed, %.1f MiB unpacked\n", o.out, o.name, digest, float64(sent)/mib, float64(unpacked)/mib)
	return err
}
