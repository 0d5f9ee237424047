//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// faults is a story of two machines on two nodes. web serves a page and stays on one node for as long as the test goes; nothing that
// happens may end its guest. data writes to a claim that both nodes have, as on shared storage, so that nothing but gitvirt keeps two
// guests from having it at the same time.
type faults struct {
	*story
	home, other string // web's node, and the other one
	address     string // of web's Pod
	web         string // the process of web's guest, from the first to the last
	cpus        int    // of web: each commit plugs one
	pin         string // the node that data is to be on; "" for any
	disk        string // the claim's image
	boots       int    // how often data's guest was started so far
}

// claimNamed is a claim in the repository, of a volume with the folder of a test.
const claimNamed = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: ` + storyNamespace + `}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: faults-e2e
  resources: {requests: {storage: 64Mi}}
`

// countingBoots is user data that counts boots at the beginning of the first disk.
const countingBoots = `#!/bin/sh
            n=$(dd if=/dev/vda bs=16 count=1 2>/dev/null | tr -cd 0-9)
            printf '%-16s' $((n + 1)) | dd of=/dev/vda bs=16 count=1 conv=notrunc,fsync
`

func newFaults(t *testing.T) *faults {
	if found := nodes(t); len(found) != 2 {
		t.Fatalf("the cluster has the nodes %v; start it with GITVIRT_CLUSTER_NODES=2", found)
	}
	folder := t.TempDir()
	if err := os.Chown(folder, 107, 107); err != nil {
		t.Fatal(err)
	}
	must(t, nil, "delete", "pv", "faults-e2e", "--ignore-not-found")
	apply(t, &corev1.PersistentVolume{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}, ObjectMeta: metav1.ObjectMeta{Name: "faults-e2e"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
		},
	})
	t.Cleanup(func() {
		_, _ = command(context.Background(), "delete", "pv", "faults-e2e", "--wait=false").CombinedOutput()
	})
	return &faults{story: newStory(t), disk: filepath.Join(folder, "disk.img"), cpus: 1}
}

// pushed pushes what manifests has.
func (f *faults) pushed(subject string) {
	f.Helper()
	f.push(subject, f.manifests()...)
}

// manifests are the claim and both machines; without web as long as it is not known where that is to be.
func (f *faults) manifests() []string {
	web := strings.Replace(serving("web", "masquerade"), "sockets: 1, maxSockets: 4", fmt.Sprintf("sockets: %d, maxSockets: 8", f.cpus), 1)
	data := machineNamed("data", "", `          disks: [{name: data, disk: {bus: virtio}}, {name: init, disk: {bus: virtio}}]
      volumes:
      - name: data
        persistentVolumeClaim: {claimName: data}
      - name: init
        cloudInitNoCloud:
          userData: |
            `+countingBoots)
	if f.home == "" {
		return []string{claimNamed, data}
	}
	return []string{claimNamed, on(f.pin, data), on(f.home, web)}
}

// plugged pushes another CPU for web.
func (f *faults) plugged(subject string) {
	f.Helper()
	f.cpus++
	f.pushed(subject)
}

// on ties a machine to a node.
func on(node, manifest string) string {
	if node == "" {
		return manifest
	}
	return strings.Replace(manifest, "      dnsPolicy: Default\n", "      dnsPolicy: Default\n      nodeSelector: {kubernetes.io/hostname: "+node+"}\n", 1)
}

// unharmed wants web to be as git has it, with the guest that it had from the first.
func (f *faults) unharmed(t *testing.T) {
	t.Helper()
	f.ready("web")
	f.serves(t)
	if now := f.run("web"); now != f.web {
		t.Errorf("the guest was process %s and is %s", f.web, now)
	}
}

// serves wants web's page.
func (f *faults) serves(t *testing.T) {
	t.Helper()
	address := f.address
	client := http.Client{Timeout: 10 * time.Second}
	eventually(t, "the guest serves its page", func() (bool, string) {
		answer, err := client.Get("http://" + address + ":8080/")
		if err != nil {
			return false, err.Error()
		}
		defer func() { _ = answer.Body.Close() }()
		page, err := io.ReadAll(answer.Body)
		return err == nil && strings.Contains(string(page), "this is web"), string(page)
	})
}

// started wants data's guest to be ready as git has it, started once more than before, on what the one before left on the disk.
func (f *faults) started(t *testing.T) *corev1.Pod {
	t.Helper()
	f.boots++
	eventually(t, "the guest has counted its boot", func() (bool, string) {
		count := f.counted(t)
		return count == strconv.Itoa(f.boots), "it counted " + count
	})
	return f.runs("data")
}

// runs waits until a machine's guest is ready, whichever commit it is of, and returns its Pod.
func (f *faults) runs(vm string) (found *corev1.Pod) {
	f.Helper()
	eventually(f.T, vm+" runs", func() (bool, string) {
		if found = f.one(vm); found == nil {
			return false, "there is no Pod"
		}
		return condition(found, corev1.PodReady) == corev1.ConditionTrue, found.Annotations[podapi.AnnotationObserved]
	})
	return found
}

func (f *faults) counted(t *testing.T) string {
	t.Helper()
	content := make([]byte, 16)
	file, err := os.Open(f.disk)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := io.ReadFull(file, content); err != nil {
		return err.Error()
	}
	return strings.TrimRight(string(content), " \x00")
}

// component stops or starts a part of the cluster, or a node.
func (s *story) component(t *testing.T, verb, name string) {
	t.Helper()
	if output, err := exec.Command("../hack/cluster/cluster.sh", verb, name).CombinedOutput(); err != nil {
		t.Fatalf("cluster.sh %s %s: %v\n%s", verb, name, err, output)
	}
}

// silent waits until Kubernetes says that a node does not answer.
func silent(t *testing.T, node string) {
	t.Helper()
	eventually(t, node+" does not answer", func() (bool, string) {
		said := must(t, nil, "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return said == "Unknown", said
	})
}

// told waits until the status branch says something of a machine.
func (s *story) told(t *testing.T, vm, words string) {
	t.Helper()
	eventually(t, "the status branch tells of "+vm+": "+words, func() (bool, string) {
		text := s.status(vm)
		return strings.Contains(text, words), text
	})
}

// lookOut looks all the time at which guests have a disk open. What it returns ends it, and tells how many there were, and when there was more
// than one at a time.
func lookOut(t *testing.T, disk, guest string) func() (runs int, twice []string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	var twice []string
	all := map[int]bool{}
	work.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			var running, open []int
			for _, pid := range guests() {
				arguments, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
				if strings.Contains(string(arguments), "guest="+guest+",") {
					running = append(running, pid)
				}
				if hasOpen(pid, disk) {
					open = append(open, pid)
					all[pid] = true
				}
			}
			if len(running) > 1 || len(open) > 1 {
				twice = append(twice, time.Now().Format(time.StampMilli)+": running "+listed(running)+", with the disk open "+listed(open))
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	t.Cleanup(func() { stop(); work.Wait() })
	return func() (int, []string) {
		stop()
		work.Wait()
		return len(all), twice
	}
}

func listed(pids []int) string {
	words := make([]string, 0, len(pids))
	for _, pid := range pids {
		words = append(words, strconv.Itoa(pid))
	}
	return "[" + strings.Join(words, " ") + "]"
}

// guests are the processes of QEMU, of all nodes.
func guests() []int { return processesOf("qemu-system-", "") }

// processesOf are those whose program begins so, in the Pod of a UID if there is one.
func processesOf(program, uid string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		found, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe"))
		if err != nil || !strings.HasPrefix(filepath.Base(found), program) {
			continue
		}
		if cgroup, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup")); strings.Contains(string(cgroup), uid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// hasOpen tells whether a process has a file open, whatever it calls it.
func hasOpen(pid int, path string) bool {
	wanted, err := os.Stat(path)
	if err != nil {
		return false
	}
	folder := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, _ := os.ReadDir(folder)
	return slices.ContainsFunc(entries, func(entry os.DirEntry) bool {
		found, err := os.Stat(filepath.Join(folder, entry.Name()))
		return err == nil && os.SameFile(found, wanted)
	})
}

// TestFaults is what befalls a cluster of two nodes, one thing after the other. Each ends converged, no guest is started again that need
// not be, and at no time have two guests the same disk.
func TestFaults(t *testing.T) {
	f := newFaults(t)
	seen := lookOut(t, f.disk, storyNamespace+"_data")
	f.pushed("a machine with a claim, anywhere")
	f.home = f.started(t).Spec.NodeName
	for _, node := range nodes(t) {
		if node != f.home {
			f.other = node
		}
	}
	f.pushed("another one beside it")
	f.address = f.ready("web").Status.PodIP
	f.serves(t)
	f.web = f.run("web")

	for _, fault := range []struct {
		name string
		test func(*faults, *testing.T)
	}{
		{"libvirt's daemon is killed", (*faults).daemonKilled},
		{"an annotation is tampered with", (*faults).tampered},
		{"the API server is down for a minute", (*faults).serverDown},
		{"a kubelet is stopped and a Pod deleted by force", (*faults).kubeletStopped},
		{"a node is gone", (*faults).nodeGone},
		{"a machine moves with its claim", (*faults).moved},
		{"a Pod is deleted by force", (*faults).deletedByForce},
		{"a machine is deleted and comes back", (*faults).deleted},
	} {
		if !t.Run(fault.name, func(t *testing.T) { fault.test(f, t) }) {
			t.FailNow() // what comes next begins with what is whole
		}
	}
	if runs, twice := seen(); runs != f.boots || len(twice) > 0 {
		t.Errorf("%d guests had the disk, want %d; two at a time:\n%s", runs, f.boots, strings.Join(twice, "\n"))
	}
}
