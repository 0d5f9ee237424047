// Package disks decides where the disks of virtual machines live on a host, and makes, lists and deletes them. It knows nothing of
// libvirt; whoever defines a domain asks here first for the files that the domain names.
//
// Where they lie is package layout's to say. What lies under disks/ and claims/ outlives the virtual machine: power cycles, a change that replaces it, and its removal. (KubeVirt's
// emptyDisk goes with its Pod. Keeping it is our choice: no data is lost by accident, and Delete removes it when told.) What
// lies under vms/ goes with the machine and is made anew at every power-on, as KubeVirt's container disks are ephemeral.
//
// The record is what makes a disk safe to use again. A guest writes every byte of a raw disk, so it can write a qcow2
// header there that names a host's file as its backing file; whoever asks the bytes for their format would then open that
// file for the guest. The format is therefore decided once, when a disk is made or first adopted, kept in the
// record, and never read off the bytes again. A disk under disks/ whose record was lost has the format that its name says, and
// the image of a claim is raw whatever it holds.
//
// Ensure... and NewOverlay are called before a machine is powered on; they refuse a disk that a process has open. All
// methods are safe for concurrent use. Files appear whole or not at all; a killed process leaves at most a hidden
// temporary file, which the next call for that volume sweeps.
package disks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/schemas"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrNoSpace says that the file system is full; the error is a *diskfile.NoSpaceError with figures.
	ErrNoSpace = diskfile.ErrNoSpace
	// ErrInUse says that a process has the disk open; the error is a *diskfile.InUseError that names it.
	ErrInUse = diskfile.ErrInUse
	// ErrForeignData says that an image refers to another file of the host.
	ErrForeignData = diskfile.ErrForeignData
	// ErrMissing says that a disk that should be there is not.
	ErrMissing = errors.New("disk is missing")
	// ErrShrink says that a disk is larger than asked for. Shrinking would cut off data.
	ErrShrink = errors.New("disk cannot shrink")
	// ErrForbidden says that a path is not allowed to be a disk.
	ErrForbidden = errors.New("disk path is not allowed")
	// ErrUnknown says that no such disk is recorded.
	ErrUnknown = errors.New("no such disk")
)

// Kind is the kind of volume that a disk belongs to, named as in KubeVirt's API.
type Kind string

// The kinds whose data outlives the machine.
const (
	KindEmptyDisk Kind = "emptyDisk"
	KindHostDisk  Kind = "hostDisk"
	KindClaim     Kind = "persistentVolumeClaim"
	// KindNVRAM is that of persistent UEFI variables.
	KindNVRAM Kind = "nvram"
)

const (
	recordExt = ".json"
	qcow2Ext  = ".qcow2"
	nvramExt  = ".fd"
	// Others may pass through a directory, since QEMU runs as another user, but not list it.
	dirMode  = 0o711
	fileMode = 0o600
)

// Options configure a Store. The zero value is usable.
type Options struct {
	// QEMUImg is the program, "qemu-img" by default.
	QEMUImg string
	// Run executes it; the default runs it as a child process. Tests inject failures here.
	Run Runner
	// Timeout bounds one run of qemu-img, 30 s by default.
	Timeout time.Duration
	// Owner is the user that QEMU runs as, and is given new disks; nil leaves them with the user of this process,
	// which is enough where libvirt changes owners itself (dynamic_ownership, its default).
	Owner *diskfile.Owner
	// HostDiskRoots are the directories that hostDisks must lie in; empty allows any path outside the store's directory.
	HostDiskRoots []string
	// Now is the clock, time.Now by default.
	Now func() time.Time
}

// Store makes and finds the disks of one host.
type Store struct {
	files layout.Layout
	// real is the store's directory with its symbolic links resolved.
	real string
	opts Options

	mu    sync.Mutex
	locks map[string]*volumeLock

	// probing is held while a device is opened in a way that only one may.
	probing sync.Mutex
}

// NewStore returns the store in dir, an absolute path, and makes its directories.
func NewStore(dir string, opts Options) (*Store, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return nil, fmt.Errorf("disk store %q: want a clean absolute path", dir)
	}
	if opts.QEMUImg == "" {
		opts.QEMUImg = "qemu-img"
	}
	if opts.Run == nil {
		opts.Run = runProcess
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 30 * time.Second
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	for _, root := range opts.HostDiskRoots {
		if !filepath.IsAbs(root) || filepath.Clean(root) != root {
			return nil, fmt.Errorf("root of host disks %q: want a clean absolute path", root)
		}
	}
	s := &Store{files: layout.Layout{Dir: dir}, opts: opts, locks: map[string]*volumeLock{}}
	for _, sub := range []string{s.files.Disks(), s.files.Claims(), s.files.VMs()} {
		if err := os.MkdirAll(sub, dirMode); err != nil {
			return nil, fmt.Errorf("disk store: %w", err)
		}
	}
	var err error
	if s.real, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("disk store: %w", err)
	}
	return s, nil
}

