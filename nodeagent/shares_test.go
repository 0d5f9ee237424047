package nodeagent

import (
	"fmt"
	"os"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// TestGuestMountsItsShares has a guest mount a ConfigMap and a claim as file systems, and ask for metrics on its port. The devices
// are added to the definition here: what is tested is what they are made of.
func TestGuestMountsItsShares(t *testing.T) {
	r := newRig(t)
	object := machineYAML(t, "shares", `
mkdir -p /a /b
mount -t virtiofs conf /a && echo "conf $(cat /a/app.conf)"
mount -t virtiofs files /b && echo written >/b/report && chmod 4755 /b/report
for p in /sys/class/virtio-ports/*; do [ "$(cat $p/name)" = org.github.vhostmd.1 ] && port=/dev/${p##*/}; done
sleep 6
printf 'GET /metrics/XML\n\n' >$port; (cat $port & sleep 3; kill $!) | grep -A1 -E 'HostName|VirtProductInfo'
`, "- {name: conf, configMap: {name: c}}\n- {name: files, persistentVolumeClaim: {claimName: files}}")
	devices := &object.Spec.Template.Spec.Domain.Devices
	devices.Disks = devices.Disks[:1]
	devices.Filesystems = []kubevirtv1.Filesystem{{Name: "conf", Virtiofs: &kubevirtv1.FilesystemVirtiofs{}}, {Name: "files", Virtiofs: &kubevirtv1.FilesystemVirtiofs{}}}
	devices.DownwardMetrics = &kubevirtv1.DownwardMetrics{}
	contents := map[string]*api.Content{"conf": keysOf(map[string]string{"app.conf": "proof-of-conf"})}
	vm := wire(t, object, contents, map[string]*api.Claim{"files": {Namespace: "default", Name: "files"}})
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Vm: vm})
	r.addShares("default_shares")
	if err := r.agent.hypervisor.SetPower(t.Context(), "default_shares", hypervisor.PowerOn); err != nil {
		t.Fatal(err)
	}
	said := r.console("shares", 1)
	for _, want := range []string{"conf proof-of-conf", "<name>HostName</name>\n    <value>host-1</value>", "<value>qemu-"} {
		if !strings.Contains(said, want) {
			t.Errorf("the guest did not say %q:\n%s", want, said)
		}
	}
	report := r.agent.volumes.files.ClaimFolder("default", "files") + "/report"
	if content, err := os.ReadFile(report); err != nil || string(content) != "written\n" {
		t.Errorf("the guest wrote %q, %v", content, err)
	}
	// A ConfigMap that changes reaches a guest that runs.
	contents["conf"] = keysOf(map[string]string{"app.conf": "changed", "more": "x"})
	r.must(&api.ExecuteRequest{Address: vm.GetAddress(), Define: true, Live: true, Vm: wire(t, object, contents, map[string]*api.Claim{"files": {Namespace: "default", Name: "files"}})})
	if content, err := os.ReadFile(r.agent.volumes.files.Folder(address("shares"), "conf") + "/app.conf"); err != nil || string(content) != "changed" {
		t.Errorf("the share holds %q, %v", content, err)
	}
}

// addShares adds to a domain what its definition lacks.
func (r *rig) addShares(name string) {
	r.t.Helper()
	files := r.agent.volumes.files
	share := func(tag, dir string) string {
		return fmt.Sprintf(`<filesystem type="mount" accessmode="passthrough"><driver type="virtiofs" queue="1024"/><source dir="%s"/><target dir="%s"/></filesystem>`, dir, tag)
	}
	added := map[string]string{
		"<filesystem": share("conf", files.Folder(address("shares"), "conf")) + share("files", files.ClaimFolder("default", "files")),
		"'org.github.vhostmd.1'": fmt.Sprintf(`<channel type="unix"><source mode="bind" path="%s"/><target type="virtio" name="org.github.vhostmd.1"/></channel>`,
			files.MetricsSocket(address("shares"))),
	}
	domain, err := r.agent.hypervisor.Domain(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	definition := domain.Config
	for mark, device := range added {
		if !strings.Contains(definition, mark) {
			definition = strings.Replace(definition, "</devices>", device+"</devices>", 1)
		}
	}
	if !strings.Contains(definition, "<memoryBacking") {
		definition = strings.Replace(definition, "<vcpu", `<memoryBacking><source type="memfd"/><access mode="shared"/></memoryBacking><vcpu`, 1)
	}
	if err := r.agent.hypervisor.Define(r.t.Context(), definition); err != nil {
		r.t.Fatal(err)
	}
}
