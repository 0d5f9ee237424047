package schemas_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/schemas"
)

// one reads a manifest that must be in order and hold one machine.
func one(t testing.TB, manifest string) *schemas.VM {
	t.Helper()
	d := schemas.Assemble([]*schemas.File{schemas.Parse("vm.yaml", []byte(manifest))})
	if len(d.VMs) != 1 {
		t.Fatalf("%d machines, diagnostics: %v", len(d.VMs), d.Diagnostics)
	}
	return d.VMs[0]
}

// vmi is a small machine with more lines of spec, each indented by two spaces.
func vmi(name, spec string) string {
	return "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata:\n  name: " + name + "\nspec:\n" + spec
}

// TestConformance reads KubeVirt's own examples: each is in order, or refused for exactly what is not carried out.
func TestConformance(t *testing.T) {
	refused := map[string][]string{}
	paths, err := filepath.Glob("testdata/conformance/*.yaml")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d manifests: %v", len(paths), err)
	}
	var files []*schemas.File
	machines := 0
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file := schemas.Parse(path, content)
		var got []string
		for _, d := range file.Diagnostics {
			if !strings.Contains(d.Message, "not carried out by gitvirt") {
				t.Errorf("%v", d)
			}
			got = append(got, d.Path)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		if diff := cmp.Diff(refused[name], got); diff != "" {
			t.Errorf("%s: refused fields differ (-want +got):\n%s", name, diff)
		}
		if file.Opaque {
			t.Errorf("%s is opaque", name)
		}
		if len(refused[name]) == 0 {
			files = append(files, file)
			machines++
		}
	}
	machines += -1 + 2 // an instancetype, and a replica set of three
	for _, strict := range []bool{false, true} {
		options := []schemas.Option{schemas.AllowMissing()}
		if strict {
			options = nil
		}
		desired := schemas.Assemble(files, options...)
		if n := desired.Diagnostics.Errors(); n > 0 && !strict {
			t.Errorf("%d errors: %v", n, desired.Diagnostics)
		}
		want := machines
		if strict {
			want -= 5 // three claims and two devices are elsewhere
		}
		if len(desired.VMs) != want {
			t.Errorf("strict=%v: %d machines, want %d: %v", strict, len(desired.VMs), want, desired.Diagnostics)
		}
	}
}

func TestDefaults(t *testing.T) {
	vm := one(t, vmi("web", `
  architecture: amd64
  domain:
    resources: {limits: {cpu: "3", memory: 64M}}
    features: {hyperv: {synictimer: {}}, acpi: {enabled: false}}
    firmware: {bootloader: {bios: {}}}
    devices:
      disks:
      - {name: second, cdrom: {}}
  volumes:
  - {name: first, containerDisk: {image: "cirros:1"}}
  - {name: second, containerDisk: {image: cirros}}
`))
	spec := vm.Spec()
	for _, test := range []struct {
		what      string
		got, want any
	}{
		{"memory comes from the limits", spec.Domain.Memory.Guest.String(), "64M"},
		{"a socket per limited CPU", spec.Domain.CPU.Sockets, uint32(3)},
		{"one core", spec.Domain.CPU.Cores, uint32(1)},
		{"the CPU request is the limit", spec.Domain.Resources.Requests.Cpu().String(), "3"},
		{"an interface", spec.Domain.Devices.Interfaces[0].Masquerade != nil, true},
		{"on the pod network", spec.Networks[0].Pod != nil, true},
		{"the CD-ROM is on sata", spec.Domain.Devices.Disks[0].CDRom.Bus, kubevirtv1.DiskBusSATA},
		{"the CD-ROM is read-only", *spec.Domain.Devices.Disks[0].CDRom.ReadOnly, true},
		{"a disk for the volume without one", spec.Domain.Devices.Disks[1].Name, "first"},
		{"on sata, as KubeVirt has it", spec.Domain.Devices.Disks[1].Disk.Bus, kubevirtv1.DiskBusSATA},
		{"a tag is pulled when missing", string(spec.Volumes[0].ContainerDisk.ImagePullPolicy), "IfNotPresent"},
		{"no tag is pulled always", string(spec.Volumes[1].ContainerDisk.ImagePullPolicy), "Always"},
		{"no UUID is invented", string(spec.Domain.Firmware.UUID), ""},
		{"acpi stays off", *spec.Domain.Features.ACPI.Enabled, false},
		{"synictimer needs synic", *spec.Domain.Features.Hyperv.SyNIC.Enabled, true},
		{"synic needs vpindex", *spec.Domain.Features.Hyperv.VPIndex.Enabled, true},
		{"an instance runs once", vm.RunStrategy, kubevirtv1.RunStrategyOnce},
		{"the object says so too", *vm.Object.Spec.RunStrategy, kubevirtv1.RunStrategyOnce},
		{"the namespace is filled in", vm.Object.Namespace, "default"},
		{"the grace period is KubeVirt's", vm.TerminationGracePeriod(), 30 * time.Second},
	} {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.what, diff)
		}
	}
	without := one(t, vmi("web", "  domain: {memory: {guest: 1Gi}, devices: {autoattachPodInterface: false}}\n"))
	if n := len(without.Spec().Networks); n != 0 {
		t.Errorf("autoattachPodInterface: false still gives %d networks", n)
	}
}

