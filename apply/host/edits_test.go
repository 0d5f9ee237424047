package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/plan"
)

// editedManifest is a machine of which people change with virsh what they please. Nothing boots in it.
const editedManifest = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: a}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 1
      domain:
        cpu: {sockets: 2, maxSockets: 4, model: qemu64}
        memory: {guest: 64Mi}
        devices:
          disks:
          - {name: data, disk: {bus: virtio}}
          - {name: cd, cdrom: {bus: sata}}
          interfaces:
          - {name: lan, masquerade: {}, macAddress: "02:00:00:00:00:0a"}
      networks:
      - {name: lan, pod: {}}
      volumes:
      - {name: data, emptyDisk: {capacity: 1Mi}}
`

// TestEditsOnLibvirt: what people change with virsh in the configuration of a machine or in its running guest is told apart, by the
// field of the manifest where there is one and by the place in the XML where there is none, and nothing else is told.
func TestEditsOnLibvirt(t *testing.T) {
	t.Parallel()
	daemon := libvirttest.Start(t)
	driver := libvirt.New(daemon.URI)
	t.Cleanup(func() { _ = driver.Close() })
	r := &rig{t: t, driver: driver, dir: t.TempDir()}
	r.start()
	t.Cleanup(func() { r.stop() })
	iso := filepath.Join(r.dir, "some.iso")
	if err := os.WriteFile(iso, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	want := desired(t, editedManifest)
	r.converge(want)
	process := daemon.QEMU("default_a")

	const spec, xml = "spec.template.spec.domain.", "devices/disk[vda]/iotune/total_iops_sec"
	for _, test := range []struct {
		name string
		// virsh are commands; edit, patterns and what comes in their place, an edit of the definition.
		virsh string
		edit  []string
		// config and running are what is told of both: "FIELD: WAS -> IS".
		config, running []string
		restarts        bool // the running guest can only be put right by a restart
	}{
		{name: "vCPUs", virsh: "setvcpus A 3 --config", config: []string{spec + "cpu.sockets: 2 -> 3"}},
		{name: "memory", virsh: "setmem A 48M --config", config: []string{spec + "memory.guest: 64Mi -> 48Mi"}},
		{
			name: "the bus of a disk", edit: []string{
				` model='virtio-non-transitional'>\s*<driver name='qemu' type='qcow2'`, "><driver name='qemu' type='qcow2'",
				`<target dev='vda' bus='virtio'/>(\s*<alias [^>]*>)?\s*<address [^>]*>`, "<target dev='sdb' bus='sata'/>$1",
			},
			config: []string{spec + "devices.disks[data].disk.bus: virtio -> sata"},
		},
		{
			name: "the model of an interface", edit: []string{`(<mac address='02:00:00:00:00:0a'/>\s*)<model type='virtio-non-transitional'/>`, "$1<model type='e1000e'/>"},
			config: []string{spec + "devices.interfaces[lan].model: virtio -> e1000e"},
		},
		{name: "a link", virsh: "domif-setlink A 02:00:00:00:00:0a down --config", config: []string{spec + "devices.interfaces[lan].state: up -> down"}},
		{name: "a limit", virsh: "blkdeviotune A vda --total-iops-sec 100 --config", config: []string{xml + ": <nil> -> 100"}},
		{name: "shares of the CPU", edit: []string{"<os>", "<cputune><shares>512</shares></cputune><os>"}, config: []string{"cputune/shares: <nil> -> 512"}},
		{name: "a disk", virsh: "attach-disk A " + iso + " vdz --config", config: []string{spec + "devices.disks[vdz]: <nil> -> present"}},
		{name: "a link, now", virsh: "domif-setlink A 02:00:00:00:00:0a down", running: []string{spec + "devices.interfaces[lan].state: up -> down"}},
		{name: "a medium, now", virsh: "change-media A sda " + iso + " --insert --live", running: []string{"spec.template.spec.volumes[cd]: <nil> -> " + iso}},
		{
			name: "a link, both", virsh: "domif-setlink A 02:00:00:00:00:0a down; domif-setlink A 02:00:00:00:00:0a down --config",
			config: []string{spec + "devices.interfaces[lan].state: up -> down"}, running: []string{spec + "devices.interfaces[lan].state: up -> down"},
		},
		{name: "vCPUs, now", virsh: "setvcpus A 3 --live", running: []string{spec + "cpu.sockets: 2 -> 3"}, restarts: true},
		{name: "a limit, now", virsh: "blkdeviotune A vda --total-iops-sec 100 --live", running: []string{xml + ": <nil> -> 100"}, restarts: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r.t = t
			for command := range strings.SplitSeq(test.virsh, ";") {
				if arguments := strings.Fields(strings.Replace(command, " A ", " default_a ", 1)); len(arguments) > 0 {
					daemon.Virsh(arguments...)
				}
			}
			if len(test.edit) > 0 {
				definition := daemon.Virsh("dumpxml", "--inactive", "default_a")
				for i := 0; i < len(test.edit); i += 2 {
					before := definition
					if definition = regexp.MustCompile(test.edit[i]).ReplaceAllString(before, test.edit[i+1]); definition == before {
						t.Fatalf("no %s in\n%s", test.edit[i], definition)
					}
				}
				file := filepath.Join(t.TempDir(), "a.xml")
				write(t, file, []byte(definition))
				daemon.Virsh("define", file)
			}
			p := r.eventually(want, "drifted", func(p *plan.Plan) bool {
				return len(p.Steps) == 1 && len(p.Steps[0].Drift) >= len(test.config) && len(p.Steps[0].RunningDrift) >= len(test.running)
			})
			step := p.Steps[0]
			if diff := cmp.Diff(test.config, told(step.Drift)); diff != "" {
				t.Errorf("drift of the configuration: %s", diff)
			}
			if diff := cmp.Diff(test.running, told(step.RunningDrift)); diff != "" {
				t.Errorf("drift of the running guest: %s", diff)
			}
			if len(step.Changes) > 0 || (step.Consequence == plan.ConsequenceRestart) != test.restarts {
				t.Errorf("step %+v", step)
			}
			if err := r.apply(p); err != nil {
				t.Error(err)
			}
			r.converge(want)
			if now := daemon.QEMU("default_a"); (now != process) != test.restarts {
				t.Errorf("the guest is process %d, was %d", now, process)
			} else {
				process = now
			}
		})
	}
}

// told are changes, a line each.
func told(changes []plan.Change) (out []string) {
	for _, change := range changes {
		out = append(out, fmt.Sprintf("%s: %v -> %v", change.Path, change.Before, change.After))
	}
	return out
}
