package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// contender is a controller that works while it leads.
type contender struct {
	cancel  context.CancelFunc
	leads   chan struct{}
	stopped chan error
	listen  string
}

func contend(t *testing.T, client *fake.Clientset, identity string, work func(context.Context) error) contender {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := contender{cancel: cancel, leads: make(chan struct{}), stopped: make(chan error, 1), listen: freeAddress(t)}
	e := election{client, "gitvirt-system", identity, c.listen, 20 * time.Millisecond, slog.New(slog.DiscardHandler)}
	go func() {
		c.stopped <- e.lead(ctx, func(ctx context.Context) error {
			close(c.leads)
			return work(ctx)
		})
	}()
	return c
}

func TestOneControllerLeads(t *testing.T) {
	client := fake.NewClientset()
	var working atomic.Int32
	work := func(ctx context.Context) error {
		if working.Add(1) > 1 {
			t.Error("two controllers work at a time")
		}
		<-ctx.Done()
		// The Lease is not given back before the work has ended.
		lease, err := client.CoordinationV1().Leases("gitvirt-system").Get(context.WithoutCancel(ctx), leaderLease, metav1.GetOptions{})
		if err != nil || *lease.Spec.HolderIdentity == "" {
			t.Errorf("the Lease while the work ends: %v, %v", lease, err)
		}
		working.Add(-1)
		return nil
	}
	first := contend(t, client, "first", work)
	<-first.leads
	second := contend(t, client, "second", work)
	// It waits, and is healthy.
	for {
		response, err := http.Get("http://" + second.listen + "/healthz")
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("a controller that waits: %s", response.Status)
			}
			break
		}
	}
	first.cancel()
	if err := <-first.stopped; err != nil {
		t.Error(err)
	}
	<-second.leads
	third := contend(t, client, "third", work)
	third.cancel() // it never leads
	if err := <-third.stopped; err != nil {
		t.Error(err)
	}
	second.cancel()
	if err := <-second.stopped; err != nil {
		t.Error(err)
	}
}

func TestControllerThatLosesItsLeaseStops(t *testing.T) {
	client := fake.NewClientset()
	var away atomic.Bool
	client.PrependReactor("update", "leases", func(ktesting.Action) (bool, runtime.Object, error) {
		return away.Load(), &coordinationv1.Lease{}, errors.New("the API server is away")
	})
	c := contend(t, client, "first", func(ctx context.Context) error {
		away.Store(true)
		<-ctx.Done()
		return nil
	})
	if err := <-c.stopped; !errors.Is(err, errDeposed) {
		t.Errorf("error %v", err)
	}
	c.cancel()
}

func TestControllerWhoseWorkFailsStops(t *testing.T) {
	broken := errors.New("broken")
	c := contend(t, fake.NewClientset(), "first", func(context.Context) error { return broken })
	if err := <-c.stopped; !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	c.cancel()
}
