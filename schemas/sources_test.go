package schemas_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/schemas"
)

// tenants is a Fleet with two sources that share a namespace.
const tenants = `apiVersion: gitvirt.io/v1alpha1
kind: Fleet
metadata: {name: shop}
spec:
  sources:
  - name: team-a
    git: {url: "https://git.example.com/a.git"}
    namespaces: [a, shared]
    hostPaths: [/srv/pool]
    networks: [lan, infra/lan]
    quota: {vms: 4}
  - name: team-b
    git: {url: "https://git.example.com/b.git"}
    namespaces: [b, shared]
    hostPaths: [/srv/pool]
    networks: [lan, infra/lan]
`

// drawManifest is an object of few names, so that those of several repositories meet. memory may be changed without touching anything else.
func drawManifest(t *rapid.T, memory int) string {
	pick := func(what string, of ...string) string { return rapid.SampledFrom(of).Draw(t, what) }
	namespace, name := pick("namespace", "a", "b", "shared", "shared", "infra"), pick("name", "x", "y", "z", "x-0")
	var b strings.Builder
	metadata := func() { fmt.Fprintf(&b, "metadata: {name: %s, namespace: %s", name, namespace) }
	switch pick("kind", "VM", "VM", "VM", "VM", "VMI", "set", "paused", "Secret", "PVC", "DataVolume", "Service", "instancetype", "network", "garbage", "twice") {
	case "Secret":
		b.WriteString("apiVersion: v1\nkind: Secret\n")
		metadata()
		fmt.Fprintf(&b, "}\nstringData: {userdata: hush%s}\n", pick("value", "1", "2"))
		return b.String()
	case "PVC":
		b.WriteString("apiVersion: v1\nkind: PersistentVolumeClaim\n")
		metadata()
		b.WriteString("}\nspec: {accessModes: [" + pick("mode", "ReadWriteOnce", "ReadWriteMany") + "], resources: {requests: {storage: 1Gi}}}\n")
		return b.String()
	case "DataVolume":
		b.WriteString("apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\n")
		metadata()
		source := pick("source", "blank: {}", "pvc: {name: x}", "pvc: {namespace: shared, name: y}", "pvc: {namespace: infra, name: x}")
		fmt.Fprintf(&b, "}\nspec: {source: {%s}, storage: {resources: {requests: {storage: 1Gi}}}}\n", source)
		return b.String()
	case "Service":
		b.WriteString("apiVersion: v1\nkind: Service\n")
		metadata()
		b.WriteString("}\nspec: {selector: {app: x}, ports: [{port: 80}]}\n")
		return b.String()
	case "instancetype":
		b.WriteString("apiVersion: instancetype.kubevirt.io/v1beta1\nkind: " + pick("scope", "VirtualMachineInstancetype", "VirtualMachineClusterInstancetype") + "\n")
		metadata()
		fmt.Fprintf(&b, "}\nspec: {cpu: {guest: %s}, memory: {guest: 1Gi}}\n", pick("cpus", "1", "2"))
		return b.String()
	case "network":
		b.WriteString("apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\n")
		metadata()
		b.WriteString("}\n")
		return b.String()
	case "garbage":
		return pick("garbage", "kind: [\n", "kind: VirtualMachine\n", "apiVersion: kubevirt.io/v1\nkind: VirtualMachin\nmetadata: {name: x, namespace: shared}\n", tenants)
	case "set", "paused":
		fmt.Fprintf(&b, "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceReplicaSet\nmetadata: {name: x, namespace: %s}\n", namespace)
		fmt.Fprintf(&b, "spec: {replicas: 2, paused: %s, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {domain: {memory: {guest: 1Gi}}}}}\n", pick("paused", "true", "false"))
		return b.String()
	case "VMI":
		b.WriteString("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n")
		metadata()
		fmt.Fprintf(&b, "}\nspec: {domain: {memory: {guest: %dMi}}}\n", memory)
		return b.String()
	case "twice":
		return drawManifest(t, memory) + "---\n" + drawManifest(t, memory)
	}
	annotations := pick("annotations", "", "", "", ", annotations: {gitvirt.io/previous-name: shared/y}", ", annotations: {gitvirt.io/depends-on: shared/x}",
		", annotations: {gitvirt.io/depends-on: z}", ", annotations: {gitvirt.io/adopt: legacy}")
	b.WriteString("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\n")
	metadata()
	typed := pick("typed", "", "", "instancetype: {kind: VirtualMachineInstancetype, name: x}, ", "instancetype: {name: y}, ")
	guest := fmt.Sprintf("memory: {guest: %dMi}, ", memory)
	if typed != "" {
		guest = ""
	}
	fmt.Fprintf(&b, "%s}\nspec: {runStrategy: %s, %stemplate: {spec: {domain: {%s", annotations, pick("strategy", "Always", "Always", "Always", "Sometimes"), typed, guest)
	firmware := []string{"", "", "firmware: {uuid: 11111111-2222-4333-8444-555555555555}, "}
	macs := []string{"", "", ", macAddress: \"02:00:00:00:00:01\"", ", macAddress: \"02:00:00:00:00:02\""}
	for _, of := range []string{"b/x", "shared/x", "infra/x"} { // what gitvirt derives is for everybody to find out
		space, name, _ := strings.Cut(of, "/")
		address := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: space, Name: name}
		firmware = append(firmware, "firmware: {uuid: "+schemas.FirmwareUUID(address)+"}, ")
		macs = append(macs, fmt.Sprintf(", macAddress: %q", schemas.MACAddress(address, "n")))
	}
	network := pick("network", "pod: {}", "pod: {}", "multus: {networkName: lan}", "multus: {networkName: infra/lan}", "multus: {networkName: infra/x}", "multus: {networkName: x}")
	binding := "bridge: {}"
	fmt.Fprintf(&b, "%sdevices: {interfaces: [{name: n, %s%s}]}}, networks: [{name: n, %s}], volumes: [", pick("uuid", firmware...), binding, pick("mac", macs...), network)
	b.WriteString(pick("volume", "", "", "{name: d, hostDisk: {path: /srv/pool/x.img, type: Disk}}", "{name: d, hostDisk: {path: /srv/other/x.img, type: Disk}}",
		"{name: d, persistentVolumeClaim: {claimName: x}}", "{name: d, persistentVolumeClaim: {claimName: y}}", "{name: d, dataVolume: {name: x}}",
		"{name: d, cloudInitNoCloud: {secretRef: {name: x}}}", "{name: d, secret: {secretName: y, optional: true}}"))
	b.WriteString("]}}}\n")
	return b.String()
}

