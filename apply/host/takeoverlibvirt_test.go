package host_test

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// definitions are domains as people make them, each full of what no field of a manifest says. DIR is a folder for their files; web
// runs and has a bridge of the host and a block device.
//
//go:embed testdata/adoption/*.xml
var definitions embed.FS

// adoption is a libvirt with domains that somebody made with virsh, and an agent that comes later.
type adoption struct {
	*rig
	daemon *libvirttest.Daemon
	names  []string // of the domains
}

func newAdoption(t *testing.T) *adoption {
	t.Helper()
	daemon := libvirttest.Start(t)
	driver := libvirt.New(daemon.URI)
	t.Cleanup(func() { _ = driver.Close() })
	dir := t.TempDir()
	kernel, initrd := libvirttest.GuestKernel(t)
	fill := strings.NewReplacer("DIR", dir, "KERNEL", kernel, "INITRD", initrd, "LOOP", loopDevice(t, dir), "BRIDGE", bridge(t))
	a := &adoption{rig: &rig{t: t, driver: driver, dir: dir}, daemon: daemon}
	for _, image := range []string{"web.iso", "floppy.img", "uefi.img", "numa.img", "cell.img", "pc.img", "pc2.img"} {
		write(t, filepath.Join(dir, image), make([]byte, 1<<20))
	}
	for _, image := range []string{"web.qcow2", "secure.qcow2"} {
		run(t, "qemu-img", "create", "-q", "-f", "qcow2", filepath.Join(dir, image), "16M")
	}
	entries, err := definitions.ReadDir("testdata/adoption")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		content, err := definitions.ReadFile(path.Join("testdata/adoption", entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, entry.Name())
		write(t, file, []byte(fill.Replace(string(content))))
		daemon.Virsh("define", file)
		_, name, _ := strings.Cut(string(content), "<name>")
		name, _, _ = strings.Cut(name, "</name>")
		a.names = append(a.names, name)
	}
	return a
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	output, err := exec.Command(program, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments, " "), err, output)
	}
	return strings.TrimSpace(string(output))
}

// loopDevice returns a block device of 16 MiB.
func loopDevice(t *testing.T, dir string) string {
	t.Helper()
	image := filepath.Join(dir, "block.img")
	write(t, image, nil)
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	device := run(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { run(t, "losetup", "--detach", device) })
	return device
}

// bridge returns a bridge of the host.
func bridge(t *testing.T) string {
	t.Helper()
	name := "gv" + strconv.Itoa(os.Getpid()) // a network device's name is short
	run(t, "ip", "link", "add", name, "type", "bridge")
	t.Cleanup(func() { run(t, "ip", "link", "delete", name) })
	return name
}

// definition is a domain as libvirt keeps it, without its metadata, in lines.
func (a *adoption) definition(name string, arguments ...string) []string {
	a.t.Helper()
	var out []string
	for line := range strings.Lines(withoutMetadata(a.daemon.Virsh(append([]string{"dumpxml", name}, arguments...)...))) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// shop is the domain that runs.
const shop = "Web.Shop"

// life is what the guest keeps as long as nobody restarts it: its id, its process, how often it has booted.
func (a *adoption) life() string {
	a.t.Helper()
	id := strings.TrimSpace(a.daemon.Virsh("domid", shop))
	return fmt.Sprintf("id %s, process %d, boots %d", id, a.daemon.QEMU(shop), strings.Count(a.console(), "boot-id"))
}

func (a *adoption) console() string {
	content, _ := os.ReadFile(filepath.Join(a.dir, "console.log"))
	return string(content)
}

// saw waits until the guest has said something n times.
func (a *adoption) saw(n int, text string) {
	a.t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); strings.Count(a.console(), text) < n; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			a.t.Fatalf("the guest never says %q %d times:\n%s", text, n, a.console())
		}
	}
}

// object is the name of an object for a domain.
func object(domain string) string { return strings.ReplaceAll(strings.ToLower(domain), ".", "-") }

