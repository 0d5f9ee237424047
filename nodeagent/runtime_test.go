package nodeagent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/launcher/launchertest"
	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		launchertest.Clean()
		os.Exit(code)
	}))
}

// rig is an agent with a hypervisor, on a host that is a folder, behind its real service.
type rig struct {
	t      *testing.T
	dir    string // state and host
	fake   *fake.Hypervisor
	client api.AgentClient
	stop   func()
	now    func() time.Time // the agent's, nil for the real one
	// patience is the agent's.
	patience time.Duration
	// guests is how time passes for guests.
	guests quick

	mu      sync.Mutex
	domains map[string]*api.Domain
	logged  strings.Builder
}

func newRig(t *testing.T, files map[string]string) *rig {
	t.Helper()
	r := unstartedRig(t)
	for name, content := range files {
		r.file(name, content)
	}
	r.begin()
	return r
}

func unstartedRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), fake: fake.New(), guests: 1000, stop: func() {}}
	t.Cleanup(func() { r.stop() })
	return r
}

// begin starts the agent, also one that was stopped.
func (r *rig) begin() {
	r.t.Helper()
	r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
}

// file puts a file on the host, or makes a link of "-> target".
func (r *rig) file(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.dir, "host", name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if target, ok := strings.CutPrefix(content, "-> "); ok {
		err = errors.Join(err, os.Symlink(target, path))
	} else {
		err = errors.Join(err, os.WriteFile(path, []byte(content), 0o600))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// quick is time that passes so many times as fast.
type quick int

func (q quick) After(d time.Duration) <-chan time.Time { return time.After(d / time.Duration(q)) }

// Write keeps what the agent logs.
func (r *rig) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logged.Write(text)
}

func (r *rig) start(h hypervisor.Hypervisor, options ...nodeagent.Option) {
	r.t.Helper()
	agent, err := nodeagent.New(nodeagent.Config{
		Node: "host-1", StateDir: filepath.Join(r.dir, "state"), DomainType: "qemu", Resync: max(50*time.Millisecond, 5*time.Second/time.Duration(r.guests)),
		Clock: r.guests, Now: r.now, Patience: r.patience, Logger: logger(r),
	}, h, options...)
	if err != nil {
		r.t.Fatal(err)
	}
	socket := filepath.Join(r.dir, "agent.sock")
	listener, err := api.Listen(socket)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := api.NewGRPCServer()
	api.RegisterAgentServer(server, nodeagent.NewServer(ctx, agent))
	conn, err := api.Dial(socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.client = api.NewAgentClient(conn)
	r.mu.Lock()
	r.domains = map[string]*api.Domain{}
	r.mu.Unlock()
	var group sync.WaitGroup
	group.Go(func() { agent.Run(ctx) })
	group.Go(func() { _ = server.Serve(listener) })
	synced := make(chan struct{})
	group.Go(func() { r.watch(ctx, sync.OnceFunc(func() { close(synced) })) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		server.Stop()
		_ = conn.Close()
		group.Wait()
	})
	<-synced
}

func (r *rig) watch(ctx context.Context, synced func()) {
	defer synced()
	stream, err := r.client.Watch(ctx, &api.WatchRequest{})
	if err != nil {
		return
	}
	named := map[string]bool{}
	for {
		event, err := stream.Recv()
		if err != nil {
			return
		}
		r.mu.Lock()
		switch e := event.GetEvent().(type) {
		case *api.WatchEvent_Domain:
			r.domains[e.Domain.GetName()], named[e.Domain.GetName()] = e.Domain, true
		case *api.WatchEvent_Gone:
			delete(r.domains, e.Gone)
		case *api.WatchEvent_Synced:
			if e.Synced.GetComplete() {
				maps.DeleteFunc(r.domains, func(name string, _ *api.Domain) bool { return !named[name] })
			}
			clear(named)
			synced()
		}
		r.mu.Unlock()
	}
}

func (r *rig) domain(name string) *api.Domain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.domains["default_"+name]
}

// eventually waits until what the agent tells of a domain satisfies a condition.
func (r *rig) eventually(name, what string, condition func(*api.Domain) bool) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if domain := r.domain(name); domain != nil && condition(domain) {
			return
		}
	}
	r.t.Fatalf("never %s: %v\n%s", what, r.domain(name), r.logged.String())
}

