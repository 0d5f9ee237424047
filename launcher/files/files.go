// Package files makes and finds the files of a VM's Pod for the node agent: disks, overlays, what cloud-init reads. It runs in the
// launcher, as the Pod's user, so that no process with privileges ever writes where a guest that has broken out of QEMU may have put a
// link: whatever a path leads to here, it leads to nothing that the guest's QEMU could not open by itself.
//
// It is small, because it is in every Pod: no child processes, no copies of images in memory. What it is asked is in package
// launcher/protocol.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// Pod is the file system of a Pod.
type Pod struct {
	// Root is the folder in which the Pod's file system begins; empty for "/". Only tests have another.
	Root string
	// Capabilities is the folder in which libvirt keeps what it found out about QEMU.
	Capabilities string
	// Console returns what the guest's console said last; nil for nothing.
	Console func() []byte
}

// The kinds of problems, by shorter names.
const (
	problemMissing   = protocol.ProblemMissing
	problemForbidden = protocol.ProblemForbidden
	problemShrink    = protocol.ProblemShrink
	problemOther     = protocol.ProblemOther
)

// problem is an error of a kind that callers decide on.
type problem struct {
	kind protocol.FileProblem
	text string
}

func (p *problem) Error() string { return p.text }

func problemf(kind protocol.FileProblem, format string, arguments ...any) error {
	return &problem{kind, fmt.Sprintf(format, arguments...)}
}

// kindOf says what kind of problem an error is.
func kindOf(err error) protocol.FileProblem {
	var told *problem
	var format *diskfile.FormatError
	switch {
	case errors.As(err, &told):
		return told.kind
	case errors.As(err, &format):
		return protocol.ProblemFormat
	case errors.Is(err, diskfile.ErrInUse):
		return protocol.ProblemInUse
	case errors.Is(err, diskfile.ErrNoSpace), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return protocol.ProblemNoSpace
	case errors.Is(err, fs.ErrNotExist):
		return protocol.ProblemMissing
	}
	return protocol.ProblemOther
}

// answer is an answer with the content that follows it.
type answer struct {
	protocol.FileAnswer
	content []byte
}

// carryOut does what a request asks for. content is read for at most its size.
func (p Pod) carryOut(request protocol.FileRequest, content io.Reader) (answer, error) {
	switch request.Do {
	case protocol.FindImage:
		return p.findImage(request)
	case protocol.FindFile:
		return p.findFile(request)
	case protocol.EnsureClaim:
		return p.ensureClaim(request)
	case protocol.FindDevice:
		return p.findDevice(request)
	case protocol.EnsureDisk:
		return p.ensureDisk(request)
	case protocol.NewOverlay:
		return p.newOverlay(request)
	case protocol.WriteFile:
		return p.writeFile(request, content)
	case protocol.MakeFolder:
		return p.makeFolder(request)
	case protocol.RemoveFiles:
		return p.removeFiles(request)
	case protocol.ReadConsole:
		return p.readConsole()
	case protocol.ReadCapabilities:
		return p.readCapabilities()
	case protocol.WriteCapabilities:
		return p.writeCapabilities(request, content)
	}
	return answer{}, problemf(problemOther, "this launcher knows no action %q", request.Do)
}

// at is where a path of the Pod is.
func (p Pod) at(elements ...string) string {
	return filepath.Join(append([]string{p.Root, "/"}, elements...)...)
}

// inside is the reverse of at.
func (p Pod) inside(name string) string {
	return strings.TrimPrefix(name, strings.TrimSuffix(p.Root, "/"))
}

// label is the name of a volume, or of the folder of kernelBoot: a DNS label.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func checkVolume(name string) error {
	if !label.MatchString(name) {
		return problemf(problemForbidden, "volume %q: want lower-case letters, digits and dashes", name)
	}
	return nil
}

// owned is where a path below /disks is; nothing else is ever written by name.
func (p Pod) owned(name string) (string, error) {
	if path.Clean(name) != name || !strings.HasPrefix(name, protocol.DisksDir+"/") || strings.ContainsRune(name, 0) {
		return "", problemf(problemForbidden, "path %q: want a clean path below %s", name, protocol.DisksDir)
	}
	return p.at(name), nil
}

// folderMode is for folders; the Pod's user is the only one in it.
const folderMode = 0o700

// prepared is owned for a file that is to be made: its folder is there then.
func (p Pod) prepared(name string) (string, error) {
	real, err := p.owned(name)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(real), folderMode)
	}
	return real, err
}

// openRegular opens a regular file for reading and follows no link.
func openRegular(name string) (*os.File, fs.FileInfo, error) {
	return regular(os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0))
}

// regular checks what was opened.
func regular(file *os.File, err error) (*os.File, fs.FileInfo, error) {
	if errors.Is(err, unix.ELOOP) {
		return nil, nil, problemf(problemForbidden, "%s is a symbolic link; want a regular file", filepath.Base(pathOf(err)))
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = problemf(problemForbidden, "%s is not a regular file", file.Name())
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, info, nil
}

func pathOf(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Path
	}
	return "the file"
}

