package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/launcher/launchertest"
	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/nodeagent/podfiles"
	"github.com/gitvirt/gitvirt/schemas"
)

// storeRig is a store of volumes that is tried.
type storeRig struct {
	t     *testing.T
	store volumeStore
	// image makes a container image with a disk, for the volume root, and returns its reference.
	image func(disk []byte) string
	// file is where a path of the store is.
	file func(path string) string
}

func hostStore(t *testing.T) *storeRig {
	v, err := openVolumes(t.TempDir(), "qemu", settings{})
	if err != nil {
		t.Fatal(err)
	}
	return &storeRig{
		t: t, store: v, file: func(path string) string { return path },
		image: func(disk []byte) string { return libvirttest.PushFiles(t, map[string][]byte{"disk/disk.img": disk}) },
	}
}

func podStore(t *testing.T) *storeRig {
	folder := launchertest.ServeFiles(t)
	if err := os.MkdirAll(filepath.Join(folder, "claims/data"), 0o755); err != nil {
		t.Fatal(err)
	}
	v := &podVolumes{files: layout.Layout{Dir: protocol.DisksDir}, client: podfiles.Client{Dir: launchertest.Shared(folder)}, domainType: "qemu"}
	return &storeRig{
		t: t, store: v, file: func(path string) string { return filepath.Join(folder, path) },
		image: func(disk []byte) string {
			launchertest.Put(t, folder, "images/root/disk/disk.img", disk)
			return "whatever"
		},
	}
}

// machine is a VM with volumes and a claim of a size.
func (r *storeRig) machine(volumes string, claim int64) *machine {
	r.t.Helper()
	m, err := readMachine(address("vm"), wire(r.t, machineYAML(r.t, "vm", "", volumes), nil, map[string]*api.Claim{
		"data": {Namespace: "default", Name: "data", CapacityBytes: claim},
	}))
	if err != nil {
		r.t.Fatal(err)
	}
	m.made = m.address
	return m
}

// make makes the last volume of a machine, twice, and makes it ready for a power-on.
func (r *storeRig) make(m *machine) (domainxml.Volume, error) {
	r.t.Helper()
	source := m.spec().Volumes[len(m.spec().Volumes)-1]
	var out domainxml.Volume
	for range 2 {
		volume, err := r.store.ensure(r.t.Context(), m, source, nil, func(string) {})
		if err != nil {
			return volume, err
		}
		if planned := r.store.planned(m, source); source.ContainerDisk == nil && (planned.Path != volume.Path || planned.Kind != volume.Kind || planned.Format != volume.Format) {
			r.t.Errorf("planned %+v, and it is %+v", planned, volume)
		}
		out = volume
	}
	return out, r.store.renew(r.t.Context(), m, source, out, true)
}

func (r *storeRig) must(m *machine) domainxml.Volume {
	r.t.Helper()
	volume, err := r.make(m)
	if err != nil {
		r.t.Fatal(err)
	}
	return volume
}

func (r *storeRig) content(path string) []byte {
	r.t.Helper()
	content, err := os.ReadFile(r.file(path))
	if err != nil {
		r.t.Fatal(err)
	}
	return content
}

