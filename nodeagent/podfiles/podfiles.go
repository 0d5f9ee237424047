// Package podfiles asks the launcher of a VM's Pod for files: disks, overlays, what cloud-init reads. The launcher makes them as the
// Pod's user; nothing is written into the Pod from outside (package launcher/files).
//
// Whoever answers may be a guest that has broken out of QEMU. So an answer is bounded in size and time, its paths are none but those that
// were asked for, and nothing of it is more than what the Pod's own QEMU is told to open.
package podfiles

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// ErrUnavailable says that nobody answers: the launcher has not begun yet, or has ended.
var ErrUnavailable = errors.New("the launcher of the Pod does not answer")

// patience bounds one request.
const patience = time.Minute

// Client asks the launcher of one Pod.
type Client struct {
	// Dir is the shared folder, named as those outside the Pod see it.
	Dir string
	// Patience bounds one request; 0 means a minute.
	Patience time.Duration
}

// Disk is an image or a device of the Pod.
type Disk struct {
	// Path is as the Pod sees it.
	Path          string
	Format        diskfile.Format
	CapacityBytes int64
	// Block says that Path is a block device; LogicalBlock and PhysicalBlock are the sizes of its blocks in bytes, 0 when unknown.
	Block                       bool
	LogicalBlock, PhysicalBlock uint
	// Cached says that the file system cannot do direct I/O.
	Cached bool
}

// Image finds the disk image of a container disk; inner is its path in the image, "" for the only file in /disk.
func (c Client) Image(ctx context.Context, volume, inner string) (Disk, error) {
	return c.disk(ctx, protocol.FileRequest{Do: protocol.FindImage, Volume: volume, Path: inner}, protocol.ImagesDir+"/"+volume+"/")
}

// File finds a file of an image below a folder of the images, such as a kernel, and returns its path in the Pod.
func (c Client) File(ctx context.Context, volume, inner string) (string, error) {
	found, _, err := c.ask(ctx, protocol.FileRequest{Do: protocol.FindFile, Volume: volume, Path: inner}, nil)
	if err == nil {
		err = checkPath(found.Path, protocol.ImagesDir+"/"+volume+"/")
	}
	return found.Path, err
}

// Claim is a claim with a file system as a machine wants it.
type Claim struct {
	Volume string
	// Capacity is the wanted size in bytes; 0 takes the size that there is.
	Capacity int64
	// Shared allows an image that another guest has open, ReadOnly says that the guest only reads.
	Shared, ReadOnly bool
}

// Claim makes or finds the image of a claim with a file system.
func (c Client) Claim(ctx context.Context, want Claim) (Disk, error) {
	return c.disk(ctx, protocol.FileRequest{
		Do: protocol.EnsureClaim, Volume: want.Volume, Capacity: want.Capacity, Shared: want.Shared, ReadOnly: want.ReadOnly,
	}, protocol.ClaimsDir+"/"+want.Volume+"/"+protocol.ClaimImage)
}

// Device finds a claim of volumeMode Block.
func (c Client) Device(ctx context.Context, want Claim) (Disk, error) {
	found, err := c.disk(ctx, protocol.FileRequest{Do: protocol.FindDevice, Volume: want.Volume, Shared: want.Shared, ReadOnly: want.ReadOnly},
		protocol.DevicesDir+"/"+want.Volume)
	found.Block = true
	return found, err
}

// EmptyDisk makes or finds an empty disk.
func (c Client) EmptyDisk(ctx context.Context, name string, capacity int64) (Disk, error) {
	return c.disk(ctx, protocol.FileRequest{Do: protocol.EnsureDisk, Path: name, Capacity: capacity}, name)
}

// Overlay makes an overlay over an image of the Pod anew.
func (c Client) Overlay(ctx context.Context, name string, below disks.Backing) error {
	_, _, err := c.ask(ctx, protocol.FileRequest{
		Do: protocol.NewOverlay, Path: name, Capacity: below.VirtualSize, Backing: below.Path, BackingFormat: string(below.Format),
	}, nil)
	return err
}

// Write writes a file.
func (c Client) Write(ctx context.Context, name string, content []byte) error {
	_, _, err := c.ask(ctx, protocol.FileRequest{Do: protocol.WriteFile, Path: name}, content)
	return err
}

// MakeFolder makes a folder.
func (c Client) MakeFolder(ctx context.Context, name string) error {
	_, _, err := c.ask(ctx, protocol.FileRequest{Do: protocol.MakeFolder, Path: name}, nil)
	return err
}

// Remove removes files and folders whose names match a pattern, but for one.
func (c Client) Remove(ctx context.Context, pattern, except string) error {
	_, _, err := c.ask(ctx, protocol.FileRequest{Do: protocol.RemoveFiles, Path: pattern, Except: except}, nil)
	return err
}

// Console returns what the guest's serial console said last.
func (c Client) Console(ctx context.Context) ([]byte, error) {
	_, content, err := c.ask(ctx, protocol.FileRequest{Do: protocol.ReadConsole}, nil)
	return content, err
}

// Capabilities returns what the Pod's libvirt found out about QEMU, and the name of its file. Only of a Pod in which no guest has run yet
// it is libvirt's word.
func (c Client) Capabilities(ctx context.Context) (name string, content []byte, err error) {
	found, content, err := c.ask(ctx, protocol.FileRequest{Do: protocol.ReadCapabilities}, nil)
	if err == nil && (path.Base(found.Path) != found.Path || !strings.HasSuffix(found.Path, ".xml") || strings.HasPrefix(found.Path, ".")) {
		return "", nil, fmt.Errorf("the launcher names %q for what libvirt knows of QEMU", shorten(found.Path))
	}
	return found.Path, content, err
}