func TestRecord(t *testing.T) {
	written := one(t, vmi("web", `
  domain:
    cpu: {cores: 2}
    memory: {guest: 1024Mi}
    devices: {disks: [], autoattachSerialConsole: false}
  volumes:
  - name: seed
    cloudInitNoCloud: {userData: "hush <ä>", networkData: hush}
`))
	want := `{"kind":"VirtualMachineInstance","metadata":{"name":"web","namespace":"default"},"spec":{"runStrategy":"Once","template":{"spec":{` +
		`"domain":{"cpu":{"cores":2},"devices":{"autoattachSerialConsole":false},"memory":{"guest":"1Gi"}},` +
		`"volumes":[{"cloudInitNoCloud":{"networkData":"DIGEST","userData":"DIGEST"},"name":"seed"}]}}}}`
	got := regexp.MustCompile(`sha256:[0-9a-f]{64}`).ReplaceAllString(string(written.Record), "DIGEST")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	other := one(t, `{"kind": "VirtualMachineInstance", "apiVersion": "kubevirt.io/v1alpha3", "metadata": {"name": "web", "uid": "x"},
"spec": {"volumes": [{"cloudInitNoCloud": {"networkData": "hush", "userData": "hush <\u00e4>"}, "name": "seed"}],
"domain": {"memory": {"guest": "1Gi"}, "cpu": {"cores": 0x2, "model": ""}, "devices": {"autoattachSerialConsole": no}}}}`)
	if written.Hash != other.Hash {
		t.Errorf("the same wish written differently:\n%s\n%s", written.Record, other.Record)
	}
	renamed := one(t, vmi("web2", "  domain: {memory: {guest: 1Gi}}\n  volumes: [{name: seed, cloudInitNoCloud: {userData: \"hush <ä>\"}}]\n"))
	if strings.Contains(string(renamed.Record), regexp.MustCompile(`"userData":"(.*?)"`).FindStringSubmatch(string(written.Record))[1]) {
		t.Error("the digest of a secret is the same in two machines")
	}
	for _, vm := range []*schemas.VM{written, other} {
		for i, c := range vm.Record {
			if c < 0x20 || c >= 0x7f || strings.IndexByte("<>&", c) >= 0 {
				t.Errorf("byte %#x at %d of the record", c, i)
			}
		}
	}
}

func TestRecordOfRunning(t *testing.T) {
	const head = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: web}\nspec:\n  template: {spec: {domain: {memory: {guest: 1Gi}}}}\n"
	if a, b := one(t, head+"  running: true\n"), one(t, head+"  runStrategy: Always\n"); a.Hash != b.Hash || a.RunStrategy != kubevirtv1.RunStrategyAlways {
		t.Errorf("running: true is not runStrategy: Always: %s, %s", a.Record, b.Record)
	}
}

