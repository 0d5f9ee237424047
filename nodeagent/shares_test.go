package nodeagent

import (
	"os"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// TestGuestMountsItsShares has a guest mount a ConfigMap and a claim as file systems, and ask for metrics on its port.
func TestGuestMountsItsShares(t *testing.T) {
	r := newRig(t)
	object := machineYAML(t, "shares", `
mkdir -p /a /b
mount -t virtiofs conf /a && echo "conf $(cat /a/app.conf)"
mount -t virtiofs files /b && echo written >/b/report && chmod 4755 /b/report
for p in /sys/class/virtio-ports/*; do [ "$(cat $p/name)" = org.github.vhostmd.1 ] && port=/dev/${p##*/}; done
sleep 6
for i in 1 2 3 4 5 6 7 8; do # the host may be slow to answer
  printf 'GET /metrics/XML\n\n' >$port; (cat $port & sleep 3; kill $!) | grep -A1 -E 'HostName|VirtProductInfo' >/answer
  grep -q qemu- /answer && break
done
cat /answer
`, "- {name: conf, configMap: {name: c}}\n- {name: files, persistentVolumeClaim: {claimName: files}}")
	devices := &object.Spec.Template.Spec.Domain.Devices
	devices.Disks = devices.Disks[:1]
	devices.Filesystems = []kubevirtv1.Filesystem{{Name: "conf", Virtiofs: &kubevirtv1.FilesystemVirtiofs{}}, {Name: "files", Virtiofs: &kubevirtv1.FilesystemVirtiofs{}}}
	devices.DownwardMetrics = &kubevirtv1.DownwardMetrics{}
	contents := map[string]*api.Content{"conf": keysOf(map[string]string{"app.conf": "proof-of-conf"})}
	vm := wire(t, object, contents, map[string]*api.Claim{"files": {Namespace: "default", Name: "files"}})
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Power: "on", Vm: vm})
	said := r.console("shares", 1)
	for _, want := range []string{"conf proof-of-conf", "<name>HostName</name>\n    <value>host-1</value>", "<value>qemu-"} {
		if !strings.Contains(said, want) {
			t.Errorf("the guest did not say %q:\n%s", want, said)
		}
	}
	report := r.agent.local.files.ClaimFolder("default", "files") + "/report"
	if content, err := os.ReadFile(report); err != nil || string(content) != "written\n" {
		t.Errorf("the guest wrote %q, %v", content, err)
	}
	// A ConfigMap that changes reaches a guest that runs.
	contents["conf"] = keysOf(map[string]string{"app.conf": "changed", "more": "x"})
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Live: true, Vm: wire(t, object, contents, map[string]*api.Claim{"files": {Namespace: "default", Name: "files"}})})
	if content, err := os.ReadFile(r.agent.local.files.Folder(address("shares"), "conf") + "/app.conf"); err != nil || string(content) != "changed" {
		t.Errorf("the share holds %q, %v", content, err)
	}
}
