package nodeagent_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// TestCheck: what would fail is said beforehand, in full, and nothing is changed by asking.
func TestCheck(t *testing.T) {
	tree := func(dir string) string {
		var out strings.Builder
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			fmt.Fprintln(&out, path, err)
			return nil
		})
		return out.String()
	}
	for _, test := range []struct {
		name string
		// running is what the guest runs, empty for none; wish is what is checked.
		running, wish string
		power         string
		prepare       func(*rig)
		contents      map[string]map[string]string
		problems      []string
		warnings      []string
		notLive       string
	}{
		{name: "nothing wrong", wish: large, power: "on"},
		{name: "a live change", running: small, wish: large},
		{name: "not live", running: small, wish: strings.Replace(small, "maxSockets: 4", "maxSockets: 2", 1), notLive: "the largest number of vCPUs can only change at a restart"},
		{
			name: "too much memory", wish: strings.Replace(small, "guest: 256Mi, maxGuest: 1Gi", "guest: 4Gi", 1), power: "on",
			prepare:  func(r *rig) { r.file("proc/meminfo", "MemTotal: 2097152 kB\n") },
			problems: []string{"the guest wants 4.0 GiB of memory and the host has 2.0 GiB; ask for less in memory.guest, or use another host"},
		},
		{
			name: "a TPM", wish: strings.Replace(small, "  devices:", "  devices:\n    tpm: {}", 1), power: "on",
			problems: []string{"apt-get install swtpm"},
		},
		{
			name: "more room promised than there is", wish: strings.Replace(small, "root, emptyDisk: {capacity: 1Mi}", "root, emptyDisk: {capacity: 32Ti}", 1), power: "on",
			warnings: []string{"free, and the volumes may grow by 32.0 TiB; a guest stops when it is full"},
		},
		{
			name: "no room for an image", wish: strings.Replace(small, "root, emptyDisk: {capacity: 1Mi}", `root, containerDisk: {image: "`+hugeImage(t)+`"}`, 1), power: "on",
			problems: []string{"free, and up to 1.0 EiB would be written there; make room, or ask for less"},
		},
		{
			name: "more vCPUs than the host has CPUs", wish: strings.Replace(small, "sockets: 1", "sockets: 3", 1), power: "on",
			prepare:  func(r *rig) { r.file("sys/devices/system/cpu/online", "0-1\n") },
			warnings: []string{"the guest has 3 vCPUs and the host 2 CPUs; more than the host's make a guest slower, not faster"},
		},
		{
			name: "the MAC address of another fleet's", wish: strings.Replace(small, "lan, bridge: {}", `lan, bridge: {}, macAddress: "02:00:00:00:00:aa"`, 1), power: "on",
			prepare:  func(r *rig) { r.must(sameMAC(r, "theirs")) },
			problems: []string{`VirtualMachine/default/other of the fleet "theirs" has the MAC address 02:00:00:00:00:aa; give the interface another one`},
		},
		{
			name: "the MAC address of one that is still there", wish: strings.Replace(small, "lan, bridge: {}", `lan, bridge: {}, macAddress: "02:00:00:00:00:aa"`, 1), power: "on",
			prepare:  func(r *rig) { r.must(sameMAC(r, "fleet")) },
			warnings: []string{"VirtualMachine/default/other is still there and has the MAC address 02:00:00:00:00:aa; networks take the two for one while both run"},
		},
		{
			name: "a disk shrinks", running: large, wish: strings.Replace(large, "capacity: 2Mi", "capacity: 1Mi", 1),
			problems: []string{"volume root: it has 2.0 MiB and the manifest asks for 1.0 MiB"},
		},
		{
			name: "a ConfigMap is missing", wish: large, power: "on", contents: map[string]map[string]string{},
			problems: []string{"volume cd: cannot be carried out: the ConfigMap files is not there"},
		},
		{
			name: "an image that cannot be had", power: "on",
			wish:     strings.Replace(small, "root, emptyDisk: {capacity: 1Mi}", `root, containerDisk: {image: "127.0.0.1:1/no/image:1"}`, 1),
			problems: []string{"root: container image 127.0.0.1:1/no/image:1: resolving it"},
		},
		{
			name: "an image that is not there", power: "on",
			wish:     strings.Replace(small, "root, emptyDisk: {capacity: 1Mi}", `root, containerDisk: {image: "oci:/no/where"}`, 1),
			problems: []string{"root: container image oci:/no/where"},
		},
		{
			name: "a MAC address", wish: strings.Replace(small, "lan, bridge: {}", `lan, bridge: {}, macAddress: "02:00:00:00:00:aa"`, 1), power: "on",
			prepare: func(r *rig) {
				document := "<domain type='qemu'><name>other</name><uuid>5d307ca9-b3ef-428c-8861-06e72d69f223</uuid><memory>1024</memory><os><type>hvm</type></os>" +
					"<devices><interface type='user'><mac address='02:00:00:00:00:AA'/></interface></devices></domain>"
				r.stop()
				if err := r.fake.Define(context.Background(), document); err != nil {
					r.t.Fatal(err)
				}
				r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host"))) // and reads it
			},
			problems: []string{"domain other, which is not gitvirt's, has the MAC address 02:00:00:00:00:aa; give the interface another one"},
		},
		{
			name: "another VM's disk", power: "on",
			wish: strings.Replace(small, "root, emptyDisk: {capacity: 1Mi}", `root, hostDisk: {path: DIR/disk.img, type: DiskOrCreate, capacity: 1Mi}`, 1),
			prepare: func(r *rig) {
				r.must(r.request(vm{name: "b", change: specOf(r.t, `{"domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "x", "disk": {"bus": "virtio"}}]}},
					"volumes": [{"name": "x", "hostDisk": {"path": "`+r.dir+`/disk.img", "type": "DiskOrCreate", "capacity": "1Mi"}}]}`)}, ""))
			},
			problems: []string{"volume root: VirtualMachine/default/b has the disk"},
		},
		{
			name: "the definition is refused", wish: small, power: "on",
			prepare: func(r *rig) {
				r.fake.Fail(fake.Validate, func(context.Context, string) error { return fmt.Errorf("%w: no such thing", hypervisor.ErrInvalid) })
			},
			problems: []string{"the definition of default_a: definition refused: no such thing"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			if test.running != "" {
				r.must(r.request(liveVM(t, test.running), "on"))
			}
			if test.prepare != nil {
				test.prepare(r)
			}
			wish := liveVM(t, strings.ReplaceAll(test.wish, "DIR", r.dir))
			if test.contents != nil {
				wish.contents = test.contents
			}
			request, before := r.request(wish, test.power), tree(r.dir)
			answer, err := r.client.Check(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if got := answer.GetWarnings(); len(got) != len(test.warnings) || len(got) > 0 && !strings.Contains(got[0], test.warnings[0]) {
				t.Errorf("warnings: %q", got)
			}
			if answer.GetNotLive() != test.notLive {
				t.Errorf("not live: %q", answer.GetNotLive())
			}
			if got := answer.GetProblems(); len(got) != len(test.problems) {
				t.Errorf("problems: %q", got)
			}
			for i, problem := range answer.GetProblems() {
				if i < len(test.problems) && !strings.Contains(problem, test.problems[i]) {
					t.Errorf("problem %q, want %q", problem, test.problems[i])
				}
			}
			if diff := cmp.Diff(before, tree(r.dir)); diff != "" {
				t.Errorf("asking changed something:\n%s", diff)
			}
			if r.domain("a").GetFingerprint() != request.GetPrecondition() || r.domain("a").GetLiveRefused() != nil {
				t.Error("asking changed the domain")
			}
			if len(test.problems) == 0 && test.notLive == "" {
				r.must(request)
			}
		})
	}
}

