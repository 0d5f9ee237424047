// Package schemastest draws fleets of machines and edits of them, for tests of what holds for all fleets.
package schemastest

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/schemas"
)

// Fleet is a repository of machines. The zero value has none.
type Fleet struct {
	// Spec is the spec of the Fleet, YAML at two spaces.
	Spec string
	// Image is what the machines boot: an image with /boot/vmlinuz and /boot/initramfs.img; none for machines that boot nothing.
	Image string
	vms   map[string]vm
	// kept are the sizes of the disks that ever were, by machine and disk: they outlive their machine and never shrink.
	kept map[string]int
}

// vm is a machine; all fields may be edited.
type vm struct {
	strategy           string
	sockets            int
	maxSockets         int // 0 for none
	memory, maxMemory  int // MiB; maxMemory 0 for none
	label, annotation  string
	hostname           string
	grace              int
	disks              map[string]disk
	nic                *nic   // nil for none; never changed, only replaced
	secret             string // of its user data; the guest sees it
	fromSecret         bool   // the user data stands in a Secret
	settings           string // of a ConfigMap on a CD-ROM; "" for none
	rng, watchdog      bool
	protect            bool
	bootMenu, noTablet bool
}

type disk struct {
	mib    int
	bus    string
	serial string
}

type nic struct {
	model string
	down  bool
}

// names are few, so that an edit meets what is there.
const (
	machines  = 4
	dataDisks = 3
)

// Draw returns a fleet of up to four machines.
func Draw(t *rapid.T) Fleet {
	f := Fleet{vms: map[string]vm{}, kept: map[string]int{}}
	for i := range rapid.IntRange(1, machines).Draw(t, "machines") {
		f.vms[machineName(i)] = drawVM(t)
	}
	f.keep()
	return f
}

// keep makes no disk smaller than one of its name was.
func (f *Fleet) keep() {
	for name := range f.vms {
		disks := f.vms[name].disks
		for of, d := range disks {
			id := name + "/" + of
			d.mib = max(d.mib, f.kept[id])
			disks[of], f.kept[id] = d, d.mib
		}
	}
}

func machineName(i int) string { return fmt.Sprintf("vm-%d", i) }

func drawVM(t *rapid.T) vm {
	v := vm{
		strategy: rapid.SampledFrom([]string{"Always", "Always", "Always", "RerunOnFailure", "Halted", "Manual"}).Draw(t, "strategy"),
		sockets:  rapid.IntRange(1, 3).Draw(t, "sockets"), memory: 64 * rapid.IntRange(2, 4).Draw(t, "memory"),
		grace: rapid.IntRange(0, 2).Draw(t, "grace"), disks: map[string]disk{}, nic: &nic{model: "virtio"},
		fromSecret: rapid.Bool().Draw(t, "from a Secret"), rng: rapid.Bool().Draw(t, "rng"),
	}
	if rapid.Bool().Draw(t, "hot-plug of CPUs") {
		v.maxSockets = 4
	}
	if rapid.Bool().Draw(t, "hot-plug of memory") {
		v.maxMemory = 1024
	}
	v.newSecret(t)
	for range rapid.IntRange(0, 2).Draw(t, "disks") {
		v.editDisk(t)
	}
	return v
}

// newSecret gives a machine user data that is found again wherever it gets.
func (v *vm) newSecret(t *rapid.T) {
	v.secret = fmt.Sprintf("canary%08xcanary", rapid.Uint32().Draw(t, "secret"))
}

// Edit returns the fleet after one to four edits, of any kind.
func (f Fleet) Edit(t *rapid.T) Fleet {
	out := Fleet{Spec: f.Spec, Image: f.Image, vms: make(map[string]vm, len(f.vms)), kept: maps.Clone(f.kept)}
	for name, v := range f.vms {
		v.disks = maps.Clone(v.disks)
		out.vms[name] = v
	}
	for range rapid.IntRange(1, 4).Draw(t, "edits") {
		name := machineName(rapid.IntRange(0, machines-1).Draw(t, "machine"))
		v, exists := out.vms[name]
		switch {
		case !exists:
			out.vms[name] = drawVM(t)
		case len(out.vms) > 1 && rapid.IntRange(0, 9).Draw(t, "removed") == 0:
			delete(out.vms, name)
		default:
			v.edit(t)
			out.vms[name] = v
		}
	}
	out.keep()
	return out
}