// vm is a VM and what its references resolved to.
type vm struct {
	name     string
	change   func(*kubevirtv1.VirtualMachineInstanceSpec)
	contents map[string]map[string]string
	devices  map[string]*api.HostDeviceSelector
	claims   map[string]*api.Claim
	labels   map[string]string
}

func (r *rig) request(in vm, power string) *api.ExecuteRequest {
	r.t.Helper()
	always := kubevirtv1.RunStrategyAlways
	object := &kubevirtv1.VirtualMachine{}
	object.Name, object.Namespace, object.Labels, object.Spec.RunStrategy = in.name, "default", in.labels, &always
	object.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	spec := &object.Spec.Template.Spec
	if err := json.Unmarshal([]byte(`{"domain":{"memory":{"guest":"64Mi"}}}`), spec); err != nil {
		r.t.Fatal(err)
	}
	in.change(spec)
	alone := false // no default has to be filled in
	spec.Domain.Devices.AutoattachPodInterface = &alone
	encoded, err := json.Marshal(object)
	if err != nil {
		r.t.Fatal(err)
	}
	message := &api.VM{
		Address: "VirtualMachine/default/" + in.name, Fleet: "fleet", Revision: "rev", Source: "a.yaml:1", Object: encoded, Record: encoded,
		HostDevices: in.devices, Contents: map[string]*api.Content{}, Claims: in.claims,
	}
	claims, err := json.Marshal(in.claims)
	if err != nil {
		r.t.Fatal(err)
	}
	message.Hash = fmt.Sprintf("hash-%d", hashOf(string(encoded)+fmt.Sprint(in.contents)+string(claims)))
	for key, values := range in.contents {
		content := &api.Content{Values: map[string][]byte{}}
		for name, value := range values {
			content.Values[name] = []byte(value)
		}
		message.Contents[key] = content
	}
	return &api.ExecuteRequest{
		Address: message.GetAddress(), Domain: "default_" + in.name, Precondition: r.domain(in.name).GetFingerprint(), Define: true, Power: power,
		Vm: message, Live: power == "",
	}
}

func hashOf(text string) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(text) {
		hash = (hash ^ uint64(text[i])) * 1099511628211
	}
	return hash
}

// execute carries out a step and waits until what it made is told.
func (r *rig) execute(request *api.ExecuteRequest) error {
	stream, err := r.client.Execute(context.Background(), request)
	if err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		if event.GetDone() {
			name := strings.TrimPrefix(request.GetDomain(), "default_")
			for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				if r.domain(name).GetFingerprint() == event.GetFingerprint() {
					return nil
				}
			}
			return fmt.Errorf("the result of the step is never told: %s, but %v", event.GetFingerprint(), r.domain(name))
		}
	}
}

func (r *rig) must(request *api.ExecuteRequest) {
	r.t.Helper()
	if err := r.execute(request); err != nil {
		r.t.Fatal(err)
	}
}

// refused is what a step must be that this host cannot carry out: it stalls, and nothing was changed.
func (r *rig) refused(in vm, power, want string) {
	r.t.Helper()
	before, _ := r.fake.Names(context.Background())
	err := r.execute(r.request(in, power))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), want) {
		r.t.Errorf("got %v, want %q", err, want)
	}
	if after, _ := r.fake.Names(context.Background()); len(after) != len(before) {
		r.t.Errorf("domains were %q, are %q", before, after)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "state", "disks", "default", in.name)); err == nil {
		r.t.Error("disks were made although the host cannot run the VM")
	}
}