// hugeImage serves the manifest of a container image of an exbibyte.
func hugeImage(t *testing.T) string {
	t.Helper()
	config := fmt.Sprintf(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:%064x"]}}`, 1)
	manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
		"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":%d,"digest":"sha256:%x"},
		"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","size":%d,"digest":"sha256:%064x"}]}`, len(config), sha256.Sum256([]byte(config)), 1<<60, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(manifest))))
			w.Header().Set("Content-Length", strconv.Itoa(len(manifest)))
			_, _ = w.Write([]byte(manifest))
		} else if strings.Contains(r.URL.Path, "/blobs/") {
			_, _ = w.Write([]byte(config))
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/huge/image:1"
}

// sameMAC makes another VM, of a fleet, with the MAC address 02:00:00:00:00:aa.
func sameMAC(r *rig, fleet string) *api.ExecuteRequest {
	other := liveVM(r.t, strings.Replace(small, "lan, bridge: {}", `lan, bridge: {}, macAddress: "02-00-00-00-00-AA"`, 1))
	other.name = "other"
	request := r.request(other, "")
	request.Vm.Fleet = fleet
	return request
}

// TestCheckOfAnOldPlan: what has moved since the plan was made is a problem, and a host that does not answer is an error.
func TestCheckOfAnOldPlan(t *testing.T) {
	r := newRig(t, nil)
	request := r.request(liveVM(t, small), "on")
	r.must(request)
	answer, err := r.client.Check(t.Context(), request)
	if err != nil || len(answer.GetProblems()) != 1 || !strings.Contains(answer.GetProblems()[0], "has changed since the plan was made") {
		t.Errorf("got %v, %v", answer, err)
	}
	r.fake.Fail(fake.Domain, func(context.Context, string) error { return errors.Join(hypervisor.ErrUnavailable) })
	if _, err := r.client.Check(t.Context(), &api.ExecuteRequest{Address: "VirtualMachine/default/a", Destroy: true}); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
}
