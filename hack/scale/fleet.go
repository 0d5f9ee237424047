package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed stages.yaml
var kwokStages []byte

// namespaces is how many the VMs are spread over.
const namespaces = 10

func namespaceOf(i int) string { return fmt.Sprintf("team-%02d", i%namespaces) }

// manifest is a VM as people write them.
func manifest(i, sockets int, tier string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm-%05d, namespace: %s, labels: {app: web, tier: front}}
spec:
  runStrategy: Always
  template:
    metadata: {labels: {app: web, tier: %s}}
    spec:
      terminationGracePeriodSeconds: 30
      domain:
        cpu: {sockets: %d, maxSockets: 4}
        memory: {guest: 1Gi}
        devices:
          disks:
          - {name: root, disk: {bus: virtio}}
          - {name: data, disk: {bus: virtio}}
          - {name: init, disk: {bus: virtio}}
          interfaces:
          - {name: default, masquerade: {}}
      networks:
      - {name: default, pod: {}}
      volumes:
      - name: root
        containerDisk: {image: "registry.example.com/os:1"}
      - name: data
        emptyDisk: {capacity: 1Gi}
      - name: init
        cloudInitNoCloud: {userData: "#cloud-config\nhostname: vm-%05d\nssh_authorized_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMc7 ops@example.com]\n"}
`, i, namespaceOf(i), tier, sockets, i)
}

const fleetManifest = `apiVersion: gitvirt.io/v1alpha1
kind: Fleet
metadata: {name: scale}
spec: {platform: kubernetes}
`

func manifestPath(i int) string { return fmt.Sprintf("%s/vm-%05d.yaml", namespaceOf(i), i) }

// repository is a bare repository, and a clone in which commits are made.
type repository struct{ bare, work string }

func newRepository(ctx context.Context, dir string) (*repository, error) {
	r := &repository{bare: filepath.Join(dir, "fleet.git"), work: filepath.Join(dir, "work")}
	if err := os.MkdirAll(r.work, 0o700); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--bare", "--initial-branch=main", r.bare},
		{"-C", r.work, "init", "--quiet", "--initial-branch=main"},
		{"-C", r.work, "remote", "add", "origin", r.bare},
		{"-C", r.work, "config", "user.name", "scale"},
		{"-C", r.work, "config", "user.email", "scale@example.com"},
	} {
		if _, err := git(ctx, args...); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...) //nolint:gosec // what the benchmark itself says
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, failure.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// commit writes files and commits them; push tells the world, and both return the revision.
func (r *repository) commit(ctx context.Context, files map[string]string) (string, error) {
	for path, content := range files {
		path = filepath.Join(r.work, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	if _, err := git(ctx, "-C", r.work, "add", "--all"); err != nil {
		return "", err
	}
	if _, err := git(ctx, "-C", r.work, "commit", "--quiet", "--allow-empty", "--message=Change the fleet"); err != nil {
		return "", err
	}
	return git(ctx, "-C", r.work, "rev-parse", "HEAD")
}

func (r *repository) push(ctx context.Context) error {
	_, err := git(ctx, "-C", r.work, "push", "--quiet", "origin", "main")
	return err
}