func (v *vm) edit(t *rapid.T) {
	edits := []func(){
		func() {
			v.strategy = rapid.SampledFrom([]string{"Always", "Halted", "RerunOnFailure"}).Draw(t, "strategy")
		},
		func() { v.sockets = rapid.IntRange(1, 4).Draw(t, "sockets") },
		func() { v.memory = 64 * rapid.IntRange(2, 6).Draw(t, "memory") },
		func() { v.label = rapid.SampledFrom([]string{"", "web", "db"}).Draw(t, "label") },
		func() { v.annotation = rapid.SampledFrom([]string{"", "one", "two"}).Draw(t, "annotation") },
		func() { v.hostname = rapid.SampledFrom([]string{"", "alpha", "beta"}).Draw(t, "hostname") },
		func() { v.grace = rapid.IntRange(0, 2).Draw(t, "grace") },
		func() { v.editDisk(t) },
		func() { v.editDisk(t) },
		func() { v.editInterface(t) },
		func() { v.newSecret(t) },
		func() { v.fromSecret = !v.fromSecret },
		func() { v.settings = rapid.SampledFrom([]string{"", "first", "second"}).Draw(t, "settings") },
		func() { v.rng = !v.rng },
		func() { v.watchdog = !v.watchdog },
		func() { v.bootMenu = !v.bootMenu },
		func() { v.noTablet = !v.noTablet },
	}
	edits[rapid.IntRange(0, len(edits)-1).Draw(t, "edit")]()
}

// editDisk adds, grows, removes or changes a disk. Disks never shrink: that blocks a step for good.
func (v *vm) editDisk(t *rapid.T) {
	name := fmt.Sprintf("data-%d", rapid.IntRange(0, dataDisks-1).Draw(t, "disk"))
	d, exists := v.disks[name]
	switch {
	case !exists:
		d = disk{mib: rapid.IntRange(1, 4).Draw(t, "capacity"), bus: rapid.SampledFrom([]string{"virtio", "virtio", "scsi", "sata"}).Draw(t, "bus")}
	case rapid.IntRange(0, 2).Draw(t, "removed") == 0:
		delete(v.disks, name)
		return
	case rapid.Bool().Draw(t, "grown"):
		d.mib += rapid.IntRange(1, 4).Draw(t, "more")
	default:
		d.serial = rapid.SampledFrom([]string{"", "S1", "S2"}).Draw(t, "serial")
	}
	v.disks[name] = d
}

// editInterface plugs the network card in or out, or its cable.
func (v *vm) editInterface(t *rapid.T) {
	switch {
	case v.nic == nil:
		v.nic = &nic{model: rapid.SampledFrom([]string{"virtio", "virtio", "e1000e"}).Draw(t, "model")}
	case rapid.Bool().Draw(t, "removed"):
		v.nic = nil
	default:
		v.nic = &nic{model: v.nic.model, down: !v.nic.down}
	}
}

// Empty returns the fleet without its machines.
func (f Fleet) Empty() Fleet { return Fleet{Spec: f.Spec, Image: f.Image, kept: f.kept} }

// Secrets are what must not be in any rendering, as it is and as it is encoded.
func (f Fleet) Secrets() []string {
	var out []string
	for _, v := range f.vms {
		// Base64 shifts with what stands before: what every shift has in common is found.
		for shift := range 3 {
			encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + v.secret))
			out = append(out, encoded[4:len(encoded)-4])
		}
		out = append(out, v.secret)
	}
	return out
}

// Files are the manifests of the fleet, one file each, ordered by name.
func (f Fleet) Files() []*schemas.File {
	text := map[string]string{"gitvirt.yaml": "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata:\n  name: fleet\nspec:\n  drift: correct\n" + f.Spec}
	for name, v := range f.vms {
		text[name+".yaml"] = v.manifest(name, f.Image)
	}
	var files []*schemas.File
	for _, path := range slices.Sorted(maps.Keys(text)) {
		files = append(files, schemas.Parse(path, []byte(text[path])))
	}
	return files
}

// Names are the names of the machines, ordered.
func (f Fleet) Names() []string { return slices.Sorted(maps.Keys(f.vms)) }
