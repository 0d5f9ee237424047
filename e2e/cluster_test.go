//go:build e2e

// Package e2e has the tests that need a real Kubernetes: `make e2e` starts one, loads the images and runs them.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// T is a test or a benchmark.
type T = testing.TB

// patience bounds each wait. Guests boot in software emulation; after an API server was away the watches of some program may begin again a
// minute later, and so may a step that had failed.
const patience = 4 * time.Minute

// kubectl runs kubectl as the cluster's administrator, with an object on its standard input if there is one.
func kubectl(t testing.TB, object any, arguments ...string) (string, error) {
	t.Helper()
	cmd := command(t.Context(), arguments...)
	if object != nil {
		content, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = bytes.NewReader(content)
	}
	output, err := cmd.CombinedOutput()
	return string(output), err
}

func command(ctx context.Context, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Getenv("GITVIRT_KUBECTL"), arguments...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(cluster(), "kubeconfig"))
	return cmd
}

func must(t testing.TB, object any, arguments ...string) string {
	t.Helper()
	output, err := kubectl(t, object, arguments...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return output
}

// apply is what the platform does with an object: server-side apply in gitvirt's name.
func apply(t testing.TB, object any, more ...string) string {
	t.Helper()
	return must(t, object, append([]string{"apply", "--server-side", "--field-manager=gitvirt", "-f", "-"}, more...)...)
}

func cluster() string { return os.Getenv("GITVIRT_CLUSTER") }

// pod reads a Pod.
func pod(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	out := &corev1.Pod{}
	if err := json.Unmarshal([]byte(must(t, nil, "get", "pod", name, "-o", "json")), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return p.Status.Conditions[i].Status
		}
	}
	return ""
}

// eventually waits for something; told says what was seen last.
func eventually(t testing.TB, what string, holds func() (ok bool, told string)) {
	t.Helper()
	var told string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		var ok bool
		if ok, told = holds(); ok {
			return
		}
	}
	t.Fatalf("never: %s\n%s", what, told)
}

// shared is a volume of a Pod as its node sees it.
func shared(p *corev1.Pod, volume string) string {
	return filepath.Join(cluster(), "nodes", p.Spec.NodeName, "var/lib/kubelet/pods", string(p.UID), "volumes/kubernetes.io~empty-dir", volume)
}
