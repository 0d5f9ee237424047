package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bench is one run.
type bench struct {
	options
	dir        string
	out        io.Writer
	cluster    *cluster
	repository *repository
	agents     *agents
	controller *controller
	audit      *audit
	// account is the kubeconfig of the controller.
	account string
	leave   context.CancelFunc
}

// row prints a figure, and the goal if there is one.
func (b *bench) row(what, figure, goal string) {
	if goal != "" {
		goal = "   (goal: " + goal + ")"
	}
	fmt.Fprintf(b.out, "%-62s %s%s\n", what, figure, goal)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func (b *bench) run(ctx context.Context) error {
	for _, part := range []func(context.Context) error{b.prepare, b.firstApply, b.steadyState, b.restart, b.resync, b.change} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// close ends everything, the controller first.
func (b *bench) close() error {
	var failed error
	if b.controller != nil {
		failed = b.controller.stop()
	}
	if b.leave != nil {
		b.leave()
	}
	if b.agents != nil {
		b.agents.wait()
	}
	if b.cluster != nil {
		failed = errors.Join(failed, b.cluster.down())
	}
	return failed
}

// prepare starts the cluster, installs gitvirt's rights and writes the repository.
func (b *bench) prepare(ctx context.Context) error {
	b.cluster = &cluster{dir: b.dir, programs: b.kubernetes, kwok: b.kwok}
	if err := b.cluster.up(ctx); err != nil {
		return err
	}
	for i := range namespaces {
		if err := b.cluster.namespace(ctx, namespaceOf(i)); err != nil {
			return err
		}
	}
	if err := b.cluster.nodes(ctx, b.nodes, 2*b.vms/b.nodes+1); err != nil {
		return err
	}
	if err := b.install(ctx); err != nil {
		return err
	}
	config, err := b.cluster.config(userAgents)
	if err != nil {
		return err
	}
	following, leave := context.WithCancel(ctx)
	b.leave = leave
	if b.agents, err = followAgents(following, config); err != nil {
		return err
	}
	b.audit = &audit{path: filepath.Join(b.dir, "audit.log")}
	b.repository, err = newRepository(ctx, b.dir)
	return err
}

// install applies what `gitvirt install` prints; with nobody to run its Deployment and DaemonSet it is accounts, rights and admission policies.
func (b *bench) install(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, b.gitvirt, "install", "--dry-run", "--cluster-wide", "--repository", "https://git.example.com/fleet.git", "--emulation", "auto") //nolint:gosec // the program that is measured
	cmd.Stderr = os.Stderr
	manifests, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("gitvirt install --dry-run: %w", err)
	}
	admin, err := b.cluster.kubeconfig(userAdmin)
	if err != nil {
		return err
	}
	apply := exec.CommandContext(ctx, filepath.Join(b.kubernetes, "kubectl"), "--kubeconfig", admin, "apply", "--server-side", "-f", "-") //nolint:gosec // that of the folder on the command line
	apply.Stdin = bytes.NewReader(manifests)
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w\n%s", err, out)
	}
	b.account, err = b.cluster.account(ctx, "gitvirt-system", "gitvirt-controller")
	return err
}