func (r *rig) config(name string) string {
	r.t.Helper()
	domain, err := r.fake.Domain(context.Background(), "default_"+name)
	if err != nil {
		r.t.Fatal(err)
	}
	return domain.Config
}

func (r *rig) state(name string) hypervisor.State {
	r.t.Helper()
	domain, err := r.fake.Domain(context.Background(), "default_"+name)
	if err != nil {
		r.t.Fatal(err)
	}
	return domain.State
}

// TestMissingCapability: nothing is made on a host that cannot run the VM, and it runs once somebody has mended that.
func TestMissingCapability(t *testing.T) {
	r := newRig(t, nil)
	in := vm{name: "a", change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.TPM = &kubevirtv1.TPMDevice{}
		s.Domain.Devices.Disks = []kubevirtv1.Disk{{Name: "data", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}}}
		empty := &kubevirtv1.EmptyDiskSource{}
		empty.Capacity.Set(1 << 20)
		s.Volumes = []kubevirtv1.Volume{{Name: "data", VolumeSource: kubevirtv1.VolumeSource{EmptyDisk: empty}}}
	}}
	r.refused(in, "on", "apt-get install swtpm")
	r.file("usr/bin/swtpm", "")
	r.file("usr/bin/swtpm_setup", "")
	r.must(r.request(in, "on"))
}

func gpu(name string) vm {
	return vm{
		name: name,
		change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.GPUs = []kubevirtv1.GPU{{Name: "gpu", DeviceName: "example.com/t4"}}
		},
		devices: map[string]*api.HostDeviceSelector{"gpu": {Resource: "example.com/t4", Pci: []string{"10DE:1EB8"}}},
	}
}

func pciDevice(address, group string) map[string]string {
	at := "sys/bus/pci/devices/" + address
	return map[string]string{
		at + "/vendor": "0x10de", at + "/device": "0x1eb8", at + "/driver": "-> ../../drivers/vfio-pci", at + "/iommu_group": "-> ../../groups/" + group,
	}
}

func TestHostDevices(t *testing.T) {
	files := pciDevice("0000:01:00.0", "1")
	maps.Copy(files, pciDevice("0000:02:00.0", "2"))
	r := newRig(t, files)
	r.must(r.request(gpu("a"), "on"))
	r.must(r.request(gpu("b"), "")) // one that is off has its device too
	if a, b := r.config("a"), r.config("b"); !strings.Contains(a, `bus="0x01"`) || !strings.Contains(b, `bus="0x02"`) {
		t.Fatalf("a is\n%s\nb is\n%s", a, b)
	}
	r.refused(gpu("c"), "on", "gpu (example.com/t4): no device of the host for it: none is free")

	// What it has is kept: across a new definition, a restart of the agent, and in what counts as drift.
	more := gpu("b")
	change := more.change
	more.change = func(s *kubevirtv1.VirtualMachineInstanceSpec) { change(s); s.Hostname = "b" }
	r.stop()
	r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
	r.must(r.request(more, ""))
	if b := r.config("b"); !strings.Contains(b, `bus="0x02"`) {
		t.Errorf("b changed its device:\n%s", b)
	}
	for _, name := range []string{"a", "b"} {
		if drift := r.domain(name).GetDrift(); len(drift) > 0 {
			t.Errorf("%s drifted: %v", name, drift)
		}
	}
	r.must(&api.ExecuteRequest{Address: "VirtualMachine/default/a", Domain: "default_a", Precondition: r.domain("a").GetFingerprint(), Destroy: true})
	r.must(r.request(gpu("c"), "on"))
	if c := r.config("c"); !strings.Contains(c, `bus="0x01"`) {
		t.Errorf("c has not the device that a gave back:\n%s", c)
	}
}