// drawFiles are the files of a source. Those of edited are the same but for the memory of machines.
func drawFiles(t *rapid.T, source string) (files, edited []*schemas.File) {
	for i := range rapid.IntRange(0, 6).Draw(t, "files of "+source) {
		text := drawManifest(t, 512)
		path := fmt.Sprintf("f%d.yaml", i)
		files = append(files, schemas.ParseFrom(source, path, []byte(text)))
		edited = append(edited, schemas.ParseFrom(source, path, []byte(strings.ReplaceAll(text, "512Mi", "768Mi"))))
	}
	return files, edited
}

// ownConflict reports whether a machine clashes with another one of its own repository.
func ownConflict(diagnostics schemas.Diagnostics, vm *schemas.VM) bool {
	return slices.ContainsFunc(diagnostics, func(d schemas.Diagnostic) bool {
		return d.Address == vm.Address && d.Position.Source == vm.Position.Source &&
			strings.Contains(d.Message, " too, at ") && !strings.Contains(d.Message, "at team-a:")
	})
}

// TestSourcesDoNotTouchOneAnother: whatever is in the manifests of a source, machines of other repositories that live come out the same
// as without it.
func TestSourcesDoNotTouchOneAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := tenants + rapid.SampledFrom([]string{"", "  platform: kubernetes\n"}).Draw(t, "platform")
		fleet := schemas.Parse("gitvirt.yaml", []byte(spec))
		theirs, edited := drawFiles(t, "team-b")
		main, editedMain := drawFiles(t, "")
		others, editedOthers := slices.Concat([]*schemas.File{fleet}, theirs, main), slices.Concat([]*schemas.File{fleet}, edited, editedMain)
		before, _ := drawFiles(t, "team-a")
		now, _ := drawFiles(t, "team-a")
		if rapid.Bool().Draw(t, "unread") {
			now = append(now, schemas.Unread("team-a", "it is down"))
		}

		held := living{}
		holding := schemas.Holding(held)
		apply := func(files []*schemas.File) {
			desired := schemas.Assemble(files, holding)
			for _, vm := range desired.VMs {
				held[vm.Address] = schemas.Held{Source: vm.Position.Source, Record: vm.Record}
			}
			for _, object := range desired.Objects {
				held[object.Address] = schemas.Held{Source: object.Position.Source, Record: object.Content}
			}
		}
		apply(others)
		apply(slices.Concat(others, before))

		// Without it, and not with what it asks for unknown: that stands in the way of others who would take over what it gave up.
		alone := schemas.Assemble(append(slices.Clone(editedOthers), schemas.ParseFrom("team-a", "nothing.yaml", nil)), holding)
		together := schemas.Assemble(slices.Concat(editedOthers, now), holding)
		got := map[schemas.Address]*schemas.VM{}
		for _, vm := range together.VMs {
			got[vm.Address] = vm
		}
		for _, vm := range alone.VMs {
			if lives, ok := held[vm.Address]; !ok || lives.Source != vm.Position.Source {
				continue
			}
			switch one := got[vm.Address]; {
			case one == nil && ownConflict(together.Diagnostics, vm):
				// Another machine of its own repository, which lacked something before, wants what it has.
			case one == nil:
				t.Fatalf("%s at %s is gone:\n%s", vm.Address, vm.Position, told(together.Diagnostics))
			case one.Position != vm.Position || one.Hash != vm.Hash:
				t.Fatalf("%s at %s became that at %s:\n%s", vm.Address, vm.Position, one.Position, told(together.Diagnostics))
			}
		}
		checkShape(t, together)
		if together.Fleet.Name != "shop" || len(together.Fleet.Spec.Sources) != 2 {
			t.Fatalf("the Fleet is %+v", together.Fleet)
		}
		again := schemas.Assemble(slices.Concat(now, editedOthers), holding)
		if told(again.Diagnostics) != told(together.Diagnostics) || describe(again) != describe(together) {
			t.Fatalf("the order of the files matters:\n%s\n---\n%s", describe(together), describe(again))
		}
	})
}

