package layout

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

var web = schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "shop", Name: "web-1"}

// spec is a VM whose volumes are shared file systems or ACPI tables when their names say so.
func spec(t testing.TB, volumes string) *kubevirtv1.VirtualMachineInstanceSpec {
	t.Helper()
	out := &kubevirtv1.VirtualMachineInstanceSpec{}
	if err := yaml.UnmarshalStrict([]byte(volumes), &out.Volumes); err != nil {
		t.Fatal(err)
	}
	for _, volume := range out.Volumes {
		if strings.HasPrefix(volume.Name, "fs-") {
			out.Domain.Devices.Filesystems = append(out.Domain.Devices.Filesystems, kubevirtv1.Filesystem{Name: volume.Name})
		}
	}
	out.Domain.Firmware = &kubevirtv1.Firmware{ACPI: &kubevirtv1.ACPI{SlicNameRef: "slic"}}
	return out
}

func TestVolume(t *testing.T) {
	own := schemas.Claim{Namespace: "shop", Name: "data", Capacity: 1 << 30}
	device := schemas.Claim{Namespace: "shop", Name: "data", Path: "/dev/disk/by-id/x", Block: true}
	folder := schemas.Claim{Namespace: "shop", Name: "data", Path: "/srv/files"}
	tests := []struct {
		volume string
		claim  schemas.Claim
		want   domainxml.Volume
	}{
		{"{name: v, emptyDisk: {capacity: 1Ki}}", own, domainxml.Volume{Kind: "emptyDisk", Path: "/s/disks/shop/web-1/v.qcow2", Format: "qcow2", Capacity: 1024}},
		{"{name: v, hostDisk: {path: /srv/a.img}}", own, domainxml.Volume{Kind: "hostDisk", Path: "/srv/a.img", Format: "raw"}},
		{"{name: v, persistentVolumeClaim: {claimName: data}}", own, domainxml.Volume{Kind: "persistentVolumeClaim", Path: "/s/claims/shop/data/disk.img", Format: "raw", Capacity: 1 << 30}},
		{"{name: v, dataVolume: {name: data}}", device, domainxml.Volume{Kind: "dataVolume", Path: "/dev/disk/by-id/x", Format: "raw", Block: true}},
		{"{name: fs-v, persistentVolumeClaim: {claimName: data}}", own, domainxml.Volume{Kind: "persistentVolumeClaim", Path: "/s/claims/shop/data/fs/data"}},
		{"{name: fs-v, persistentVolumeClaim: {claimName: data}}", folder, domainxml.Volume{Kind: "persistentVolumeClaim", Path: "/srv/files"}},
		{"{name: v, ephemeral: {persistentVolumeClaim: {claimName: data}}}", own, domainxml.Volume{
			Kind: "ephemeral", Path: "/s/vms/shop/web-1/" + OverlayName("v", ClaimDigest(own)) + ".overlay.qcow2", Format: "qcow2", Capacity: 1 << 30,
			Backing: "/s/claims/shop/data/disk.img", BackingFormat: "raw",
		}},
		{"{name: v, configMap: {name: c}}", own, domainxml.Volume{Kind: "configMap", Path: "/s/vms/shop/web-1/v.iso", Format: "raw"}},
		{"{name: fs-v, configMap: {name: c}}", own, domainxml.Volume{Kind: "configMap", Path: "/s/vms/shop/web-1/fs-v.fs/data"}},
		{"{name: slic, secret: {secretName: s}}", own, domainxml.Volume{Kind: "secret", Path: "/s/vms/shop/web-1/slic.acpi"}},
		{"{name: v, downwardMetrics: {}}", own, domainxml.Volume{Kind: "downwardMetrics", Path: "/s/vms/shop/web-1/v.metrics", Format: "raw"}},
		{"{name: v, sysprep: {secret: {name: s}}}", own, domainxml.Volume{Kind: "sysprep", Path: "/s/vms/shop/web-1/v.iso", Format: "raw"}},
		{"{name: v, cloudInitConfigDrive: {userData: x}}", own, domainxml.Volume{Kind: "cloudInitConfigDrive", Path: "/s/vms/shop/web-1/v.iso", Format: "raw"}},
	}
	for _, test := range tests {
		t.Run(test.volume, func(t *testing.T) {
			spec := spec(t, "["+test.volume+"]")
			test.want.Name = spec.Volumes[0].Name
			if diff := cmp.Diff(test.want, Layout{Dir: "/s"}.Volume(web, spec, spec.Volumes[0], test.claim)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNothingMeets holds that no two files of a machine have one name.
func TestNothingMeets(t *testing.T) {
	files := Layout{Dir: "/s"}
	persistent := true
	kept := &kubevirtv1.VirtualMachineInstanceSpec{}
	kept.Domain.Firmware = &kubevirtv1.Firmware{Bootloader: &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{Persistent: &persistent}}}
	seen := map[string]string{}
	for what, path := range map[string]string{
		"empty disk": files.EmptyDisk(web, "v"), "record": files.Record(web, "v"), "overlay": files.Overlay(web, "v"), "iso": files.ISO(web, "v"),
		"folder": filepath.Dir(files.Folder(web, "v")), "table": files.Table(web, "v"), "metrics": files.Metrics(web, "v"), "socket": files.MetricsSocket(web),
		"variables": files.NVRAM(web, &kubevirtv1.VirtualMachineInstanceSpec{}), "kept variables": files.NVRAM(web, kept),
		"firmware disk": files.EmptyDisk(web, Firmware), "claim": files.ClaimImage("shop", "v"), "claim folder": files.ClaimFolder("shop", "v"),
		"claim record": files.ClaimRecord("shop", "v"), "console": files.Host(web, kept, "kvm").ConsoleLog,
	} {
		if other, taken := seen[path]; taken {
			t.Errorf("%s and %s are both %s", what, other, path)
		}
		seen[path] = what
	}
}
