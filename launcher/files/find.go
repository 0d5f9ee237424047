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
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// diskDir is the folder of a container disk with its one file, as KubeVirt defines them.
const diskDir = "disk"

// findImage finds the disk of a container image. The image is somebody else's: a link in it leads nowhere outside of it.
func (p Pod) findImage(request protocol.FileRequest) (answer, error) {
	root, err := p.image(request.Volume)
	if err != nil {
		return answer{}, err
	}
	defer root.Close() //nolint:errcheck // only a folder's handle
	name := strings.TrimPrefix(path.Clean("/"+request.Path), "/")
	if request.Path == "" {
		if name, err = onlyFile(root); err != nil {
			return answer{}, err
		}
	}
	file, info, err := regular(root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0))
	if err != nil {
		return answer{}, fmt.Errorf("/%s of the image: %w", name, err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	found, err := diskfile.Detect(file, info.Size())
	if err != nil {
		return answer{}, fmt.Errorf("/%s of the image: %w", name, err)
	}
	return answer{FileAnswer: protocol.FileAnswer{
		Path: path.Join(protocol.ImagesDir, request.Volume, name), Format: string(found.Format), Capacity: found.VirtualSize,
	}}, nil
}

// image opens the folder of an image.
func (p Pod) image(volume string) (*os.Root, error) {
	if err := checkVolume(volume); err != nil {
		return nil, err
	}
	return os.OpenRoot(p.at(protocol.ImagesDir, volume))
}

// onlyFile is the one file in the folder of the disk.
func onlyFile(root *os.Root) (string, error) {
	entries, err := fs.ReadDir(root.FS(), diskDir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", problemf(problemMissing, "the image has no folder /%s; want one disk image in it", diskDir)
	}
	if err != nil {
		return "", err
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	if len(names) != 1 {
		return "", problemf(problemMissing, "the image has %d files in /%s; want one disk image, or name one by containerDisk.path", len(names), diskDir)
	}
	return path.Join(diskDir, names[0]), nil
}

// findFile finds a file of an image as it is, such as a kernel.
func (p Pod) findFile(request protocol.FileRequest) (answer, error) {
	root, err := p.image(request.Volume)
	if err != nil {
		return answer{}, err
	}
	defer root.Close() //nolint:errcheck // only a folder's handle
	name := strings.TrimPrefix(path.Clean("/"+request.Path), "/")
	file, _, err := regular(root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0))
	if err != nil {
		return answer{}, fmt.Errorf("/%s of the image: %w", name, err)
	}
	return answer{FileAnswer: protocol.FileAnswer{Path: path.Join(protocol.ImagesDir, request.Volume, name)}}, file.Close()
}

// ensureClaim makes or finds the image of a claim. It is raw, whatever its bytes look like: a guest writes them.
func (p Pod) ensureClaim(request protocol.FileRequest) (answer, error) {
	if err := checkVolume(request.Volume); err != nil {
		return answer{}, err
	}
	inside := path.Join(protocol.ClaimsDir, request.Volume, protocol.ClaimImage)
	name := p.at(inside)
	if _, err := os.Stat(filepath.Dir(name)); err != nil {
		return answer{}, problemf(problemMissing, "the Pod has no claim %s: %v", request.Volume, err)
	}
	capacity := roundUp(request.Capacity)
	file, info, err := openRegular(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && request.ReadOnly:
		return answer{}, problemf(problemMissing, "there is no %s in it, and it is only read", protocol.ClaimImage)
	case errors.Is(err, fs.ErrNotExist):
		if err := checkCapacity(capacity); err != nil {
			return answer{}, err
		}
		err = diskfile.Write(name, diskfile.WriteOptions{Mode: 0o660}, func(file *os.File) error { return file.Truncate(capacity) })
	case err == nil:
		capacity, err = growClaim(name, info.Size(), capacity, request)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return answer{}, err
	}
	return answer{FileAnswer: protocol.FileAnswer{Path: inside, Format: string(diskfile.Raw), Capacity: capacity, Cached: cached(name)}}, nil
}

// growClaim checks, and if need be grows, an image that is there, and returns its size. One that another guest may have open as well
// grows when it is started next.
func growClaim(name string, current, capacity int64, request protocol.FileRequest) (int64, error) {
	if capacity == 0 || request.ReadOnly {
		capacity = current
	}
	if current > capacity {
		return 0, shrinks(current, capacity)
	}
	switch err := diskfile.CheckUnused(name); {
	case errors.Is(err, diskfile.ErrInUse) && (request.Shared || request.ReadOnly):
		return current, nil
	case err != nil:
		return 0, err
	case capacity == current:
		return current, nil
	}
	if capacity > maxCapacity {
		return 0, checkCapacity(capacity)
	}
	return capacity, os.Truncate(name, capacity)
}

// findDevice finds a claim of volumeMode Block and measures it.
func (p Pod) findDevice(request protocol.FileRequest) (answer, error) {
	if err := checkVolume(request.Volume); err != nil {
		return answer{}, err
	}
	inside := path.Join(protocol.DevicesDir, request.Volume)
	file, err := os.OpenFile(p.at(inside), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return answer{}, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	info, err := file.Stat()
	if err != nil {
		return answer{}, err
	}
	if info.Mode().Type() != fs.ModeDevice {
		return answer{}, problemf(problemForbidden, "%s is not a block device", inside)
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return answer{}, fmt.Errorf("reading the size of %s: %w", inside, err)
	}
	if size == 0 {
		return answer{}, problemf(problemMissing, "%s holds no medium", inside)
	}
	if !request.Shared && !request.ReadOnly {
		if err := diskfile.CheckUnused(p.at(inside)); err != nil {
			return answer{}, err
		}
	}
	block := func(request uint) uint {
		if n, err := unix.IoctlGetInt(int(file.Fd()), request); err == nil && n > 0 {
			return uint(n)
		}
		return 0
	}
	return answer{FileAnswer: protocol.FileAnswer{
		Path: inside, Format: string(diskfile.Raw), Capacity: size, LogicalBlock: block(unix.BLKSSZGET), PhysicalBlock: block(unix.BLKPBSZGET),
	}}, nil
}

// capabilitiesName is the name of a file of libvirt's: a digest of the path of a QEMU.
var capabilitiesName = regexp.MustCompile(`^[0-9a-f]{16,128}\.xml$`)

// maxCapabilities bounds what libvirt found out about QEMU.
const maxCapabilities = 4 << 20

// readCapabilities returns the largest file of libvirt's about a QEMU; there is one for each architecture that it was asked about.
func (p Pod) readCapabilities() (answer, error) {
	entries, err := os.ReadDir(p.Capabilities)
	if err != nil {
		return answer{}, err
	}
	var out answer
	for _, entry := range entries {
		if !capabilitiesName.MatchString(entry.Name()) {
			continue
		}
		file, info, err := openRegular(filepath.Join(p.Capabilities, entry.Name()))
		if err != nil {
			return answer{}, err
		}
		if info.Size() > int64(len(out.content)) && info.Size() <= maxCapabilities {
			out.Path, out.content = entry.Name(), make([]byte, info.Size())
			_, err = io.ReadFull(file, out.content)
		}
		if err := errors.Join(err, file.Close()); err != nil {
			return answer{}, err
		}
	}
	if out.Path == "" {
		return answer{}, problemf(problemMissing, "libvirt has not looked at QEMU yet")
	}
	return out, nil
}

// writeCapabilities gives libvirt what another one found out. It looks itself whether that is still true.
func (p Pod) writeCapabilities(request protocol.FileRequest, content io.Reader) (answer, error) {
	if !capabilitiesName.MatchString(request.Path) || request.Size > maxCapabilities {
		return answer{}, problemf(problemForbidden, "%q with %d bytes is no file of libvirt's about a QEMU", request.Path, request.Size)
	}
	name := filepath.Join(p.Capabilities, request.Path)
	if _, err := os.Lstat(name); err == nil {
		return answer{}, nil // it has looked already
	}
	if err := os.MkdirAll(p.Capabilities, folderMode); err != nil {
		return answer{}, err
	}
	return answer{}, diskfile.Write(name, diskfile.WriteOptions{Mode: 0o600, Volatile: true}, func(file *os.File) error {
		return copyExactly(file, content, request.Size)
	})
}