// scribble writes what a guest would into a file.
func (r *storeRig) scribble(path string) {
	r.t.Helper()
	file, err := os.OpenFile(r.file(path), os.O_RDWR, 0)
	if err == nil {
		_, err = file.WriteAt([]byte("proof"), 300<<10)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// TestVolumeStores: the volumes of a host and those of a Pod behave the same, to whom asks for them and to the guest.
func TestVolumeStores(t *testing.T) {
	const mebi = 1 << 20
	raw := func(size int) []byte { return make([]byte, size) }
	for name, test := range map[string]func(t *testing.T, r *storeRig){
		"an empty disk is made once, and grows": func(t *testing.T, r *storeRig) {
			disk := func(size string) *machine { return r.machine("- {name: disk, emptyDisk: {capacity: "+size+"}}", 0) }
			volume := r.must(disk("1Mi"))
			if volume.Format != "qcow2" || volume.Capacity != mebi {
				t.Errorf("%+v", volume)
			}
			r.scribble(volume.Path)
			if again := r.must(disk("1Mi")); again != volume || !bytes.Contains(r.content(volume.Path), []byte("proof")) {
				t.Errorf("%+v, then %+v", volume, again)
			}
			if grown := r.must(disk("3Mi")); grown.Capacity != 3*mebi || !bytes.Contains(r.content(volume.Path), []byte("proof")) {
				t.Errorf("grown: %+v", grown)
			}
			if _, err := r.make(disk("2Mi")); !errors.Is(err, disks.ErrShrink) {
				t.Errorf("it shrinks: %v", err)
			}
			defer hold(t, r.file(volume.Path))()
			if _, err := r.make(disk("3Mi")); !errors.Is(err, disks.ErrInUse) {
				t.Errorf("it is in use: %v", err)
			}
		},
		"a claim is raw whatever is in it, and grows": func(t *testing.T, r *storeRig) {
			claim := func(size int64) *machine {
				return r.machine("- {name: data, persistentVolumeClaim: {claimName: data}}", size)
			}
			volume := r.must(claim(mebi))
			if volume.Format != "raw" || volume.Capacity != mebi || volume.Block {
				t.Errorf("%+v", volume)
			}
			r.scribble(volume.Path)
			if err := os.WriteFile(r.file(volume.Path), append([]byte("QFI\xfb"), r.content(volume.Path)[4:]...), 0o600); err != nil {
				t.Fatal(err)
			}
			if grown := r.must(claim(2 * mebi)); grown.Capacity != 2*mebi || grown.Format != "raw" || !bytes.Contains(r.content(volume.Path), []byte("proof")) {
				t.Errorf("grown: %+v", grown)
			}
			if _, err := r.make(claim(mebi)); !errors.Is(err, disks.ErrShrink) {
				t.Errorf("it shrinks: %v", err)
			}
		},
		"what is written over an image is for one power-on": func(t *testing.T, r *storeRig) {
			m := r.machine(`- {name: root, containerDisk: {image: "`+r.image(raw(mebi))+`"}}`, 0)
			volume := r.must(m)
			if volume.Format != "qcow2" || volume.Capacity != mebi || volume.BackingFormat != "raw" || volume.Backing == "" {
				t.Errorf("%+v", volume)
			}
			r.scribble(volume.Path)
			r.must(m)
			if bytes.Contains(r.content(volume.Path), []byte("proof")) {
				t.Error("it is there still")
			}
			if image := r.content(volume.Backing); !bytes.Equal(image, raw(mebi)) {
				t.Error("the image was written to")
			}
		},
		"an image with another one below it is refused": func(t *testing.T, r *storeRig) {
			path := filepath.Join(t.TempDir(), "chain.qcow2")
			if out, err := exec.Command("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", "/etc/shadow", "-F", "raw", path, "1M").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			chain, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.make(r.machine(`- {name: root, containerDisk: {image: "`+r.image(chain)+`"}}`, 0)); !errors.Is(err, disks.ErrForeignData) {
				t.Errorf("%v", err)
			}
		},
		"an ephemeral volume leaves its claim alone": func(t *testing.T, r *storeRig) {
			data := r.must(r.machine("- {name: data, persistentVolumeClaim: {claimName: data}}", mebi))
			m := r.machine("- {name: data, ephemeral: {persistentVolumeClaim: {claimName: data}}}", mebi)
			volume := r.must(m)
			if volume.Backing != data.Path || volume.BackingFormat != "raw" || volume.Capacity != mebi {
				t.Errorf("%+v over %+v", volume, data)
			}
		},
		"files are written anew, and removed": func(t *testing.T, r *storeRig) {
			volume := r.must(r.machine("- {name: seed, cloudInitNoCloud: {userData: proof-one}}", 0))
			if content := r.content(volume.Path); !bytes.Contains(content, []byte("proof-one")) {
				t.Error("the first is not there")
			}
			r.must(r.machine("- {name: seed, cloudInitNoCloud: {userData: proof-two}}", 0))
			if content := r.content(volume.Path); !bytes.Contains(content, []byte("proof-two")) || bytes.Contains(content, []byte("proof-one")) {
				t.Error("the second is not there, or the first is")
			}
			if info, err := os.Stat(r.file(volume.Path)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info, err)
			}
			disk := r.must(r.machine("- {name: disk, emptyDisk: {capacity: 1Mi}}", 0))
			for _, path := range []string{volume.Path, disk.Path, "/etc/passwd"} {
				if err := r.store.drop(t.Context(), address("vm"), path); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Stat(r.file(volume.Path)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the files are left: %v", err)
			}
			if err := r.store.remove(t.Context(), address("vm")); err != nil {
				t.Error(err)
			}
			r.content(disk.Path) // which is data
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Run("host", func(t *testing.T) { test(t, hostStore(t)) })
			t.Run("pod", func(t *testing.T) { test(t, podStore(t)) })
		})
	}
}

// hold locks an image as a QEMU does.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 201, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	return func() { _ = file.Close() }
}

