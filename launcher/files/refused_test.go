package files

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// TestRefused: nothing is written or found but where it belongs, and nothing is taken for an image that is none.
func TestRefused(t *testing.T) {
	p := newPod(t)
	put(t, p, "secret", []byte("secret"))
	link := func(target, name string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(p.at(name, ".."), 0o755), os.Symlink(target, p.at(name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, volume := range []string{"outside", "absolute"} {
		if err := os.MkdirAll(p.at("images", volume, "disk"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link("../../../secret", "images/outside/disk/disk.img")
	link(p.at("secret"), "images/absolute/disk/disk.img")
	for _, dir := range []string{"images/two/disk", "images/none/disk", "images/nothing", "images/chain/disk", "images/vmdk/disk", "claims/linked", "claims/folder/disk.img"} {
		if err := os.MkdirAll(p.at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, p, "images/two/disk/a", []byte("a"))
	put(t, p, "images/two/disk/b", []byte("b"))
	put(t, p, "images/vmdk/disk/a", append([]byte("KDMV"), make([]byte, 1000)...))
	if out, err := exec.Command("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", "/secret", "-F", "raw", p.at("images/chain/disk/a"), "1M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	link(p.at("secret"), "claims/linked/disk.img")
	put(t, p, "devices/file", []byte("no device"))
	image := func(volume string) protocol.FileRequest {
		return protocol.FileRequest{Do: protocol.FindImage, Volume: volume}
	}
	overlay := func(path, backing, format string) protocol.FileRequest {
		return protocol.FileRequest{Do: protocol.NewOverlay, Path: path, Backing: backing, BackingFormat: format, Capacity: 1 << 20}
	}
	for name, test := range map[string]struct {
		request protocol.FileRequest
		kind    protocol.FileProblem
	}{
		"an unknown action":             {protocol.FileRequest{Do: "format-disk"}, protocol.ProblemOther},
		"a disk elsewhere":              {protocol.FileRequest{Do: protocol.EnsureDisk, Path: "/claims/data/x", Capacity: 512}, protocol.ProblemForbidden},
		"a disk above":                  {protocol.FileRequest{Do: protocol.EnsureDisk, Path: "/disks/../secret", Capacity: 512}, protocol.ProblemForbidden},
		"the folder itself":             {protocol.FileRequest{Do: protocol.RemoveFiles, Path: "/disks"}, protocol.ProblemForbidden},
		"a file beside":                 {protocol.FileRequest{Do: protocol.WriteFile, Path: "/disks-and-more/x"}, protocol.ProblemForbidden},
		"a pattern that is none":        {protocol.FileRequest{Do: protocol.RemoveFiles, Path: "/disks/[a"}, ""},
		"no capacity":                   {protocol.FileRequest{Do: protocol.EnsureDisk, Path: "/disks/x"}, protocol.ProblemOther},
		"more than there is":            {protocol.FileRequest{Do: protocol.EnsureDisk, Path: "/disks/x", Capacity: maxCapacity + 1}, protocol.ProblemOther},
		"a negative capacity":           {protocol.FileRequest{Do: protocol.EnsureClaim, Volume: "data", Capacity: -1 << 40}, protocol.ProblemOther},
		"a volume that is a path":       {image("../disks"), protocol.ProblemForbidden},
		"an image that is not there":    {image("other"), protocol.ProblemMissing},
		"a link out of the image":       {image("outside"), protocol.ProblemOther},
		"an absolute link":              {image("absolute"), protocol.ProblemOther},
		"two files":                     {image("two"), protocol.ProblemMissing},
		"no file":                       {image("none"), protocol.ProblemMissing},
		"no folder":                     {image("nothing"), protocol.ProblemMissing},
		"another format":                {image("vmdk"), protocol.ProblemFormat},
		"a backing file":                {image("chain"), protocol.ProblemFormat},
		"a kernel outside":              {protocol.FileRequest{Do: protocol.FindFile, Volume: "kernel-boot", Path: "../../secret"}, protocol.ProblemMissing},
		"a kernel that is a folder":     {protocol.FileRequest{Do: protocol.FindFile, Volume: "kernel-boot", Path: "/boot"}, protocol.ProblemForbidden},
		"a claim that is not there":     {protocol.FileRequest{Do: protocol.EnsureClaim, Volume: "other", Capacity: 512}, protocol.ProblemMissing},
		"a claim that is a link":        {protocol.FileRequest{Do: protocol.EnsureClaim, Volume: "linked", Capacity: 512}, protocol.ProblemForbidden},
		"a claim that is a folder":      {protocol.FileRequest{Do: protocol.EnsureClaim, Volume: "folder", Capacity: 512}, protocol.ProblemForbidden},
		"an empty claim that is read":   {protocol.FileRequest{Do: protocol.EnsureClaim, Volume: "data", Capacity: 512, ReadOnly: true}, protocol.ProblemMissing},
		"a device that is none":         {protocol.FileRequest{Do: protocol.FindDevice, Volume: "file"}, protocol.ProblemForbidden},
		"a device that is not there":    {protocol.FileRequest{Do: protocol.FindDevice, Volume: "other"}, protocol.ProblemMissing},
		"an overlay over what is ours":  {overlay("/disks/x", "/disks/y", "raw"), protocol.ProblemForbidden},
		"an overlay over a file":        {overlay("/disks/x", "/images/../secret", "raw"), protocol.ProblemForbidden},
		"an overlay of another format":  {overlay("/disks/x", "/images/root/disk/disk.img", "vmdk"), protocol.ProblemForbidden},
		"an overlay over nothing":       {overlay("/disks/x", "/images/gone/disk", "raw"), protocol.ProblemMissing},
		"an overlay over a long name":   {overlay("/disks/x", "/images/"+strings.Repeat("x/", 600)+"x", "raw"), protocol.ProblemMissing},
		"a file instead of the console": {protocol.FileRequest{Do: protocol.WriteCapabilities, Path: "../console"}, protocol.ProblemForbidden},
	} {
		out, err := p.carryOut(test.request, strings.NewReader(""))
		if test.kind == "" {
			continue
		}
		if err == nil || kindOf(err) != test.kind {
			t.Errorf("%s: %+v, %v (%s), want %s", name, out, err, kindOf(err), test.kind)
		}
	}
	if content, err := os.ReadFile(p.at("secret")); err != nil || string(content) != "secret" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := os.Stat(p.at("disks")); err != nil {
		t.Error(err)
	}
}

// TestTalk: who says what cannot be understood is told so, and an answer has bounds.
func TestTalk(t *testing.T) {
	p := newPod(t)
	for name, said := range map[string]string{
		"nothing":           "\n",
		"no JSON":           "hello\n",
		"an endless line":   strings.Repeat("x", 2*protocol.MaxFileMessage) + "\n",
		"too much content":  `{"do":"write-file","path":"/disks/x","size":1099511627776}` + "\n",
		"negative content":  `{"do":"write-file","path":"/disks/x","size":-1}` + "\n",
		"an unknown action": `{"do":"` + strings.Repeat("\\u0001", 2000) + `"}` + "\n",
	} {
		here, there := net.Pipe()
		go func() { _, _ = here.Write([]byte(said)) }()
		done := make(chan struct{})
		var heard [2 * protocol.MaxFileMessage]byte
		n := 0
		go func() { defer close(done); n, _ = here.Read(heard[:]) }()
		p.talk(there)
		<-done
		_ = errors.Join(here.Close(), there.Close())
		if answer := string(heard[:n]); !strings.Contains(answer, `"error":`) || n > protocol.MaxFileMessage {
			t.Errorf("%s: %d bytes: %.200s", name, n, answer)
		}
	}
}
