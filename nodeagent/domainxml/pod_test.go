package domainxml_test

import (
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// inPod gives a machine the taps of a Pod, as package networks makes them.
func inPod(machine domainxml.Machine) domainxml.Machine {
	var taps []domainxml.Tap
	for i := range machine.Spec.Domain.Devices.Interfaces {
		in := &machine.Spec.Domain.Devices.Interfaces[i]
		if in.SRIOV != nil || in.State == kubevirtv1.InterfaceStateAbsent {
			continue
		}
		tap := domainxml.Tap{Name: in.Name, Device: fmt.Sprintf("tap%d", i), MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), MTU: 1450, Queues: 1, VHost: true}
		if in.Model == "" || in.Model == kubevirtv1.VirtIO {
			tap.Queues = domainxml.Queues(machine.Spec)
		}
		taps = append(taps, tap)
	}
	machine.Host.Assignment.Taps = taps
	if machine.Record != nil {
		record := *machine.Record
		record.Assignment.Taps = taps
		machine.Record = &record
	}
	return machine
}

// cards returns the network cards of a document, each as what stands in it, in order.
func cards(t *testing.T, document string) [][]string {
	t.Helper()
	var root element
	if err := xml.Unmarshal([]byte(document), &root); err != nil {
		t.Fatal(err)
	}
	var out [][]string
	for _, card := range root.find("devices").all("interface") {
		facts := facts{}
		facts.attrs("interface", card, "type")
		for name, attributes := range map[string][]string{
			"target": {"dev", "managed"}, "model": {"type"}, "mac": {"address"}, "mtu": {"size"}, "alias": {"name"}, "rom": {"enabled"},
			"driver": {"name", "queues"}, "boot": {"order"}, "link": {"state"}, "acpi": {"index"},
		} {
			facts.attrs(name, card.find(name), attributes...)
		}
		var lines []string
		for name, value := range facts {
			lines = append(lines, name+"="+value)
		}
		slices.Sort(lines)
		out = append(out, lines)
	}
	return out
}

// TestPodInterfacesAreKubeVirts: in a Pod, where KubeVirt is at home, nothing of a network card is different.
func TestPodInterfacesAreKubeVirts(t *testing.T) {
	compared := 0
	for _, example := range append(examples(t), corpus(t)...) {
		document, err := domainxml.Render(inPod(example.machine()))
		if err != nil {
			t.Errorf("%s: %v", example.name, err)
			continue
		}
		got := factsOf(t, document)
		for fact := range union(got, example.want) {
			if strings.HasPrefix(fact, "interface[") {
				compared++
				if got[fact] != example.want[fact] {
					t.Errorf("%s: %s: KubeVirt has %q, gitvirt %q", example.name, fact, example.want[fact], got[fact])
				}
			}
		}
	}
	if compared < 100 {
		t.Errorf("%d facts were compared", compared)
	}
	all := examples(t)
	at := slices.IndexFunc(all, func(e example) bool { return e.name == "vmi-multus-multiple-net" })
	content, err := os.ReadFile("testdata/kubevirt/" + all[at].name + ".xml")
	if err != nil {
		t.Fatal(err)
	}
	machine := inPod(all[at].machine())
	for i, want := range []domainxml.Tap{{Device: "tap0", MAC: "02:01:cf:b4:5b:ca"}, {Device: "tape31d7ce2712", MAC: "02:12:f4:a3:75:ff"}} {
		tap := &machine.Host.Assignment.Taps[i]
		tap.Device, tap.MAC, tap.MTU = want.Device, want.MAC, 1500
	}
	document, err := domainxml.Render(machine)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cards(t, string(content)), cards(t, document)); diff != "" {
		t.Errorf("network cards (-KubeVirt +gitvirt)\n%s", diff)
	}
}

// TestPodWithoutTap: a card that nothing was made for is an error, and not connected to something else.
func TestPodWithoutTap(t *testing.T) {
	machine := inPod(machineOf(decode(t, more)))
	machine.Host.Assignment.Taps = machine.Host.Assignment.Taps[:1]
	if _, err := domainxml.Render(machine); err == nil || !strings.Contains(err.Error(), "interface lan: no tap device was made for it") {
		t.Error(err)
	}
}

// TestPodWithoutVHost: QEMU is not told to use what is not there.
func TestPodWithoutVHost(t *testing.T) {
	machine := inPod(machineOf(decode(t, more)))
	machine.Host.Assignment.Taps[0].VHost = false
	document, err := domainxml.Render(machine)
	if err != nil {
		t.Fatal(err)
	}
	if got := cards(t, document)[0]; !slices.Contains(got, "driver@name=qemu") || !slices.Contains(got, "driver@queues=2") {
		t.Errorf("%q", got)
	}
}

// TestTapsAreRecorded: what a domain was made with is what it is compared with afterwards.
func TestTapsAreRecorded(t *testing.T) {
	machine := inPod(machineOf(decode(t, more)))
	want := machine.Host.Assignment
	machine.Record = &domainxml.Record{Address: machine.Address, Hash: "1", Spec: []byte("{}"), Assignment: want}
	document, err := domainxml.Render(machine)
	if err != nil {
		t.Fatal(err)
	}
	record, err := domainxml.ParseRecord(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, record.Assignment); diff != "" || len(want.Taps) == 0 {
		t.Error(diff)
	}
}
