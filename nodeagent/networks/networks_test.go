package networks_test

import (
	"context"
	"testing"

	"sigs.k8s.io/yaml"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/networks"
	"github.com/gitvirt/gitvirt/schemas"
)

const podMAC = "0a:58:0a:09:00:05"

// addresses are what CNI's bridge plugin gives a Pod.
const (
	addresses4 = `addr add 10.9.0.5/24 dev eth0
		route add default via 10.9.0.1
		`
	addresses6 = `-6 addr add fd00:9::5/64 dev eth0 nodad
		-6 route add default via fd00:9::1
		`
)

func machine(t *testing.T, spec string) networks.Machine {
	t.Helper()
	out := networks.Machine{
		Address: schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "db"}, Spec: &kubevirtv1.VirtualMachineInstanceSpec{},
		DNS: networks.ParseResolvConf("search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\nnameserver fd00:96::a\noptions ndots:5\n"),
	}
	if err := yaml.UnmarshalStrict([]byte(spec), out.Spec); err != nil {
		t.Fatal(err)
	}
	return out
}

const masquerade = `{domain: {devices: {interfaces: [{name: default, masquerade: {}}]}}, networks: [{name: default, pod: {}}]}`

func open(t *testing.T, pod *space, stateDir string) *networks.Pod {
	t.Helper()
	out, err := networks.Open(pod.path(), stateDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return out
}

// ensure plans and makes the network of a machine in a Pod, as an agent does that was just started.
func ensure(t *testing.T, pod *space, stateDir string, m networks.Machine) (*networks.Pod, networks.Wanted) {
	t.Helper()
	opened := open(t, pod, stateDir)
	facts, err := opened.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := networks.Plan(m, facts)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Ensure(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	return opened, wanted
}

// serve answers a guest until the test or stop ends it.
func serve(t *testing.T, pod *networks.Pod, wanted networks.Wanted) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- pod.Serve(ctx, wanted) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestMasquerade(t *testing.T) {
	node := newNode(t)
	pod := attach(t, node, podMAC, addresses4+addresses6)
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, masquerade))
	serve(t, opened, wanted)
	tap := wanted.Taps()[0]
	guest := plug(t, pod, tap.Device, tap.MAC, tap.MTU)
	guest.lease()
	node.listen("192.0.2.1:80")
	guest.listen("0.0.0.0:80")
	guest.eventually("192.0.2.1:80", "10.9.0.5")
	node.eventually("10.9.0.5:80", "10.9.0.1")
	pod.eventually("127.0.0.1:80", "10.0.2.1")
}
