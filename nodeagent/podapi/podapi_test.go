package podapi_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

const record = `{"apiVersion":"kubevirt.io/v1"}`

// signed is a step with its annotations, and who verifies them.
func signed(t *testing.T) (*podapi.Step, map[string]string, func(payload, signature []byte) bool) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	step := &podapi.Step{
		ID: "1", Address: "VirtualMachine/shop/web", Fleet: "demo", Revision: "4fa1c7e", Content: podapi.Digest([]byte("content")),
		Hash: podapi.Digest([]byte(record)), Define: true, Power: "on", GraceSeconds: 30,
	}
	annotations, err := step.Annotate("shop", "virt-launcher-web", []byte(record), func(payload []byte) ([]byte, error) {
		return ed25519.Sign(private, payload), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return step, annotations, func(payload, signature []byte) bool { return ed25519.Verify(public, payload, signature) }
}

func TestStepArrives(t *testing.T) {
	step, annotations, verify := signed(t)
	got, found, err := podapi.Read("shop", "virt-launcher-web", annotations, verify)
	if err != nil || string(found) != record {
		t.Fatal(err, string(found))
	}
	if diff := cmp.Diff(step, got); diff != "" {
		t.Error(diff)
	}
}

// Whatever of a step is another than what was signed, or in another place, it is refused.
func TestForgeries(t *testing.T) {
	_, annotations, verify := signed(t)
	_, others, _ := signed(t)
	change := func(key string, edit func(string) string) map[string]string {
		out := maps.Clone(annotations)
		out[key] = edit(out[key])
		return out
	}
	for _, test := range []struct {
		name, namespace, pod string
		annotations          map[string]string
	}{
		{"another namespace", "bank", "virt-launcher-web", annotations},
		{"another Pod", "shop", "virt-launcher-db", annotations},
		{"another controller", "shop", "virt-launcher-web", others},
		{"nothing", "shop", "virt-launcher-web", nil},
		{"another power", "shop", "virt-launcher-web", change(podapi.AnnotationStep, func(s string) string { return strings.Replace(s, `"on"`, `"off"`, 1) })},
		{"another machine", "shop", "virt-launcher-web", change(podapi.AnnotationStep, func(s string) string { return strings.Replace(s, "/web", "/db", 1) })},
		{"another record", "shop", "virt-launcher-web", change(podapi.AnnotationRecord, func(s string) string { return s + " " })},
		{"no signature", "shop", "virt-launcher-web", change(podapi.AnnotationSignature, func(string) string { return "" })},
		{"a signature that is none", "shop", "virt-launcher-web", change(podapi.AnnotationSignature, func(string) string { return "!" })},
		{"no JSON", "shop", "virt-launcher-web", change(podapi.AnnotationStep, func(string) string { return "{" })},
	} {
		if step, _, err := podapi.Read(test.namespace, test.pod, test.annotations, verify); !errors.Is(err, podapi.ErrForged) {
			t.Errorf("%s: %+v, %v", test.name, step, err)
		}
	}
}

// A step goes with one content of the Secret, and what cannot be read is not quoted.
func TestContent(t *testing.T) {
	vm := &api.VM{Address: "VirtualMachine/shop/web", Contents: map[string]*api.Content{
		"b": {Values: map[string][]byte{"y": []byte("2"), "x": []byte("1")}}, "a": {Values: map[string][]byte{"k": []byte("v")}},
	}}
	content, err := podapi.EncodeVM(vm)
	if err != nil {
		t.Fatal(err)
	}
	step := podapi.Step{Content: podapi.Digest(content)}
	got, err := step.DecodeVM(content)
	if diff := cmp.Diff(vm, got, protocmp.Transform()); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if _, err := step.DecodeVM([]byte("hunter2")); !errors.Is(err, podapi.ErrOtherContent) {
		t.Error(err)
	}
	step.Content = podapi.Digest([]byte("hunter2"))
	if _, err := step.DecodeVM([]byte("hunter2")); err == nil || strings.Contains(err.Error(), "hunter") {
		t.Error(err)
	}
	for range 20 {
		if again, err := podapi.EncodeVM(vm); err != nil || string(again) != string(content) {
			t.Fatal("it is written otherwise each time", err)
		}
	}
}

// What an agent tells arrives as it was; records that the Pod holds already do not travel again.
func TestObserved(t *testing.T) {
	step, annotations, _ := signed(t)
	domain := &api.Domain{
		Address: step.Address, Name: "shop_web", State: "running", Hash: step.Hash, Record: []byte(record), RunningHash: "older",
		RunningRecord: []byte(`{"old":1}`), Addresses: []string{"10.0.0.1"}, Drift: []*api.Change{{Path: "spec", Before: []byte("1")}},
	}
	told := podapi.Observed{Step: "1", Outcome: podapi.Done, Live: []string{"cpu-plug"}, Node: "node-1", Domain: podapi.Trim(domain, step.Hash)}
	text, err := told.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := told.Encode(); err != nil || again != text {
		t.Error("it is written otherwise each time", err)
	}
	annotations[podapi.AnnotationObserved] = text
	got, err := podapi.DecodeObserved(annotations)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Domain.GetRecord()) > 0 || len(got.Domain.GetRunningRecord()) == 0 {
		t.Errorf("records: %s, %s", got.Domain.GetRecord(), got.Domain.GetRunningRecord())
	}
	podapi.Fill(got.Domain, step, []byte(record))
	if diff := cmp.Diff(domain, got.Domain, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"{", `{"domain":{"name":1}}`, "[]"} {
		annotations[podapi.AnnotationObserved] = text
		if _, err := podapi.DecodeObserved(annotations); err == nil {
			t.Errorf("%s was read", text)
		}
	}
	if got, err := podapi.DecodeObserved(nil); got != nil || err != nil {
		t.Error(got, err)
	}
}
