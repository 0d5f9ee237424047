package imports

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/images"
)

// defaultTransport bounds each part of a request but not the whole, which may be gigabytes; StallTimeout watches that.
func defaultTransport(allowLocal bool) *http.Transport {
	guarded := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	plain := *guarded
	if !allowLocal {
		guarded.Control = refuseLocal
	}
	var proxies sync.Map // the operator's, which may well listen on this host
	return &http.Transport{
		Proxy: func(request *http.Request) (*url.URL, error) {
			proxy, err := http.ProxyFromEnvironment(request)
			if proxy != nil {
				proxies.Store(proxy.Hostname(), true)
			}
			return proxy, err
		},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if host, _, err := net.SplitHostPort(address); err == nil {
				if _, ok := proxies.Load(host); ok {
					return plain.DialContext(ctx, network, address)
				}
			}
			return guarded.DialContext(ctx, network, address)
		},
		ForceAttemptHTTP2:     true,
		IdleConnTimeout:       30 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		DisableCompression:    true, // an image that is compressed is stored so, and unpacked here
	}
}

// refuseLocal is asked with the address that a name, also one of a redirect, led to.
func refuseLocal(_, address string, _ syscall.RawConn) error {
	end, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %s: %w", address, err)
	}
	ip := end.Addr().Unmap()
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() {
		return fmt.Errorf("it leads to %s, an address of the host itself; use another server, or start gitvirt-agent with --allow-local-imports: %w", ip, images.ErrInvalid)
	}
	return nil
}

// download is the way of one image from a web server to a file.
type download struct {
	importer       *Importer
	address        *url.URL
	name           string // the address as it may be shown
	headers        http.Header
	user, password string
	capacity       int64
	progress       func(done, total int64)
}

// run downloads to a file in dir and returns it with its size. What is broken off is begun anew, a few times.
func (d *download) run(ctx context.Context, dir string) (path string, size int64, err error) {
	path = filepath.Join(dir, "download")
	pause := d.importer.opts.RetryPause
	for tried := 1; ; tried++ {
		size, err = d.attempt(ctx, path)
		if err == nil || !errors.Is(err, images.ErrUnavailable) || tried >= d.importer.opts.Attempts || ctx.Err() != nil {
			break
		}
		timer := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // jitter is no secret
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return "", 0, fmt.Errorf("%s: %w", d.name, context.Cause(ctx))
		}
		pause *= 3
	}
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", d.name, err)
	}
	return path, size, nil
}

var errStalled = errors.New("transfer stalled")

func (d *download) attempt(ctx context.Context, path string) (size int64, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, diskfile.ExplainNoSpace(err, filepath.Dir(path), path, 0)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(d.importer.opts.StallTimeout, func() { cancel(errStalled) })
	defer stall.Stop()
	response, err := d.get(ctx)
	if err != nil {
		return 0, d.explain(ctx, err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	if err := statusError(response); err != nil {
		return 0, err
	}
	stall.Stop()
	body := &watchedBody{reader: response.Body, total: response.ContentLength, progress: d.progress, stall: stall, patience: d.importer.opts.StallTimeout}
	writer := &diskfile.SparseWriter{File: file, Limit: d.limit()}
	err = d.importer.unpack(ctx, body, writer)
	switch {
	case body.err != nil && !errors.Is(err, diskfile.ErrTooLarge):
		return 0, d.explain(ctx, body.err)
	case errors.Is(err, diskfile.ErrTooLarge):
		return 0, fmt.Errorf("the image does not fit into the claim's %s: %w", diskfile.FormatBytes(d.capacity), err)
	case err != nil:
		return 0, diskfile.ExplainNoSpace(err, filepath.Dir(path), path, 0)
	}
	return writer.Written(), writer.Close()
}

// limit is what may be written: the claim's size, and what the tables of a qcow2 image take beside its data.
func (d *download) limit() int64 {
	if d.capacity <= 0 {
		return d.importer.opts.MaxSize
	}
	return d.capacity + d.capacity/8 + 64<<20
}

const maxRedirects = 10

// get sends the request. Extra headers go to the host that they were written for and to no other; so does the library with
// credentials.
func (d *download) get(ctx context.Context) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.address.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header = d.headers.Clone()
	request.Header.Set("User-Agent", "gitvirt")
	if d.user != "" || d.password != "" {
		request.SetBasicAuth(d.user, d.password)
	}
	client := *d.importer.opts.Client
	client.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		switch {
		case len(via) > maxRedirects:
			return fmt.Errorf("more than %d redirects: %w", maxRedirects, images.ErrInvalid)
		case next.URL.Scheme != "http" && next.URL.Scheme != "https":
			return fmt.Errorf("it redirects to a %q address: %w", next.URL.Scheme, images.ErrInvalid)
		case d.address.Scheme == "https" && next.URL.Scheme != "https":
			return fmt.Errorf("it redirects from https to http (%s): %w", publicURL(next.URL), images.ErrInvalid)
		}
		next.Header.Del("Referer") // the address before, with its signature
		if next.URL.Host != d.address.Host {
			for name := range d.headers {
				next.Header.Del(name)
			}
			next.Header.Del("Authorization")
		}
		return nil
	}
	return client.Do(request)
}

