package main

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/gitvirt/gitvirt/schemas"
)

// created returns what a command line of create writes, without the check that comes after it.
func created(t *testing.T, args ...string) []byte {
	t.Helper()
	m := &manifest{}
	var err error
	switch args[0] {
	case "vm":
		var f vmFlags
		command := (&cli{}).createVMCommand()
		command.ResetFlags()
		f.add(command)
		if err = command.ParseFlags(args[1:]); err == nil {
			err = f.build(m)
		}
	case "instancetype":
		f := sized{name: "small", cpu: 2, memory: "4Gi", gpus: args[1:2], hostDevices: args[2:]}
		err = f.build(m)
	}
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	text, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestCreateGolden holds what is written against goldens, and against the checks.
func TestCreateGolden(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
	}{
		{"imports", []string{
			"vm", "--name", "app-1", "-n", "shop", "--instancetype", "small", "--preference", "virtualmachinepreference/linux",
			"--volume-import", "type:http,url:https://example.com/d.qcow2,size:10Gi,name:root,bootorder:1,secretref:login,extraheaders:A: 1;B: 2",
			"--volume-import", "type:registry,url:docker://quay.io/d:1,size:5Gi,pullmethod:node",
			"--volume-import", "type:pvc,src:base/debian", "--volume-import", "type:pvc,src:base", "--volume-blank", "size:1Gi",
			"--volume-pvc", "src:shared", "--volume-sysprep", "src:answers,type:secret",
		}},
		{"credentials", []string{
			"vm", "--name", "app-1", "--user", "admin", "--cloud-init", "configdrive",
			"--access-cred", "type:ssh,src:keys", "--access-cred", "type:ssh,src:more,method:configdrive", "--access-cred", "type:password,src:logins",
			"--network", "type:sriov,src:fast,name:fast,mac:52:54:00:12:34:56",
		}},
		{"nocloud", []string{"vm", "--name", "app-1", "--access-cred", "src:keys,method:nocloud"}},
		{"instancetype", []string{"instancetype", "name:g,devicename:nvidia.com/T4", "name:h,devicename:intel.com/qat"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := created(t, test.args...)
			file := filepath.Join("testdata", "create", test.name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if again := created(t, test.args...); !bytes.Equal(got, again) {
				t.Errorf("not the same twice:\n%s", again)
			}
			if diagnostics := schemas.Parse("manifest.yaml", got).Diagnostics; len(diagnostics) > 0 {
				t.Error(diagnostics)
			}
		})
	}
}

func TestHashPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("correct horse\n")
	hash, err := hashPassword(file)
	if err != nil || bcrypt.CompareHashAndPassword([]byte(hash), []byte("correct horse")) != nil {
		t.Errorf("%s: %v", hash, err)
	}
	if !crypted.MatchString(hash) {
		t.Errorf("cloud-init would take %s for a password", hash)
	}
	for _, test := range []struct{ text, want string }{
		{"", "is empty"},
		{"a\nb\n", "more than one line"},
		{strings.Repeat("x", 73), "at most 72"},
		{strings.Repeat("x", 1<<20+1), "more than 1 MiB"},
	} {
		write(test.text)
		if _, err := hashPassword(file); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.10q: %v, want %s", test.text, err, test.want)
		}
	}
}

// TestCreateNeverShowsUserData makes sure that a mistake in user data does not print it.
func TestCreateNeverShowsUserData(t *testing.T) {
	secret := "hunter2\x01"
	var out bytes.Buffer
	code := run(t.Context(), []string{
		"create", "vm", "--name", "a", "--cloud-init-user-data", base64.StdEncoding.EncodeToString([]byte("#cloud-config\npassword: " + secret)),
		"--cloud-init-network-data", "!!" + secret,
	}, strings.NewReader(""), &out, &out, func(string) string { return "" })
	if code != exitError || strings.Contains(out.String(), "hunter2") {
		t.Errorf("exit code %d, output %s", code, out.String())
	}
}