// TestPodsPathsAreThePods: whatever a manifest says of a host, a claim is where the Pod has it, and is a device where it is one.
func TestPodsPathsAreThePods(t *testing.T) {
	v := &podVolumes{files: layout.Layout{Dir: protocol.DisksDir}}
	m, err := readMachine(address("vm"), wire(t, machineYAML(t, "vm", "", "- {name: data, persistentVolumeClaim: {claimName: data}}\n- {name: raw, dataVolume: {name: raw}}"), nil, map[string]*api.Claim{
		"data": {Namespace: "default", Name: "data", Path: "/etc/shadow"}, "raw": {Namespace: "default", Name: "raw", Path: "/dev/sda", Block: true},
	}))
	if err != nil {
		t.Fatal(err)
	}
	volumes := m.spec().Volumes
	if planned := v.planned(m, volumes[1]); planned.Path != "/claims/data/disk.img" || planned.Block {
		t.Errorf("%+v", planned)
	}
	if planned := v.planned(m, volumes[2]); planned.Path != "/devices/raw" || !planned.Block {
		t.Errorf("%+v", planned)
	}
	host := v.host(address("vm"), m.spec())
	if host.ConsoleLog != "/run/gitvirt/console" || !strings.HasPrefix(host.Dir, "/disks/") || !strings.HasPrefix(host.NVRAM, "/disks/") {
		t.Errorf("%+v", host)
	}
	for name, change := range map[string]func(*kubevirtv1.VirtualMachineInstanceSpec){
		"a shared file system": func(spec *kubevirtv1.VirtualMachineInstanceSpec) {
			spec.Domain.Devices.Filesystems = []kubevirtv1.Filesystem{{Name: "init"}}
		},
		"a file of the node": func(spec *kubevirtv1.VirtualMachineInstanceSpec) {
			spec.Volumes[0].VolumeSource = kubevirtv1.VolumeSource{HostDisk: &kubevirtv1.HostDisk{Path: "/etc/shadow"}}
		},
	} {
		other := &machine{address: m.address, made: m.made, object: m.object.DeepCopy(), wire: m.wire}
		change(other.spec())
		if _, err := v.ensure(t.Context(), other, other.spec().Volumes[0], nil, func(string) {}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// answering is a Pod whose launcher has been replaced: it answers everything with the same.
func answering(t *testing.T, answer string, endless bool) podfiles.Client {
	t.Helper()
	dir := t.TempDir()
	short, err := os.MkdirTemp("", "hostile")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(short, protocol.FilesSocket))
	if err == nil {
		err = os.Rename(filepath.Join(short, protocol.FilesSocket), filepath.Join(dir, protocol.FilesSocket))
	}
	if err != nil {
		t.Fatal(err)
	}
	var talks sync.WaitGroup
	talks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			talks.Go(func() {
				defer conn.Close() //nolint:errcheck // the client judges
				for {
					if _, err := io.WriteString(conn, answer); err != nil || !endless {
						break
					}
				}
				_, _ = io.Copy(io.Discard, conn)
			})
		}
	})
	t.Cleanup(func() { _ = errors.Join(listener.Close(), os.RemoveAll(short)); talks.Wait() })
	return podfiles.Client{Dir: dir, Patience: 500 * time.Millisecond}
}

