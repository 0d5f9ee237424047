package git_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// manifest is a VM as people write them, in about 900 bytes.
func manifest(i, cores int) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: vm-%05d
  namespace: team-%02d
  labels:
    app: web
    tier: front-%d
spec:
  runStrategy: Always
  template:
    metadata:
      labels:
        app: web
    spec:
      terminationGracePeriodSeconds: 30
      domain:
        cpu:
          cores: %d
        memory:
          guest: 2Gi
        devices:
          disks:
            - name: root
              disk:
                bus: virtio
            - name: cloudinit
              disk:
                bus: virtio
          interfaces:
            - name: default
              masquerade: {}
      networks:
        - name: default
          pod: {}
      volumes:
        - name: root
          containerDisk:
            image: registry.example.org/debian:12
        - name: cloudinit
          cloudInitNoCloud:
            userData: |
              #cloud-config
              hostname: vm-%05d
              packages: [nginx]
`, i, i%50, i%7, cores, i)
}

// fleet makes a repository of n VMs, one file each, repacked as servers do.
func fleet(b *testing.B, n int) *gittest.Repo {
	b.Helper()
	r := gittest.NewRepo(b)
	files := make(map[string]string, n)
	for i := range n {
		files[vmFile(i)] = manifest(i, 2)
	}
	r.Commit(files)
	r.Git("repack", "-adq")
	return r
}

func vmFile(i int) string { return fmt.Sprintf("team-%02d/vm-%05d.yaml", i%50, i) }

// BenchmarkUnchangedPoll compares an unchanged poll with git ls-remote, taking turns.
func BenchmarkUnchangedPoll(b *testing.B) {
	transports := map[string]func(r *gittest.Repo) git.Config{
		"file": func(r *gittest.Repo) git.Config { return git.Config{URL: r.URL()} },
		"http": func(r *gittest.Repo) git.Config {
			return git.Config{URL: gittest.NewHTTPServer(b, r, gittest.HTTPOptions{}).RepoURL}
		},
		"ssh": func(r *gittest.Repo) git.Config {
			s := gittest.NewSSHServer(b)
			b.Setenv("GIT_SSH_COMMAND", "ssh -F none -i "+s.KeyFile+" -o UserKnownHostsFile="+s.KnownHosts)
			return git.Config{URL: s.URL(r), KnownHosts: s.KnownHosts, Auth: git.Auth{SSHKeyFile: s.KeyFile}}
		},
	}
	for name, config := range transports {
		b.Run(name, func(b *testing.B) {
			r := gittest.NewRepo(b)
			r.Commit(map[string]string{"a.yaml": "one"})
			cfg := config(r)
			s := open(b, cfg)
			poll(b, s)
			var ours, theirs time.Duration
			for b.Loop() {
				start := time.Now()
				poll(b, s)
				ours += time.Since(start)
				start = time.Now()
				if out, err := exec.Command("git", "ls-remote", "--heads", cfg.URL).CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				theirs += time.Since(start)
			}
			b.ReportMetric(float64(ours)/float64(theirs), "x-ls-remote")
			b.ReportMetric(float64(ours.Microseconds())/float64(b.N)/1000, "ms/poll")
		})
	}
}

// BenchmarkOneFileCommit is a commit of one file in 20,000: the poll with its fetch, and what of it comes after the
// fetch, which At shows: it reads a commit that the mirror has.
func BenchmarkOneFileCommit(b *testing.B) {
	r := fleet(b, 20_000)
	s := openReal(b, git.Config{URL: r.Dir})
	start := time.Now()
	poll(b, s)
	b.ReportMetric(float64(time.Since(start).Milliseconds()), "cold-ms")
	var polls, reads time.Duration
	round := 0
	for b.Loop() {
		round++
		next := r.Commit(map[string]string{vmFile(round * 37 % 20_000): manifest(round*37%20_000, round%64+3)})
		back := r.Commit(map[string]string{vmFile(1): manifest(1, round%64+3)})
		start := time.Now()
		got := poll(b, s)
		polls += time.Since(start)
		if len(got.Changed) != 2 || got.Revision != back {
			b.Fatalf("changed %v", got.Changed)
		}
		start = time.Now()
		if _, err := s.At(b.Context(), next); err != nil {
			b.Fatal(err)
		}
		reads += time.Since(start)
	}
	b.ReportMetric(float64(polls.Microseconds())/float64(b.N)/1000, "ms/poll")
	b.ReportMetric(float64(reads.Microseconds())/float64(b.N)/1000, "ms/snapshot")
}

func openReal(b *testing.B, cfg git.Config) *git.Source {
	b.Helper()
	return open(b, cfg, git.WithParse(schemas.Parse))
}

// BenchmarkColdRead reads 5,000 VMs from a mirror as after a restart, with and without parsing them.
func BenchmarkColdRead(b *testing.B) {
	r := fleet(b, 5000)
	dir := b.TempDir()
	poll(b, open(b, git.Config{URL: r.Dir, Dir: dir}))
	for name, parser := range map[string]git.ParseFunc{"parsed": schemas.Parse, "raw": parse} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := open(b, git.Config{URL: r.Dir, Dir: dir}, git.WithParse(parser))
				snapshot, err := s.Last(b.Context())
				if err != nil || len(snapshot.Files) != 5000 {
					b.Fatal(err)
				}
				runtime.KeepAlive(snapshot)
			}
		})
	}
}

// BenchmarkClone fetches and reads 5,000 VMs for the first time, and tells what the process holds then.
func BenchmarkClone(b *testing.B) {
	r := fleet(b, 5000)
	for b.Loop() {
		s := openReal(b, git.Config{URL: r.Dir, Dir: b.TempDir()})
		snapshot := poll(b, s)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB-live")
		b.ReportMetric(peak(), "MiB-peak-RSS")
		runtime.KeepAlive(snapshot)
	}
}

// peak is the most memory the process ever held, in MiB.
func peak() float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kib float64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0
	}
	return kib / 1024
}

// BenchmarkPublish changes one file of 5,000 on the status branch.
func BenchmarkPublish(b *testing.B) {
	r := gittest.NewRepo(b)
	p := publisher(b, git.Config{URL: r.Dir})
	files := map[string][]byte{}
	for i := range 5000 {
		files["me/"+vmFile(i)] = []byte(manifest(i, 2))
	}
	round := 0
	for b.Loop() {
		round++
		files["me/"+vmFile(round%5000)] = []byte(manifest(round, 3))
		if _, err := p.Publish(b.Context(), status, own("me"), files, "Status", git.Author{}); err != nil {
			b.Fatal(err)
		}
	}
}
