package kubernetes_test

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/version"

	"github.com/gitvirt/gitvirt/apply/kubernetes"
)

// ofVersion is an API server that tells its version, or does not.
type ofVersion struct{ major, minor string }

func (v ofVersion) ServerVersion() (*version.Info, error) {
	if v.major == "" {
		return nil, errors.New("not now")
	}
	return &version.Info{Major: v.major, Minor: v.minor}, nil
}

// TestHasImageVolumes: image volumes are on from 1.35 on.
func TestHasImageVolumes(t *testing.T) {
	for version, want := range map[ofVersion]bool{{"1", "33"}: false, {"1", "34+"}: false, {"1", "35"}: true, {"1", "36+"}: true, {"2", "0"}: true} {
		if has, err := kubernetes.HasImageVolumes(version); err != nil || has != want {
			t.Errorf("%v: %t, %v", version, has, err)
		}
	}
	if _, err := kubernetes.HasImageVolumes(ofVersion{}); err == nil {
		t.Error("nobody said which version it is")
	}
}