// checkShape checks what holds for every Desired.
func checkShape(t *rapid.T, d *schemas.Desired) {
	broken := map[schemas.Address]bool{}
	for _, b := range d.Broken {
		if broken[b.Address] {
			t.Fatalf("%s is broken twice", b.Address)
		}
		broken[b.Address] = true
	}
	for i, vm := range d.VMs {
		if broken[vm.Address] || i > 0 && d.VMs[i-1].Address.Compare(vm.Address) >= 0 {
			t.Fatalf("%s is both good and broken, or in two places", vm.Address)
		}
	}
	if !slices.IsSortedFunc(d.Broken, func(x, y schemas.Broken) int { return x.Address.Compare(y.Address) }) {
		t.Fatal("the broken objects are not in order")
	}
}

func told(ds schemas.Diagnostics) string {
	var b strings.Builder
	for _, d := range ds {
		fmt.Fprintln(&b, d.Error())
	}
	return b.String()
}

// TestTenantsAreNotNamedToOneAnother: no message of a source holds what only another one says, but for a name that both have.
func TestTenantsAreNotNamedToOneAnother(t *testing.T) {
	const machine = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %s, namespace: %s}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: 1Gi}
        firmware: {uuid: 11111111-2222-4333-8444-555555555555}
        devices: {interfaces: [{name: n, masquerade: {}, macAddress: "02:00:00:00:00:01"}]}
      networks: [{name: n, pod: {}}]
      volumes:
      - {name: d, hostDisk: {path: /srv/pool/x.img, type: Disk}}
      - {name: s, cloudInitNoCloud: {secretRef: {name: keys}}}