// GiveCapabilities gives the Pod's libvirt what another one found out about QEMU.
func (c Client) GiveCapabilities(ctx context.Context, name string, content []byte) error {
	_, _, err := c.ask(ctx, protocol.FileRequest{Do: protocol.WriteCapabilities, Path: name}, content)
	return err
}

// disk asks for a disk, whose path is to be want, or below it when that ends with a slash.
func (c Client) disk(ctx context.Context, request protocol.FileRequest, want string) (Disk, error) {
	found, _, err := c.ask(ctx, request, nil)
	if err != nil {
		return Disk{}, err
	}
	if err := checkPath(found.Path, want); err != nil {
		return Disk{}, err
	}
	format := diskfile.Format(found.Format)
	const largestBlock = 1 << 20
	switch {
	case format != diskfile.Raw && format != diskfile.QCOW2:
		err = fmt.Errorf("the launcher names the format %q of %s", shorten(found.Format), found.Path)
	case found.Capacity <= 0 || found.Capacity > math.MaxInt64>>1:
		err = fmt.Errorf("the launcher says that %s has %d bytes", found.Path, found.Capacity)
	case found.LogicalBlock > largestBlock || found.PhysicalBlock > largestBlock:
		err = fmt.Errorf("the launcher says that the blocks of %s have %d and %d bytes", found.Path, found.LogicalBlock, found.PhysicalBlock)
	}
	return Disk{
		Path: found.Path, Format: format, CapacityBytes: found.Capacity, LogicalBlock: found.LogicalBlock, PhysicalBlock: found.PhysicalBlock,
		Cached: found.Cached,
	}, err
}

// maxPath is what a path of the Pod may have, in bytes.
const maxPath = 1024

// checkPath refuses a path other than the one that was asked for.
func checkPath(got, want string) error {
	fits := got == want || strings.HasSuffix(want, "/") && strings.HasPrefix(got, want)
	strange := func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }
	if !fits || len(got) > maxPath || path.Clean(got) != got || strings.ContainsFunc(got, strange) {
		return fmt.Errorf("the launcher answers with the path %q, where %s was asked for", shorten(got), want)
	}
	return nil
}

// shorten keeps what the Pod says within the bounds of an error.
func shorten(text string) string {
	const most = 500
	text = strings.Map(func(r rune) rune {
		if r != ' ' && !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// problemError is what the launcher says that went wrong.
type problemError struct {
	kind protocol.FileProblem
	text string
}

func (e *problemError) Error() string { return e.text }

// Is makes the launcher's errors those that the same would be on a host.
func (e *problemError) Is(target error) bool {
	switch e.kind {
	case protocol.ProblemMissing:
		return target == disks.ErrMissing
	case protocol.ProblemForbidden:
		return target == disks.ErrForbidden
	case protocol.ProblemShrink:
		return target == disks.ErrShrink
	case protocol.ProblemInUse:
		return target == disks.ErrInUse
	case protocol.ProblemNoSpace:
		return target == disks.ErrNoSpace
	case protocol.ProblemFormat:
		return target == disks.ErrForeignData
	case protocol.ProblemOther:
	}
	return false
}

// ask carries out one request.
func (c Client) ask(ctx context.Context, request protocol.FileRequest, content []byte) (out protocol.FileAnswer, said []byte, err error) {
	limit := c.Patience
	if limit <= 0 {
		limit = patience
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, said, err = c.converse(ctx, request, content)
	var told *problemError
	if err == nil || errors.As(err, &told) {
		return out, said, err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, nil, fmt.Errorf("%w (%s): %w", ErrUnavailable, request.Do, err)
}

func (c Client) converse(ctx context.Context, request protocol.FileRequest, content []byte) (out protocol.FileAnswer, said []byte, err error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return out, nil, err
	}
	defer conn.Close() //nolint:errcheck // what is worth knowing was read
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	request.Size = int64(len(content))
	line, err := json.Marshal(request)
	if err != nil {
		return out, nil, err
	}
	// A launcher that refuses reads no content: its answer is what counts.
	_, wrote := conn.Write(append(append(line, '\n'), content...))
	in := bufio.NewReaderSize(conn, protocol.MaxFileMessage)
	if line, err = in.ReadSlice('\n'); err != nil {
		return out, nil, errors.Join(wrote, err)
	}
	if err := json.Unmarshal(line, &out); err != nil {
		return out, nil, fmt.Errorf("its answer: %w", err)
	}
	if out.Error != "" || out.Kind != "" {
		return out, nil, &problemError{out.Kind, shorten(out.Error)}
	}
	if out.Size < 0 || out.Size > maxAnswer {
		return out, nil, fmt.Errorf("its answer has %d bytes", out.Size)
	}
	if wrote != nil {
		return out, nil, wrote
	}
	said = make([]byte, out.Size)
	_, err = io.ReadFull(in, said)
	return out, said, err
}

// maxAnswer bounds the content of an answer: what libvirt knows of QEMU is the longest.
const maxAnswer = 4 << 20

// dial connects to the launcher's socket, and to nothing that a link leads to.
func (c Client) dial(ctx context.Context) (net.Conn, error) {
	socket, err := protocol.OpenFiles(c.Dir)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket.Path())
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = fmt.Errorf("nobody listens: %w", os.ErrNotExist)
	}
	return conn, errors.Join(err, socket.Close())
}
