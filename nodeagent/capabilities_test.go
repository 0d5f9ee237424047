package nodeagent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// TestLiveCapabilities: what the host can do for running guests is told with the first picture, found out anew when libvirt
// comes back, which may be another version, and not promised while it is not known.
func TestLiveCapabilities(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := r.client.Watch(ctx, &api.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	await := func(reason string, want ...hypervisor.LiveChange) {
		t.Helper()
		for {
			event, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v", reason, err)
			}
			synced := event.GetSynced()
			if synced == nil {
				continue
			}
			var got []hypervisor.LiveChange
			for _, word := range synced.GetCapabilities().GetLive() {
				got = append(got, hypervisor.LiveChange(word))
			}
			if slices.Equal(got, want) {
				return
			}
		}
	}
	await("the first picture", hypervisor.LiveChanges()...)
	r.fake.Down()
	r.fake.SetLiveChanges(hypervisor.LiveMedia)
	r.fake.Up()
	await("another libvirt", hypervisor.LiveMedia)
	r.stop()

	unknown := fake.New()
	unknown.Fail(fake.LiveChanges, func(context.Context, string) error { return errors.New("not now") })
	r.start(unknown)
	if stream, err = r.client.Watch(ctx, &api.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	await("nothing known")
	unknown.Fail(fake.LiveChanges, nil)
	await("known at last", hypervisor.LiveChanges()...)
}