// TestHostileLauncher: whatever a Pod answers, the agent neither hangs nor is told of paths and sizes that cannot be.
func TestHostileLauncher(t *testing.T) {
	for name, test := range map[string]struct {
		answer  string
		endless bool
	}{
		"silence":              {"", false},
		"garbage":              {"\x00\xff\n", false},
		"an endless line":      {strings.Repeat("x", 4096), true},
		"endless JSON":         {`{"path":"` + strings.Repeat("x", 4096), true},
		"another path":         {`{"path":"/etc/shadow","format":"raw","capacity":512}` + "\n", false},
		"a path above":         {`{"path":"/images/root/../../etc/shadow","format":"raw","capacity":512}` + "\n", false},
		"a strange path":       {`{"path":"/images/root/a\u001b[2J","format":"raw","capacity":512}` + "\n", false},
		"a long path":          {`{"path":"/images/root/` + strings.Repeat("x", 2000) + `","format":"raw","capacity":512}` + "\n", false},
		"another format":       {`{"path":"/images/root/disk","format":"vmdk","capacity":512}` + "\n", false},
		"no size":              {`{"path":"/images/root/disk","format":"raw"}` + "\n", false},
		"a negative size":      {`{"path":"/images/root/disk","format":"raw","capacity":-512}` + "\n", false},
		"huge blocks":          {`{"path":"/images/root/disk","format":"raw","capacity":512,"logicalBlock":4294967296}` + "\n", false},
		"more than is sent":    {`{"path":"/images/root/disk","format":"raw","capacity":512,"size":1000}` + "\n", false},
		"more than there is":   {`{"path":"/images/root/disk","format":"raw","capacity":512,"size":99999999999}` + "\n", false},
		"an error with colour": {`{"kind":"missing","error":"\u001b[31mno"}` + "\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := answering(t, test.answer, test.endless).Image(t.Context(), "root", "")
			if err == nil || strings.ContainsAny(err.Error(), "\x1b\x00\n") || len(err.Error()) > 2000 {
				t.Errorf("%+v, %q", found, fmt.Sprint(err))
			}
		})
	}
	t.Run("a name of what libvirt knows that is a path", func(t *testing.T) {
		t.Parallel()
		client := answering(t, `{"path":"../../../etc/cron.d/x.xml","size":1}`+"\nx", false)
		if _, _, err := client.Capabilities(t.Context()); err == nil {
			t.Error("it is taken")
		}
	})
	t.Run("links and others in the socket's place", func(t *testing.T) {
		t.Parallel()
		good := launchertest.ServeFiles(t)
		for name, prepare := range map[string]func(path string) error{
			"a link": func(path string) error {
				return os.Symlink(filepath.Join(launchertest.Shared(good), protocol.FilesSocket), path)
			},
			"a file":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
			"a pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
			"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
		} {
			dir := t.TempDir()
			if err := prepare(filepath.Join(dir, protocol.FilesSocket)); err != nil {
				t.Fatal(err)
			}
			client := podfiles.Client{Dir: dir, Patience: time.Second}
			if _, err := client.Console(t.Context()); !errors.Is(err, podfiles.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// fakePod is a hypervisor that is a Pod's.
type fakePod struct{ *fake.Hypervisor }

func (fakePod) Close() error { return nil }

// TestHostileLibvirt: the libvirt of a Pod that a guest has taken over tells of domains with other VMs' names, and names that are paths. Nothing
// of that becomes a file of the node.
func TestHostileLibvirt(t *testing.T) {
	state := t.TempDir()
	libvirt := fake.New()
	agent, err := NewInPod(PodConfig{
		Config: Config{Node: "node-1", StateDir: filepath.Join(state, "pod"), DomainType: "qemu"}, Address: address("db"), Dir: launchertest.ServeFiles(t),
		Connect: func(string, func() (string, func(), error)) PodHypervisor { return fakePod{libvirt} },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	object := machineYAML(t, "db", "", "")
	object.Spec.Template.Spec.Domain.Firmware = nil
	vm := wire(t, object, nil, nil)
	request := &api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Vm: vm}
	define := func(record domainxml.Record) {
		t.Helper()
		spec := object.Spec.Template.Spec
		machine := domainxml.Machine{Address: address("db"), Spec: &spec, Record: &record, Host: domainxml.Host{DomainType: "qemu"}, Volumes: []domainxml.Volume{
			{Name: "init", Kind: "cloudInitNoCloud", Path: "/disks/x.iso", Format: "raw"},
		}}
		document, err := domainxml.Render(machine)
		if err == nil {
			err = errors.Join(libvirt.Undefine(ctx, "default_db"), libvirt.Define(ctx, document))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, record := range map[string]domainxml.Record{
		"another VM":            {Address: address("web"), Spec: vm.GetRecord(), Hash: "h"},
		"an origin outside":     {Address: address("db"), Origin: schemas.Address{Kind: "VirtualMachine", Namespace: "..", Name: "escaped"}, Spec: vm.GetRecord(), Hash: "h"},
		"an address outside":    {Address: schemas.Address{Kind: "VirtualMachine", Namespace: "..", Name: "escaped"}, Spec: vm.GetRecord(), Hash: "h"},
		"another domain's name": {Address: address("db"), Domain: "other", Spec: vm.GetRecord(), Hash: "h"},
	} {
		define(record)
		if _, err := agent.Execute(ctx, request, func(string) {}); err == nil || !strings.Contains(err.Error(), "record of another VM") {
			t.Errorf("%s: %v", name, err)
		}
		if err := agent.refreshAll(ctx); err == nil && agent.view.domain("default_db").GetProblem() == "" {
			t.Errorf("%s: %v", name, agent.view.domain("default_db"))
		}
	}
	if err := libvirt.Define(ctx, libvirttest.DomainXML("escaped", "", "")); err != nil {
		t.Fatal(err)
	}
	if names, err := agent.hypervisor.Names(ctx); err != nil || len(names) != 1 || names[0] != "default_db" {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := agent.hypervisor.Domain(ctx, "escaped"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("%v", err)
	}
	left, err := filepath.Glob(filepath.Join(state, "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	for _, name := range []string{"escaped", "pod/escaped", "pod/vms/escaped", "pod/vms/web"} {
		if _, err := os.Lstat(filepath.Join(state, name)); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
}

// TestHeldOverARestart: a Pod is held while its guest is off in the middle of a step, stays held when the guest does not start, and is let go
// by whichever step starts it.
func TestHeldOverARestart(t *testing.T) {
	folder := launchertest.ServeFiles(t)
	shared := launchertest.Shared(folder)
	libvirt := &watched{Hypervisor: fake.New(), held: func() bool { return protocol.Held(shared) }}
	agent, err := NewInPod(PodConfig{
		Config: Config{Node: "node-1", StateDir: t.TempDir(), DomainType: "qemu"}, Address: address("db"), Dir: folder,
		Connect: func(string, func() (string, func(), error)) PodHypervisor { return libvirt },
		Facts: func(host *domainxml.Host) {
			host.Assignment.Taps = []domainxml.Tap{{Name: "default", Device: "tap0", MAC: "02:00:00:00:00:01", MTU: 1400}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	object := machineYAML(t, "db", "", "")
	object.Spec.Template.Spec.Domain.Firmware = nil
	object.Spec.Template.Spec.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
	object.Spec.Template.Spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{*kubevirtv1.DefaultMasqueradeNetworkInterface()}
	vm := wire(t, object, nil, nil)
	step := func(power string) error {
		now, err := agent.refresh(t.Context(), agent.name)
		if err != nil {
			return err
		}
		_, err = agent.Execute(t.Context(), &api.ExecuteRequest{
			Address: vm.GetAddress(), Define: true, Power: power, Vm: vm, Precondition: (&execution{now: now}).fingerprint(),
		}, func(string) {})
		return err
	}
	if err := step("on"); err != nil || protocol.Held(shared) {
		t.Fatalf("%v, held: %t", err, protocol.Held(shared))
	}
	domain, err := libvirt.Domain(t.Context(), "default_db")
	if err != nil || !strings.Contains(domain.Config, `<target dev="tap0" managed="no"`) {
		t.Errorf("the device of the Pod is not the guest's: %v\n%s", err, domain.Config)
	}
	libvirt.fails = true
	if err := step("cycle"); err == nil || !protocol.Held(shared) || !libvirt.stoppedHeld {
		t.Errorf("%v, held: %t, while it was stopped: %t", err, protocol.Held(shared), libvirt.stoppedHeld)
	}
	libvirt.fails = false
	if err := step("on"); err != nil || protocol.Held(shared) {
		t.Errorf("%v, held: %t", err, protocol.Held(shared))
	}
	if err := step("cycle"); err != nil || protocol.Held(shared) {
		t.Errorf("%v, held: %t", err, protocol.Held(shared))
	}
}

// watched is a fake hypervisor whose guests start only when they may.
type watched struct {
	*fake.Hypervisor
	held        func() bool
	fails       bool
	stoppedHeld bool
}

func (*watched) Close() error { return nil }

func (w *watched) SetPower(ctx context.Context, name string, power hypervisor.Power) error {
	switch {
	case power == hypervisor.PowerOn && w.fails:
		return errors.New("it does not start")
	case power == hypervisor.PowerOff:
		w.stoppedHeld = w.held()
	}
	return w.Hypervisor.SetPower(ctx, name, power)
}
