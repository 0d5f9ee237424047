// Package reconciler is the loop: it polls the source of the manifests, plans, gates, has the steps carried out and
// reports. It is level-triggered: each round compares what git wants with what lives and needs no memory of the one
// before, so a controller that was killed anywhere converges when it is started again.
//
// Three kinds of goroutines belong to a Reconciler, and Run waits for all of them:
//
//   - the poller asks the source, paced by an interval and a backoff; while it fails the last good revision stays;
//   - the loop owns everything that decides: it plans a round when git or the host has changed or a wait is over, and
//     hands the steps that the gate lets through to workers, one at a time per machine. It never waits for a step;
//   - the publisher derives the status of the machines from the loop's View and writes it to the status branch. It
//     triggers nothing.
//
// The gate knows what was tried and failed: see gate. The rules of what is done to a machine are package plan's, how
// it is done is the platform's; this package knows neither libvirt nor git. Its subpackages are status (what is
// written about a machine, pure), httpapi (the read-only HTTP interface) and reconcilertest (stateful fakes).
//
// Nothing is ever destroyed on account of an error: no snapshot, no round; an unreadable host has an empty plan; what
// cannot be parsed is held.
package reconciler
