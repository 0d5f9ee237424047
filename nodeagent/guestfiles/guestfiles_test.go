package guestfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type contents = map[string]map[string][]byte

// machine is a VM with one volume "v".
func machine(t testing.TB, volume string, with contents) (Machine, kubevirtv1.Volume) {
	t.Helper()
	source := kubevirtv1.Volume{Name: "v"}
	if err := yaml.UnmarshalStrict([]byte(volume), &source.VolumeSource); err != nil {
		t.Fatal(err)
	}
	object := &kubevirtv1.VirtualMachine{Spec: kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"b": "2", "a": "one \"1\""}, Annotations: map[string]string{"note": "x\ny"}},
	}}}
	object.Spec.Template.Spec.Volumes = []kubevirtv1.Volume{source}
	object.Spec.Template.Spec.Domain.CPU = &kubevirtv1.CPU{Cores: 3}
	memory := resource.MustParse("96Mi")
	object.Spec.Template.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: &memory}
	object.Spec.Template.Spec.Domain.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1500m")}
	return Machine{Address: schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web-1"}, Object: object, Contents: with}, source
}

// shown is a set as a map.
func shown(set Set) map[string]string {
	out := map[string]string{}
	for _, file := range set.Files {
		out[file.Name] = string(file.Data)
	}
	return out
}

