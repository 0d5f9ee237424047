package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// TestClaimsOutliveTheirVMs pushes a VM with a claim, an imported image and a ConfigMap. The agent is killed in the middle of the
// import; the next one begins anew. The data outlives the VM, and a second VM finds it.
func TestClaimsOutliveTheirVMs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	image := libvirttest.PushGuest(t)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/raw", append([]byte("proof-of-import\n"), make([]byte, 2<<20)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-img", "convert", "-f", "raw", "-O", "qcow2", dir+"/raw", dir+"/golden.qcow2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if requests.Add(1) == 1 { // the first transfer never ends
			_, _ = w.Write([]byte("QFI\xfb"))
			_ = http.NewResponseController(w).Flush()
			<-request.Context().Done()
			return
		}
		http.ServeFile(w, request, dir+"/golden.qcow2")
	}))
	defer server.Close()
	claims := fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}
---
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {name: golden}
spec:
  source: {http: {url: "%s/golden.qcow2?token=proof-of-token"}}
  storage: {resources: {requests: {storage: 8Mi}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {app.conf: "proof-of-conf"}
`, server.URL)
	claimed := func(name, script string) string {
		return vm{
			name: name, script: script,
			disks:   "          - {name: data, serial: data, disk: {bus: virtio}}\n          - {name: golden, serial: golden, disk: {bus: virtio}}\n          - {name: conf, serial: conf, disk: {bus: virtio}}\n",
			volumes: "      - {name: data, persistentVolumeClaim: {claimName: data}}\n      - {name: golden, dataVolume: {name: golden}}\n      - {name: conf, configMap: {name: conf}}\n",
		}.manifest(image)
	}
	first := r.repo.Commit(map[string]string{
		"gitvirt.yaml": fleetManifest, "claims.yaml": claims,
		"vms/db-1.yaml": claimed("db-1", "head -c 15 /dev/vdc; printf proof-of-data >/dev/vdb; mount -t iso9660 -o ro /dev/vdd /mnt && cat /mnt/app.conf; sync"),
	})
	r.start()
	r.eventually("the import has begun", func() bool { return requests.Load() == 1 })
	if pid := r.agentPID(); pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
		t.Fatal("there is no agent to kill")
	}
	r.settled(first, map[string]status.Phase{"db-1": status.PhaseRunning})
	r.says("db-1", "proof-of-import", 1)
	r.says("db-1", "proof-of-conf", 1)
	out, code := r.gitvirt("disks", "--state-dir", r.state)
	if code != 0 || strings.Count(out, "uses it") != 2 {
		t.Errorf("disks: exit %d\n%s", code, out)
	}
	if out, code := r.gitvirt("disks", "prune", "default/data", "--auto-approve", "--state-dir", r.state); code == 0 || !strings.Contains(out, "is used by a VM") {
		t.Errorf("prune of a claim in use: exit %d\n%s", code, out)
	}
	second := r.repo.Commit(map[string]string{"vms/db-1.yaml": "", "vms/db-2.yaml": claimed("db-2", "head -c 13 /dev/vdb; head -c 15 /dev/vdc")})
	r.settled(second, map[string]status.Phase{"db-2": status.PhaseRunning})
	r.says("db-2", "proof-of-data", 1)
	r.says("db-2", "proof-of-import", 1)
	if n := requests.Load(); n != 2 {
		t.Errorf("the image was fetched %d times", n)
	}
	third := r.repo.Commit(map[string]string{"vms/db-2.yaml": ""})
	r.settled(third, map[string]status.Phase{})
	if out, code := r.gitvirt("disks", "prune", "default/data", "default/golden", "--auto-approve", "--state-dir", r.state); code != 0 {
		t.Errorf("prune: exit %d\n%s", code, out)
	}
	if left, _ := filepath.Glob(filepath.Join(r.state, "agent/claims/*/*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if said := r.said(); strings.Contains(said, "proof-of-token") {
		t.Errorf("the log holds a token:\n%s", said)
	}
}
