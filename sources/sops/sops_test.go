package sops_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"filippo.io/age"
	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources/sops"
)

// keys are those that hack/sops.sh has made for the files of testdata, and for nothing else.
func keys(t testing.TB) *sops.Keys {
	t.Helper()
	return read(t, []string{"testdata/age.txt"}, []string{"testdata/pgp.asc"})
}

func read(t testing.TB, age, pgp []string) *sops.Keys {
	t.Helper()
	k, err := sops.ReadKeys(age, pgp)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// machine refers to the keys of a Secret, so that its hash changes with what they hold.
const machine = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: m}
spec:
  runStrategy: Always
  template:
    spec:
      domain: {memory: {guest: 64Mi}, devices: {disks: [{name: s, disk: {bus: virtio}}]}}
      volumes: [{name: s, secret: {secretName: %s}}]
`

// contents are what a machine gets of a Secret in files.
func contents(t *testing.T, secret string, files ...*schemas.File) schemas.Content {
	t.Helper()
	desired := schemas.Assemble(append(files, schemas.Parse("m.yaml", fmt.Appendf(nil, machine, secret))))
	if desired.Diagnostics.Errors() > 0 {
		t.Fatal(desired.Diagnostics)
	}
	return desired.VMs[len(desired.VMs)-1].Contents[schemas.VolumeContent("s")]
}

// TestFilesOfSOPS reads what SOPS itself has written.
func TestFilesOfSOPS(t *testing.T) {
	for _, test := range []struct {
		name, plain, secret string
		keys                *sops.Keys
	}{
		{"secret.yaml", "secret.yaml", "registry", read(t, []string{"testdata/age.txt"}, nil)},
		{"secret.yaml", "secret.yaml", "registry", read(t, nil, []string{"testdata/pgp.asc"})},
		{"pgp.yaml", "secret.yaml", "registry", keys(t)},
		{"mac-only.yaml", "secret.yaml", "registry", keys(t)},
		{"several.yaml", "several.yaml", "one", keys(t)},
		{"secret.json", "secret.json", "registry", keys(t)},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := contents(t, test.secret, schemas.Parse(test.plain, file(t, "plain/"+test.plain)))
			have := contents(t, test.secret, test.keys.Parse(test.name, file(t, test.name)))
			if fmt.Sprint(want) != fmt.Sprint(have) || len(have) == 0 {
				t.Errorf("got %q, want %q", have, want)
			}
		})
	}
	vm := keys(t).Parse("machine.yaml", file(t, "machine.yaml"))
	if len(vm.VMs) != 1 || len(vm.Diagnostics) > 0 {
		t.Fatalf("%+v", vm.Diagnostics)
	}
	if data := vm.VMs[0].Spec().Volumes[0].CloudInitNoCloud.UserData; data != "#cloud-config\npassword: s3cr3t\n" {
		t.Errorf("user data %q", data)
	}
}

func TestUnreadable(t *testing.T) {
	stranger := filepath.Join(t.TempDir(), "age.txt")
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stranger, []byte(identity.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := string(file(t, "secret.yaml"))
	value := regexp.MustCompile(`ENC\[[^]]*type:str\]`)
	values := value.FindAllString(secret, -1)
	manifest, metadata, _ := strings.Cut(secret, "\nsops:")
	metadata = "sops:" + metadata
	_, others, _ := strings.Cut(string(file(t, "pgp.yaml")), "\nsops:")
	for _, test := range []struct {
		reason, content string
		keys            *sops.Keys
		message         string
	}{
		{"no keys", secret, &sops.Keys{}, "no key is given to decrypt it"},
		{"another's key", secret, read(t, []string{stranger}, nil), "for keys that none of the given ones is"},
		{"an unencrypted value was changed", strings.Replace(secret, "tier: prod", "tier: test", 1), keys(t), "changed without sops"},
		{"a value was taken out", regexp.MustCompile(`(?m)^  empty: .*\n  lines: .*\n`).ReplaceAllString(secret, ""), keys(t), "changed without sops"},
		{"a value was put in plain", strings.Replace(secret, values[0], "admin", 1), keys(t), "changed without sops"},
		{"values changed places", strings.NewReplacer(values[0], values[1], values[1], values[0]).Replace(secret), keys(t), "cannot be decrypted"},
		{"a value was changed", strings.Replace(secret, ",data:", ",data:A", 1), keys(t), "cannot be decrypted"},
		{"another's metadata", strings.Replace(secret, metadata, "sops:"+others, 1), keys(t), "cannot be decrypted"},
		{"no metadata", strings.Replace(secret, metadata, "", 1), keys(t), "no metadata of SOPS"},
		{"no recipients", manifest + "\nsops: {mac: 'ENC[AES256_GCM,data:,iv:A,tag:A,type:str]', kms: [{arn: x}]}\n", keys(t), "neither age nor PGP"},
		{"key groups", strings.Replace(secret, "\nsops:\n", "\nsops:\n  key_groups: [{}]\n", 1), keys(t), "key groups"},
		{"no YAML", "a: [\n" + secret, keys(t), "not valid YAML"},
		{"all of it is encrypted", string(file(t, "all.yaml")), keys(t), "plans and the status show it"},
		{"what plans show is encrypted", string(file(t, "shown.yaml")), keys(t), "plans and the status show it"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			if test.content == secret && test.message == "" {
				t.Fatal("nothing was changed")
			}
			f := test.keys.Parse("a.yaml", []byte(test.content))
			if !f.Opaque || len(f.Diagnostics) != 1 || !strings.Contains(f.Diagnostics[0].Message, test.message) || f.Diagnostics[0].Position.Line == 0 || f.Diagnostics[0].Fix == "" {
				t.Fatalf("opaque %v: %v, want %q", f.Opaque, f.Diagnostics, test.message)
			}
			mute(t, f.Diagnostics)
		})
	}
}

// mute wants that nothing of what was encrypted is said.
func mute(t testing.TB, said any) {
	t.Helper()
	text, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"s3cr3t", "puller", "second: line", "top-secret"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%s says %q", text, secret)
		}
	}
}

// TestMistakesStayWhereTheyAre has mistakes in decrypted files told at the lines of the encrypted ones, without values.
func TestMistakesStayWhereTheyAre(t *testing.T) {
	content := string(file(t, "mac-only.yaml")) // which may be changed around the values
	broken := strings.Replace(content, "type: Opaque", "typ: Opaque", 1)
	f := keys(t).Parse("a.yaml", []byte(broken))
	before, _, _ := strings.Cut(broken, "typ: Opaque")
	want := 1 + strings.Count(before, "\n")
	if len(f.Diagnostics) != 1 || f.Diagnostics[0].Position.Line != want {
		t.Errorf("%v, want one mistake at line %d", f.Diagnostics, want)
	}
	mute(t, f.Diagnostics)
	broken = strings.Replace(content, "kind: Secret", "kind: ConfigMap", 1)
	f = keys(t).Parse("a.yaml", []byte(broken))
	if f.Diagnostics.Errors() == 0 {
		t.Error("a ConfigMap has stringData")
	}
	mute(t, f.Diagnostics)
}

// TestPlainFiles holds that what is not encrypted is read as ever.
func TestPlainFiles(t *testing.T) {
	mentions := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {text: 'SOPS writes ENC[AES256_GCM,data:...]'}\n"
	for _, content := range []string{mentions, string(file(t, "plain/secret.yaml"))} {
		if f := keys(t).Parse("a.yaml", []byte(content)); f.Opaque || len(f.Diagnostics) > 0 {
			t.Error(f.Diagnostics)
		}
	}
}

// TestAnyChangeIsFound changes single characters of an encrypted file: it is refused, or what it holds is the same. The names of empty
// values are not told apart, because SOPS leaves those as they are and signs values alone.
func TestAnyChangeIsFound(t *testing.T) {
	k, content := keys(t), file(t, "secret.yaml")
	want := contents(t, "registry", k.Parse("a.yaml", content))
	rapid.Check(t, func(rt *rapid.T) {
		at := rapid.IntRange(0, len(content)-1).Draw(rt, "at")
		changed := append([]byte(nil), content...)
		changed[at] = rapid.Byte().Draw(rt, "byte")
		f := k.Parse("a.yaml", changed)
		mute(t, f.Diagnostics)
		if f.Opaque || f.Diagnostics.Errors() > 0 {
			return
		}
		desired := schemas.Assemble([]*schemas.File{f, schemas.Parse("m.yaml", fmt.Appendf(nil, machine, "registry"))})
		for _, vm := range desired.VMs {
			if have := vm.Contents[schemas.VolumeContent("s")]; !maps.Equal(filled(have), filled(want)) {
				rt.Fatalf("byte %d as %q: %q", at, changed[at], have)
			}
		}
	})
}

// filled is what a volume holds without what is empty.
func filled(content map[string]string) map[string]string {
	out := maps.Clone(content)
	maps.DeleteFunc(out, func(_, value string) bool { return value == "" })
	return out
}

func TestReadKeys(t *testing.T) {
	for reason, args := range map[string][2][]string{
		"no file":     {{"nowhere"}, nil},
		"no age key":  {{"testdata/secret.yaml"}, nil},
		"no PGP key":  {nil, []string{"testdata/age.txt"}},
		"no PGP file": {nil, []string{"nowhere"}},
	} {
		if _, err := sops.ReadKeys(args[0], args[1]); err == nil || strings.Contains(err.Error(), "ENC[") || strings.Contains(err.Error(), "SECRET-KEY-1Q") {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"secret.yaml", "several.yaml", "secret.json", "machine.yaml"} {
		f.Add(string(file(f, name)))
	}
	k := keys(f)
	f.Fuzz(func(t *testing.T, content string) {
		if parsed := k.Parse("a.yaml", []byte(content)); parsed == nil {
			t.Fatal("nothing")
		}
	})
}