---
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: b}
stringData: {userdata: hush}
`
	files := []*schemas.File{
		schemas.Parse("gitvirt.yaml", []byte(tenants)),
		schemas.ParseFrom("team-a", "a.yaml", fmt.Appendf(nil, machine, "of-a", "a", "keys")),
		schemas.ParseFrom("team-b", "ledger.yaml", fmt.Appendf(nil, machine, "treasury", "b", "keys")),
	}
	for _, d := range schemas.Assemble(files).Diagnostics {
		if d.Position.Source == "team-a" && (strings.Contains(d.Error(), "treasury") || strings.Contains(d.Error(), "ledger")) {
			t.Errorf("%s", d.Error())
		}
	}
}

// TestQuotaOfWhatLives: what lives keeps what it has when the quota is lowered below it, and may change otherwise.
func TestQuotaOfWhatLives(t *testing.T) {
	const machine = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: "%s", namespace: a}
spec: {runStrategy: %s, template: {spec: {domain: {memory: {guest: %s}}}}}
---
`
	fleet := func(quota string) *schemas.File {
		return schemas.Parse("gitvirt.yaml", []byte(strings.Replace(tenants, "quota: {vms: 4}", "quota: "+quota, 1)))
	}
	files := func(machines ...string) *schemas.File {
		return schemas.ParseFrom("team-a", "vms.yaml", []byte(strings.Join(machines, "")))
	}
	one := func(name, strategy, memory string) string { return fmt.Sprintf(machine, name, strategy, memory) }
	lived := schemas.Assemble([]*schemas.File{fleet("{vms: 4}"), files(one("a", "Always", "2Gi"), one("b", "Always", "2Gi"), one("c", "Always", "2Gi"))})
	held := living{}
	for _, vm := range lived.VMs {
		held[vm.Address] = schemas.Held{Source: "team-a", Record: vm.Record}
	}
	for _, test := range []struct {
		reason, quota string
		machines      []string
		want          string
	}{
		{"all live", "{vms: 3}", []string{one("a", "Always", "2Gi"), one("b", "Always", "2Gi"), one("c", "Always", "2Gi")}, "a b c"},
		{"lowered", "{vms: 1, memory: 1Gi}", []string{one("a", "Always", "2Gi"), one("b", "Always", "2Gi"), one("c", "Always", "2Gi")}, "a b c"},
		{"changed otherwise", "{memory: 1Gi}", []string{one("a", "Halted", "2Gi"), one("b", "Always", "2Gi"), one("c", "Always", "2Gi")}, "a b c"},
		{"one shrinks", "{memory: 1Gi}", []string{one("a", "Always", "1Gi"), one("b", "Always", "2Gi"), one("c", "Always", "2Gi")}, "a b c"},
		{"one shrinks for another", "{memory: 6Gi}", []string{one("a", "Always", "1Gi"), one("b", "Always", "3Gi"), one("c", "Always", "2Gi")}, "a b c"},
		{"one grows", "{memory: 6Gi}", []string{one("a", "Always", "2Gi"), one("b", "Always", "3Gi"), one("c", "Always", "2Gi")}, "a c"},
		{"the new one comes last", "{memory: 6Gi}", []string{one("0", "Always", "1Gi"), one("a", "Always", "2Gi"), one("b", "Always", "2Gi"), one("c", "Always", "2Gi")}, "a b c"},
		{"there is room for the small one", "{memory: 7Gi}", []string{one("0", "Always", "2Gi"), one("1", "Always", "1Gi"), one("a", "Always", "2Gi"), one("b", "Always", "2Gi"), one("c", "Always", "2Gi")}, "1 a b c"},
		{"one was removed and lives", "{vms: 3}", []string{one("0", "Always", "1Gi"), one("a", "Always", "2Gi"), one("b", "Always", "2Gi")}, "a b"},
	} {
		desired := schemas.Assemble([]*schemas.File{fleet(test.quota), files(test.machines...)}, schemas.Holding(held))
		var got []string
		for _, vm := range desired.VMs {
			got = append(got, vm.Address.Name)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v, want %s\n%s", test.reason, got, test.want, told(desired.Diagnostics))
		}
		if len(desired.VMs)+len(desired.Broken) != len(test.machines) {
			t.Errorf("%s: %v are broken", test.reason, desired.Broken)
		}
	}
}