// firstApply has all VMs made, and counts what that takes.
func (b *bench) firstApply(ctx context.Context) error {
	files := map[string]string{"gitvirt.yaml": fleetManifest}
	for i := range b.vms {
		files[manifestPath(i)] = manifest(i, 1, "front")
	}
	revision, err := b.repository.commit(ctx, files)
	if err != nil {
		return err
	}
	if err := b.repository.push(ctx); err != nil {
		return err
	}
	if _, err := b.audit.since(); err != nil {
		return err
	}
	if b.controller, err = b.startController(ctx, b.agents.problem); err != nil {
		return err
	}
	if err := within(ctx, time.Hour, time.Second, "all Pods are ready", func() error {
		if ready := b.agents.allReady(); ready < b.vms {
			return errors.Join(b.controller.broken(), fmt.Errorf("%w: %d Pods are ready", errNotThere, ready))
		}
		return nil
	}); err != nil {
		return err
	}
	done, err := b.controller.awaitPlan(ctx, patience, 250*time.Millisecond, "the plan is empty", revision, func(steps, unchanged int) bool {
		return steps == 0 && unchanged == b.vms
	})
	if err != nil {
		return err
	}
	seen, err := b.controller.told("Planned", revision)
	if err != nil {
		return err
	}
	used, err := b.controller.usage()
	if err != nil {
		return err
	}
	// The API server writes its log a moment after it has answered.
	if err := wait(ctx, 2*time.Second); err != nil {
		return err
	}
	made, err := b.audit.since()
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("%d VMs on %d nodes, start of the controller to first plan", b.vms, b.nodes), seconds(seen.Sub(b.controller.started)), "")
	b.row("  to all Pods ready and the plan empty", fmt.Sprintf("%s, %.0f VMs per second", seconds(done.Sub(b.controller.started)), float64(b.vms)/done.Sub(seen).Seconds()), "")
	b.row("  CPU of the controller for it", seconds(used.cpu), "")
	b.row("  its memory at the most", fmt.Sprintf("%.0f MiB", used.highestResidentMiB), "300 MiB")
	each := func(user string) string {
		return fmt.Sprintf("%.2f (%s)", float64(made.of(user))/float64(b.vms), made.list(user))
	}
	b.row("  API requests per VM: controller", each(controllerUser), "")
	b.row("    agents (played)", each(userAgents), "")
	b.row("    scheduler", each(userScheduler), "")
	b.row("    kubelets (kwok)", fmt.Sprintf("%.2f", float64(made[userKwok]["patch pods/status"])/float64(b.vms)), "")
	return nil
}

func wait(ctx context.Context, while time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(while):
		return nil
	}
}

// steadyState watches a fleet to which nothing happens.
func (b *bench) steadyState(ctx context.Context) error {
	if err := wait(ctx, 10*time.Second); err != nil { // until the status is pushed
		return err
	}
	if _, err := b.audit.since(); err != nil {
		return err
	}
	before, err := b.controller.usage()
	if err != nil {
		return err
	}
	if err := wait(ctx, b.steady); err != nil {
		return err
	}
	after, err := b.controller.usage()
	if err != nil {
		return err
	}
	found, err := b.audit.since()
	if err != nil {
		return err
	}
	figure := fmt.Sprint(found.of(controllerUser))
	if list := found.list(controllerUser); list != "" {
		figure += " (" + list + ")"
	}
	b.row(fmt.Sprintf("nothing happens for %s: API requests of the controller", b.steady), figure, "0")
	b.row("  CPU", fmt.Sprintf("%s, %.1f %% of one", seconds(after.cpu-before.cpu), 100*(after.cpu-before.cpu).Seconds()/b.steady.Seconds()), "")
	b.row("  resident memory", fmt.Sprintf("%.0f MiB", after.residentMiB), "300 MiB")
	return nil
}

// restart starts another controller, which knows nothing but what git and the API server tell it, as `gitvirt install` has it run.
func (b *bench) restart(ctx context.Context) error {
	if err := b.controller.stop(); err != nil {
		return err
	}
	b.controller = nil
	revision, err := b.repository.commit(ctx, nil)
	if err != nil {
		return err
	}
	if err := b.repository.push(ctx); err != nil {
		return err
	}
	if b.controller, err = b.startController(ctx, b.agents.problem, "--leader-elect", "--interval", "1s"); err != nil {
		return err
	}
	seen, err := b.controller.awaitPlan(ctx, patience, 5*time.Millisecond, "the plan is empty", revision, func(steps, unchanged int) bool {
		return steps == 0 && unchanged == b.vms
	})
	if err != nil {
		return err
	}
	used, err := b.controller.usage()
	if err != nil {
		return err
	}
	b.row("restart of the controller to its plan of all: full resync", fmt.Sprintf("%s (%s of CPU)", seconds(seen.Sub(b.controller.started)), seconds(used.cpu)), "5 s")
	if err := wait(ctx, 15*time.Second); err != nil {
		return err
	}
	if _, err := b.audit.since(); err != nil {
		return err
	}
	if err := wait(ctx, b.steady/2); err != nil {
		return err
	}
	found, err := b.audit.since()
	if err != nil {
		return err
	}
	if used, err = b.controller.usage(); err != nil {
		return err
	}
	b.row(fmt.Sprintf("  nothing happens for %s, with leader election: API requests", b.steady/2), found.list(controllerUser), "")
	b.row("  resident memory, and at the most", fmt.Sprintf("%.0f MiB, %.0f MiB", used.residentMiB, used.highestResidentMiB), "300 MiB")
	return nil
}