// explain gives an error of the transfer its kind, without the URL that the library puts into it.
func (d *download) explain(ctx context.Context, err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	switch {
	case errors.Is(context.Cause(ctx), errStalled), errors.Is(err, errStalled):
		return fmt.Errorf("less than %s arrived within %v: %w", diskfile.FormatBytes(leastBytes), d.importer.opts.StallTimeout, images.ErrUnavailable)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, images.ErrInvalid):
		return err
	}
	return fmt.Errorf("the transfer failed: %w: %w", err, images.ErrUnavailable)
}

func statusError(response *http.Response) error {
	switch code := response.StatusCode; {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fmt.Errorf("the server refuses (%s); check secretRef: %w", response.Status, images.ErrUnauthorized)
	case code == http.StatusNotFound || code == http.StatusGone:
		return fmt.Errorf("the server has no such file (%s): %w", response.Status, images.ErrNotFound)
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= http.StatusInternalServerError:
		return fmt.Errorf("the server does not serve now (%s): %w", response.Status, images.ErrUnavailable)
	}
	return fmt.Errorf("the server answers %s: %w", response.Status, images.ErrInvalid)
}

// leastBytes have to arrive while a transfer is waited for as long as the patience lasts.
const leastBytes = 64 << 10

// watchedBody counts what arrives, ends a transfer that stands still or trickles, and remembers an error of it apart from those of
// unpacking.
type watchedBody struct {
	reader      io.Reader
	read, total int64
	progress    func(done, total int64)
	// stall runs only while a byte is waited for: unpacking may take its time.
	stall    *time.Timer
	patience time.Duration
	// waited is how long the last few bytes, less than leastBytes, were waited for.
	few    int
	waited time.Duration
	err    error
}

// Read implements io.Reader.
func (w *watchedBody) Read(p []byte) (int, error) {
	if w.waited >= w.patience {
		w.err = errStalled
		return 0, w.err
	}
	began := time.Now()
	w.stall.Reset(w.patience - w.waited)
	n, err := w.reader.Read(p)
	w.stall.Stop()
	w.few, w.waited = w.few+n, w.waited+time.Since(began)
	if w.few >= leastBytes {
		w.few, w.waited = 0, 0
	}
	if n > 0 {
		w.read += int64(n)
		w.progress(w.read, w.total)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		w.err = err
	}
	return n, err
}

const (
	copyBuffer = 1 << 20
	// unpackMemory bounds what unpacking may take; xz -9 needs 65 MiB.
	unpackMemory = 256 << 20
)

// unpack writes an image, and undoes gzip, zstd or xz when its first bytes say so.
func (i *Importer) unpack(ctx context.Context, body io.Reader, writer *diskfile.SparseWriter) error {
	buffered := bufio.NewReaderSize(body, copyBuffer)
	magic, err := buffered.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var plain io.Reader = buffered
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b\x08")):
		unzip, err := gzip.NewReader(buffered)
		if err != nil {
			return fmt.Errorf("it cannot be unpacked: %w: %w", err, images.ErrInvalid)
		}
		plain = unzip
	case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")):
		decoder, err := zstd.NewReader(buffered, zstd.WithDecoderMaxMemory(unpackMemory), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return fmt.Errorf("it cannot be unpacked: %w: %w", err, images.ErrInvalid)
		}
		defer decoder.Close()
		plain = decoder
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		return i.unpackXZ(ctx, buffered, writer)
	}
	if _, err := io.CopyBuffer(writer, plain, make([]byte, copyBuffer)); err != nil {
		return unpackError(err)
	}
	return nil
}

// unpackError gives an error its kind: a write has one of its own, all else is what arrived.
func unpackError(err error) error {
	var written *os.PathError
	if errors.Is(err, diskfile.ErrTooLarge) || errors.As(err, &written) {
		return err
	}
	return fmt.Errorf("it cannot be unpacked: %w: %w", err, images.ErrInvalid)
}

// unpackXZ uses the program that every Debian has, with a bound on its memory.
func (i *Importer) unpackXZ(whole context.Context, packed io.Reader, writer io.Writer) error {
	ctx, cancel := context.WithCancel(whole)
	defer cancel()
	cmd := exec.CommandContext(ctx, i.opts.XZ, "--decompress", "--stdout", "--format=xz", fmt.Sprintf("--memlimit-decompress=%d", unpackMemory)) //nolint:gosec // the operator's program
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = packed, &said
	plain, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s is not installed; apt-get install xz-utils: %w", i.opts.XZ, err)
	}
	_, copyErr := io.CopyBuffer(writer, plain, make([]byte, copyBuffer))
	if copyErr != nil {
		cancel()
	}
	waitErr := cmd.Wait()
	switch {
	case copyErr != nil:
		return unpackError(copyErr)
	case whole.Err() != nil:
		return context.Cause(whole)
	case waitErr != nil:
		return fmt.Errorf("it cannot be unpacked: xz: %s: %w", strings.TrimSpace(said.String()), images.ErrInvalid)
	}
	return nil
}
