// Package images fetches container disks, as KubeVirt defines them, and keeps them in a cache: a disk image is the only file in
// /disk of a container image. The container image comes from a registry, an OCI layout on disk (oci:/path[:tag]) or a tarball
// (oci-archive:/path.tar, of OCI's or Docker's kind). Kernels and initramfs images are taken out of container images the same way.
//
// What is fetched is not trusted. Digests are verified down to the bytes of each layer; nothing is unpacked but the one file
// that is wanted, to a name of our own, so a path in a layer cannot lead anywhere; sizes are bounded; an image that QEMU
// would follow to another file (a backing file) is refused. Nothing is executed.
//
// Below the directory of a Cache:
//
//	images/sha256-HEX/disk          the disk of the image with that digest, mode 0444
//	images/sha256-HEX/disk.json     what is known about it; written last, so that a disk without it does not count
//	images/sha256-HEX/file-HASH     a file at another path, such as a kernel
//	refs/HASH.json                  which digest a reference had when it was last resolved
//	tmp/                            unfinished files, each locked by its writer; Open sweeps those of killed processes
//
// It knows nothing of virtual machines. What a guest writes goes to an overlay (package disks), never here.
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// Errors that callers tell apart with errors.Is. diskfile.ErrNoSpace and diskfile.ErrForeignData are returned too.
var (
	// ErrNotFound says that the reference names no image, or the image holds no such file. Trying again does not help.
	ErrNotFound = errors.New("not found")
	// ErrUnauthorized says that the registry wants other credentials.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrUnavailable says that the registry could not be reached. Trying again may help.
	ErrUnavailable = errors.New("unavailable")
	// ErrInvalid says that the reference or the image is not one that can be used. Trying again does not help.
	ErrInvalid = errors.New("invalid image")
	// ErrTooLarge says that the image is larger than the limit.
	ErrTooLarge = diskfile.ErrTooLarge
	// ErrNotCached says that the pull policy is Never and the image is not in the cache.
	ErrNotCached = errors.New("image not cached")
)

// PullPolicy says when a reference is resolved again, with the names and the meaning of Kubernetes's imagePullPolicy.
type PullPolicy string

// The policies. The empty one is PullAlways for local sources and for the tag "latest", and PullIfNotPresent for any other tag. A
// reference with a digest is resolved once, because its content cannot change.
const (
	PullAlways       PullPolicy = "Always"
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullNever        PullPolicy = "Never"
)

// Options configure a Cache. The zero value is usable.
type Options struct {
	// Insecure are the registries (HOST or HOST:PORT) that are spoken to without TLS. Those on loopback always may be.
	Insecure []string
	// Keychain is asked for credentials when a call brings none; the default is anonymous.
	Keychain authn.Keychain
	// Transport carries out requests, by default one with timeouts for connecting and for the first byte.
	Transport http.RoundTripper
	// StallTimeout ends a transfer that brings no byte for so long, 30 s by default. There is no limit on the whole.
	StallTimeout time.Duration
	// Attempts is how often a request or a layer is tried, 3 by default, with growing pauses in between.
	Attempts int
	// RetryPause is the first pause, 1 s by default; it triples.
	RetryPause time.Duration
	// MaxFileSize bounds a disk image file, 1 TiB by default, and MaxVirtualSize what the guest sees, 64 TiB by default.
	MaxFileSize, MaxVirtualSize int64
	// LocalRoots are the directories that oci: and oci-archive: may name; empty allows any path.
	LocalRoots []string
	// PruneAge is how long an image stays after its last use, whatever Prune is told, 10 minutes by default: a
	// machine may be about to start from it.
	PruneAge time.Duration
	// Now is the clock, time.Now by default.
	Now func() time.Time
	// Log hears of retries; the default hears nothing.
	Log *slog.Logger
}

const (
	defaultMaxFileSize    = 1 << 40
	defaultMaxVirtualSize = 64 << 40
)

