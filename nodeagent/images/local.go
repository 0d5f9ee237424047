package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const (
	// maxDocument bounds an index, a manifest or a configuration, as registries do.
	maxDocument = 4 << 20
	// refAnnotation is where an OCI layout keeps the tag of an image.
	refAnnotation = "org.opencontainers.image.ref.name"
	maxIndexDepth = 4
)

// blobs are the files of an OCI layout, in a directory or in a tarball.
type blobs interface {
	// open returns a file by its path in the layout; fs.ErrNotExist when there is none.
	open(name string) (io.ReadCloser, int64, error)
	close() error
}

// localSource is an image in a file or a directory of this host.
type localSource struct {
	path, tag string
	openBlobs func(path string) (blobs, error)
}

func (s localSource) pinned() string { return "" }

func (s localSource) changing() bool { return true }

func (s localSource) resolve(context.Context) (digest v1.Hash, err error) {
	files, err := s.openFiles()
	if err != nil {
		return v1.Hash{}, err
	}
	defer func() { err = errors.Join(err, files.close()) }()
	root, err := s.root(files)
	return root.digest, err
}

func (s localSource) open(_ context.Context, digest v1.Hash) (contents, error) {
	files, err := s.openFiles()
	if err != nil {
		return contents{}, err
	}
	layers, err := s.layers(files, digest)
	if err != nil {
		return contents{}, errors.Join(err, files.close())
	}
	return contents{layers: layers, close: files.close}, nil
}

func (s localSource) openFiles() (blobs, error) {
	files, err := s.openBlobs(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist: %w: %w", s.path, ErrNotFound, errSourceGone)
	}
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", s.path, err)
	}
	return files, nil
}

// imageRoot is what a local reference leads to: a manifest or an index of OCI's kind, or an image of Docker's kind.
type imageRoot struct {
	digest v1.Hash
	docker *dockerImage
}

func (s localSource) root(files blobs) (imageRoot, error) {
	raw, err := document(files, "index.json", v1.Hash{})
	if errors.Is(err, fs.ErrNotExist) {
		return s.dockerRoot(files)
	}
	if err != nil {
		return imageRoot{}, fmt.Errorf("%s: %w", s.path, err)
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return imageRoot{}, fmt.Errorf("%s: index.json: %w: %w", s.path, err, ErrInvalid)
	}
	chosen, err := s.choose(index.Manifests)
	if err != nil {
		return imageRoot{}, err
	}
	return imageRoot{digest: chosen.Digest}, nil
}

// choose finds the image with the tag, or the only one, or the one tagged "latest".
func (s localSource) choose(manifests []v1.Descriptor) (v1.Descriptor, error) {
	if s.tag == "" && len(manifests) == 1 {
		return manifests[0], nil
	}
	tag := s.tag
	if tag == "" {
		tag = "latest"
	}
	var tags []string
	for _, one := range manifests {
		ref := one.Annotations[refAnnotation]
		if ref == tag || strings.HasSuffix(ref, ":"+tag) {
			return one, nil
		}
		if ref != "" {
			tags = append(tags, ref)
		}
	}
	return v1.Descriptor{}, fmt.Errorf("%s has no image tagged %q (it has: %s): %w", s.path, tag, strings.Join(tags, ", "), ErrNotFound)
}

// layers opens the image with that digest, which resolve has returned before.
func (s localSource) layers(files blobs, digest v1.Hash) ([]layer, error) {
	root, err := s.root(files)
	if err != nil {
		return nil, err
	}
	if root.digest != digest {
		return nil, fmt.Errorf("%s changed while it was read: %w", s.path, ErrUnavailable)
	}
	if root.docker != nil {
		return pairLayers(files, root.docker.Layers, nil, root.docker.config)
	}
	manifest, err := s.manifest(files, v1.Descriptor{Digest: digest}, maxIndexDepth)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	config, err := document(files, blobName(manifest.Config.Digest), manifest.Config.Digest)
	if err != nil {
		return nil, fmt.Errorf("%s: configuration: %w", s.path, err)
	}
	names, sizes := make([]string, len(manifest.Layers)), make([]int64, len(manifest.Layers))
	for i, one := range manifest.Layers {
		names[i], sizes[i] = blobName(one.Digest), one.Size
	}
	return pairLayers(files, names, sizes, config)
}

// manifest follows indexes to the manifest for this machine.
func (s localSource) manifest(files blobs, at v1.Descriptor, depth int) (*v1.Manifest, error) {
	raw, err := document(files, blobName(at.Digest), at.Digest)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("manifest: %w: %w", err, ErrInvalid)
	}
	if !index.MediaType.IsIndex() && len(index.Manifests) == 0 {
		manifest, err := v1.ParseManifest(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("manifest: %w: %w", err, ErrInvalid)
		}
		return manifest, nil
	}
	if depth == 0 {
		return nil, fmt.Errorf("manifest: indexes are nested too deep: %w", ErrInvalid)
	}
	for _, one := range index.Manifests {
		if one.Platform == nil && one.ArtifactType == "" || one.Platform != nil && one.Platform.Satisfies(thisPlatform()) {
			return s.manifest(files, one, depth-1)
		}
	}
	return nil, fmt.Errorf("manifest: the image is not for %s: %w", thisPlatform().String(), ErrNotFound)
}

