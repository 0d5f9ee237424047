package nodeagent

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// versionedPod is the hypervisor of a Pod that tells its version, or does not.
type versionedPod struct {
	fakePod
	version string
	asked   *int
}

func (v versionedPod) Version(context.Context) (string, string, error) {
	if v.version == "" {
		return "", "", errors.New("not now")
	}
	return v.version, "7.2.22", nil
}

// LiveChanges implements hypervisor.Hypervisor.
func (v versionedPod) LiveChanges(ctx context.Context, domainType string) ([]hypervisor.LiveChange, error) {
	*v.asked++
	return v.fakePod.LiveChanges(ctx, domainType)
}

// TestPodLive: what can be done for running guests is found out once for each version, is no guest's word, and is asked for again wherever it is
// not known.
func TestPodLive(t *testing.T) {
	fresh, used := func() bool { return true }, func() bool { return false }
	all, media := hypervisor.LiveChanges(), []hypervisor.LiveChange{hypervisor.LiveMedia}
	able := func(changes []hypervisor.LiveChange) *fake.Hypervisor {
		out := fake.New()
		out.SetLiveChanges(changes...)
		return out
	}
	failing := fake.New()
	failing.Fail(fake.LiveChanges, func(context.Context, string) error { return errors.New("not now") })
	asked := 0
	live := &PodLive{}
	for _, step := range []struct {
		name       string
		libvirt    *fake.Hypervisor
		version    string
		domainType string
		untouched  func() bool
		want       []hypervisor.LiveChange // nil for an error
		asked      int
	}{
		{"one that fails", failing, "9.0.0", "qemu", fresh, nil, 1},
		{"a guest's word", able(media), "9.0.0", "qemu", used, media, 1},
		{"the first", able(all), "9.0.0", "qemu", fresh, all, 1},
		{"the next", able(media), "9.0.0", "qemu", fresh, all, 0},
		{"one with a guest", able(media), "9.0.0", "qemu", used, all, 0},
		{"another type", able(media), "9.0.0", "kvm", fresh, media, 1},
		{"another version", able(media), "10.0.0", "qemu", fresh, media, 1},
		{"without a version", able(media), "", "qemu", fresh, media, 1},
	} {
		asked = 0
		got, err := live.of(t.Context(), versionedPod{fakePod{step.libvirt}, step.version, &asked}, step.domainType, step.untouched)
		if !slices.Equal(got, step.want) || (err != nil) != (step.want == nil) || asked != step.asked {
			t.Errorf("%s: %v, %v, asked %d times; want %v, %d times", step.name, got, err, asked, step.want, step.asked)
		}
	}
	asked = 0
	if got, err := (*PodLive)(nil).of(t.Context(), versionedPod{fakePod{able(media)}, "9.0.0", &asked}, "qemu", fresh); err != nil || asked != 1 || !slices.Equal(got, media) {
		t.Errorf("without a memory: %v, %v, asked %d times", got, err, asked)
	}
}
