// Package imports gives the images of claims their first content, as CDI's DataVolume sources say: nothing, a container disk from a
// registry, an image from a web server, or a copy of another claim. It decides whether a source can be carried out, and
// makes a raw image of it in a directory that the caller gives it; where claims live, and that a half-made image never
// counts, is package disks' work.
//
// Nothing that comes from elsewhere is trusted. Its size is bounded by the claim's; its format is told from its bytes once; an
// image that refers to another file of the host is refused; qemu-img reads only what these checks let through, with a bound on
// its memory. Credentials and the queries of URLs appear in no message.
package imports

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/images"
)

// ErrRefused says that a source is one that is not carried out, or is not complete. Trying again does not help.
var ErrRefused = errors.New("source cannot be imported")

// Images fetches container disks; *images.Cache does.
type Images interface {
	Get(ctx context.Context, ref string, opts images.GetOptions) (images.Image, error)
}

// Claims opens the image of another claim for a copy, until release is called; *disks.Store does.
type Claims interface {
	OpenClaim(namespace, name string) (file *os.File, release func(), err error)
}

// Options configure an Importer. The zero value is usable.
type Options struct {
	// Client speaks to web servers; the default follows redirects to as good a protocol as the first one.
	Client *http.Client
	// AllowLocal lets the default Client speak to loopback and link-local addresses, where services of the host and of its
	// cloud listen that trust whoever reaches them.
	AllowLocal bool
	// StallTimeout ends a transfer that brings less than 64 KiB while it is waited for so long, 30 s by default. There is no limit
	// on the whole.
	StallTimeout time.Duration
	// Attempts is how often a download is begun, 3 by default, RetryPause the first pause in between, 1 s by default; it triples.
	Attempts   int
	RetryPause time.Duration
	// MaxSize bounds an image of a claim that names no size, 1 TiB by default.
	MaxSize int64
	// QEMUImg and XZ are programs, "qemu-img" and "xz" by default.
	QEMUImg, XZ string
}

// Importer makes images. It is safe for concurrent use.
type Importer struct {
	images Images
	claims Claims
	opts   Options
}

// New returns an Importer.
func New(images Images, claims Claims, opts Options) *Importer {
	if opts.Client == nil {
		opts.Client = &http.Client{Transport: defaultTransport(opts.AllowLocal)}
	}
	if opts.StallTimeout <= 0 {
		opts.StallTimeout = 30 * time.Second
	}
	if opts.Attempts <= 0 {
		opts.Attempts = 3
	}
	if opts.RetryPause <= 0 {
		opts.RetryPause = time.Second
	}
	if opts.MaxSize <= 0 {
		opts.MaxSize = 1 << 40
	}
	if opts.QEMUImg == "" {
		opts.QEMUImg = "qemu-img"
	}
	if opts.XZ == "" {
		opts.XZ = "xz"
	}
	return &Importer{images: images, claims: claims, opts: opts}
}

// Request is the source of one claim.
type Request struct {
	// Source is nil for a claim that begins empty.
	Source *cdiv1.DataVolumeSource
	// Secret holds the keys of the Secret that Source refers to.
	Secret map[string][]byte
	// Namespace is the claim's.
	Namespace string
	// Capacity is the claim's size in bytes; 0 when nothing says it.
	Capacity int64
	// Progress is told, about once a second, what is being done.
	Progress func(string)
}

// Import is a source that can be carried out.
type Import struct {
	// Origin says for people where the content comes from; empty when there is none.
	Origin string
	// Fill makes the image in the empty directory dir and returns its path; nil when there is nothing to fill in.
	Fill func(ctx context.Context, dir string) (path string, err error)
}