// TestTwoAtATime: steps that run at the same time never choose one device.
func TestTwoAtATime(t *testing.T) {
	files := map[string]string{}
	for i := range 8 {
		maps.Copy(files, pciDevice(fmt.Sprintf("0000:%02x:00.0", i+1), fmt.Sprint(i)))
	}
	r := newRig(t, files)
	var group sync.WaitGroup
	for i := range 8 {
		request := r.request(gpu(fmt.Sprintf("vm-%d", i)), "on")
		group.Go(func() {
			if err := r.execute(request); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	seen := map[string]bool{}
	for i := range 8 {
		_, after, _ := strings.Cut(r.config(fmt.Sprintf("vm-%d", i)), `&#34;address&#34;:`)
		if after == "" {
			_, after, _ = strings.Cut(r.config(fmt.Sprintf("vm-%d", i)), `"address":`)
		}
		seen[after[:min(30, len(after))]] = true
	}
	if len(seen) != 8 {
		t.Errorf("8 VMs have %d devices: %v", len(seen), seen)
	}
}

// TestUSBDeviceThatMoved is found again at the next power-on.
func TestUSBDeviceThatMoved(t *testing.T) {
	usb := func(number string) map[string]string {
		at := "sys/bus/usb/devices/1-1"
		return map[string]string{at + "/idVendor": "046d", at + "/idProduct": "0825", at + "/busnum": "1", at + "/devnum": number}
	}
	r := newRig(t, usb("4"))
	in := vm{
		name: "a",
		change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.HostDevices = []kubevirtv1.HostDevice{{Name: "camera", DeviceName: "example.com/camera"}}
		},
		devices: map[string]*api.HostDeviceSelector{"camera": {Resource: "example.com/camera", Usb: []*api.USBSelector{{Vendor: "046d", Product: "0825"}}}},
	}
	r.must(r.request(in, "on"))
	if config := r.config("a"); !strings.Contains(config, `device="4"`) {
		t.Fatalf("the camera is not there:\n%s", config)
	}
	r.fake.GuestPowersOff("default_a")
	r.eventually("a", "off", func(d *api.Domain) bool { return d.GetState() == "stopped" && d.GetStop() == "shutdown" })
	for name, content := range usb("9") {
		r.file(name, content)
	}
	on := r.request(in, "on")
	on.Define = false
	r.must(on)
	if config := r.config("a"); !strings.Contains(config, `device="9"`) || r.state("a") != hypervisor.StateRunning {
		t.Errorf("the camera was not found again:\n%s", config)
	}
	if drift := r.domain("a").GetDrift(); len(drift) > 0 {
		t.Errorf("drift: %v", drift)
	}
}

func TestDedicatedCPUs(t *testing.T) {
	files := map[string]string{"sys/devices/system/cpu/online": "0-3"}
	for cpu := range 4 {
		files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu)] = fmt.Sprint(cpu)
	}
	r := newRig(t, files)
	dedicated := func(name string, cores uint32) vm {
		return vm{name: name, change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Domain.CPU = &kubevirtv1.CPU{Cores: cores, DedicatedCPUPlacement: true}
		}}
	}
	r.must(r.request(dedicated("a", 2), "on"))
	if config := r.config("a"); !strings.Contains(config, `cpuset="1"`) || !strings.Contains(config, `cpuset="2"`) {
		t.Errorf("a is not pinned:\n%s", config)
	}
	r.refused(dedicated("b", 2), "on", "dedicatedCpuPlacement needs 2 on whole cores, 1 on 1 free cores are left")
	r.must(r.request(dedicated("b", 1), "on"))
	if config := r.config("b"); !strings.Contains(config, `cpuset="3"`) {
		t.Errorf("b is not pinned:\n%s", config)
	}
}

func TestHugepages(t *testing.T) {
	free := "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
	r := newRig(t, map[string]string{free: "31"})
	huge := func(memory string) vm {
		return vm{name: "a", change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			if err := json.Unmarshal([]byte(`{"guest":"`+memory+`","hugepages":{"pageSize":"2Mi"}}`), s.Domain.Memory); err != nil {
				t.Fatal(err)
			}
		}}
	}
	r.refused(huge("64Mi"), "on", "needs 32 free huge pages of 2Mi, and 31 are")
	r.file(free, "32")
	r.must(r.request(huge("64Mi"), "on"))
	// The guest that runs has 32 of them and gives them back when it is cycled.
	r.file(free, "1")
	r.fake.Fail(fake.SetPower, func(context.Context, string) error {
		r.file(free, "33")
		return nil
	})
	r.must(r.request(huge("32Mi"), "cycle"))
}