func TestOf(t *testing.T) {
	secret := contents{"v": {"token": []byte("proof"), "ca.crt": []byte("cert")}}
	tests := []struct {
		reason, volume string
		with           contents
		label          string
		want           map[string]string
	}{
		{"a Secret has a file for each key", "secret: {secretName: s}", secret, "cfgdata", map[string]string{"token": "proof", "ca.crt": "cert"}},
		{"a label of its own", "configMap: {name: c, volumeLabel: OEMDRV}", contents{"v": {"ks.cfg": []byte("text")}}, "OEMDRV", map[string]string{"ks.cfg": "text"}},
		{"an optional Secret that is not there", "secret: {secretName: s, optional: true}", nil, "cfgdata", map[string]string{}},
		{"a Secret without keys", "secret: {secretName: s}", contents{"v": {}}, "cfgdata", map[string]string{}},
		{"a service account has no token on a host", "serviceAccount: {serviceAccountName: a}", nil, "cfgdata", map[string]string{"namespace": "default"}},
		{"a service account with a token", "serviceAccount: {serviceAccountName: a}", contents{"v": {"token": []byte("t")}}, "cfgdata", map[string]string{"namespace": "default", "token": "t"}},
		{"sysprep", "sysprep: {configMap: {name: c}}", contents{"v": {"Unattend.xml": []byte("<x/>")}}, "unattendCD", map[string]string{"Unattend.xml": "<x/>"}},
		{"cloud-init", "cloudInitNoCloud: {userDataBase64: I2Nsb3VkLWNvbmZpZw==, networkData: net}", nil, "cidata", map[string]string{
			"user-data": "#cloud-config", "network-config": "net", "meta-data": `{"instance-id":"web-1.default","local-hostname":"web-1"}`,
		}},
		{"cloud-init from a Secret", "cloudInitNoCloud: {secretRef: {name: s}}", contents{"v": {"userdata": []byte("#!x")}}, "cidata", map[string]string{
			"user-data": "#!x", "meta-data": `{"instance-id":"web-1.default","local-hostname":"web-1"}`,
		}},
		{"a config drive", "cloudInitConfigDrive: {userData: '#!x', networkData: '{}'}", nil, "config-2", map[string]string{
			"openstack/latest/user_data": "#!x", "openstack/latest/network_data.json": "{}",
			"openstack/latest/meta_data.json": `{"instance_id":"web-1.default","local_hostname":"web-1","hostname":"web-1","uuid":"` +
				schemas.FirmwareUUID(schemas.Address{Namespace: "default", Name: "web-1"}) + `"}`,
		}},
		{"the downward API", `downwardAPI:
  fields:
  - {path: name, fieldRef: {fieldPath: metadata.name}}
  - {path: ns, fieldRef: {fieldPath: metadata.namespace}}
  - {path: meta/labels, fieldRef: {fieldPath: metadata.labels}}
  - {path: meta/label, fieldRef: {fieldPath: "metadata.labels['b']"}}
  - {path: meta/annotations, fieldRef: {fieldPath: metadata.annotations}}
  - {path: cpu, resourceFieldRef: {resource: requests.cpu}}
  - {path: cpu-limit, resourceFieldRef: {resource: limits.cpu}}
  - {path: memory, resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}`, nil, "cfgdata", map[string]string{
			"name": "web-1", "ns": "default", "meta/labels": "a=\"one \\\"1\\\"\"\nb=\"2\"", "meta/label": "2", "meta/annotations": `note="x\ny"`,
			"cpu": "2", "cpu-limit": "3", "memory": "96",
		}},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			m, source := machine(t, test.volume, test.with)
			set, err := Of(m, source)
			if err != nil || set.Label != test.label {
				t.Fatalf("Of() = label %q, %v; want %q", set.Label, err, test.label)
			}
			if diff := cmp.Diff(test.want, shown(set)); diff != "" {
				t.Error(diff)
			}
			if _, err := set.Image(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOfRefuses(t *testing.T) {
	tests := []struct {
		reason, volume string
		with           contents
		want           string
	}{
		{"a Secret that is not there", "secret: {secretName: s}", nil, "the Secret s is not there"},
		{"a ConfigMap that is not there", "configMap: {name: c}", nil, "the ConfigMap c is not there"},
		{"a key that leads elsewhere", "secret: {secretName: s}", contents{"v": {"../../etc/passwd": []byte("proof")}}, "is no file name"},
		{"a key that is a directory", "secret: {secretName: s}", contents{"v": {"..": []byte("proof")}}, "is no file name"},
		{"a path that leads elsewhere", "downwardAPI: {fields: [{path: ../x, fieldRef: {fieldPath: metadata.name}}]}", nil, "file name"},
		{"an absolute path", "downwardAPI: {fields: [{path: /etc/x, fieldRef: {fieldPath: metadata.name}}]}", nil, "file name"},
		{"a field that is unknown", "downwardAPI: {fields: [{path: x, fieldRef: {fieldPath: spec.nodeName}}]}", nil, "spec.nodeName"},
		{"a resource that is unknown", "downwardAPI: {fields: [{path: x, resourceFieldRef: {resource: limits.nvidia.com/gpu}}]}", nil, "limits.nvidia.com/gpu"},
		{"answers without their file", "sysprep: {secret: {name: s}}", contents{"v": {"other.xml": []byte("proof")}}, "neither a key autounattend.xml"},
		{"what is not base64", "cloudInitNoCloud: {userDataBase64: '%proof'}", nil, "userDataBase64"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			m, source := machine(t, test.volume, test.with)
			set, err := Of(m, source)
			if err == nil {
				_, err = set.Image()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "proof") {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func TestPublicKeys(t *testing.T) {
	m, source := machine(t, "cloudInitNoCloud: {userData: x}", contents{
		"accessCredentials/0": {"b": []byte("ssh-b\n"), "a": []byte("# comment\nssh-a1 \n\nssh-a2")}, "accessCredentials/1": {"k": []byte("ssh-other")},
	})
	key := func(method kubevirtv1.SSHPublicKeyAccessCredentialPropagationMethod) kubevirtv1.AccessCredential {
		return kubevirtv1.AccessCredential{SSHPublicKey: &kubevirtv1.SSHPublicKeyAccessCredential{PropagationMethod: method}}
	}
	m.spec().AccessCredentials = []kubevirtv1.AccessCredential{
		key(kubevirtv1.SSHPublicKeyAccessCredentialPropagationMethod{NoCloud: &kubevirtv1.NoCloudSSHPublicKeyAccessCredentialPropagation{}}),
		key(kubevirtv1.SSHPublicKeyAccessCredentialPropagationMethod{ConfigDrive: &kubevirtv1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}}),
		{UserPassword: &kubevirtv1.UserPasswordAccessCredential{}},
	}
	set, err := Of(m, source)
	want := `{"instance-id":"web-1.default","local-hostname":"web-1","public-keys":{"0":"ssh-a1","1":"ssh-a2","2":"ssh-b"}}`
	if got := shown(set)["meta-data"]; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	m.Object.Spec.Instancetype = &kubevirtv1.InstancetypeMatcher{Name: "small"}
	set, err = Of(m, kubevirtv1.Volume{Name: "v", VolumeSource: kubevirtv1.VolumeSource{CloudInitConfigDrive: &kubevirtv1.CloudInitConfigDriveSource{UserData: "x"}}})
	got := shown(set)["openstack/latest/meta_data.json"]
	if err != nil || !strings.Contains(got, `"public_keys":{"0":"ssh-other"}`) || !strings.Contains(got, `"instance_type":"small"`) {
		t.Errorf("%s, %v", got, err)
	}
}

const definition = `<domain><devices>
<disk><alias name="ua-data"/><target dev="vda" bus="virtio"/><address type="pci" domain="0x0000" bus="0x04" slot="0x00" function="0x0"/></disk>
<disk><alias name="ua-cd"/><target dev="sda" bus="scsi"/><address type="drive" controller="0" bus="0" target="0" unit="3"/></disk>
<interface><alias name="ua-blue"/><address type="pci" domain="0x0000" bus="0x01" slot="0x1f" function="0x2"/></interface>
<hostdev><alias name="foreign"/><address type="pci" bus="0x09"/></hostdev>
</devices></domain>`

func TestTaggedDevices(t *testing.T) {
	m, source := machine(t, "cloudInitConfigDrive: {userData: x}", nil)
	devices := &m.spec().Domain.Devices
	devices.Interfaces = []kubevirtv1.Interface{{Name: "red"}, {Name: "blue", Tag: "net1", MacAddress: "02-00-00-00-00-01"}}
	devices.Disks = []kubevirtv1.Disk{
		{Name: "data", Tag: "db", Serial: "D1", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}},
		{Name: "cd", Tag: "setup", DiskDevice: kubevirtv1.DiskDevice{CDRom: &kubevirtv1.CDRomTarget{Bus: "scsi"}}},
	}
	devices.HostDevices = []kubevirtv1.HostDevice{{Name: "card", Tag: "fast"}}
	for _, test := range []struct{ reason, definition, want string }{
		{"before there is a definition", "", `"devices":[{"type":"nic","bus":"pci","mac":"02:00:00:00:00:01","tags":["net1"]},` +
			`{"type":"disk","bus":"pci","serial":"D1","tags":["db"]},{"type":"disk","bus":"scsi","tags":["setup"]},{"type":"hostdev","bus":"pci","tags":["fast"]}]`},
		{"with a definition", definition, `"devices":[{"type":"nic","bus":"pci","address":"0000:01:1f.2","mac":"02:00:00:00:00:01","tags":["net1"]},` +
			`{"type":"disk","bus":"pci","address":"0000:04:00.0","serial":"D1","tags":["db"]},{"type":"disk","bus":"scsi","address":"0:0:0:3","tags":["setup"]},` +
			`{"type":"hostdev","bus":"pci","tags":["fast"]}]`},
	} {
		m.Definition = test.definition
		set, err := Of(m, source)
		if got := shown(set)["openstack/latest/meta_data.json"]; err != nil || !strings.Contains(got, test.want) {
			t.Errorf("%s: %s, %v; want %s", test.reason, got, err, test.want)
		}
	}
}

func TestTable(t *testing.T) {
	tests := []struct {
		reason     string
		slic, msdm string
		with       contents
		want, text string
	}{
		{"the key of its name", "v", "", contents{"v": {"slic.bin": []byte("S"), "msdm.bin": []byte("M")}}, "S", ""},
		{"the other table", "", "v", contents{"v": {"slic.bin": []byte("S"), "msdm.bin": []byte("M")}}, "M", ""},
		{"the only key", "v", "", contents{"v": {"table": []byte("S")}}, "S", ""},
		{"several others", "v", "", contents{"v": {"a": []byte("proof"), "b": []byte("proof")}}, "", "needs a key slic.bin"},
		{"nothing in it", "v", "", contents{"v": {"slic.bin": nil}}, "", "needs a key slic.bin"},
		{"one volume for both", "v", "v", contents{"v": {"slic.bin": []byte("S")}}, "", "use a Secret for each"},
	}
	for _, test := range tests {
		m, source := machine(t, "secret: {secretName: s}", test.with)
		m.spec().Domain.Firmware = &kubevirtv1.Firmware{ACPI: &kubevirtv1.ACPI{SlicNameRef: test.slic, MsdmNameRef: test.msdm}}
		got, err := Table(m, source)
		if string(got) != test.want || (err == nil) != (test.text == "") || (err != nil && (!strings.Contains(err.Error(), test.text) || strings.Contains(err.Error(), "proof"))) {
			t.Errorf("%s: %q, %v; want %q, %q", test.reason, got, err, test.want, test.text)
		}
	}
}

// tree is what lies in a folder.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		content, err := os.ReadFile(path)
		out[name] = string(content)
		if info, statErr := os.Lstat(path); statErr != nil || info.Mode() != fileMode {
			t.Errorf("%s: %v, %v", name, info.Mode(), statErr)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func set(files ...string) Set {
	out := Set{Label: DefaultLabel}
	for i := 0; i < len(files); i += 2 {
		out.Files = append(out.Files, file(files[i], files[i+1]))
	}
	return out
}

func TestWriteFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v.fs", "data")
	for _, step := range []struct {
		reason string
		files  Set
		want   map[string]string
	}{
		{"the first time", set("a", "1", "b", "2", "meta/labels", "x"), map[string]string{"a": "1", "b": "2", "meta/labels": "x"}},
		{"a key changes and one goes", set("a", "changed", "meta/labels", "x"), map[string]string{"a": "changed", "meta/labels": "x"}},
		{"a directory becomes a file", set("meta", "y"), map[string]string{"meta": "y"}},
		{"nothing is left", set(), map[string]string{}},
	} {
		if err := step.files.WriteFolder(dir); err != nil {
			t.Fatalf("%s: %v", step.reason, err)
		}
		if diff := cmp.Diff(step.want, tree(t, dir)); diff != "" {
			t.Errorf("%s: %s", step.reason, diff)
		}
	}
	if info, err := os.Stat(filepath.Dir(dir)); err != nil || info.Mode().Perm() != privateMode {
		t.Errorf("%v, %v; want a private folder above", info.Mode(), err)
	}
}

// TestWriteFolderTrustsNothing lets a guest with the folder do its worst.
func TestWriteFolderTrustsNothing(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		reason string
		worst  func(dir string) error
	}{
		{"a link in a file's place", func(dir string) error {
			return errors.Join(os.Remove(dir+"/a"), os.Symlink(outside+"/a", dir+"/a"))
		}},
		{"a link in a folder's place", func(dir string) error {
			return errors.Join(os.RemoveAll(dir+"/meta"), os.Symlink(outside, dir+"/meta"))
		}},
		{"a folder in a file's place", func(dir string) error {
			return errors.Join(os.Remove(dir+"/a"), os.MkdirAll(dir+"/a/b/c", 0o755))
		}},
		{"a pipe in a file's place", func(dir string) error {
			return errors.Join(os.Remove(dir+"/a"), mkfifo(dir+"/a"))
		}},
		{"a link in the unfinished file's place", func(dir string) error {
			return errors.Join(os.Remove(dir+"/a"), os.Symlink(outside+"/x", dir+"/"+temporaryName))
		}},
		{"files of its own", func(dir string) error { return os.WriteFile(dir+"/own", nil, 0o755) }},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "v.fs", "data")
			files := set("a", "1", "meta/labels", "x")
			if err := files.WriteFolder(dir); err != nil {
				t.Fatal(err)
			}
			if err := test.worst(dir); err != nil {
				t.Fatal(err)
			}
			if err := files.WriteFolder(dir); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"a": "1", "meta/labels": "x"}, tree(t, dir)); diff != "" {
				t.Error(diff)
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
				t.Errorf("the host's own folder holds %v, %v", entries, err)
			}
		})
	}
	if err := set("../x", "1").WriteFolder(filepath.Join(t.TempDir(), "v.fs", "data")); err == nil {
		t.Error("a path led out of the folder")
	}
}