// Dir returns the directory of the store.
func (s *Store) Dir() string { return s.files.Dir }

// Files says where everything of the store lies.
func (s *Store) Files() layout.Layout { return s.files }

// label is an RFC 1123 subdomain, the widest of the names that Kubernetes gives a namespace, a VM or a volume.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// checkName is the last line of defense: the schemas have checked names before. A name never leaves its directory.
func checkName(what, name string) error {
	if len(name) > 253 || !label.MatchString(name) || strings.Contains(name, "..") {
		return fmt.Errorf("%s %q: want lower-case letters, digits, dashes and dots: %w", what, name, ErrForbidden)
	}
	return nil
}

func checkOwner(owner schemas.Address) error {
	return errors.Join(checkName("namespace", owner.Namespace), checkName("name", owner.Name))
}

// volume is one volume of one machine, with checked names.
type volume struct {
	owner schemas.Address
	name  string
}

func newVolume(owner schemas.Address, name string) (volume, error) {
	if err := errors.Join(checkOwner(owner), checkName("volume", name)); err != nil {
		return volume{}, err
	}
	return volume{owner: owner, name: name}, nil
}

func (v volume) id() string { return v.owner.Namespace + "/" + v.owner.Name + "/" + v.name }

func (s *Store) dataPath(v volume) string { return s.files.EmptyDisk(v.owner, v.name) }

func (s *Store) recordPath(v volume) string { return s.files.Record(v.owner, v.name) }

// MakeVolatile checks the names of a volume that goes with its machine and makes the directory that it belongs in.
func (s *Store) MakeVolatile(owner schemas.Address, volumeName string) error {
	if _, err := newVolume(owner, volumeName); err != nil {
		return err
	}
	if err := os.MkdirAll(s.files.VM(owner), dirMode); err != nil {
		return diskfile.ExplainNoSpace(fmt.Errorf("directory of %s: %w", owner, err), s.files.Dir, s.files.VM(owner), 0)
	}
	return nil
}

// MakeData checks the names of a machine and makes the directory of its disks that hold data, for a file that is not made here:
// persistent UEFI variables.
func (s *Store) MakeData(owner schemas.Address) error {
	if err := checkOwner(owner); err != nil {
		return err
	}
	if err := os.MkdirAll(s.files.Data(owner), dirMode); err != nil {
		return diskfile.ExplainNoSpace(fmt.Errorf("directory of %s: %w", owner, err), s.files.Dir, s.files.Data(owner), 0)
	}
	return nil
}

// RemoveVolatile removes everything under vms/ that belongs to a machine: overlays, ISO images and the like. Removing what is gone succeeds.
func (s *Store) RemoveVolatile(owner schemas.Address) error {
	if err := checkOwner(owner); err != nil {
		return err
	}
	if err := os.RemoveAll(s.files.VM(owner)); err != nil {
		return fmt.Errorf("removing the volatile disks of %s: %w", owner, err)
	}
	return removeIfEmpty(filepath.Dir(s.files.VM(owner)))
}

// removeIfEmpty removes a directory, unless something lies in it or it is gone.
func removeIfEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing an empty directory: %w", err)
	}
	// Somebody may have put a file there meanwhile: then the directory stays, as it should.
	_ = os.Remove(dir)
	return nil
}

// volumeLock serializes what is done to one volume; it is a channel so that waiting ends with the context.
type volumeLock struct {
	held    chan struct{}
	waiters int
}

// lock waits for the volume and returns the function that releases it.
func (s *Store) lock(ctx context.Context, key string) (release func(), err error) {
	s.mu.Lock()
	l := s.locks[key]
	if l == nil {
		l = &volumeLock{held: make(chan struct{}, 1)}
		s.locks[key] = l
	}
	l.waiters++
	s.mu.Unlock()

	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; s.leave(key, l) }, nil
	case <-ctx.Done():
		s.leave(key, l)
		return nil, fmt.Errorf("waiting for disk %s: %w", key, context.Cause(ctx))
	}
}

// tryLock takes the lock of a volume when nobody holds it or waits for it.
func (s *Store) tryLock(key string) (release func(), free bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[key] != nil {
		return nil, false
	}
	l := &volumeLock{held: make(chan struct{}, 1), waiters: 1}
	l.held <- struct{}{}
	s.locks[key] = l
	return func() { <-l.held; s.leave(key, l) }, true
}

// leave ends a waiter's or a holder's interest in a lock.
func (s *Store) leave(key string, l *volumeLock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.waiters--; l.waiters == 0 {
		delete(s.locks, key)
	}
}
