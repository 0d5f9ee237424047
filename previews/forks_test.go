package previews

import (
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestForksDecryptNothing has a fork change what is encrypted: unchanged files count as ever, changed ones are unknown, which is not absent.
func TestForksDecryptNothing(t *testing.T) {
	secret := func(value string) *schemas.File {
		return schemas.ParseSecret("secret.yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {note: "+value+"}\n"))
	}
	base := []*schemas.File{secret("hunter2")}
	plain := schemas.Parse("plain.yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\ndata: {note: x}\n"))
	if got := guarded([]*schemas.File{base[0], plain}, base); got[0] != base[0] || got[1] != plain {
		t.Errorf("what the fork does not change is %+v", got)
	}
	changed := []*schemas.File{secret("hunter2"), plain}
	got := guarded(changed, base)
	if !got[0].Opaque || got[1] != plain || len(got[0].Diagnostics) != 1 || strings.Contains(got[0].Diagnostics[0].Error(), "hunter2") {
		t.Errorf("what the fork changes is %+v", got[0])
	}
	if changed[0].Opaque {
		t.Error("the files of the snapshot are changed")
	}
}