func TestStartStrategyPaused(t *testing.T) {
	r := newRig(t, nil)
	paused := kubevirtv1.StartStrategyPaused
	in := vm{name: "a", change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.StartStrategy = &paused
		s.ReadinessProbe = &kubevirtv1.Probe{Handler: kubevirtv1.Handler{GuestAgentPing: &kubevirtv1.GuestAgentPing{}}}
	}}
	r.must(r.request(in, "on"))
	if state := r.state("a"); state != hypervisor.StatePaused {
		t.Fatalf("the guest is %s", state)
	}
	r.eventually("a", "paused", func(d *api.Domain) bool {
		return d.GetState() == "paused" && d.GetReady() == "false" && d.GetReadyReason() == "the guest is paused" && len(d.GetDrift()) == 0
	})
}

func probed(name string, liveness, readiness *kubevirtv1.Probe) vm {
	return vm{name: name, change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.LivenessProbe, s.ReadinessProbe = liveness, readiness
	}}
}

func ping() *kubevirtv1.Probe {
	return &kubevirtv1.Probe{Handler: kubevirtv1.Handler{GuestAgentPing: &kubevirtv1.GuestAgentPing{}}}
}

func TestReadinessProbe(t *testing.T) {
	r := newRig(t, nil)
	r.must(r.request(probed("a", nil, ping()), "on"))
	r.eventually("a", "not ready", func(d *api.Domain) bool {
		return d.GetReady() == "false" && strings.Contains(d.GetReadyReason(), "no guest agent answers")
	})
	r.fake.SetGuestAgent("default_a", func(string) (string, error) { return `{"return":{}}`, nil })
	r.eventually("a", "ready", func(d *api.Domain) bool { return d.GetReady() == "true" && d.GetReadyReason() == "" })
	r.fake.SetGuestAgent("default_a", nil)
	r.eventually("a", "not ready again", func(d *api.Domain) bool { return d.GetReady() == "false" })
	if r.state("a") != hypervisor.StateRunning {
		t.Error("a readiness probe stopped its guest")
	}
	r.fake.GuestPowersOff("default_a")
	r.eventually("a", "without a verdict", func(d *api.Domain) bool { return d.GetReady() == "" && d.GetState() == "stopped" })
}

// TestLivenessProbe: the guest is switched off and counts as crashed, also after a restart of agent and hypervisor.
func TestLivenessProbe(t *testing.T) {
	r := newRig(t, nil)
	in := probed("a", ping(), nil)
	request := r.request(in, "")
	r.must(request)
	r.fake.SetGuestAgent("default_a", func(string) (string, error) { return `{"return":{}}`, nil })
	r.must(r.request(in, "on"))
	time.Sleep(100 * time.Millisecond) // many periods of the quick clock
	if r.state("a") != hypervisor.StateRunning {
		t.Fatal("a guest that answers was switched off")
	}
	r.fake.SetGuestAgent("default_a", nil)
	crashed := func(d *api.Domain) bool { return d.GetState() == "stopped" && d.GetStop() == "crashed" && d.GetRan() }
	r.eventually("a", "switched off as crashed", crashed)
	time.Sleep(100 * time.Millisecond) // a few re-reads
	r.eventually("a", "still crashed", crashed)
	r.fake.Forget()
	r.stop()
	r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
	r.eventually("a", "crashed after restarts", crashed)
	// Somebody who switches it off by hand later did that.
	r.fake.SetGuestAgent("default_a", func(string) (string, error) { return `{"return":{}}`, nil })
	on := r.request(in, "on")
	r.must(on)
	if err := r.fake.SetPower(context.Background(), "default_a", hypervisor.PowerOff); err != nil {
		t.Fatal(err)
	}
	r.eventually("a", "switched off by hand", func(d *api.Domain) bool { return d.GetStop() == "destroyed" })
}