// TestAdoptionOnLibvirt adopts domains of many kinds as libvirt has filled them in, one of which runs.
func TestAdoptionOnLibvirt(t *testing.T) {
	t.Parallel()
	a := newAdoption(t)
	a.daemon.Virsh("start", shop)
	a.daemon.Virsh("start", "desktop")
	a.saw(1, "ready")
	before, running, life := map[string][]string{}, a.definition(shop), a.life()
	manifests := map[string]string{}
	for _, name := range a.names {
		before[name] = a.definition(name, "--inactive")
		manifests[name] = described(t, a.driver, name, object(name))
	}
	a.start()
	t.Cleanup(func() { a.stop() })
	want := desired(t, slices.Collect(maps.Values(manifests))...)
	p := a.eventually(want, "adoptions", func(p *plan.Plan) bool { return len(p.Executable()) == len(a.names) })
	for i := range p.Steps {
		if step := &p.Steps[i]; step.Action != plan.ActionAdopt || len(step.Changes) > 0 {
			t.Errorf("step %+v", step)
		}
	}
	if err := a.apply(p); err != nil {
		t.Fatal(err)
	}
	for _, name := range a.names {
		if diff := cmp.Diff(before[name], a.definition(name, "--inactive")); diff != "" {
			t.Errorf("adopting changed %s:\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(running, a.definition(shop)); diff != "" {
		t.Errorf("adopting changed the guest:\n%s", diff)
	}
	a.converge(want)
	if now := a.life(); now != life {
		t.Errorf("the guest has %s, had %s", now, life)
	}

	a.changesWhatIsSaid(manifests, before)
	a.keepsWhatIsNot(manifests, life)
	a.staysWhenRenamed(manifests)
}

// resized and extended are the lines of a definition that change with the memory and with a new disk.
var (
	resized = regexp.MustCompile(`^[-+]<(memory|currentMemory|cell) .*$`)
	plugged = regexp.MustCompile(`^\+(<disk type='file' device='disk' model='virtio-non-transitional'>|<driver name='qemu' type='raw' cache='none' |` +
		`<source file='.*-more.img'|<target dev='vd[a-c]' bus='virtio'/>|<serial>MORE</serial>|<alias name='ua-more'/>|<address type='pci' |</disk>)`)
	// recounted: libvirt counts consoles anew.
	recounted = regexp.MustCompile(`^[-+]<target type='virtio' port='[01]'/>$`)
)

// changed are the lines of a definition that went, with a minus, and came, with a plus, but for those that may.
func changed(before, after []string, may ...*regexp.Regexp) (out []string) {
	count := map[string]int{}
	for _, line := range before {
		count[line]--
	}
	for _, line := range after {
		count[line]++
	}
	for line, n := range count {
		for ; n != 0; n -= n / max(n, -n) {
			sign := "+"
			if n < 0 {
				sign = "-"
			}
			if !slices.ContainsFunc(may, func(pattern *regexp.Regexp) bool { return pattern.MatchString(sign + line) }) {
				out = append(out, sign+line)
			}
		}
	}
	slices.Sort(out)
	return out
}

// changesWhatIsSaid gives the domains that are off more memory and a disk: nothing else of their definitions changes.
func (a *adoption) changesWhatIsSaid(manifests map[string]string, before map[string][]string) {
	a.t.Helper()
	off := slices.DeleteFunc(slices.Clone(a.names), func(name string) bool { return name == shop || name == "desktop" })
	for _, name := range off {
		manifests[name] = edit(a.t, manifests[name], func(spec map[string]any) {
			if name != "numa" { // whose memory is in two cells
				at(spec, "domain", "memory")["guest"] = "640Mi"
			}
			plug(spec, filepath.Join(a.dir, name+"-more.img"))
		})
	}
	want := desired(a.t, slices.Collect(maps.Values(manifests))...)
	if err := a.apply(a.eventually(want, "changes", func(p *plan.Plan) bool { return len(p.Executable()) == len(off) })); err != nil {
		a.t.Fatal(err)
	}
	for _, name := range off {
		after := a.definition(name, "--inactive")
		if lines := changed(before[name], after, resized, plugged, recounted); len(lines) > 0 {
			a.t.Errorf("of %s this has changed, too:\n%s", name, strings.Join(lines, "\n"))
		}
		text := strings.Join(after, "")
		if !strings.Contains(text, name+"-more.img") || name != "numa" && strings.Count(text, ">655360<") != 2 {
			a.t.Errorf("%s lacks its disk or its memory:\n%s", name, text)
		}
	}
	if secret := a.daemon.Virsh("dumpxml", "--inactive", "--security-info", "uefi"); !strings.Contains(secret, "passwd='geheim'") {
		a.t.Error("the screen of uefi has lost its password")
	}
	a.converge(want)
}

// odd is what no field says of the domain that runs.
var odd = []string{
	"<title>the web server of the shop", "<description>ask Jo", "<iothread", "suspend-to-disk enabled='no'", "<on_crash>coredump-destroy", "<total_iops_sec>5000",
	"device='floppy'", "model='lsilogic'", "controller='1' bus='0' target='0' unit='3'", "<driver queues='2'/>", "<mtu size='1400'/>", "52:54:00:aa:bb:01", "console.log",
	"listen='127.0.0.1'", "<stats period='5'/>", "<rate bytes='1024' period='1000'/>", "name=opt/shop,string=hello", "dies='1'", "<cmdline>console=ttyS0", "libosinfo:os",
}

// keepsWhatIsNot changes the guest that runs, first live and then with a restart: what no field says is there all the time.
func (a *adoption) keepsWhatIsNot(manifests map[string]string, life string) {
	a.t.Helper()
	there := func() {
		a.t.Helper()
		for _, of := range []string{"--inactive", "--security-info"} {
			document := a.daemon.Virsh("dumpxml", of, shop)
			for _, part := range odd {
				if !strings.Contains(document, part) {
					a.t.Errorf("%s is gone from\n%s", part, document)
				}
			}
		}
	}
	there()
	before := a.definition(shop, "--inactive")
	becomes := func(change func(spec map[string]any)) plan.Step {
		a.t.Helper()
		manifests[shop] = strings.Replace(edit(a.t, manifests[shop], change), `"runStrategy":"Manual"`, `"runStrategy":"Always"`, 1)
		want := desired(a.t, slices.Collect(maps.Values(manifests))...)
		p := a.eventually(want, "a change", func(p *plan.Plan) bool { return len(p.Executable()) == 1 })
		if err := a.apply(p); err != nil {
			a.t.Fatal(err)
		}
		a.converge(want)
		there()
		return p.Executable()[0]
	}
	step := becomes(func(spec map[string]any) {
		at(spec, "domain", "memory")["guest"] = "192Mi"
		plug(spec, filepath.Join(a.dir, "web-more.img"))
		at(spec, "domain", "devices")["interfaces"].([]any)[0].(map[string]any)["state"] = "down"
	})
	a.saw(1, "2 MiB serial=MORE")
	if now := a.life(); step.Consequence != plan.ConsequenceLive || now != life {
		a.t.Errorf("%s: the guest has %s, had %s", step.Consequence, now, life)
	}
	link := regexp.MustCompile(`^\+<link state='down'/>$`)
	if lines := changed(before, a.definition(shop, "--inactive"), resized, plugged, link); len(lines) > 0 {
		a.t.Errorf("this has changed, too:\n%s", strings.Join(lines, "\n"))
	}
	step = becomes(func(spec map[string]any) {
		at(spec, "domain", "cpu")["cores"], at(spec, "domain", "cpu")["sockets"] = 1, 2
	})
	a.saw(2, "ready")
	if now := a.life(); step.Consequence != plan.ConsequenceRestart || now == life {
		a.t.Errorf("%s: the guest has %s, as before", step.Consequence, now)
	}
	topology := regexp.MustCompile(`^[-+]<topology `)
	if lines := changed(before, a.definition(shop, "--inactive"), resized, plugged, link, topology); len(lines) > 0 {
		a.t.Errorf("this has changed, too:\n%s", strings.Join(lines, "\n"))
	}
}

// staysWhenRenamed renames the guest that runs, while the agent ends here and there.
func (a *adoption) staysWhenRenamed(manifests map[string]string) {
	a.t.Helper()
	var wants [2]*schemas.Desired
	for i, names := range [][2]string{{object(shop), "shop"}, {"shop", object(shop)}} {
		all := maps.Clone(manifests)
		all[shop] = strings.Replace(all[shop], `"name":"`+object(shop)+`"`, `"name":"`+names[0]+`"`, 1)
		all[shop] = strings.Replace(all[shop], `"`+schemas.AnnotationAdopt+`":"`+shop+`"`, `"`+schemas.AnnotationPreviousName+`":"`+names[1]+`"`, 1)
		wants[i] = desired(a.t, slices.Collect(maps.Values(all))...)
	}
	interruptedRenames(a.rig, wants, func() string {
		return a.life() + strings.Join(append(a.definition(shop), a.definition(shop, "--inactive")...), "\n")
	})
}

// edit changes a manifest's spec of the machine.
func edit(t *testing.T, manifest string, change func(spec map[string]any)) string {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(manifest), &object); err != nil {
		t.Fatal(err)
	}
	change(at(object, "spec", "template", "spec"))
	out, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func at(object map[string]any, path ...string) map[string]any {
	for _, name := range path {
		object = object[name].(map[string]any)
	}
	return object
}

// plug adds a disk.
func plug(spec map[string]any, image string) {
	devices := at(spec, "domain", "devices")
	disks, _ := devices["disks"].([]any)
	volumes, _ := spec["volumes"].([]any)
	devices["disks"] = append(disks, map[string]any{"name": "more", "serial": "MORE", "disk": map[string]any{"bus": "virtio"}})
	spec["volumes"] = append(volumes, map[string]any{"name": "more", "hostDisk": map[string]any{"path": image, "type": "DiskOrCreate", "capacity": "2Mi"}})
}