// cached reports whether the file system of a file cannot bypass the page cache, which cache=none needs.
func cached(name string) bool {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) {
		return true
	}
	if err == nil {
		_ = unix.Close(fd)
	}
	return false
}

// ensureDisk makes or finds an empty disk.
func (p Pod) ensureDisk(request protocol.FileRequest) (answer, error) {
	name, err := p.prepared(request.Path)
	if err != nil {
		return answer{}, err
	}
	capacity := roundUp(request.Capacity)
	if err := checkCapacity(capacity); err != nil {
		return answer{}, err
	}
	out := answer{FileAnswer: protocol.FileAnswer{Path: request.Path, Format: string(diskfile.QCOW2), Capacity: capacity}}
	current, err := imageCapacity(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = diskfile.Write(name, diskfile.WriteOptions{Mode: 0o600}, func(file *os.File) error { return writeImage(file, capacity, backing{}) })
	case err != nil:
	default:
		err = growDisk(name, current, capacity)
	}
	out.Cached = err == nil && cached(name)
	return out, err
}

// growDisk makes a disk larger that nobody has open.
func growDisk(name string, current, capacity int64) error {
	if err := diskfile.CheckUnused(name); err != nil {
		return err
	}
	switch {
	case current > capacity:
		return shrinks(current, capacity)
	case current == capacity:
		return nil
	}
	file, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(growImage(file, capacity), file.Close())
}

func shrinks(current, capacity int64) error {
	return problemf(problemShrink, "it has %s and the manifest asks for %s; ask for at least %s, or use a new volume and copy the data",
		diskfile.FormatBytes(current), diskfile.FormatBytes(capacity), diskfile.FormatBytes(current))
}

// newOverlay makes an overlay anew, over an image or a claim of the Pod.
func (p Pod) newOverlay(request protocol.FileRequest) (answer, error) {
	name, err := p.prepared(request.Path)
	if err != nil {
		return answer{}, err
	}
	if err := checkCapacity(request.Capacity); err != nil {
		return answer{}, err
	}
	below := backing{request.Backing, request.BackingFormat}
	folders := []string{protocol.ImagesDir, protocol.ClaimsDir, protocol.DevicesDir}
	known := below.format == string(diskfile.Raw) || below.format == string(diskfile.QCOW2)
	if !known || path.Clean(below.path) != below.path || !slices.ContainsFunc(folders, func(dir string) bool { return strings.HasPrefix(below.path, dir+"/") }) {
		return answer{}, problemf(problemForbidden, "%s (%s) is no image of the Pod", below.path, below.format)
	}
	if _, err := os.Stat(p.at(below.path)); err != nil {
		return answer{}, problemf(problemMissing, "its image: %v", err)
	}
	if err := diskfile.CheckUnused(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return answer{}, err
	}
	err = diskfile.Write(name, diskfile.WriteOptions{Mode: 0o600, Volatile: true}, func(file *os.File) error {
		return writeImage(file, roundUp(request.Capacity), below)
	})
	return answer{FileAnswer: protocol.FileAnswer{Path: request.Path}}, err
}

// writeFile writes content.
func (p Pod) writeFile(request protocol.FileRequest, content io.Reader) (answer, error) {
	name, err := p.prepared(request.Path)
	if err != nil {
		return answer{}, err
	}
	err = diskfile.Write(name, diskfile.WriteOptions{Mode: 0o600, Volatile: true}, func(file *os.File) error {
		return copyExactly(file, content, request.Size)
	})
	return answer{FileAnswer: protocol.FileAnswer{Path: request.Path}}, err
}

func (p Pod) makeFolder(request protocol.FileRequest) (answer, error) {
	name, err := p.owned(request.Path)
	if err == nil {
		err = os.MkdirAll(name, folderMode)
	}
	return answer{FileAnswer: protocol.FileAnswer{Path: request.Path}}, err
}

// removeFiles removes files by their names, and folders with all that is in them.
func (p Pod) removeFiles(request protocol.FileRequest) (answer, error) {
	pattern, err := p.owned(request.Path)
	if err != nil {
		return answer{}, err
	}
	entries, err := os.ReadDir(filepath.Dir(pattern))
	if errors.Is(err, fs.ErrNotExist) {
		return answer{}, nil
	}
	for _, entry := range entries {
		matches, bad := path.Match(filepath.Base(pattern), entry.Name())
		if bad != nil {
			return answer{}, problemf(problemForbidden, "path %q: %v", request.Path, bad)
		}
		name := filepath.Join(filepath.Dir(pattern), entry.Name())
		if matches && p.inside(name) != request.Except {
			err = errors.Join(err, os.RemoveAll(name))
		}
	}
	return answer{}, err
}

func (p Pod) readConsole() (answer, error) {
	if p.Console == nil {
		return answer{}, nil
	}
	return answer{content: p.Console()}, nil
}