// TestTrustOfSources: what a source says of a Fleet is no trust, and what a Fleet says of a source is.
func TestTrustOfSources(t *testing.T) {
	fleet := schemas.Parse("gitvirt.yaml", []byte(strings.Replace(tenants, "    quota: {vms: 4}\n", "    trust: {}\n", 1)))
	files := []*schemas.File{fleet, schemas.ParseFrom("team-a", "gitvirt.yaml", []byte("kind: [")), schemas.ParseFrom("team-b", "gitvirt.yaml", []byte(tenants))}
	if trust := schemas.TrustOf(files); trust != nil {
		t.Errorf("%+v", trust)
	}
	if trust := schemas.Assemble(files).Fleet.Source("team-a").Trust; trust == nil || trust.Signatures != schemas.SignaturesHead {
		t.Errorf("%+v", trust)
	}
	sources := schemas.Assemble(files).Opaque
	if want := (schemas.Position{Source: "team-a", File: "gitvirt.yaml"}); len(sources) != 1 || sources[0] != want {
		t.Errorf("opaque %v", sources)
	}
	if desired := schemas.Assemble(append(files, schemas.Unread("team-b", "it is down"))); !slices.Contains(desired.Opaque, schemas.Position{Source: "team-b"}) {
		t.Errorf("opaque %v", desired.Opaque)
	}
}

// TestProvenance: what a record says of where a machine is from is read back.
func TestProvenance(t *testing.T) {
	for source, want := range maps.All(map[string]string{"": "abc", "team-a": "team-a@abc"}) {
		got := schemas.Provenance(source, "abc")
		if back, commit := schemas.SplitProvenance(got); got != want || back != source || commit != "abc" {
			t.Errorf("%q: %s, %s, %s", source, got, back, commit)
		}
	}
}

// FuzzSource: whatever a source commits, the machine of another one that lives stays as it is, and all that is told has a place in the
// source.
func FuzzSource(f *testing.F) {
	archives, _ := filepath.Glob("testdata/diagnostics/sources-*.txtar")
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			f.Add(file.Data)
		}
	}
	fleet := schemas.Parse("gitvirt.yaml", []byte(tenants))
	victim := schemas.ParseFrom("team-b", "victim.yaml", []byte(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: held, namespace: shared}
spec:
  runStrategy: Always
  template:
    spec:
      domain: {memory: {guest: 1Gi}, devices: {interfaces: [{name: n, masquerade: {}, macAddress: "02:00:00:00:00:01"}]}}
      networks: [{name: n, pod: {}}]
      volumes: [{name: d, persistentVolumeClaim: {claimName: data}}, {name: s, cloudInitNoCloud: {secretRef: {name: keys}}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shared}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: shared}
stringData: {userdata: hush}
`))
	alone := schemas.Assemble([]*schemas.File{fleet, victim})
	if len(alone.VMs) != 1 {
		f.Fatal(alone.Diagnostics)
	}
	vm := alone.VMs[0]
	holding := schemas.Holding(living{vm.Address: {Source: "team-b", Record: vm.Record}})
	f.Fuzz(func(t *testing.T, content []byte) {
		desired := schemas.Assemble([]*schemas.File{fleet, victim, schemas.ParseFrom("team-a", "x.yaml", content)}, holding)
		at := slices.IndexFunc(desired.VMs, func(one *schemas.VM) bool { return one.Address == vm.Address })
		if at < 0 || desired.VMs[at].Hash != vm.Hash || desired.VMs[at].Position != vm.Position {
			t.Errorf("the machine of another source is not what it was:\n%s", told(desired.Diagnostics))
		}
		if desired.Fleet != fleet.Fleet {
			t.Error("the Fleet is another one")
		}
		for _, d := range desired.Diagnostics {
			if d.Position.Source == "" || d.Position.Line == 0 || d.Position.Source == "team-b" && d.Severity == schemas.SeverityError {
				t.Errorf("%s", d.Error())
			}
		}
	})
}
