//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
)

const guest = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: guest}
spec:
  runStrategy: Always
  template:
    metadata: {labels: {app: guest}}
    spec:
      terminationGracePeriodSeconds: 60
      domain:
        memory: {guest: 96Mi}
        firmware:
          kernelBoot:
            kernelArgs: console=ttyS0 quiet no_timer_check
            container: {image: "gitvirt.test/guest:1", imagePullPolicy: Never, kernelPath: /boot/vmlinuz, initrdPath: /boot/initrd}
        devices: {autoattachPodInterface: false, autoattachGraphicsDevice: false, logSerialConsole: true}
`

func options() pods.Options {
	return pods.Options{Fleet: "e2e", Revision: "4fa1c7e", Image: os.Getenv("GITVIRT_E2E_LAUNCHER"), Emulation: true}
}

func machine(t testing.TB, manifest string) *schemas.VM {
	t.Helper()
	desired := schemas.Assemble([]*schemas.File{schemas.Parse("vm.yaml", []byte(manifest))}, schemas.AllowMissing())
	if len(desired.VMs) != 1 {
		t.Fatalf("%d machines: %v", len(desired.VMs), desired.Diagnostics)
	}
	return desired.VMs[0]
}

// TestAdmission: the API server takes the Pods and the Secrets of KubeVirt's examples as they are.
func TestAdmission(t *testing.T) {
	paths, err := filepath.Glob("../schemas/testdata/conformance/vm*.yaml")
	if err != nil || len(paths) < 20 {
		t.Fatal(paths, err)
	}
	types, err := os.ReadFile("../schemas/testdata/conformance/csmall.yaml")
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files := []*schemas.File{schemas.Parse(filepath.Base(path), content), schemas.Parse("csmall.yaml", types)}
		for _, vm := range schemas.Assemble(files, schemas.AllowMissing()).VMs {
			if pods.Refused(vm) != nil {
				continue
			}
			pod, err := pods.Pod(vm, options())
			if err != nil {
				t.Fatal(err)
			}
			secret, err := pods.Secret(vm, vm.Record, options())
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range []any{pod, secret} {
				if output, err := kubectl(t, object, "apply", "--server-side", "--field-manager=gitvirt", "--dry-run=server", "-f", "-"); err != nil {
					t.Errorf("%s: %v\n%s", path, err, output)
				}
			}
			taken++
		}
	}
	if taken < 18 {
		t.Errorf("only %d were tried", taken)
	}
}

// TestGuestInItsPod does with image volumes what TestAgent does without: a machine becomes a Pod, in which an unprivileged libvirt runs its guest; the Pod is ready when somebody says so of
// the guest, applying it again changes nothing, and deleting it shuts the guest down.
func TestGuestInItsPod(t *testing.T) {
	vm := machine(t, guest)
	name := pods.Name(vm.Address)
	wanted, err := pods.Pod(vm, options())
	if err != nil {
		t.Fatal(err)
	}
	secret, err := pods.Secret(vm, vm.Record, options())
	if err != nil {
		t.Fatal(err)
	}
	apply(t, secret)
	apply(t, wanted)
	t.Cleanup(func() {
		_, _ = command(t.Context(), "delete", "pod,secret", name, "--ignore-not-found", "--grace-period=1").CombinedOutput()
	})
	eventually(t, "the Pod runs", func() (bool, string) {
		now := pod(t, name)
		return now.Status.Phase == corev1.PodRunning, string(now.Status.Phase) + "\n" + must(t, nil, "describe", "pod", name)
	})
	now := pod(t, name)
	if condition(now, corev1.ContainersReady) != corev1.ConditionTrue || condition(now, corev1.PodReady) == corev1.ConditionTrue {
		t.Errorf("it is ready without its guest: %+v", now.Status.Conditions)
	}
	log := follow(t, name)

	define(t, vm, shared(now, "gitvirt-runtime"))
	eventually(t, "the guest has booted", func() (bool, string) { return strings.Contains(log.String(), "gitvirt-guest: ready"), log.String() })

	must(t, nil, "patch", "pod", name, "--subresource=status", "--type=strategic", "-p",
		`{"status":{"conditions":[{"type":"`+podapi.GuestReady+`","status":"True"}]}}`)
	eventually(t, "the Pod is ready through its gate", func() (bool, string) {
		now := pod(t, name)
		return condition(now, corev1.PodReady) == corev1.ConditionTrue, must(t, nil, "describe", "pod", name)
	})
	version := pod(t, name).ResourceVersion
	apply(t, wanted)
	if after := pod(t, name).ResourceVersion; after != version {
		t.Errorf("applied again it is another: %s, was %s", after, version)
	}

	must(t, nil, "delete", "pod", name, "--wait=true", "--timeout=90s")
	eventually(t, "the guest has shut down", func() (bool, string) {
		return strings.Contains(log.String(), `msg="launcher ends" fate=shutdown`), log.String()
	})
}

// define does what the node agent does: it defines and starts the guest over the socket of the Pod's libvirt.
func define(t testing.TB, vm *schemas.VM, runtime string) {
	t.Helper()
	socket, err := protocol.OpenSocket(runtime)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	images := filepath.Join(protocol.ImagesDir, protocol.KernelBoot)
	boot := vm.Spec().Domain.Firmware.KernelBoot.Container
	document, err := domainxml.Render(domainxml.Machine{
		Address: vm.Address, Spec: vm.Spec(),
		Host: domainxml.Host{DomainType: "qemu", ConsoleLog: filepath.Join(protocol.Dir, protocol.ConsolePipe), Dir: protocol.DisksDir},
		Volumes: []domainxml.Volume{{
			Name: domainxml.KernelBootVolume, Kind: "kernelBoot", Path: filepath.Join(images, boot.KernelPath), Initrd: filepath.Join(images, boot.InitrdPath),
		}},
		Record: &domainxml.Record{Address: vm.Address, Fleet: "e2e", Hash: vm.Hash, Spec: vm.Record},
	})
	if err != nil {
		t.Fatal(err)
	}
	h := libvirt.New(socket.URI())
	defer func() { _ = h.Close() }()
	if err := h.Define(t.Context(), document); err != nil {
		t.Fatal(err)
	}
	if err := h.SetPower(t.Context(), domainxml.DomainName(vm.Address), hypervisor.PowerOn); err != nil {
		t.Fatal(err)
	}
}

// output is what a program has said so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// follow follows a Pod's log until the test ends: what is in it is gone with the Pod.
func follow(t testing.TB, pod ...string) *output {
	t.Helper()
	out := &output{}
	cmd := command(t.Context(), append([]string{"logs", "-f"}, pod...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	return out
}
