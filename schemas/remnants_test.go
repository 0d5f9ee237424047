package schemas_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestWhatLivesIsNotGivenAway: what a machine has stays its own while its manifest is unread, has mistakes, asks for something else or is
// gone, and another repository that asked for it all the time does not get it.
func TestWhatLivesIsNotGivenAway(t *testing.T) {
	const victim = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: db, namespace: shared}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: 64Mi}
        devices: {interfaces: [{name: lan, bridge: {}, macAddress: "52:54:00:00:00:01"}]}
        firmware: {uuid: 11111111-2222-4333-8444-555555555555}
      networks: [{name: lan, multus: {networkName: infra/lan}}]
      volumes:
      - {name: image, hostDisk: {path: /srv/pool/db.img, type: Disk}}
      - {name: data, persistentVolumeClaim: {claimName: data}}
`
	const claim = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shared}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
`
	rival := func(domain, rest string) string {
		return "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: x, namespace: shared}\n" +
			"spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}, " + domain + "}, " + rest + "}}}\n"
	}
	wants := map[string]string{
		"its MAC address":  rival(`devices: {interfaces: [{name: n, bridge: {}, macAddress: "52:54:00:00:00:01"}]}`, "networks: [{name: n, multus: {networkName: lan}}]"),
		"its UUID":         rival("firmware: {uuid: 11111111-2222-4333-8444-555555555555}", "terminationGracePeriodSeconds: 1"),
		"its disk image":   rival("devices: {}", "volumes: [{name: d, hostDisk: {path: /srv/pool/db.img, type: Disk}}]"),
		"its claim":        strings.Replace(claim, "ReadWriteOnce", "ReadWriteMany", 1) + rival("devices: {}", "volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]"),
		"its derived MAC":  rival(`devices: {interfaces: [{name: n, bridge: {}, macAddress: "`+schemas.MACAddress(schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "shared", Name: "web"}, "default")+`"}]}`, "networks: [{name: n, multus: {networkName: lan}}]"),
		"what nobody uses": rival("firmware: {uuid: 11111111-2222-4333-8444-000000000000}", "volumes: [{name: d, hostDisk: {path: /srv/pool/x.img, type: Disk}}]"),
	}
	const other = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: web, namespace: shared}\nspec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}}}}}\n"
	fleet := schemas.Parse("gitvirt.yaml", []byte(tenants))
	theirs := func(text string) *schemas.File { return schemas.ParseFrom("team-b", "db.yaml", []byte(text)) }
	before := schemas.Assemble([]*schemas.File{fleet, theirs(claim + victim + "---\n" + other)})
	if len(before.VMs) != 2 {
		t.Fatal(before.Diagnostics)
	}
	lives := living{}
	for _, vm := range before.VMs {
		lives[vm.Address] = schemas.Held{Source: "team-b", Fleet: "shop", Record: vm.Record}
	}
	known := theirs(claim + victim + "---\n" + other)
	schemas.Assemble([]*schemas.File{fleet, known}, schemas.Holding(lives))
	fewer := schemas.Parse("gitvirt.yaml", []byte(strings.Replace(tenants, "    hostPaths: [/srv/pool]\n    networks: [lan, infra/lan]\n", "", 2)))
	fewer.Fleet.Spec.Sources[0] = fleet.Fleet.Spec.Sources[0] // team-a may still use what it could
	for state, file := range map[string]*schemas.File{
		"as it was": theirs(claim + victim + "---\n" + other), "known already": known, "not allowed any more": known, "unread": schemas.Unread("team-b", "it is down"), "not YAML": theirs("kind: ["), "gone": theirs("# nothing\n"),
		"a mistake": theirs(claim + strings.Replace(victim, "Always", "Sometimes", 1) + "---\n" + strings.Replace(other, "Always", "Sometimes", 1)),
		"otherwise": theirs(strings.NewReplacer("00:01", "00:02", "555555555555", "666666666666", "db.img", "new.img", "{name: data, persistentVolumeClaim: {claimName: data}}", "{name: data, emptyDisk: {capacity: 1Gi}}").
			Replace(victim) + "---\n" + strings.Replace(other, "64Mi}", "64Mi}, devices: {interfaces: [{name: default, masquerade: {}, macAddress: \"52:54:00:00:00:09\"}]}", 1)),
	} {
		judge := fleet
		if state == "not allowed any more" {
			judge = fewer
		}
		for what, manifest := range wants {
			desired := schemas.Assemble([]*schemas.File{judge, file, schemas.ParseFrom("team-a", "x.yaml", []byte(manifest))}, schemas.Holding(lives))
			made := slices.ContainsFunc(desired.VMs, func(vm *schemas.VM) bool { return vm.Address.Name == "x" })
			if made != (what == "what nobody uses") {
				t.Errorf("%s while the manifest is %s: another repository gets it: %v\n%s", what, state, made, told(desired.Diagnostics))
			}
		}
	}
}

