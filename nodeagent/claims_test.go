package nodeagent

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// claiming is a VM that uses claims.
func claiming(names ...string) *machine {
	claims := map[string]*api.Claim{}
	for _, name := range names {
		claims["volume-"+name] = &api.Claim{Namespace: "default", Name: name}
	}
	return &machine{wire: &api.VM{Claims: claims}}
}

func TestReservations(t *testing.T) {
	r := newReservations()
	first, err := r.use(claiming("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.use(claiming("b", "c"))
	if err != nil {
		t.Fatal("two steps cannot use one claim:", err)
	}
	if _, free := r.remove("default/b"); free {
		t.Error("a claim that two steps use can be deleted")
	}
	first()
	if _, free := r.remove("default/b"); free {
		t.Error("a claim that a step uses can be deleted")
	}
	deleted, free := r.remove("default/a")
	if !free {
		t.Fatal("a claim that nobody uses cannot be deleted")
	}
	if _, err := r.use(claiming("c", "a")); err == nil {
		t.Error("a claim that is being deleted can be used")
	}
	if _, free := r.remove("default/a"); free {
		t.Error("a claim can be deleted twice at a time")
	}
	deleted()
	second()
	if len(r.held) != 0 {
		t.Errorf("left: %v", r.held)
	}
}

func TestKeychain(t *testing.T) {
	m := claiming()
	if keychain, err := m.keychain(""); keychain != nil || err != nil {
		t.Errorf("no secret: %v, %v", keychain, err)
	}
	m.wire.Contents = map[string]*api.Content{
		"imagePullSecrets/good": keysOf(map[string]string{".dockerconfigjson": `{"auths":{"quay.io":{"username":"me","password":"proof"}}}`}),
		"imagePullSecrets/bad":  keysOf(map[string]string{".dockerconfigjson": "proof"}),
		"imagePullSecrets/else": keysOf(map[string]string{"token": "proof"}),
	}
	for _, secret := range []string{"bad", "else", "missing"} {
		if _, err := m.keychain(secret); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "proof") || !strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", secret, err)
		}
	}
	keychain, err := m.keychain("good")
	if err != nil {
		t.Fatal(err)
	}
	repository, err := name.NewRepository("quay.io/me/disk")
	if err != nil {
		t.Fatal(err)
	}
	found, err := keychain.Resolve(repository)
	if err != nil {
		t.Fatal(err)
	}
	if config, err := found.Authorization(); err != nil || config.Username != "me" || config.Password != "proof" {
		t.Errorf("%v, %v", config, err)
	}
}

// TestClaimThatNobodyKnows covers messages that lack what they should have.
func TestClaimThatNobodyKnows(t *testing.T) {
	v := &hostVolumes{}
	for reason, m := range map[string]*machine{
		"no claim":             claiming(),
		"a source that is not": {wire: &api.VM{Claims: map[string]*api.Claim{"data": {Namespace: "default", Name: "x", Source: []byte("{")}}}},
	} {
		if _, err := v.wantedClaim(m.wire.GetClaims()["data"], nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

// TestCopyOfWhatNobodyUsedYet makes the claim that is to be copied first: a golden image belongs to no VM.
func TestCopyOfWhatNobodyUsedYet(t *testing.T) {
	served := bytes.Repeat([]byte("golden"), 4096)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(served) }))
	t.Cleanup(server.Close)
	v, err := openVolumes(t.TempDir(), "qemu", settings{localImports: true})
	if err != nil {
		t.Fatal(err)
	}
	source := func(of cdiv1.DataVolumeSource) []byte {
		text, err := json.Marshal(of)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	golden := &api.Claim{
		Namespace: "images", Name: "golden", CapacityBytes: 1 << 20,
		Source: source(cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: server.URL + "/disk.img"}}),
	}
	want, err := v.wantedClaim(&api.Claim{
		Namespace: "default", Name: "root", CapacityBytes: 2 << 20, CopyOf: golden,
		Source: source(cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "images", Name: "golden"}}),
	}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	disk, err := v.store.EnsureClaim(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := os.ReadFile(disk.Path)
	if err != nil || !bytes.HasPrefix(copied, served) || len(copied) != 2<<20 {
		t.Errorf("the copy has %d bytes, %v", len(copied), err)
	}
	if _, err := os.Stat(v.files.ClaimImage("images", "golden")); err != nil {
		t.Errorf("what was copied: %v", err)
	}
}

func TestSharedVolumes(t *testing.T) {
	readOnly := kubevirtv1.Volume{Name: "v"}
	readOnly.PersistentVolumeClaim = &kubevirtv1.PersistentVolumeClaimVolumeSource{}
	spec := &kubevirtv1.VirtualMachineInstanceSpec{}
	if onlyReads(spec, readOnly) || shareable(spec, readOnly) {
		t.Error("a claim is shared though nothing says so")
	}
	readOnly.PersistentVolumeClaim.ReadOnly = true
	if !onlyReads(spec, readOnly) || shareable(spec, readOnly) {
		t.Error("a claim that is only read is written to")
	}
	spec.Domain.Devices.Disks = []kubevirtv1.Disk{{Name: "w", DiskDevice: kubevirtv1.DiskDevice{CDRom: &kubevirtv1.CDRomTarget{}}}}
	if !onlyReads(spec, kubevirtv1.Volume{Name: "w"}) {
		t.Error("a CD-ROM is written to")
	}
	yes := true
	spec.Domain.Devices.Disks[0] = kubevirtv1.Disk{Name: "w", Shareable: &yes, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{}}}
	if onlyReads(spec, kubevirtv1.Volume{Name: "w"}) || !shareable(spec, kubevirtv1.Volume{Name: "w"}) {
		t.Error("a shareable disk is not one that others write to")
	}
}
