package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
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

// qemuUser owns the files of a container disk, as KubeVirt asks of them.
const qemuUser = 107

// read takes the one image of a layout.
func read(folder string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return nil, fmt.Errorf("reading the layout %s: %w", folder, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("reading the index of %s: %w", folder, err)
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("the layout %s has %d images, want one", folder, len(manifest.Manifests))
	}
	return index.Image(manifest.Manifests[0].Digest)
}

// build makes the image. Every time in it is the epoch and every order is sorted.
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
		go func() { writer.CloseWithError(writeLayer(writer, o)) }()
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
	if o.user != "" {
		config.Config = v1.Config{
			User: o.user, WorkingDir: "/", Entrypoint: []string{o.files[0].target},
			Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		}
	}
	return mutate.ConfigFile(image, config)
}

// writeLayer writes the files as a tar stream, after the folders that they are in. A program gets a /tmp, which an image of one file would not have.
func writeLayer(w io.Writer, o options) error {
	archive := tar.NewWriter(w)
	header, fileMode := tar.Header{ModTime: time.Unix(0, 0)}, int64(0o644)
	folders := map[string]int64{}
	if o.user == "" {
		header.Uid, header.Gid, fileMode = qemuUser, qemuUser, 0o444
	} else {
		folders["/tmp"] = 0o1777
	}
	for _, f := range o.files {
		for folder := path.Dir(f.target); folder != "/"; folder = path.Dir(folder) {
			folders[folder] = 0o755
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, folder[1:]+"/", folders[folder]
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
	}
	for _, f := range slices.SortedFunc(slices.Values(o.files), func(a, b file) int { return strings.Compare(a.target, b.target) }) {
		header.Name, header.Mode = f.target[1:], fileMode
		if err := writeFile(archive, header, f.source); err != nil {
			return fmt.Errorf("adding %s: %w", f.source, err)
		}
	}
	return archive.Close()
}

// writeFile adds a file with the mode that the header says, and may be executed if the source may.
func writeFile(archive *tar.Writer, header tar.Header, source string) (err error) {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if info.Mode()&0o100 != 0 {
		header.Mode |= 0o111
	}
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err = io.Copy(archive, from)
	return err
}

// writeLayout makes a layout with the image, replacing one that is there.
func writeLayout(folder string, image v1.Image, annotations map[string]string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	target, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	return target.AppendImage(image, layout.WithAnnotations(annotations))
}

// writeArchive makes an archive of a layout with the image, replacing one that is there.
func writeArchive(out string, image v1.Image, annotations map[string]string) (err error) {
	folder, err := os.MkdirTemp(filepath.Dir(out), ".ociimage")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := writeLayout(folder, image, annotations); err != nil {
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
		return writeFile(archive, tar.Header{Name: name, Mode: 0o644, ModTime: time.Unix(0, 0)}, filepath.Join(folder, name))
	})
	if err := errors.Join(err, archive.Close(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	return os.Rename(unfinished, out)
}

// describe says what was made: its name, digest, and sizes in MiB as it is sent and as it lies on a node.
func describe(w io.Writer, name string, image v1.Image) error {
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
	_, err = fmt.Fprintf(w, "%s: %s, %.1f MiB compressed, %.1f MiB unpacked\n", name, digest, float64(sent)/mib, float64(unpacked)/mib)
	return err
}
