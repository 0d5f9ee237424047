package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// electionPeriod is how often a controller renews its Lease, or tries to get it. One that could not renew it for five periods stops, and another may take it
// after seven and a half.
const electionPeriod = 2 * time.Second

// leaderLease is the Lease that the controllers of a namespace compete for.
const leaderLease = "gitvirt-controller"

// errDeposed ends a controller whose Lease is another's: what it has begun is for the other to go on with, and what it remembers may be old.
var errDeposed = errors.New("this controller could not keep its Lease, and another may lead now")

// election is how one of several controllers comes to work.
type election struct {
	client    kubernetes.Interface
	namespace string
	// identity tells this controller from the others: its Pod's name.
	identity string
	// listen is where health checks are answered by a controller that waits, so that it is not taken for one that hangs.
	listen string
	period time.Duration
	log    *slog.Logger
}

// lead runs work while this controller holds the Lease, until ctx ends; then it waits for work to end and gives the Lease back.
func (e *election) lead(ctx context.Context, work func(context.Context) error) error {
	waiting, err := standBy(ctx, e.listen)
	if err != nil {
		return err
	}
	defer waiting()
	// The election goes on while work ends: a Lease that is given back is another's at once.
	elected, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	started, result := make(chan struct{}), make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-started:
		default:
			stop()
		}
	})()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Name: leaderLease, Namespace: e.namespace}, Client: e.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
		},
		LeaseDuration: e.period * 15 / 2, RenewDeadline: e.period * 5, RetryPeriod: e.period, ReleaseOnCancel: true, Name: leaderLease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(started)
				if leading.Err() == nil {
					waiting()
					e.log.Info("this controller leads", "identity", e.identity)
					working, cancel := context.WithCancel(leading)
					unhook := context.AfterFunc(ctx, cancel)
					result <- work(working)
					unhook()
					cancel()
				}
				stop()
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				if leader != e.identity {
					e.log.Info("another controller leads, this one waits", "leader", leader)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("preparing the election: %w", err)
	}
	elector.Run(elected)
	if elected.Err() == nil { // nobody stopped the election: the Lease could not be kept, and work was told to end
		return errors.Join(errDeposed, <-result)
	}
	select {
	case err := <-result:
		return err
	default:
		return nil // it never led
	}
}

// addLeaderFlag adds the flag that has controllers of a cluster elect one of them.
func addLeaderFlag(flags *pflag.FlagSet, elect *bool) {
	flags.BoolVar(elect, "leader-elect", false, "with several controllers of a cluster: work only while this one holds the Lease gitvirt-controller")
}

// leading runs work at once, or when this controller is elected.
func (c *cli) leading(ctx context.Context, f *runFlags, work func(context.Context) error) error {
	if !f.leader {
		return work(ctx)
	}
	config, err := f.kube.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("reaching the cluster: %w", err)
	}
	identity := c.getenv("POD_NAME")
	if identity == "" {
		if identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("naming this controller: %w; name it with POD_NAME", err)
		}
	}
	e := election{client, f.kube.namespace, identity, f.listen, electionPeriod, c.logger(f)}
	return e.lead(ctx, work)
}

// standBy serves the health checks of a controller that waits; the function that it returns ends that, and may be called again.
func standBy(ctx context.Context, listen string) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("serving health checks: %w", err)
	}
	mux := http.NewServeMux()
	for _, path := range []string{"GET /healthz", "GET /readyz"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "waiting to lead") })
	}
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "gitvirt_leader 0") })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // it ends with Close
	}()
	return func() {
		_ = server.Close()
		<-done
	}, nil
}