func (o Options) withDefaults() Options {
	if o.Keychain == nil {
		o.Keychain = authn.NewMultiKeychain()
	}
	if o.Transport == nil {
		o.Transport = defaultTransport()
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = 30 * time.Second
	}
	if o.Attempts <= 0 {
		o.Attempts = 3
	}
	if o.RetryPause <= 0 {
		o.RetryPause = time.Second
	}
	if o.MaxFileSize <= 0 {
		o.MaxFileSize = defaultMaxFileSize
	}
	if o.MaxVirtualSize <= 0 {
		o.MaxVirtualSize = defaultMaxVirtualSize
	}
	if o.PruneAge <= 0 {
		o.PruneAge = 10 * time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Cache fetches and keeps container disks. It is safe for concurrent use, also by several processes.
type Cache struct {
	dir  string
	opts Options

	mu      sync.Mutex
	flights map[string]*flight
}

// Open returns the cache in dir, an absolute path, makes its directories and sweeps what killed processes left.
func Open(dir string, opts Options) (*Cache, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return nil, fmt.Errorf("image cache %q: want a clean absolute path", dir)
	}
	c := &Cache{dir: dir, opts: opts.withDefaults(), flights: map[string]*flight{}}
	for _, sub := range []string{imagesDir, refsDir, tmpDir} {
		// QEMU runs as another user: it passes through, and lists nothing.
		if err := os.MkdirAll(filepath.Join(dir, sub), dirMode); err != nil { //nolint:gosec // the operator chooses the directory
			return nil, fmt.Errorf("image cache: %w", err)
		}
	}
	if err := c.sweep(); err != nil {
		return nil, fmt.Errorf("image cache: sweeping unfinished files: %w", err)
	}
	return c, nil
}

// GetOptions configure one Get or GetFiles.
type GetOptions struct {
	// Path is the disk image inside the container image, such as "/disk/fedora.qcow2"; the default is the only file in /disk.
	Path string
	// PullPolicy says when to resolve the reference again.
	PullPolicy PullPolicy
	// Keychain holds the credentials for this call, such as a pull secret's.
	Keychain authn.Keychain
	// Progress is called now and then with the bytes that were transferred and their total. It must be quick.
	Progress func(done, total int64)
}

// Image is a disk image in the cache.
type Image struct {
	// Ref is the reference that was asked for.
	Ref string `json:"ref"`
	// Digest is what the reference stands for: of the manifest or the index, or for a Docker tarball of the configuration.
	Digest string `json:"digest"`
	// InnerPath is where the disk image lies inside the container image.
	InnerPath string `json:"innerPath"`
	// Path is the file on this host. It is read-only and never changes.
	Path   string          `json:"path"`
	Format diskfile.Format `json:"format"`
	// VirtualSize is what a guest sees, Size what the file has, both in bytes.
	VirtualSize int64 `json:"virtualSize"`
	Size        int64 `json:"size"`
	// Fetched says that this call brought it.
	Fetched bool `json:"fetched"`
	// Warning says that the image may be outdated, because its source could not be asked; empty when it is current.
	Warning string `json:"warning,omitempty"`
}

// Get returns the disk image of a container image, and fetches it when the cache does not hold it. When its source cannot be
// reached, what the cache holds is returned with a Warning.
func (c *Cache) Get(ctx context.Context, ref string, opts GetOptions) (Image, error) {
	if opts.Path != "" {
		inner, err := cleanInnerPath(opts.Path)
		if err != nil {
			return Image{}, fmt.Errorf("container disk %s: %w", ref, err)
		}
		opts.Path = inner
	}
	found, err := c.get(ctx, ref, opts, wanted{path: opts.Path, disk: true})
	if err != nil {
		return Image{}, fmt.Errorf("container disk %s: %w", ref, err)
	}
	return Image{
		Ref: ref, Digest: found.digest, InnerPath: "/" + found.entry.InnerPath, Path: found.path, Format: found.entry.Format,
		VirtualSize: found.entry.VirtualSize, Size: found.entry.Size, Fetched: found.fetched, Warning: found.warning,
	}, nil
}

// Files are files that were taken out of one container image.
type Files struct {
	Digest string `json:"digest"`
	// Paths are the files on this host by the path that was asked for.
	Paths map[string]string `json:"paths"`
	// Warning is as in Image.
	Warning string `json:"warning,omitempty"`
}

// GetFiles returns files of a container image as they are, such as the kernel and the initramfs of KubeVirt's kernelBoot. opts.Path is not used.
func (c *Cache) GetFiles(ctx context.Context, ref string, opts GetOptions, paths ...string) (Files, error) {
	files := Files{Paths: make(map[string]string, len(paths))}
	for i, path := range paths {
		inner, err := cleanInnerPath(path)
		if err != nil {
			return Files{}, fmt.Errorf("container image %s: %w", ref, err)
		}
		found, err := c.get(ctx, ref, opts, wanted{path: inner})
		if err != nil {
			return Files{}, fmt.Errorf("container image %s: %w", ref, err)
		}
		if i == 0 {
			// The rest comes from the very same image, even when the tag moves meanwhile.
			files.Digest, files.Warning = found.digest, found.warning
			ref, err = pin(ref, found.digest)
			if err != nil {
				return Files{}, fmt.Errorf("container image %s: %w", ref, err)
			}
		}
		if found.digest != files.Digest {
			return Files{}, fmt.Errorf("container image %s: it changed from %s to %s while its files were read: %w", ref, files.Digest, found.digest, ErrUnavailable)
		}
		files.Paths[path] = found.path
	}
	return files, nil
}

// wanted is the file that is wanted of a container image.
type wanted struct {
	// path is relative to the image's root; empty means the only file in /disk.
	path string
	// disk says that it has to be a disk image.
	disk bool
}

// found is a file in the cache.
type found struct {
	entry   entry
	path    string
	digest  string
	fetched bool
	warning string
}

// get resolves ref as its policy says, looks into the cache and fetches what is not there.
func (c *Cache) get(ctx context.Context, ref string, opts GetOptions, want wanted) (found, error) {
	from, err := c.parse(ref, opts.Keychain)
	if err != nil {
		return found{}, err
	}
	known, isKnown := c.knownDigest(ref, from)
	policy, err := policyOf(opts.PullPolicy, from)
	if err != nil {
		return found{}, err
	}
	if isKnown && (policy != PullAlways || from.pinned() != "") {
		if hit, ok, err := c.lookup(known, want); ok || err != nil {
			return hit, err
		}
	}
	if policy == PullNever {
		return found{}, fmt.Errorf("the pull policy is Never: %w", ErrNotCached)
	}
	result, err := c.pull(ctx, ref, from, opts, want)
	if err == nil || !isKnown || !canFallBack(ctx, err) {
		return result, err
	}
	hit, ok, lookupErr := c.lookup(known, want)
	if !ok {
		return found{}, errors.Join(err, lookupErr)
	}
	hit.warning = fmt.Sprintf("using the cached image %s, because its source could not be asked: %v", known, err)
	return hit, nil
}

// canFallBack reports whether a failure says nothing about the image: its source is down. A local source that is gone counts, too.
func canFallBack(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (errors.Is(err, ErrUnavailable) || errors.Is(err, errSourceGone))
}

// policyOf is Kubernetes's default policy, except for local sources: asking them costs nothing.
func policyOf(policy PullPolicy, from source) (PullPolicy, error) {
	switch policy {
	case PullAlways, PullIfNotPresent, PullNever:
		return policy, nil
	case "":
		if from.changing() {
			return PullAlways, nil
		}
		return PullIfNotPresent, nil
	}
	return "", fmt.Errorf("pull policy %q: want %s, %s or %s: %w", policy, PullAlways, PullIfNotPresent, PullNever, ErrInvalid)
}

// pull resolves ref and fetches the file unless the cache holds it; one caller at a time does so for a digest.
func (c *Cache) pull(ctx context.Context, ref string, from source, opts GetOptions, want wanted) (found, error) {
	digest, err := c.resolve(ctx, from)
	if err != nil {
		return found{}, err
	}
	release, err := c.enter(ctx, digest.String())
	if err != nil {
		return found{}, err
	}
	defer release()

	hit, ok, err := c.lookup(digest.String(), want)
	if err == nil && !ok {
		if err := c.fetch(ctx, from, digest, opts, want); err != nil {
			return found{}, err
		}
		hit, ok, err = c.lookup(digest.String(), want)
		hit.fetched = true
		if err == nil && !ok {
			err = fmt.Errorf("the fetched image %s was removed at once: %w", digest, ErrUnavailable)
		}
	}
	if err != nil {
		return found{}, err
	}
	// A full disk must not keep a machine from an image that is there.
	if err := c.remember(ref, digest); err != nil {
		hit.warning = err.Error()
	}
	return hit, nil
}

// pin makes a reference to a registry name one digest. Local sources have no such form.
func pin(ref, digest string) (string, error) {
	if isLocal(ref) {
		return ref, nil
	}
	parsed, err := parseRegistryRef(ref, false)
	if err != nil {
		return "", err
	}
	return parsed.Context().Digest(digest).Name(), nil
}

// cleanInnerPath makes a path inside an image relative to its root. It cannot leave it.
func cleanInnerPath(path string) (string, error) {
	clean := strings.TrimPrefix(filepath.Clean("/"+path), "/")
	if clean == "" || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("path %q inside the image: want a file's path, such as /disk/disk.qcow2: %w", path, ErrInvalid)
	}
	for _, part := range strings.Split(path, "/") {
		if part == ".." {
			return "", fmt.Errorf("path %q inside the image: \"..\" is not allowed: %w", path, ErrInvalid)
		}
	}
	return clean, nil
}
