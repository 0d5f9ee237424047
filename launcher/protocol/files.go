package protocol

// Where the volumes of a machine are in its Pod.
const (
	// DisksDir has the disks that live as long as the Pod, and what is made of files for the guest.
	DisksDir = "/disks"
	// ClaimsDir has a folder for each volume that is a claim with a file system.
	ClaimsDir = "/claims"
	// DevicesDir has a device for each volume that is a claim of volumeMode Block.
	DevicesDir = "/devices"
	// ImagesDir has a folder for each container disk, and one, KernelBoot, for the kernel that is booted.
	ImagesDir = "/images"
	// KernelBoot is the folder below ImagesDir of the image that has the kernel.
	KernelBoot = "kernel-boot"
)

// Where the cluster has no image volumes, ImagesDir is a folder that the launcher shares with a container of each image, in which it is
// ImageShareDir: no image has its disk there.
const (
	ImageShareDir = "/run/gitvirt-image"
	// ImageProgram is the launcher's program in it.
	ImageProgram = ".program"
	// ImageSocket is what follows the name of an image in that of the socket at which it is handed over.
	ImageSocket = ".socket"
)

// ClaimImage is the name of a claim's disk in the folder of the claim; it is KubeVirt's.
const ClaimImage = "disk.img"

// FilesSocket is the unix socket in the shared folder at which the launcher is asked for files. Each connection carries one
// request: a FileRequest as a line of JSON, followed by Size bytes of content. The answer is a FileAnswer as a line of JSON, followed
// by Size bytes of content, and the end.
const FilesSocket = "files"

// The bounds of what is said at the socket, in bytes.
const (
	// MaxFileMessage bounds a FileRequest and a FileAnswer.
	MaxFileMessage = 16 << 10
	// MaxFileContent bounds the content that follows.
	MaxFileContent = 64 << 20
)

// FileAction is what is to be done with files.
type FileAction string

// The actions. Each may be repeated: what is done is not done again, and what is gone is removed.
const (
	// FindImage finds the disk image of Volume in its folder below ImagesDir: the file Path of the image, or the only one in its
	// folder /disk.
	FindImage FileAction = "find-image"
	// FindFile finds the file Path of an image, below the folder Volume of ImagesDir.
	FindFile FileAction = "find-file"
	// EnsureClaim finds the image of the claim of Volume, and makes it, raw and sparse, with a size of Capacity the first time. It grows while
	// nobody has it open and never shrinks.
	EnsureClaim FileAction = "ensure-claim"
	// FindDevice finds the block device of Volume.
	FindDevice FileAction = "find-device"
	// EnsureDisk makes an empty qcow2 image at Path with a size of Capacity the first time. It grows while nobody has it open.
	EnsureDisk FileAction = "ensure-disk"
	// NewOverlay makes the qcow2 image Path over Backing anew.
	NewOverlay FileAction = "new-overlay"
	// WriteFile writes the content to Path, whole or not at all.
	WriteFile FileAction = "write-file"
	// MakeFolder makes the folder Path.
	MakeFolder FileAction = "make-folder"
	// RemoveFiles removes the files at Path and those in its folder whose names match Path as a pattern (path.Match), but for Except.
	RemoveFiles FileAction = "remove-files"
	// ReadConsole returns what the guest's console said last as content, at most ConsoleTail bytes.
	ReadConsole FileAction = "read-console"
	// ReadCapabilities returns what libvirt found out about QEMU as content, Path the name of its file.
	ReadCapabilities FileAction = "read-capabilities"
	// WriteCapabilities gives libvirt what another one found out, in the file of the name Path, if it has nothing of that name.
	WriteCapabilities FileAction = "write-capabilities"
)

// ConsoleTail is how much of a console the launcher remembers, in bytes.
const ConsoleTail = 64 << 10

// FileRequest asks the launcher for files. Paths are absolute and as the Pod sees them.
type FileRequest struct {
	Do     FileAction `json:"do"`
	Volume string     `json:"volume,omitempty"`
	Path   string     `json:"path,omitempty"`
	Except string     `json:"except,omitempty"`
	// Capacity is a size in bytes.
	Capacity int64 `json:"capacity,omitempty"`
	// Shared allows an image that another guest has open, ReadOnly says that the guest only reads.
	Shared   bool `json:"shared,omitempty"`
	ReadOnly bool `json:"readOnly,omitempty"`
	// Backing is the image below an overlay, BackingFormat its format.
	Backing       string `json:"backing,omitempty"`
	BackingFormat string `json:"backingFormat,omitempty"`
	// Size is how many bytes of content follow.
	Size int64 `json:"size,omitempty"`
}

// FileAnswer is what became of a request.
type FileAnswer struct {
	// Kind and Error say what went wrong; empty when nothing did.
	Kind  FileProblem `json:"kind,omitempty"`
	Error string      `json:"error,omitempty"`
	// Path is the file or device, Format is "raw" or "qcow2", Capacity what the guest sees in bytes.
	Path     string `json:"path,omitempty"`
	Format   string `json:"format,omitempty"`
	Capacity int64  `json:"capacity,omitempty"`
	// LogicalBlock and PhysicalBlock are the sizes of a device's blocks in bytes, 0 when unknown.
	LogicalBlock  uint `json:"logicalBlock,omitempty"`
	PhysicalBlock uint `json:"physicalBlock,omitempty"`
	// Cached says that the file system cannot do direct I/O.
	Cached bool `json:"cached,omitempty"`
	// Size is how many bytes of content follow.
	Size int64 `json:"size,omitempty"`
}

// FileProblem is the kind of an error that callers decide on.
type FileProblem string

// The kinds of errors.
const (
	ProblemMissing   FileProblem = "missing"   // what should be there is not
	ProblemForbidden FileProblem = "forbidden" // the path is not allowed, or is not what it should be
	ProblemShrink    FileProblem = "shrink"    // the disk is larger than asked for
	ProblemInUse     FileProblem = "in-use"    // a process has the disk open
	ProblemNoSpace   FileProblem = "no-space"  // the file system is full
	ProblemFormat    FileProblem = "format"    // the image is none that can be used
	ProblemOther     FileProblem = "other"
)