// Plan decides what to do about a source; nothing is fetched yet. An error is ErrRefused.
func (i *Importer) Plan(request Request) (Import, error) {
	source := request.Source
	if request.Progress == nil {
		request.Progress = func(string) {}
	}
	refuse := func(name, instead string) (Import, error) {
		return Import{}, fmt.Errorf("source.%s: %s: %w", name, instead, ErrRefused)
	}
	switch {
	case source == nil, source.Blank != nil:
		return Import{}, nil
	case source.Registry != nil:
		return i.planRegistry(request, source.Registry)
	case source.HTTP != nil:
		return i.planHTTP(request, source.HTTP)
	case source.PVC != nil:
		return i.planClone(request, source.PVC)
	case source.Upload != nil:
		return refuse("upload", "nothing can be uploaded to a host; put the image on a web server and use http")
	case source.S3 != nil:
		return refuse("s3", "use http with a presigned URL")
	case source.GCS != nil:
		return refuse("gcs", "use http with a signed URL")
	case source.Imageio != nil:
		return refuse("imageio", "export the disk and use http")
	case source.VDDK != nil:
		return refuse("vddk", "export the disk with virt-v2v and use http")
	case source.Snapshot != nil:
		return refuse("snapshot", "there are no VolumeSnapshots on a host; use pvc to copy a claim")
	}
	return Import{}, fmt.Errorf("it names no source; add blank, http, registry or pvc: %w", ErrRefused)
}

// set reports whether an optional text says anything.
func set(text *string) bool { return text != nil && *text != "" }

func (i *Importer) planRegistry(request Request, source *cdiv1.DataVolumeSourceRegistry) (Import, error) {
	switch {
	case set(source.ImageStream):
		return Import{}, fmt.Errorf("source.registry.imageStream: there are no image streams on a host; use url: %w", ErrRefused)
	case set(source.CertConfigMap):
		return Import{}, fmt.Errorf("source.registry.certConfigMap: install the authority's certificate on the host instead: %w", ErrRefused)
	case source.Platform != nil && source.Platform.Architecture != "" && source.Platform.Architecture != runtime.GOARCH:
		return Import{}, fmt.Errorf("source.registry.platform.architecture: this host is %s: %w", runtime.GOARCH, ErrRefused)
	case !set(source.URL):
		return Import{}, fmt.Errorf("source.registry.url: is missing; name an image, such as docker://quay.io/containerdisks/debian:12: %w", ErrRefused)
	}
	reference, err := registryReference(*source.URL)
	if err != nil {
		return Import{}, err
	}
	options := images.GetOptions{Progress: tell(request.Progress, "fetching "+reference)}
	if user, password := credentials(request.Secret); user != "" || password != "" {
		options.Keychain = oneCredential{authn.FromConfig(authn.AuthConfig{Username: user, Password: password})}
	}
	return Import{Origin: *source.URL, Fill: func(ctx context.Context, dir string) (string, error) {
		image, err := i.images.Get(ctx, reference, options)
		if err != nil {
			return "", err
		}
		if err := i.checkSize(image.VirtualSize, request.Capacity); err != nil {
			return "", err
		}
		return i.toRaw(ctx, image.Path, image.Format, image.VirtualSize, dir, request.Progress)
	}}, nil
}

// registryReference turns CDI's URL into a reference of package images.
func registryReference(address string) (string, error) {
	scheme, rest, ok := strings.Cut(address, "://")
	switch {
	case ok && scheme == cdiv1.RegistrySchemeDocker && rest != "":
		return rest, nil
	case ok && scheme == cdiv1.RegistrySchemeOci && rest != "":
		return cdiv1.RegistrySchemeOci + ":" + rest, nil
	}
	return "", fmt.Errorf("source.registry.url: %q does not begin with docker:// or oci-archive://: %w", address, ErrRefused)
}

// oneCredential answers every registry that is asked for: a source names one.
type oneCredential struct{ authn.Authenticator }

// Resolve implements authn.Keychain.
func (o oneCredential) Resolve(authn.Resource) (authn.Authenticator, error) {
	return o.Authenticator, nil
}

// credentials are in CDI's keys.
func credentials(secret map[string][]byte) (user, password string) {
	return string(secret["accessKeyId"]), string(secret["secretKey"])
}