func TestParseRecord(t *testing.T) {
	vm := one(t, vmi("web", "  domain: {memory: {guest: 1Gi}, clock: {timer: {hpet: {}}}}\n  volumes: [{name: a, emptyDisk: {capacity: 1Gi}}]\n"))
	object, secrets, err := schemas.ParseRecord(vm.Record, true)
	if err != nil || len(secrets) != 0 {
		t.Fatalf("%v, %v", secrets, err)
	}
	if diff := cmp.Diff(vm.Object.Spec, object.Spec); diff != "" {
		t.Errorf("a record with defaults is not the object (-object +record):\n%s", diff)
	}
	bare, _, err := schemas.ParseRecord(vm.Record, false)
	if err != nil || len(bare.Spec.Template.Spec.Networks) != 0 {
		t.Errorf("defaults were filled in unasked: %v", err)
	}
	for _, broken := range []string{"", "{}", `{"metadata":{"name":"x"},"spec":{}}`, "null", "[1]"} {
		if _, _, err := schemas.ParseRecord([]byte(broken), true); err == nil {
			t.Errorf("ParseRecord(%q) finds nothing wrong", broken)
		}
	}
}

func TestSecrets(t *testing.T) {
	machine := schemas.Parse("vm.yaml", []byte(vmi("web", "  domain: {memory: {guest: 1Gi}}\n  volumes: [{name: seed, cloudInitNoCloud: {secretRef: {name: s}, networkDataSecretRef: {name: s}}}]\n")))
	secret := func(user string) *schemas.File {
		return schemas.Parse("secret.yaml", []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {userdata: aHVzaA==, networkdata: bmV0}\nstringData: {"+user+"}\n"))
	}
	first := schemas.Assemble([]*schemas.File{machine, secret("")})
	second := schemas.Assemble([]*schemas.File{secret("userdata: other"), machine})
	if len(first.VMs) != 1 || len(second.VMs) != 1 {
		t.Fatalf("%v %v", first.Diagnostics, second.Diagnostics)
	}
	if diff := cmp.Diff(map[string]schemas.Content{"seed": {"userdata": "hush", "networkdata": "net"}}, first.VMs[0].Contents); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	if got := second.VMs[0].Contents["seed"]["userdata"]; got != "other" {
		t.Errorf("stringData does not win: %q", got)
	}
	if first.VMs[0].Hash == second.VMs[0].Hash {
		t.Error("another secret is the same wish")
	}
	if machine.VMs[0].Contents != nil {
		t.Error("Assemble changed a file")
	}
	for _, vm := range []*schemas.VM{first.VMs[0], second.VMs[0]} {
		if strings.Contains(string(vm.Record), "hush") || strings.Contains(string(vm.Record), "other") || !json.Valid(vm.Record) {
			t.Errorf("record %s", vm.Record)
		}
		_, digests, err := schemas.ParseRecord(vm.Record, true)
		if err != nil || len(digests) != 1 || !strings.HasPrefix(digests["seed"], "sha256:") {
			t.Errorf("%v, %v", digests, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	vm := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web"}
	instance := schemas.Address{Kind: schemas.KindVirtualMachineInstance, Namespace: "default", Name: "web"}
	// These values are in the domains of users: they must never change.
	if got, want := schemas.FirmwareUUID(vm), "31d24568-ed67-5d85-b8ac-5c7ed65214b2"; got != want {
		t.Errorf("FirmwareUUID = %s, want %s", got, want)
	}
	if got, want := schemas.MACAddress(vm, "default"), "02:3a:de:a6:df:9d"; got != want {
		t.Errorf("MACAddress = %s, want %s", got, want)
	}
	if schemas.FirmwareUUID(vm) != schemas.FirmwareUUID(instance) {
		t.Error("the UUID depends on the kind")
	}
	if schemas.MACAddress(vm, "default") == schemas.MACAddress(vm, "other") {
		t.Error("two interfaces have one MAC address")
	}
}

func TestFleetDefaults(t *testing.T) {
	d := schemas.Assemble(nil)
	if d.HasFleet || d.Fleet == nil || d.Fleet.Spec.Platform != schemas.PlatformHost || d.Fleet.Spec.Drift != schemas.DriftCorrect ||
		d.Fleet.Spec.Status.Branch != "gitvirt/status" || !d.Fleet.Spec.Status.IsEnabled() {
		t.Errorf("%+v", d.Fleet)
	}
	file := schemas.Parse("gitvirt.yaml", []byte("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nspec: {interval: 90s, drift: report, status: {enabled: false}}\n"))
	d = schemas.Assemble([]*schemas.File{file})
	if !d.HasFleet || time.Duration(d.Fleet.Spec.Interval) != 90*time.Second || d.Fleet.Spec.Drift != schemas.DriftReport || d.Fleet.Spec.Status.IsEnabled() {
		t.Errorf("%+v, %v", d.Fleet, d.Diagnostics)
	}
}

// TestNotifications: receivers with mistakes are told and left out, the others stay, and the policy is in no doubt.
func TestNotifications(t *testing.T) {
	for _, test := range []struct{ receivers, says, names string }{
		{"{name: ops, kind: slack}", "", "ops"},
		{`{name: ops, kind: slack, filter: "event.reason == 'Crashed'"}, {name: audit, kind: http, filter: "true"}`, "", "ops audit"},
		{"{name: ops, kind: slak}, {name: audit, kind: http}", `gitvirt.yaml:3:42: spec.notifications[0].kind: "slak" is not one of slack, http; did you mean slack?`, "audit"},
		{"{name: ops}", "spec.notifications[0].kind: no kind", ""},
		{"{kind: http}", "spec.notifications[0].name: no name", ""},
		{"{name: ops, kind: http}, {name: ops, kind: slack}", `"ops" is the name of another one already`, "ops"},
		{`{name: ops, kind: http, filter: "event.typ == 'Warning'"}`, "spec.notifications[0].filter: undefined field 'typ'", ""},
		{"{name: ops, kind: slack, url: 'https://hooks.example.com/x'}", `"url"`, ""},
		{"{name: [], kind: slack}, {name: audit, kind: http}", "spec.notifications[0].name", "audit"},
	} {
		file := schemas.Parse("gitvirt.yaml", []byte("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nspec: {notifications: ["+test.receivers+"]}\n"))
		if said := fmt.Sprint(file.Diagnostics); (test.says == "") != (len(file.Diagnostics) == 0) || !strings.Contains(said, test.says) {
			t.Errorf("%s: %s", test.receivers, said)
		}
		var names []string
		for _, receiver := range file.Fleet.Spec.Notifications {
			names = append(names, receiver.Name)
			if receiver.Filter == "" {
				t.Errorf("%s: %s has no filter", test.receivers, receiver.Name)
			}
		}
		if strings.Join(names, " ") != test.names || file.Fleet.Spec.Policy.Doubt != "" {
			t.Errorf("%s: %v, doubt %q", test.receivers, names, file.Fleet.Spec.Policy.Doubt)
		}
	}
}

// TestFleetOnKubernetes: what machines may have in a cluster, and the careful choice for what cannot be read.
func TestFleetOnKubernetes(t *testing.T) {
	for _, test := range []struct {
		settings, says string
		allowed        []string
		emulation      bool
	}{
		{"", "", []string{"shop/", "shop/default"}, true},
		{"serviceAccounts: [shop/registry, bank/registry.v2]", "", []string{"shop/", "shop/default", "shop/registry", "bank/registry.v2"}, true},
		{"emulation: installed", "", []string{"shop/", "shop/default"}, true},
		{"emulation: never", "", []string{"shop/", "shop/default"}, false},
		{"emulation: allways", `"allways"`, []string{"shop/", "shop/default"}, false},
		{"serviceAccounts: [registry]", `spec.kubernetes.serviceAccounts[0]: "registry" names no ServiceAccount`, []string{"shop/", "shop/default"}, true},
		{"serviceAccounts: [shop/Registry]", `names no ServiceAccount`, []string{"shop/", "shop/default"}, true},
		{"serviceAccounts: ['*/registry']", `names no ServiceAccount`, []string{"shop/", "shop/default"}, true},
	} {
		file := schemas.Parse("gitvirt.yaml", []byte("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nspec: {platform: kubernetes, kubernetes: {"+test.settings+"}}\n"))
		if said := fmt.Sprint(file.Diagnostics); (test.says == "") != (len(file.Diagnostics) == 0) || !strings.Contains(said, test.says) {
			t.Errorf("%s: %s", test.settings, said)
		}
		settings := file.Fleet.Spec.Kubernetes
		var allowed []string
		for _, account := range []string{"shop/", "shop/default", "shop/registry", "bank/registry.v2", "bank/admin"} {
			namespace, name, _ := strings.Cut(account, "/")
			if settings.AllowsServiceAccount(namespace, name) {
				allowed = append(allowed, account)
			}
		}
		if !slices.Equal(allowed, test.allowed) || settings.AllowsEmulation() != test.emulation {
			t.Errorf("%s: allows %v, emulation %v", test.settings, allowed, settings.AllowsEmulation())
		}
	}
}

// TestText covers what bytes a file may be made of.
func TestText(t *testing.T) {
	good := vmi("web", "  domain: {memory: {guest: 1Gi}}\n")
	for _, test := range []struct {
		reason, text, want string
	}{
		{"a byte order mark is fine", "\ufeff" + good, ""},
		{"so are DOS line ends", strings.ReplaceAll(good, "\n", "\r\n"), ""},
		{"and directives", "%YAML 1.1\n---\n" + good + "...\n", ""},
		{"and an end marker before the next document", good + "...\n---\n# nothing\n", ""},
		{"no NUL", good + "#\x00", "NUL"},
		{"no Latin-1", good + "# \xe4", "not UTF-8"},
		{"no UTF-16", "\xff\xfea\x00", "UTF-16"},
	} {
		file := schemas.Parse("vm.yaml", []byte(test.text))
		switch {
		case test.want == "" && (len(file.VMs) != 1 || len(file.Diagnostics) != 0):
			t.Errorf("%s: %v", test.reason, file.Diagnostics)
		case test.want != "" && (!file.Opaque || len(file.Diagnostics) != 1 || !strings.Contains(file.Diagnostics[0].Message, test.want)):
			t.Errorf("%s: opaque=%v, %v", test.reason, file.Opaque, file.Diagnostics)
		}
	}
}

// TestPlacesOfBadBytes: what no text file holds is told at the line and column, counted in characters, where it is.
func TestPlacesOfBadBytes(t *testing.T) {
	good := vmi("web", "  domain: {memory: {guest: 1Gi}}\n")
	for _, test := range []struct{ reason, text, want string }{
		{"a NUL", good + "# ä\x00", "vm.yaml:7:4"},
		{"Latin-1", good + "---\n# ä \xe4", "vm.yaml:8:5"},
		{"a mistake after a byte order mark", "\ufeffkind: {", "vm.yaml:1:7"},
		{"a mistake after DOS line ends", strings.ReplaceAll(vmi("web", "  domian: {}\n"), "\n", "\r\n"), "vm.yaml:6:3"},
		{"a tab after DOS line ends", strings.ReplaceAll(vmi("web", "\tdomain: {}\n"), "\n", "\r\n"), "vm.yaml:6:1"},
		{"a mistake after the old Mac's line ends", strings.ReplaceAll("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndta: {}\n", "\n", "\r"), "vm.yaml:4:1"},
		{"a tab where it does no harm", strings.Replace(good, "name: web", "name:\tweb", 1) + "nosuch: 1\n", "vm.yaml:7:1"},
		{"a mistake in the second document", good + "---\n" + vmi("x", "  domain: {memory: {guest: 1Gi, gest: 1}}\n"), "vm.yaml:13:33"},
		{"a second document that is broken", good + "---\nkind: [\n", "vm.yaml:8:7"},
	} {
		file := schemas.Parse("vm.yaml", []byte(test.text))
		if len(file.Diagnostics) == 0 || file.Diagnostics[0].Position.String() != test.want {
			t.Errorf("%s: %v, want it at %s", test.reason, file.Diagnostics, test.want)
		}
	}
}

// TestLongNames: names that are as long as they may be are fine, and one more character is told where the name is.
func TestLongNames(t *testing.T) {
	name := func(n int) string { return strings.Repeat("a", n) }
	const tail = "  domain: {memory: {guest: 1Gi}}\n"
	for _, test := range []struct{ reason, text, want string }{
		{"as long as libvirt's files allow", vmi(name(239), tail), ""},
		{"longer than libvirt's files allow", vmi(name(240), tail), "vm.yaml:4:9: metadata.name: namespace and name are 1 characters too long"},
		{"as long as Kubernetes allows", vmi(name(253), tail), "vm.yaml:4:9: metadata.name: namespace and name are 14 characters too long"},
		{"longer than Kubernetes allows", vmi(name(254), tail), "vm.yaml:4:9: metadata.name: the name is 254 characters long, at most 253"},
		{"a long hostname", vmi("web", "  hostname: "+name(64)+"\n"+tail), "vm.yaml:6:13: spec.hostname: the name is 64"},
		{"a subdomain of 253", vmi("web", "  subdomain: "+name(253)+"\n"+tail), ""},
		{"a subdomain of 254", vmi("web", "  subdomain: "+name(254)+"\n"+tail), "vm.yaml:6:14: spec.subdomain: the name is 254"},
		{"a volume", vmi("web", tail+"  volumes:\n  - name: "+name(253)+"\n    emptyDisk: {capacity: 1Gi}\n"), "vm.yaml:8:11: spec.volumes[0].name: the name is 253"},
		{"a namespace", strings.Replace(vmi("web", tail), "metadata:\n", "metadata:\n  namespace: "+name(253)+"\n", 1), "vm.yaml:4:14: metadata.namespace: the name is 253"},
		{"a label", strings.Replace(vmi("web", tail), "metadata:\n", "metadata:\n  labels: {app: "+name(253)+"}\n", 1), "vm.yaml:4:17: metadata.labels.app: 253 characters long"},
	} {
		file := schemas.Parse("vm.yaml", []byte(test.text))
		switch {
		case test.want == "" && len(file.VMs) != 1:
			t.Errorf("%s: %v", test.reason, file.Diagnostics)
		case test.want != "" && (len(file.Diagnostics) == 0 || !strings.HasPrefix(file.Diagnostics[0].Error(), test.want)):
			t.Errorf("%s: %v, want %s", test.reason, file.Diagnostics, test.want)
		}
	}
}

// TestHostileInput must end soon and say little.
func TestHostileInput(t *testing.T) {
	var merges strings.Builder
	for i := range 30 {
		fmt.Fprintf(&merges, "  - &m%d {<<: [*m%d, *m%d]}\n", i+1, i, i)
	}
	for _, test := range []struct{ reason, text string }{
		{"merges that double", vmi("x", "  tolerations:\n  - &m0 {key: a}\n"+merges.String())},
		{"deep nesting", "a: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000)},
		{"deep mappings", strings.Repeat("{a: ", 5000) + strings.Repeat("}", 5000)},
		{"many unknown fields", vmi("x", "  domain: {memory: {guest: 1Gi}}\n"+unknownFields(20_000))},
		{"many volumes", vmi("x", "  domain: {memory: {guest: 1Gi}}\n  volumes:\n"+strings.Repeat("  - {name: a, emptyDisk: {capacity: 1}}\n", 10_000))},
		{"many documents", strings.Repeat("---\nkind: x\n", 20_000)},
		{"a long name", vmi(strings.Repeat("a", 1<<20), "  domain: {}\n")},
		{"a long text with a mistake", vmi("x", strings.Repeat("  a: \"b\n  c\"\n", 4500)+"  d: e: f\n")},
		{"many documents with mistakes", strings.Repeat("---\nkind: x: y\nmetadata: {\n", 20_000)},
		{"a set of large machines", "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceReplicaSet\nmetadata: {name: x}\nspec:\n  replicas: 1000\n  selector: {}\n  template:\n" +
			"    metadata:\n      annotations:\n" + largeAnnotations(20_000) + "    spec: {domain: {memory: {guest: 1Gi}}}\n"},
		{"many sets", strings.Repeat("---\napiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceReplicaSet\nmetadata: {name: x}\nspec:\n  replicas: 1000\n  selector: {}\n  template: {spec: {domain: {memory: {guest: 1Gi}}}}\n", 500)},
		{"many bad labels", badLabels(10_000)},
		{"a long field", vmi("x", "  "+strings.Repeat("a", 1<<16)+": 1\n")},
	} {
		start := time.Now()
		file := schemas.Parse("x.yaml", []byte(test.text))
		if n := len(file.Diagnostics); n > 2000 || n == 0 {
			t.Errorf("%s: %d diagnostics", test.reason, n)
		}
		for _, d := range file.Diagnostics[:min(10, len(file.Diagnostics))] {
			if len(d.Error()) > 2000 {
				t.Errorf("%s: a message of %d bytes", test.reason, len(d.Error()))
			}
		}
		t.Logf("%s: %v, %d diagnostics", test.reason, time.Since(start), len(file.Diagnostics))
	}
}

func largeAnnotations(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "        key-%d: value\n", i)
	}
	return b.String()
}

// badLabels is a machine with labels and annotations that are none.
func badLabels(n int) string {
	var b strings.Builder
	b.WriteString("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata:\n  name: x\n  labels:\n")
	for i := range n {
		fmt.Fprintf(&b, "    -key%d: value\n", i)
	}
	return b.String() + "spec: {domain: {memory: {guest: 1Gi}}}\n"
}

// TestSameListEachTime: the mistakes that are listed are the same ones when there are more than that.
func TestSameListEachTime(t *testing.T) {
	text := []byte(badLabels(3000))
	first := schemas.Parse("x.yaml", text).Diagnostics
	if diff := cmp.Diff(first, schemas.Parse("x.yaml", text).Diagnostics); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
}

func unknownFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  field%d: 1\n", i)
	}
	return b.String()
}

// TestParallel: files are read by many goroutines at once; the race detector watches.
func TestParallel(t *testing.T) {
	content, err := os.ReadFile("testdata/conformance/vmi-masquerade.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	files := make([]*schemas.File, 16)
	for i := range files {
		group.Go(func() {
			files[i] = schemas.Parse(fmt.Sprintf("%d.yaml", i), content)
			schemas.Assemble(files[i : i+1])
		})
	}
	group.Wait()
	for _, file := range files {
		if file.VMs[0].Hash != files[0].VMs[0].Hash {
			t.Error("hashes differ")
		}
	}
}

// TestOrderDoesNotMatter: the desired state does not depend on the order of the files.
func TestOrderDoesNotMatter(t *testing.T) {
	paths, _ := filepath.Glob("testdata/conformance/*.yaml")
	var files []*schemas.File
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, schemas.Parse(path, content), schemas.Parse("copy/"+path, content))
	}
	want := describe(schemas.Assemble(files))
	rapid.Check(t, func(t *rapid.T) {
		if diff := cmp.Diff(want, describe(schemas.Assemble(rapid.Permutation(files).Draw(t, "files")))); diff != "" {
			t.Fatalf("(-sorted +shuffled):\n%s", diff)
		}
	})
}
