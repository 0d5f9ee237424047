package hostdevices

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// testHost makes the tree that testdata/host.txt describes.
func testHost(t *testing.T) Host {
	t.Helper()
	text, err := os.ReadFile("testdata/host.txt")
	if err != nil {
		t.Fatal(err)
	}
	h := New(t.TempDir())
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, target, ok := strings.Cut(line, " -> "); ok {
			place(t, h, name, func(path string) error { return os.Symlink(target, path) })
		} else if name, content, ok := strings.Cut(line, " ="); ok && !strings.HasPrefix(line, "#") {
			set(t, h, name, strings.TrimSpace(content))
		}
	}
	return h
}

func place(t *testing.T, h Host, name string, put func(path string) error) {
	t.Helper()
	path := h.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), put(path)); err != nil {
		t.Fatal(err)
	}
}

func set(t *testing.T, h Host, name, content string) {
	t.Helper()
	place(t, h, name, func(path string) error { return os.WriteFile(path, []byte(content+"\n"), 0o600) })
}

func pci(name string, ids ...string) Want {
	return Want{Name: name, Selector: schemas.HostDeviceSelector{Resource: "example.com/" + name, PCI: ids}}
}

func mediated(name string, types ...string) Want {
	return Want{Name: name, Selector: schemas.HostDeviceSelector{Resource: "example.com/" + name, Mediated: types}}
}

func usb(name string, ids ...string) Want {
	want := Want{Name: name, Selector: schemas.HostDeviceSelector{Resource: "example.com/" + name}}
	for _, id := range ids {
		vendor, product, _ := strings.Cut(id, ":")
		want.Selector.USB = append(want.Selector.USB, kubevirtv1.USBSelector{Vendor: vendor, Product: product})
	}
	return want
}

func device(name, kind, address string) domainxml.HostDevice {
	return domainxml.HostDevice{Name: name, Type: kind, Address: address}
}

const byHand = "11111111-1111-4111-8111-111111111111"

func TestChoose(t *testing.T) {
	type devices = []domainxml.HostDevice
	made := mediatedUUID("default/a", "vgpu")
	for _, test := range []struct {
		reason         string
		wants          []Want
		before, others devices
		want           devices
		problem        string
	}{
		{reason: "nothing is wanted"},
		{
			reason: "the first that is free; case does not matter; bridges of its group stay with the host",
			wants:  []Want{pci("gpu", "10DE:1EB8")}, want: devices{device("gpu", "pci", "0000:01:00.0")},
		},
		{
			reason: "the next when another VM has the first",
			wants:  []Want{pci("gpu", "10DE:1EB8")}, others: devices{device("x", "pci", "0000:01:00.0")},
			want: devices{device("gpu", "pci", "0000:02:00.0")},
		},
		{
			reason: "two for one VM, in the order of the manifest",
			wants:  []Want{pci("b", "10DE:1EB8"), pci("a", "10DE:1EB8")},
			want:   devices{device("b", "pci", "0000:01:00.0"), device("a", "pci", "0000:02:00.0")},
		},
		{
			reason: "two functions of one group go to one VM",
			wants:  []Want{pci("audio", "10de:10f8"), pci("gpu", "10DE:1EB8")}, others: devices{device("x", "pci", "0000:01:00.0")},
			want: devices{device("audio", "pci", "0000:02:00.1"), device("gpu", "pci", "0000:02:00.0")},
		},
		{
			reason: "and not to two",
			wants:  []Want{pci("gpu", "10DE:1EB8")}, others: devices{device("x", "pci", "0000:01:00.0"), device("y", "pci", "0000:02:00.1")},
			problem: "0000:02:00.0 shares IOMMU group 2 with 0000:02:00.1, which is assigned to another VM",
		},
		{
			reason: "what it has is kept, also when another is free and comes first",
			wants:  []Want{pci("new", "10DE:1EB8"), pci("gpu", "10DE:1EB8")}, before: devices{device("gpu", "pci", "0000:01:00.0")},
			want: devices{device("new", "pci", "0000:02:00.0"), device("gpu", "pci", "0000:01:00.0")},
		},
		{
			reason: "what it had and another VM has is given up",
			wants:  []Want{pci("gpu", "10DE:1EB8")}, before: devices{device("gpu", "pci", "0000:01:00.0")},
			others: devices{device("x", "pci", "0000:01:00.0")}, want: devices{device("gpu", "pci", "0000:02:00.0")},
		},
		{
			reason: "what it had and no longer fits is given up",
			wants:  []Want{pci("gpu", "10DE:1EB8")}, before: devices{device("gpu", "pci", "0000:04:02.0")},
			want: devices{device("gpu", "pci", "0000:01:00.0")},
		},
		{
			reason: "all are taken", wants: []Want{pci("gpu", "10DE:1EB8")},
			others:  devices{device("x", "pci", "0000:01:00.0"), device("y", "pci", "0000:02:00.0")},
			problem: "gpu (example.com/gpu): no device of the host for it: none is free: 0000:01:00.0 is assigned to another VM, 0000:02:00.0",
		},
		{reason: "there is none", wants: []Want{pci("gpu", "ffff:0001")}, problem: "there is no PCI device ffff:0001"},
		{reason: "the host uses it", wants: []Want{pci("gpu", "10de:2204")}, problem: "belongs to the host's driver nvidia (hand it over: driverctl set-override 0000:03:00.0 vfio-pci)"},
		{reason: "the host uses another device of the group", wants: []Want{pci("vf", "8086:154c")}, problem: "shares IOMMU group 4 with 0000:04:00.0, which belongs to the host's driver i40e"},
		{reason: "one without a driver, which nobody uses", wants: []Want{pci("nic", "1af4:1041")}, want: devices{device("nic", "pci", "0000:05:00.0")}},
		{reason: "no IOMMU", wants: []Want{pci("nic", "1af4:1042")}, problem: "is in no IOMMU group"},
		{reason: "nothing is permitted", wants: []Want{pci("gpu")}, problem: "permittedHostDevices name nothing"},
		{
			reason: "a mediated device that somebody made; a space is an underscore",
			wants:  []Want{mediated("vgpu", "GRID_T4-1Q")}, want: devices{device("vgpu", "mdev", byHand)},
		},
		{
			reason: "one is made when those are taken",
			wants:  []Want{mediated("vgpu", "GRID T4-1Q")}, others: devices{device("x", "mdev", byHand)},
			want: devices{device("vgpu", "mdev", made)},
		},
		{
			reason: "one that is gone after a reboot is made again",
			wants:  []Want{mediated("vgpu", "GRID T4-1Q")}, before: devices{device("vgpu", "mdev", made)},
			want: devices{device("vgpu", "mdev", made)},
		},
		{reason: "no more can be made", wants: []Want{mediated("vgpu", "GRID T4-2Q")}, problem: "no more mediated devices of type GRID T4-2Q can be made"},
		{reason: "nobody offers the type", wants: []Want{mediated("vgpu", "GRID V100-1Q")}, problem: "no device of the host offers mediated devices of type GRID V100-1Q"},
		{
			reason: "all of a USB group", wants: []Want{usb("kit", "046d:0825", "0a5c:5842")},
			want: devices{device("kit", "usb", "1:6"), device("kit", "usb", "1:4")},
		},
		{
			reason: "two of one kind", wants: []Want{usb("tokens", "0a5c:5842", "0x0A5C:5842")},
			want: devices{device("tokens", "usb", "1:4"), device("tokens", "usb", "1:5")},
		},
		{
			reason: "a USB device that moved is found again", wants: []Want{usb("token", "0a5c:5842")},
			before: devices{device("token", "usb", "1:99")}, want: devices{device("token", "usb", "1:4")},
		},
		{
			reason: "a USB device that did not move is kept", wants: []Want{usb("token", "0a5c:5842")},
			before: devices{device("token", "usb", "1:5")}, want: devices{device("token", "usb", "1:5")},
		},
		{reason: "half a USB group is none", wants: []Want{usb("kit", "046d:0825", "1234:5678")}, problem: "no USB device 1234:5678 is plugged in"},
		{
			reason: "a USB device that another VM has", wants: []Want{usb("camera", "046d:0825")},
			others: devices{device("x", "usb", "1:6")}, problem: "no USB device 046d:0825 is free: 1:6 is assigned to another VM",
		},
	} {
		t.Run(test.reason, func(t *testing.T) {
			h := testHost(t)
			got, err := h.Choose("default/a", test.wants, test.before, test.others)
			if test.problem != "" {
				if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.problem) {
					t.Fatalf("got %v, %v, want %q", got, err, test.problem)
				}
				return
			}
			if err != nil || !cmp.Equal(got, test.want) {
				t.Fatalf("got %v, %v, want %v", got, err, test.want)
			}
			again, err := h.Choose("default/a", test.wants, got, test.others)
			if err != nil || !cmp.Equal(again, got) {
				t.Errorf("chosen again: %v, %v, want %v", again, err, got)
			}
		})
	}
}