func (i *Importer) planHTTP(request Request, source *cdiv1.DataVolumeSourceHTTP) (Import, error) {
	switch {
	case source.CertConfigMap != "":
		return Import{}, fmt.Errorf("source.http.certConfigMap: install the authority's certificate on the host instead: %w", ErrRefused)
	case len(source.SecretExtraHeaders) > 0:
		return Import{}, fmt.Errorf("source.http.secretExtraHeaders: use secretRef with accessKeyId and secretKey: %w", ErrRefused)
	}
	parsed, err := url.Parse(source.URL)
	if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		// The parser's words hold the whole URL, and that may hold a password.
		return Import{}, fmt.Errorf("source.http.url: want http:// or https:// and a host: %w", ErrRefused)
	}
	headers := http.Header{}
	for _, header := range source.ExtraHeaders {
		name, value, ok := strings.Cut(header, ":")
		if !ok || strings.TrimSpace(name) == "" || strings.ContainsAny(header, "\r\n") {
			return Import{}, fmt.Errorf("source.http.extraHeaders: want \"Name: value\": %w", ErrRefused)
		}
		headers.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	get := &download{importer: i, address: parsed, headers: headers, capacity: request.Capacity, name: publicURL(parsed)}
	get.user, get.password = credentials(request.Secret)
	get.progress = tell(request.Progress, "importing "+get.name)
	return Import{Origin: get.name, Fill: func(ctx context.Context, dir string) (string, error) {
		path, size, err := get.run(ctx, dir)
		if err != nil {
			return "", err
		}
		return i.finish(ctx, path, size, dir, request)
	}}, nil
}

// publicURL leaves out what may be secret: the user, the query and the fragment.
func publicURL(address *url.URL) string {
	return (&url.URL{Scheme: address.Scheme, Host: address.Host, Path: address.Path}).String()
}

func (i *Importer) planClone(request Request, source *cdiv1.DataVolumeSourcePVC) (Import, error) {
	namespace := source.Namespace
	if namespace == "" {
		namespace = request.Namespace
	}
	if source.Name == "" {
		return Import{}, fmt.Errorf("source.pvc.name: is missing; name the claim to copy: %w", ErrRefused)
	}
	origin := "claim " + namespace + "/" + source.Name
	return Import{Origin: origin, Fill: func(ctx context.Context, dir string) (string, error) {
		from, release, err := i.claims.OpenClaim(namespace, source.Name)
		if err != nil {
			return "", err
		}
		defer release()
		info, err := from.Stat()
		if err != nil {
			return "", err
		}
		if err := i.checkSize(info.Size(), request.Capacity); err != nil {
			return "", err
		}
		return copyInto(ctx, from, info.Size(), dir, tell(request.Progress, "copying "+origin))
	}}, nil
}

// checkSize compares what a guest would see with what the claim has room for.
func (i *Importer) checkSize(size, capacity int64) error {
	if capacity > 0 && size > roundUp(capacity) {
		return fmt.Errorf("the disk has %s and the claim %s; ask for at least %s: %w",
			diskfile.FormatBytes(size), diskfile.FormatBytes(capacity), diskfile.FormatBytes(size), diskfile.ErrTooLarge)
	}
	if size > i.opts.MaxSize && capacity <= 0 {
		return fmt.Errorf("the disk has %s; give the claim a size: %w", diskfile.FormatBytes(size), diskfile.ErrTooLarge)
	}
	return nil
}

// roundUp makes a size whole sectors, as package disks does with a claim's.
func roundUp(n int64) int64 { return (n + 511) / 512 * 512 }

// progressInterval is how often progress is told.
const progressInterval = time.Second

// tell returns a teller of bytes that were transferred.
func tell(progress func(string), doing string) func(done, total int64) {
	var last time.Time
	return func(done, total int64) {
		if now := time.Now(); now.Sub(last) >= progressInterval {
			last = now
			if total <= 0 {
				progress(fmt.Sprintf("%s: %d MiB", doing, done>>20))
				return
			}
			progress(fmt.Sprintf("%s: %d of %d MiB", doing, done>>20, total>>20))
		}
	}
}
