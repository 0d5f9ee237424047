package plan_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// podsOfTest are Pods whose node selector cannot be changed while they live.
type podsOfTest struct{}

func (podsOfTest) Name(vm schemas.Address) string { return "virt-launcher-" + vm.Name }

func (podsOfTest) Refused(_ *schemas.Fleet, vm *schemas.VM) error {
	if vm.Spec().Hostname == "refused" {
		return errors.New("vm.yaml:1: spec.template.spec.hostname: not in a Pod")
	}
	return nil
}

func (podsOfTest) Differences(applied *schemas.Recorded, vm *schemas.VM) ([]plan.Change, error) {
	before, after := applied.Object.Spec.Template.Spec.NodeSelector["disk"], vm.Spec().NodeSelector["disk"]
	if before == after {
		return nil, nil
	}
	return []plan.Change{{Path: "pod.spec.nodeSelector", Before: before, After: after, Consequence: plan.ConsequenceRestart}}, nil
}

// inPods is what runs of manifests, in Pods.
func inPods(t *testing.T, manifests ...string) []*plan.Domain {
	t.Helper()
	domains := running(t, manifests...)
	for _, domain := range domains {
		domain.Pod, domain.Node = "virt-launcher-"+domain.Address.Name, "node-1"
		domain.Disks = []plan.Disk{{Volume: "scratch", Kind: "emptyDisk"}}
	}
	return domains
}

// TestPods: on a platform of Pods a machine that is off has nothing, what no living Pod can be given makes another Pod, and with a Pod
// goes what lives in it.
func TestPods(t *testing.T) {
	const web = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: 128Mi}
        devices: {disks: [{name: scratch, disk: {bus: virtio}}]}
      volumes: [{name: scratch, emptyDisk: {capacity: 1Gi}}]
`
	edit := func(old, with string) string { return strings.Replace(web, old, with, 1) }
	elsewhere := edit("    spec:\n", "    spec:\n      nodeSelector: {disk: ssd}\n")
	stopped := func(stop string) []*plan.Domain {
		domains := inPods(t, web)
		domains[0].State, domains[0].Stop, domains[0].Ran, domains[0].RunningHash, domains[0].RunningRecord = plan.StateStopped, stop, true, "", nil
		return domains
	}
	busy := inPods(t, web)
	busy[0].Leave = "its Pod is being deleted"
	for _, test := range []struct {
		name string
		want []string
		have []*plan.Domain
		// action is "" for no step.
		action plan.Action
		new    bool
		risks  int
		text   string
	}{
		{name: "a new one", want: []string{web}, action: plan.ActionCreate, new: true, text: "Pod: default/virt-launcher-web, new, domain default_web"},
		{name: "a new one that is off", want: []string{edit("Always", "Halted")}},
		{name: "as it is", want: []string{web}, have: inPods(t, web)},
		{name: "shut down by git", want: []string{edit("Always", "Halted")}, have: inPods(t, web), action: plan.ActionStop, risks: 1},
		{name: "off, and stays so", want: []string{edit("Always", "Halted")}, have: stopped(plan.StopShutdown)},
		{name: "off, stays so and is another", want: []string{edit("Always", "Halted"), fleet}, have: stopped(plan.StopShutdown)},
		{name: "crashed", want: []string{web}, have: stopped(plan.StopCrashed), action: plan.ActionStart, new: true, risks: 1},
		{name: "shut down by its guest, and rerun on failure", want: []string{edit("Always", "RerunOnFailure")}, have: stopped(plan.StopShutdown)},
		{name: "evicted, and rerun on failure", want: []string{edit("Always", "RerunOnFailure")}, have: stopped(plan.StopCrashed), action: plan.ActionUpdate, new: true, risks: 1},
		{name: "another node", want: []string{elsewhere}, have: inPods(t, web), action: plan.ActionRestart, new: true, risks: 1, text: "on node-1"},
		{name: "another hostname", want: []string{edit("    spec:\n", "    spec:\n      hostname: other\n")}, have: inPods(t, web), action: plan.ActionRestart},
		{name: "gone", want: []string{fleet}, have: inPods(t, web), action: plan.ActionDestroy, risks: 1, text: "virt-launcher-web on node-1"},
		{name: "not in a Pod", want: []string{edit("    spec:\n", "    spec:\n      hostname: refused\n")}, action: plan.ActionCreate, new: true, text: "vm.yaml:1: spec.template.spec.hostname: not in a Pod"},
		{name: "being deleted", want: []string{edit("Always", "Halted")}, have: busy, text: "is left as it is: its Pod is being deleted"},
		{name: "being deleted, and gone from git", want: []string{fleet}, have: busy, text: "is left as it is: its Pod is being deleted"},
		{name: "renamed", want: []string{strings.Replace(edit("name: web", "name: shop"), "metadata: {", "metadata: {annotations: {gitvirt.io/previous-name: web}, ", 1)}, have: inPods(t, web), text: "a Pod keeps its name"},
		{name: "adopted", want: []string{strings.Replace(web, "metadata: {", "metadata: {annotations: {gitvirt.io/adopt: old}, ", 1)}, text: "which only a libvirt host has"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := plan.Build(desired(t, test.want...), plan.Observed{Domains: test.have, Live: everythingLive}, plan.Options{Pods: podsOfTest{}})
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := p.Text(&text, plan.TextOptions{}); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), test.text) {
				t.Errorf("no %q in\n%s", test.text, text.String())
			}
			if test.action == "" {
				if len(p.Steps) > 0 {
					t.Errorf("there is a step:\n%s", text.String())
				}
				return
			}
			if len(p.Steps) != 1 || p.Steps[0].Action != test.action || p.Steps[0].Pod == nil || p.Steps[0].Pod.New != test.new || len(p.Steps[0].DataAtRisk) != test.risks {
				t.Errorf("want %s, new: %t, %d risks; got\n%s", test.action, test.new, test.risks, text.String())
			}
		})
	}
}
