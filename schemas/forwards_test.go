package schemas_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

func TestLoopbackAddress(t *testing.T) {
	vm := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web"}
	// People write it into their scripts: it must never change.
	if got, want := schemas.LoopbackAddress(vm, "default").String(), "127.146.250.60"; got != want {
		t.Errorf("LoopbackAddress = %s, want %s", got, want)
	}
	vm.Kind = schemas.KindVirtualMachineInstance
	if schemas.LoopbackAddress(vm, "default") == schemas.LoopbackAddress(vm, "other") {
		t.Error("two interfaces have one address")
	}
	for i := range 10000 {
		vm.Name = fmt.Sprint(i)
		got := schemas.LoopbackAddress(vm, "default").As4()
		if got[0] != 127 || got[1] == 0 || got[1] == 255 || got[3] == 0 || got[3] == 255 {
			t.Fatalf("the address of %s is %v", vm.Name, got)
		}
	}
}

func TestForwardedPorts(t *testing.T) {
	ports := func(ports ...kubevirtv1.Port) *kubevirtv1.Interface { return &kubevirtv1.Interface{Ports: ports} }
	ranges := func(ranges ...kubevirtv1.PortRange) *kubevirtv1.Interface {
		return &kubevirtv1.Interface{PortRanges: ranges}
	}
	all := kubevirtv1.PortRange{Protocol: "TCP", Start: 1, End: 65535}
	for _, test := range []struct {
		reason  string
		in      *kubevirtv1.Interface
		want    []schemas.ForwardedPort
		tooMany bool
	}{
		{"no interface", nil, nil, false},
		{"no ports", ports(), nil, false},
		{
			"in order, TCP unless said otherwise, each once",
			ports(kubevirtv1.Port{Port: 443}, kubevirtv1.Port{Port: 53, Protocol: "UDP"}, kubevirtv1.Port{Port: 22, Protocol: "TCP"}, kubevirtv1.Port{Port: 443, Protocol: "TCP"}),
			[]schemas.ForwardedPort{{"TCP", 22}, {"TCP", 443}, {"UDP", 53}},
			false,
		},
		{
			"ranges with both ends", ranges(kubevirtv1.PortRange{Protocol: "TCP", Start: 80, End: 82}, kubevirtv1.PortRange{Protocol: "UDP", Start: 80, End: 80}),
			[]schemas.ForwardedPort{{"TCP", 80}, {"TCP", 81}, {"TCP", 82}, {"UDP", 80}},
			false,
		},
		{
			"what is no port", ranges(kubevirtv1.PortRange{Protocol: "TCP", Start: -5, End: 1}, kubevirtv1.PortRange{Protocol: "TCP", Start: 65535, End: 70000}),
			[]schemas.ForwardedPort{{"TCP", 1}, {"TCP", 65535}},
			false,
		},
		{"too many, again and again", ranges(all, all, all), nil, true},
		{"one too many", ranges(kubevirtv1.PortRange{Protocol: "TCP", Start: 1, End: 256}, kubevirtv1.PortRange{Protocol: "UDP", Start: 1, End: 1}), nil, true},
	} {
		got, tooMany := schemas.ForwardedPorts(test.in)
		if diff := cmp.Diff(test.want, got); diff != "" || tooMany != test.tooMany {
			t.Errorf("%s: too many %t, (-want +got)\n%s", test.reason, tooMany, diff)
		}
	}
	if got, tooMany := schemas.ForwardedPorts(ranges(kubevirtv1.PortRange{Protocol: "TCP", Start: 1, End: 256})); len(got) != 256 || tooMany {
		t.Errorf("%d ports, too many %t", len(got), tooMany)
	}
}

func TestUserModeInterface(t *testing.T) {
	pod, multus := kubevirtv1.NetworkSource{Pod: &kubevirtv1.PodNetwork{}}, kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: "lan"}}
	masquerade := kubevirtv1.InterfaceBindingMethod{Masquerade: &kubevirtv1.InterfaceMasquerade{}}
	bridge := kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}
	for _, test := range []struct {
		reason  string
		binding kubevirtv1.InterfaceBindingMethod
		network kubevirtv1.NetworkSource
		want    bool
	}{
		{"masquerade on the pod network", masquerade, pod, true},
		{"slirp", kubevirtv1.InterfaceBindingMethod{DeprecatedSlirp: &kubevirtv1.DeprecatedInterfaceSlirp{}}, pod, true},
		{"bridge on the pod network", bridge, pod, false},
		{"bridge on a network of the host", bridge, multus, false},
		{"a device of the host", kubevirtv1.InterfaceBindingMethod{SRIOV: &kubevirtv1.InterfaceSRIOV{}}, multus, false},
	} {
		spec := &kubevirtv1.VirtualMachineInstanceSpec{Networks: []kubevirtv1.Network{{Name: "a", NetworkSource: test.network}}}
		spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "a", InterfaceBindingMethod: test.binding}}
		if got := schemas.UserModeInterface(spec) != nil; got != test.want {
			t.Errorf("%s: %t", test.reason, got)
		}
	}
}