func TestPrepareAndRelease(t *testing.T) {
	h := testHost(t)
	wants := []Want{mediated("vgpu", "GRID T4-1Q")}
	others := []domainxml.HostDevice{device("x", "mdev", byHand)}
	devices, err := h.Choose("default/a", wants, nil, others)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Prepare(wants, devices); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "did not make it") {
		t.Fatalf("a kernel that makes nothing: %v", err)
	}
	written, err := os.ReadFile(h.path("sys/class/mdev_bus/0000:07:00.0/mdev_supported_types/nvidia-222/create"))
	if err != nil || strings.TrimSpace(string(written)) != devices[0].Address {
		t.Fatalf("written: %q, %v", written, err)
	}
	// What the kernel does then.
	link := "../../../../class/mdev_bus/0000:07:00.0/mdev_supported_types/nvidia-222"
	place(t, h, "sys/bus/mdev/devices/"+devices[0].Address+"/mdev_type", func(path string) error { return os.Symlink(link, path) })
	set(t, h, "sys/bus/mdev/devices/"+devices[0].Address+"/remove", "")
	set(t, h, "sys/class/mdev_bus/0000:07:00.0/mdev_supported_types/nvidia-222/available_instances", "0")
	if err := h.Prepare(wants, devices); err != nil {
		t.Fatal(err)
	}
	if again, err := h.Choose("default/a", wants, nil, others); err != nil || !cmp.Equal(again, devices) {
		t.Fatalf("a step that is repeated finds %v, %v, want %v", again, err, devices)
	}
	removed := func(uuid string) bool {
		content, err := os.ReadFile(h.path("sys/bus/mdev/devices", uuid, "remove"))
		return err == nil && strings.HasPrefix(string(content), "1")
	}
	for _, no := range []func() error{
		func() error { return h.Release("default/b", nil) },
		func() error { return h.Release("default/a", devices) },
	} {
		if err := no(); err != nil || removed(devices[0].Address) {
			t.Errorf("what the VM has is gone, %v", err)
		}
	}
	if err := h.Release("default/a", others); err != nil {
		t.Fatal(err)
	}
	if !removed(devices[0].Address) || removed(byHand) {
		t.Error("what was made for the VM stays, or what somebody made by hand is gone")
	}
}