// TestClaimOfWhatIsNotAllowedAnyMore: a machine that lives has its claim open though its repository has lost a right and though no
// repository has the claim's manifest.
func TestClaimOfWhatIsNotAllowedAnyMore(t *testing.T) {
	machine := func(name string) string {
		return "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: " + name + ", namespace: shared}\n" +
			"spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}, devices: {interfaces: [{name: lan, bridge: {}}]}}, " +
			"networks: [{name: lan, multus: {networkName: infra/lan}}], volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]}}}\n"
	}
	const claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: shared}\n" +
		"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"
	cluster := strings.Replace(tenants, "spec:\n", "spec:\n  platform: kubernetes\n", 1)
	shared := schemas.Parse("claim.yaml", []byte(claim))
	fleet := schemas.Parse("gitvirt.yaml", []byte(cluster))
	theirs := schemas.ParseFrom("team-b", "db.yaml", []byte(machine("db")))
	before := schemas.Assemble([]*schemas.File{fleet, shared, theirs})
	if len(before.VMs) != 1 {
		t.Fatal(before.Diagnostics)
	}
	lives := living{before.VMs[0].Address: {Source: "team-b", Fleet: "shop", Record: before.VMs[0].Record}}
	at := strings.LastIndex(cluster, ", infra/lan")
	fewer := schemas.Parse("gitvirt.yaml", []byte(cluster[:at]+strings.Replace(cluster[at:], ", infra/lan", "", 1)))
	desired := schemas.Assemble([]*schemas.File{fewer, shared, theirs, schemas.ParseFrom("team-a", "x.yaml", []byte(machine("x")))}, schemas.Holding(lives))
	for _, name := range []string{"db", "x"} {
		if !slices.ContainsFunc(desired.Broken, func(b schemas.Broken) bool { return b.Address.Name == name }) {
			t.Errorf("%s is not refused:\n%s", name, told(desired.Diagnostics))
		}
	}
}

// TestClaimWhoseManifestIsGone: a machine has its claim open after the claim's manifest was removed, whatever was assembled before.
func TestClaimWhoseManifestIsGone(t *testing.T) {
	const claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: shared}\n" +
		"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"
	machine := func(name string) string {
		return "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: " + name + ", namespace: shared}\n" +
			"spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}}, volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]}}}\n"
	}
	fleet := schemas.Parse("gitvirt.yaml", []byte(strings.Replace(tenants, "spec:\n", "spec:\n  platform: kubernetes\n", 1)))
	theirs, theirClaim := schemas.ParseFrom("team-b", "db.yaml", []byte(machine("db"))), schemas.ParseFrom("team-b", "data.yaml", []byte(claim))
	before := schemas.Assemble([]*schemas.File{fleet, theirs, theirClaim})
	if len(before.VMs) != 1 {
		t.Fatal(before.Diagnostics)
	}
	lives := living{before.VMs[0].Address: {Source: "team-b", Fleet: "shop", Record: before.VMs[0].Record}}
	rival := schemas.ParseFrom("team-a", "x.yaml", []byte(claim+"---\n"+machine("x")))
	for range 2 {
		schemas.Assemble([]*schemas.File{fleet, theirs, theirClaim, rival}, schemas.Holding(lives))
		for range 2 {
			desired := schemas.Assemble([]*schemas.File{fleet, theirs, rival}, schemas.Holding(lives))
			if !slices.ContainsFunc(desired.Broken, func(b schemas.Broken) bool { return b.Address.Name == "x" }) {
				t.Errorf("x is not refused:\n%s", told(desired.Diagnostics))
			}
		}
	}
}

// TestMachineMovesWithWhatItHas: its remnant does not stand in the way of the same machine in another repository.
func TestMachineMovesWithWhatItHas(t *testing.T) {
	const machine = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: db, namespace: shared}\n" +
		"spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}}, volumes: [{name: d, hostDisk: {path: /srv/pool/db.img, type: Disk}}]}}}\n"
	fleet := schemas.Parse("gitvirt.yaml", []byte(tenants))
	before := schemas.Assemble([]*schemas.File{fleet, schemas.ParseFrom("team-b", "db.yaml", []byte(machine))})
	lives := living{before.VMs[0].Address: {Source: "team-b", Fleet: "shop", Record: before.VMs[0].Record}}
	keep := schemas.ParseFrom("team-b", "keep.yaml", []byte("# nothing\n"))
	desired := schemas.Assemble([]*schemas.File{fleet, keep, schemas.ParseFrom("team-a", "db.yaml", []byte(machine))}, schemas.Holding(lives))
	if len(desired.VMs) != 1 || desired.Diagnostics.Errors() > 0 {
		t.Error(desired.Diagnostics)
	}
}

// TestObjectsOfWhatIsUnread: a Service that lives stays with its repository while nobody can tell whether that still asks for it.
func TestObjectsOfWhatIsUnread(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shared}\nspec: {selector: {app: x}, ports: [{port: 80}]}\n"
	fleet := schemas.Parse("gitvirt.yaml", []byte(strings.Replace(tenants, "spec:\n", "spec:\n  platform: kubernetes\n", 1)))
	address := schemas.Address{Kind: schemas.KindService, Namespace: "shared", Name: "web"}
	lives := living{address: {Source: "team-b", Fleet: "shop", Record: []byte("{}")}}
	for state, test := range map[string]struct {
		file *schemas.File
		kept bool
	}{
		"unread":    {schemas.Unread("team-b", "it is down"), true},
		"not YAML":  {schemas.ParseFrom("team-b", "web.yaml", []byte("kind: [")), true},
		"a mistake": {schemas.ParseFrom("team-b", "web.yaml", []byte(strings.Replace(service, "port: 80", "port: none", 1))), true},
		"gone":      {schemas.ParseFrom("team-b", "web.yaml", []byte("# nothing\n")), false},
	} {
		desired := schemas.Assemble([]*schemas.File{fleet, test.file, schemas.ParseFrom("team-a", "web.yaml", []byte(service))}, schemas.Holding(lives))
		taken := slices.ContainsFunc(desired.Objects, func(o *schemas.Object) bool { return o.Address == address && o.Position.Source == "team-a" })
		if taken == test.kept {
			t.Errorf("%s: another repository gets it: %v\n%s", state, taken, told(desired.Diagnostics))
		}
	}
}