// resync has everything planned anew, for commits that change no VM.
func (b *bench) resync(ctx context.Context) error {
	var times, cpu []time.Duration
	for i := range b.changes {
		revision, err := b.repository.commit(ctx, map[string]string{"README.md": fmt.Sprint(i)})
		if err != nil {
			return err
		}
		before, err := b.controller.usage()
		if err != nil {
			return err
		}
		if err := b.repository.push(ctx); err != nil {
			return err
		}
		seen, err := b.controller.awaitPlan(ctx, patience, 5*time.Millisecond, "all is planned", revision, func(int, int) bool { return true })
		if err != nil {
			return err
		}
		fetched, err := b.controller.told("RevisionFetched", revision)
		if err != nil {
			return err
		}
		after, err := b.controller.usage()
		if err != nil {
			return err
		}
		times, cpu = append(times, seen.Sub(fetched)), append(cpu, after.cpu-before.cpu)
	}
	b.row("a commit that changes no VM: fetched to planned, all of them", spread(times)+"; CPU with the polls "+spread(cpu), "5 s")
	return nil
}

// change has one VM changed by a commit: its labels, or its CPUs, for which the Pod is resized as well.
func (b *bench) change(ctx context.Context) error {
	for _, kind := range []struct {
		what string
		file func(i int) string
	}{
		{"labels of one VM changed", func(i int) string { return manifest(i, 1, "back") }},
		{"CPUs of one VM changed", func(i int) string { return manifest(b.vms/2+i, 2, "front") }},
	} {
		var pushed, planned, written, done, cpu []time.Duration
		for i := range b.changes {
			at := i
			if strings.HasPrefix(kind.what, "CPU") {
				at += b.vms / 2
			}
			m, err := b.one(ctx, manifestPath(at), kind.file(i))
			if err != nil {
				return fmt.Errorf("%s: %w", kind.what, err)
			}
			pushed, planned, cpu = append(pushed, m.written.Sub(m.pushed)), append(planned, m.planned.Sub(m.fetched)), append(cpu, m.cpu)
			written, done = append(written, m.written.Sub(m.fetched)), append(done, m.done.Sub(m.fetched))
		}
		b.row(kind.what+": fetched to planned", spread(planned), "")
		b.row("  fetched to written onto the Pod", spread(written), "1 s")
		b.row("  fetched to the agent's answer taken and the plan empty", spread(done), "")
		b.row("  pushed to written, with a poll each second", spread(pushed), "")
		b.row("  CPU of the controller", spread(cpu), "")
	}
	found, err := b.audit.since()
	if err != nil {
		return err
	}
	b.row("API requests of the controller meanwhile", found.list(controllerUser), "")
	return nil
}

// moments are when things happened to a change.
type moments struct {
	pushed, fetched, planned, written, done time.Time
	cpu                                     time.Duration
}

// one changes one VM.
func (b *bench) one(ctx context.Context, path, content string) (m moments, err error) {
	revision, err := b.repository.commit(ctx, map[string]string{path: content})
	if err != nil {
		return m, err
	}
	before, err := b.controller.usage()
	if err != nil {
		return m, err
	}
	m.pushed = time.Now()
	if err := b.repository.push(ctx); err != nil {
		return m, err
	}
	if m.planned, err = b.controller.awaitPlan(ctx, patience, 5*time.Millisecond, "the change is planned", revision, func(int, int) bool { return true }); err != nil {
		return m, err
	}
	if m.done, err = b.controller.awaitPlan(ctx, patience, 5*time.Millisecond, "the change is made", revision, func(steps, _ int) bool {
		_, told := b.agents.when(revision)
		return steps == 0 && !told.IsZero()
	}); err != nil {
		return m, err
	}
	if m.fetched, err = b.controller.told("RevisionFetched", revision); err != nil {
		return m, err
	}
	m.written, _ = b.agents.when(revision)
	after, err := b.controller.usage()
	m.cpu = after.cpu - before.cpu
	return m, err
}

// spread is the middle of some times, and the longest.
func spread(times []time.Duration) string {
	slices.Sort(times)
	return fmt.Sprintf("%s, at the most %s", millis(times[len(times)/2]), millis(times[len(times)-1]))
}

func millis(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
