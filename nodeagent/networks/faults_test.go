package networks_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gitvirt/gitvirt/nodeagent/networks"
)

var errKilled = errors.New("killed")

// killer ends calls before their nth change of a namespace, and counts.
type killer struct{ at, count int }

func (k *killer) step(string) error {
	if k.count++; k.count == k.at {
		return errKilled
	}
	return nil
}

// TestKilledAnywhere: an agent that is killed between any two changes leaves what the next one brings to its end.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	spec := `{domain: {devices: {networkInterfaceMultiqueue: true, interfaces: [{name: default, masquerade: {}}, {name: lan, bridge: {}}, {name: raw, bridge: {}}]}, cpu: {cores: 2}},
		networks: [{name: default, pod: {}}, {name: lan, multus: {networkName: lan}}, {name: raw, multus: {networkName: raw}}]}`
	pod := attach(t, node, podMAC, addresses4+addresses6+`link add net1 type veth peer name peer1
		link set net1 up
		link set peer1 up
		link add net2 type veth peer name peer2
		link set net2 up
		addr add 10.8.0.5/24 dev net1
		-6 addr add fd00:8::5/64 dev net1 nodad
		route add 10.77.0.0/16 via 10.8.0.1`)
	m, stateDir := machine(t, spec), t.TempDir()
	compare := []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreFields(networks.Link{}, "Neighbours")}
	before, err := open(t, pod, stateDir).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	opened, wanted := ensure(t, pod, stateDir, m)
	rules := pod.run("nft", "list", "ruleset")
	if err := opened.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	once := func(at int, do func(*networks.Pod) error) (int, error) {
		k := &killer{at: at}
		one, err := networks.Open(pod.path(), stateDir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = one.Close() }()
		one.OnStep(k.step)
		facts, err := one.Read(t.Context())
		if err != nil {
			t.Fatalf("reading: %v", err)
		}
		if diff := cmp.Diff(before, facts, compare...); diff != "" {
			t.Fatalf("what the Pod was given (-before +after)\n%s", diff)
		}
		return k.count, do(one)
	}
	make := func(one *networks.Pod) error { return one.Ensure(t.Context(), wanted) }
	remove := func(one *networks.Pod) error { return one.Remove(t.Context()) }
	for _, story := range []struct {
		name      string
		do, after func(*networks.Pod) error
	}{{"making", make, remove}, {"removing", remove, make}} {
		if story.name == "removing" {
			if _, err := once(0, make); err != nil {
				t.Fatal(err)
			}
		}
		at := 1
		for ; ; at++ {
			_, err := once(at, story.do)
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatalf("%s, killed at step %d: %v", story.name, at, err)
			}
			ended := err == nil
			if _, err := once(0, story.do); err != nil {
				t.Fatalf("%s again after step %d: %v", story.name, at, err)
			}
			again := &killer{at: 1}
			opened.OnStep(again.step)
			if err := story.do(opened); err != nil || again.count != 0 {
				t.Fatalf("%s a third time after step %d: %d changes, %v", story.name, at, again.count, err)
			}
			opened.OnStep(nil)
			if story.name == "making" {
				if diff := cmp.Diff(rules, pod.run("nft", "list", "ruleset")); diff != "" {
					t.Fatalf("rules after step %d\n%s", at, diff)
				}
			}
			if ended {
				break
			}
			if _, err := once(0, story.after); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s takes %d changes", story.name, at-1)
		if at < 12 {
			t.Errorf("%s took %d changes only", story.name, at-1)
		}
	}
}