// TestProbeThroughUserNetworking proves nothing about the guest, and says so.
func TestProbeThroughUserNetworking(t *testing.T) {
	r := newRig(t, nil)
	var tcp kubevirtv1.Probe
	if err := json.Unmarshal([]byte(`{"tcpSocket":{"port":80}}`), &tcp); err != nil {
		t.Fatal(err)
	}
	r.must(r.request(probed("a", &tcp, &tcp), "on"))
	r.eventually("a", "unknown", func(d *api.Domain) bool {
		return d.GetReady() == "unknown" && strings.Contains(d.GetReadyReason(), "user-mode networking")
	})
	time.Sleep(100 * time.Millisecond)
	if r.state("a") != hypervisor.StateRunning {
		t.Error("a guest that cannot be asked was switched off")
	}
}

// TestAccessCredentials: keys and passwords reach the guest when its agent appears, again when they change, again in the
// next run, and are nowhere but in one file that only root reads.
func TestAccessCredentials(t *testing.T) {
	r := newRig(t, nil)
	credentials := func(key, password string) vm {
		return vm{
			name: "a",
			change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
				if err := json.Unmarshal([]byte(`[
					{"sshPublicKey":{"source":{"secret":{"secretName":"keys"}},"propagationMethod":{"qemuGuestAgent":{"users":["admin","root"]}}}},
					{"userPassword":{"source":{"secret":{"secretName":"passwords"}},"propagationMethod":{"qemuGuestAgent":{}}}}]`), &s.AccessCredentials); err != nil {
					t.Fatal(err)
				}
			},
			contents: map[string]map[string]string{"accessCredentials/0": {"mine": key}, "accessCredentials/1": {"admin": password}},
		}
	}
	r.must(r.request(credentials("ssh-ed25519 FIRST", "s3cret-one"), "on"))
	r.eventually("a", "waiting for the agent", func(d *api.Domain) bool {
		return strings.Contains(d.GetCredentialsProblem(), "no guest agent answers")
	})
	g := &recorder{}
	r.fake.SetGuestAgent("default_a", g.answer)
	synced := func(d *api.Domain) bool { return d.GetCredentialsProblem() == "" }
	r.eventually("a", "in the guest", synced)
	g.saw(t, `"keys":["ssh-ed25519 FIRST"],"reset":true,"username":"admin"`, `"username":"root"`, `"password":"czNjcmV0LW9uZQ=="`)

	g.forget()
	r.must(r.request(credentials("ssh-ed25519 SECOND", "s3cret-two"), ""))
	g.saw(t, "ssh-ed25519 SECOND", `"password":"czNjcmV0LXR3bw=="`)

	path := filepath.Join(r.dir, "state", "vms", "default", "a", "credentials.json")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the credentials: %v, %v", info, err)
	}
	g.forget()
	r.stop()
	r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
	g.saw(t, "ssh-ed25519 SECOND") // by an agent that was never told

	r.eventually("a", "in the guest", synced)
	err := filepath.WalkDir(filepath.Join(r.dir, "state"), func(found string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || found == path {
			return err
		}
		content, err := os.ReadFile(found)
		if strings.Contains(string(content), "s3cret") || strings.Contains(string(content), "czNjcmV0") {
			t.Errorf("%s holds a password", found)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	r.mu.Lock()
	said := r.logged.String() + fmt.Sprint(r.domains)
	r.mu.Unlock()
	if strings.Contains(said+r.config("a"), "s3cret") {
		t.Error("a password is in the domain, in a message or in the log")
	}
	r.must(&api.ExecuteRequest{Address: "VirtualMachine/default/a", Domain: "default_a", Precondition: r.domain("a").GetFingerprint(), Destroy: true})
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of the credentials is left: %v", err)
	}
}
