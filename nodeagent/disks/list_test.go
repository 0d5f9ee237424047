package disks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

func TestList(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	store := newStore(t, Options{Now: func() time.Time { return now }})
	host := filepath.Join(t.TempDir(), "host.img")
	write(t, host, make([]byte, mib))
	for _, name := range []string{"web-2", "web-1"} {
		if _, err := store.EnsureEmptyDisk(t.Context(), vm(name), "data", 64*mib); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "host", HostDisk{Path: host}); err != nil {
		t.Fatal(err)
	}
	if err := store.MakeVolatile(vm("web-1"), "cloudinit"); err != nil {
		t.Fatal(err)
	}
	disks, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Record{
		{vm("web-1"), "data", KindEmptyDisk, store.Dir() + "/disks/default/web-1/data.qcow2", diskfile.QCOW2, 64 * mib, now, true, false, false, "", false},
		{vm("web-1"), "host", KindHostDisk, host, diskfile.Raw, mib, now, false, false, false, "", false},
		{vm("web-2"), "data", KindEmptyDisk, store.Dir() + "/disks/default/web-2/data.qcow2", diskfile.QCOW2, 64 * mib, now, true, false, false, "", false},
	}
	got := make([]Record, 0, len(disks))
	for _, disk := range disks {
		got = append(got, disk.Record)
		if disk.AllocatedBytes < 192*kib && disk.Kind == KindEmptyDisk || disk.AllocatedBytes > 2*mib || time.Since(disk.Modified) > time.Hour || disk.Missing {
			t.Errorf("%s: allocated %d, modified %v, missing %v", disk.ID, disk.AllocatedBytes, disk.Modified, disk.Missing)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestListTellsWhatItCannotRead(t *testing.T) {
	store := newStore(t, Options{})
	for _, name := range []string{"web-1", "web-2", "web-3"} {
		if _, err := store.EnsureEmptyDisk(t.Context(), vm(name), "data", mib); err != nil {
			t.Fatal(err)
		}
	}
	write(t, store.Dir()+"/disks/default/web-1/data.json", []byte("{"))
	if err := os.Remove(store.Dir() + "/disks/default/web-2/data.qcow2"); err != nil {
		t.Fatal(err)
	}
	write(t, store.Dir()+"/disks/stray", nil)
	disks, err := store.List(t.Context())
	if err == nil || !strings.Contains(err.Error(), "web-1/data.json") {
		t.Errorf("List() = %v, want an error about the damaged record", err)
	}
	if len(disks) != 2 || disks[0].ID != "default/web-2/data" || !disks[0].Missing || disks[1].ID != "default/web-3/data" || disks[1].Missing {
		t.Errorf("List() = %+v", disks)
	}
}

func TestDelete(t *testing.T) {
	store := newStore(t, Options{})
	dir := t.TempDir()
	users := filepath.Join(dir, "users.img")
	write(t, users, make([]byte, mib))
	var paths []string
	for _, name := range []string{"web-1", "web-2"} {
		made, err := store.EnsureEmptyDisk(t.Context(), vm(name), "data", mib)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, made.Path)
	}
	hosts := map[string]HostDisk{
		"users":  {Path: users},
		"ours":   {Path: filepath.Join(dir, "ours.img"), Create: true, Capacity: mib},
		"common": {Path: filepath.Join(dir, "common.img"), Create: true, Capacity: mib},
	}
	for name, host := range hosts {
		if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), name, host); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.EnsureHostDisk(t.Context(), vm("web-2"), "common", hosts["common"]); err != nil {
		t.Fatal(err)
	}

	stop := hold(t, "qcow2", paths[0])
	refused := []struct {
		reason string
		ids    []string
		want   error
	}{
		{"one that nobody knows", []string{"default/web-2/data", "default/web-9/data"}, ErrUnknown},
		{"a path out of the store", []string{"../../etc/passwd"}, ErrUnknown},
		{"one in use", []string{"default/web-2/data", "default/web-1/data"}, ErrInUse},
	}
	for _, test := range refused {
		if _, err := store.Delete(t.Context(), test.ids...); !errors.Is(err, test.want) {
			t.Errorf("%s: Delete() = %v, want %v", test.reason, err, test.want)
		}
	}
	if disks, err := store.List(t.Context()); err != nil || len(disks) != 6 {
		t.Fatalf("%d disks, %v: something was deleted beside an error", len(disks), err)
	}
	stop()

	steps := []struct {
		id, path, kept string
	}{
		{"default/web-1/data", paths[0], ""},
		{"default/web-1/users", users, "gitvirt did not make this file"},
		{"default/web-1/ours", hosts["ours"].Path, ""},
		{"default/web-1/common", hosts["common"].Path, "another volume uses this file"},
	}
	for _, step := range steps {
		deleted, err := store.Delete(t.Context(), step.id, step.id)
		if err != nil || len(deleted) != 1 || deleted[0].Kept != step.kept || deleted[0].Path != step.path {
			t.Errorf("Delete(%s) = %+v, %v", step.id, deleted, err)
		}
		if _, err := os.Stat(step.path); (err == nil) != (step.kept != "") {
			t.Errorf("%s: %v", step.path, err)
		}
	}
	disks, err := store.List(t.Context())
	if err != nil || len(disks) != 2 {
		t.Errorf("List() = %+v, %v; want what was not named", disks, err)
	}
	if _, err := os.Stat(store.Dir() + "/disks/default/web-1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty directory stays: %v", err)
	}
}