// pairLayers matches the files of the layers with the digests that the configuration lists. Without sizes, those of the files are taken.
func pairLayers(files blobs, names []string, sizes []int64, rawConfig []byte) ([]layer, error) {
	config, err := v1.ParseConfigFile(bytes.NewReader(rawConfig))
	if err != nil {
		return nil, fmt.Errorf("configuration: %w: %w", err, ErrInvalid)
	}
	if len(names) != len(config.RootFS.DiffIDs) {
		return nil, fmt.Errorf("the image has %d layers and its configuration names %d: %w", len(names), len(config.RootFS.DiffIDs), ErrInvalid)
	}
	layers := make([]layer, len(names))
	for i, blob := range names {
		layers[i] = layer{diffID: config.RootFS.DiffIDs[i], stored: func() (io.ReadCloser, error) {
			content, _, err := files.open(blob)
			return content, err
		}}
		if sizes != nil {
			layers[i].size = sizes[i]
			continue
		}
		content, size, err := files.open(blob)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w: %w", i+1, err, ErrInvalid)
		}
		if err := content.Close(); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
		layers[i].size = size
	}
	return layers, nil
}

// blobName is where a layout keeps a blob. Only sha256 has a place: other algorithms are not verified here.
func blobName(digest v1.Hash) string { return path.Join("blobs", digest.Algorithm, digest.Hex) }

// document reads a small file and verifies its digest, unless that is zero.
func document(files blobs, name string, digest v1.Hash) (raw []byte, err error) {
	if digest != (v1.Hash{}) && digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("%s: digest algorithm %q is not supported: %w", name, digest.Algorithm, ErrInvalid)
	}
	content, _, err := files.open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	raw, err = io.ReadAll(io.LimitReader(content, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(raw) > maxDocument {
		return nil, fmt.Errorf("%s: more than 4 MiB: %w", name, ErrTooLarge)
	}
	if digest == (v1.Hash{}) {
		return raw, nil
	}
	got, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if got != digest {
		return nil, fmt.Errorf("%s: its digest is %s: %w", name, got, ErrInvalid)
	}
	return raw, nil
}

// dockerImage is one image in the manifest.json of `docker save`.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
	config   []byte
}

// dockerRoot finds the image in a tarball of `docker save`, which has no manifest: its digest is that of the configuration.
func (s localSource) dockerRoot(files blobs) (imageRoot, error) {
	raw, err := document(files, "manifest.json", v1.Hash{})
	if errors.Is(err, fs.ErrNotExist) {
		return imageRoot{}, fmt.Errorf("%s is no container image: it holds neither index.json (OCI) nor manifest.json (Docker): %w", s.path, ErrInvalid)
	}
	if err != nil {
		return imageRoot{}, fmt.Errorf("%s: %w", s.path, err)
	}
	var all []dockerImage
	if err := json.Unmarshal(raw, &all); err != nil {
		return imageRoot{}, fmt.Errorf("%s: manifest.json: %w: %w", s.path, err, ErrInvalid)
	}
	index := slices.IndexFunc(all, func(one dockerImage) bool {
		return s.tag == "" && len(all) == 1 || slices.ContainsFunc(one.RepoTags, func(ref string) bool {
			return ref == s.tag || strings.HasSuffix(ref, ":"+s.tag) && s.tag != ""
		})
	})
	if index < 0 {
		return imageRoot{}, fmt.Errorf("%s has %d images and none tagged %q: %w", s.path, len(all), s.tag, ErrNotFound)
	}
	image := all[index]
	if image.config, err = document(files, image.Config, v1.Hash{}); err != nil {
		return imageRoot{}, fmt.Errorf("%s: configuration: %w", s.path, err)
	}
	digest, _, err := v1.SHA256(bytes.NewReader(image.config))
	return imageRoot{digest: digest, docker: &image}, err
}

// layoutBlobs is an OCI layout in a directory. os.Root keeps symbolic links inside it.
type layoutBlobs struct{ root *os.Root }

func openLayout(path string) (blobs, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return layoutBlobs{root}, nil
}

func (l layoutBlobs) open(name string) (io.ReadCloser, int64, error) {
	info, err := l.root.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file: %w", name, ErrInvalid)
	}
	file, err := l.root.Open(name)
	return file, info.Size(), err
}

func (l layoutBlobs) close() error { return l.root.Close() }

// archiveBlobs is a tarball whose headers were read once, so that files are read in place.
type archiveBlobs struct {
	file  *os.File
	parts map[string]archivePart
}

type archivePart struct {
	offset, size int64
	link         string // another part, for the links of old `docker save`
}

const maxArchiveParts = 100_000

func openArchive(path string) (blobs, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file: %w", ErrInvalid)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	archive := &archiveBlobs{file: file, parts: map[string]archivePart{}}
	if err := archive.readHeaders(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return archive, nil
}

func (a *archiveBlobs) readHeaders() error {
	reader := tar.NewReader(a.file)
	for len(a.parts) < maxArchiveParts {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is not a tarball, or a compressed or damaged one: %w: %w", err, ErrInvalid)
		}
		// archive/tar reads headers block by block, so the file stands where the contents start.
		offset, err := a.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		name := path.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			a.parts[name] = archivePart{offset: offset, size: header.Size}
		case tar.TypeSymlink:
			a.parts[name] = archivePart{link: path.Join(path.Dir(name), header.Linkname)} //nolint:gosec // it names another part; nothing is unpacked
		case tar.TypeLink:
			a.parts[name] = archivePart{link: path.Clean(header.Linkname)}
		}
	}
	return fmt.Errorf("it holds more than %d files: %w", maxArchiveParts, ErrInvalid)
}

func (a *archiveBlobs) open(name string) (io.ReadCloser, int64, error) {
	part, ok := a.parts[path.Clean(name)]
	for range 4 {
		if !ok || part.link == "" {
			break
		}
		part, ok = a.parts[part.link]
	}
	if !ok || part.link != "" {
		return nil, 0, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return io.NopCloser(io.NewSectionReader(a.file, part.offset, part.size)), part.size, nil
}

func (a *archiveBlobs) close() error { return a.file.Close() }
