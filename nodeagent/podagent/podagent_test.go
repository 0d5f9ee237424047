package podagent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/podagent"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// From a fresh Pod to a guest that is ready takes one write, and nothing is written from then on while nothing changes.
func TestOneWrite(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.pod(web, createOn)
	n.ready(web, "1")
	observed, condition := n.says(web)
	if observed.Node != nodeName || observed.Domain.GetName() != "shop_web" || condition.Reason != "GuestReady" || condition.LastTransitionTime.IsZero() {
		t.Errorf("%+v %+v", observed, condition)
	}
	// The Pod is seen again, libvirt is read again: nothing of it is news.
	g := n.guest(webUID)
	for i := range 20 {
		g.domain(func(*api.Domain) {})
		n.update(web, func(p *corev1.Pod) { p.Labels["seen"] = fmt.Sprint(i) })
	}
	g.domain(func(d *api.Domain) { d.Addresses = []string{"10.0.0.7"} })
	n.told(web, "the address is told", func(o podapi.Observed, _ corev1.PodCondition) bool {
		return slices.Equal(o.Domain.GetAddresses(), []string{"10.0.0.7"})
	})
	if writes := n.writes(); !slices.Equal(writes, []string{"patch pods/status", "patch pods/status"}) {
		t.Errorf("written: %v", writes)
	}
	if steps := g.executed(); !slices.Equal(steps, []string{"on"}) {
		t.Errorf("carried out: %v", steps)
	}
}

// Of a burst of changes the last is told, and few of the others.
func TestBurst(t *testing.T) {
	n := newNode(t)
	n.agent(func(c *podagent.Config) { c.Settle = 200 * time.Millisecond })
	n.pod(web, createOn)
	n.ready(web, "1")
	g := n.guest(webUID)
	before := len(n.writes())
	for i := range 1000 {
		g.domain(func(d *api.Domain) { d.Addresses = []string{fmt.Sprint("10.0.0.", i)} })
	}
	n.told(web, "the last address is told", func(o podapi.Observed, _ corev1.PodCondition) bool {
		return slices.Equal(o.Domain.GetAddresses(), []string{"10.0.0.999"})
	})
	if count := len(n.writes()) - before; count > 10 {
		t.Errorf("%d writes", count)
	}
}

// A Pod with our labels that the controller has not signed is told of once, and left alone; so is a step that was changed on a Pod of
// ours, whose guest is followed on.
func TestForged(t *testing.T) {
	n := newNode(t)
	agent, _ := n.agent()
	other := vm{name: "db", uid: otherUID}
	n.pod(web, createOn, func(p *corev1.Pod) {
		p.Annotations[podapi.AnnotationStep] = strings.Replace(p.Annotations[podapi.AnnotationStep], `"on"`, `"off"`, 1)
	})
	n.pod(other, createOn)
	n.ready(other, "1")
	n.update(other, func(p *corev1.Pod) { p.Annotations[podapi.AnnotationRecord] += " " })
	n.eventually("both are refused", func() (bool, any) {
		count := metric(t, agent, "gitvirt_agent_refused_pods_total")
		return count == 2, count
	})
	for reason, want := range map[string]float64{podapi.ForgedSignature: 1, podapi.ForgedRecord: 1, podapi.ForgedNoStep: 0} {
		if count := counted(t, agent, "gitvirt_agent_refused_pods_total", reason); count != want {
			t.Errorf("%s: counted %v, want %v", reason, count, want)
		}
	}
	n.guest(otherUID).domain(func(d *api.Domain) { d.State = "paused" })
	n.told(other, "the guest is followed", func(_ podapi.Observed, c corev1.PodCondition) bool { return c.Reason == "GuestPaused" })
	if count := n.noted("Refused"); count != 2 {
		t.Errorf("told %d times", count)
	}
	if steps := n.guest(otherUID).executed(); len(steps) != 1 {
		t.Errorf("carried out: %v", steps)
	}
	if forged := n.read(web); len(n.guest(webUID).executed()) > 0 || forged.Annotations[podapi.AnnotationObserved] != "" || len(forged.Status.Conditions) > 0 {
		t.Errorf("the forged Pod was touched: %+v", forged)
	}
}

// A step that was made for a node with KVM is not carried out under emulation, unless it allows that.
func TestEmulationIsAllowedByTheStep(t *testing.T) {
	n := newNode(t)
	agent, _ := n.agent(func(c *podagent.Config) { c.DomainType = "qemu" })
	n.pod(web, createOn)
	n.told(web, "the step is refused", func(o podapi.Observed, _ corev1.PodCondition) bool {
		return o.Outcome == podapi.Stalled && strings.Contains(o.Message, "devices.gitvirt.io/kvm")
	})
	if steps := n.guest(webUID).executed(); len(steps) > 0 {
		t.Errorf("carried out: %v", steps)
	}
	if count := counted(t, agent, "gitvirt_agent_refused_pods_total", "emulation"); count != 1 {
		t.Errorf("counted %v", count)
	}
	allowed := createOn
	allowed.ID, allowed.Emulation = "2", true
	n.pod(vm{name: "db", uid: otherUID}, allowed)
	n.ready(vm{name: "db", uid: otherUID}, "2")
}

// The Secret's content comes after its annotation; until it is the step's, nothing is done.
func TestContentComesLater(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.pod(web, createOn)
	n.ready(web, "1")
	observed, _ := n.says(web)
	changed := web
	changed.more = "hostname: other"
	_, annotations, content := changed.step(n, podapi.Step{ID: "2", Define: true, Live: true, Precondition: observed.Domain.GetFingerprint()})
	n.update(web, func(p *corev1.Pod) { p.Annotations = annotations })
	n.eventually("the agent looks at it", func() (bool, any) { return len(n.client.Actions()) > 0, nil })
	if steps := n.guest(webUID).executed(); len(steps) != 1 {
		t.Errorf("carried out: %v", steps)
	}
	n.secret(web, content)
	n.ready(web, "2")
}

// An agent that comes after another goes on from what that told: it carries nothing out again and writes nothing.
func TestRestart(t *testing.T) {
	n := newNode(t)
	_, stop := n.agent()
	n.pod(web, createOn)
	n.ready(web, "1")
	stop()
	before := len(n.writes())
	n.agent()
	other := vm{name: "db", uid: otherUID}
	n.pod(other, createOn)
	n.ready(other, "1")
	n.eventually("the first is looked after", func() (bool, any) { n.mu.Lock(); defer n.mu.Unlock(); return n.opened == 3, n.opened })
	if after := len(n.writes()) - before; after != 1 {
		t.Errorf("%d writes, want that of the new Pod only", after)
	}
	if steps := n.guest(webUID).executed(); !slices.Equal(steps, []string{"on"}) {
		t.Errorf("carried out: %v", steps)
	}
}

// A step that was under way when the agent stopped is carried out again and finds out by its precondition; the controller then makes
// another one. The guest is not touched.
func TestKilledInTheMiddle(t *testing.T) {
	n := newNode(t)
	g := n.guest(webUID)
	g.block = make(chan struct{})
	_, stop := n.agent()
	n.pod(web, createOn)
	n.eventually("it has begun", func() (bool, any) { sight, _ := g.look(); return sight.Domain != nil, sight })
	stop()
	if observed, _ := n.says(web); observed.Step != "" {
		t.Errorf("an interrupted step is told: %+v", observed)
	}
	close(g.block)
	n.agent()
	n.told(web, "it is stale", func(o podapi.Observed, c corev1.PodCondition) bool {
		return o.Step == "1" && o.Outcome == podapi.Stale && o.Domain.GetState() == "stopped" && c.Reason == "StepFailed"
	})
	observed, _ := n.says(web)
	_, annotations, _ := web.step(n, podapi.Step{ID: "2", Power: "on", Precondition: observed.Domain.GetFingerprint()})
	n.update(web, func(p *corev1.Pod) {
		for key, value := range annotations {
			p.Annotations[key] = value
		}
	})
	n.ready(web, "2")
}

// A step that is under way when the agent is asked to stop may end, and is told.
func TestLeavesInPeace(t *testing.T) {
	n := newNode(t)
	g := n.guest(webUID)
	g.block = make(chan struct{})
	_, stop := n.agent(func(c *podagent.Config) { c.Leave = time.Minute })
	n.pod(web, createOn)
	n.eventually("it has begun", func() (bool, any) { sight, _ := g.look(); return sight.Domain != nil, sight })
	time.AfterFunc(50*time.Millisecond, func() { close(g.block) })
	stop()
	n.ready(web, "1")
}

// Nothing is lost while the API server is away, and conflicts are tried again.
func TestServerAway(t *testing.T) {
	n := newNode(t)
	var failures atomic.Int32
	n.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		switch failures.Add(1) {
		case 1:
			return true, nil, errors.New("connection refused")
		case 2:
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "virt-launcher-web", errors.New("changed"))
		case 3:
			return true, nil, apierrors.NewServiceUnavailable("later")
		}
		return false, nil, nil
	})
	n.agent()
	n.pod(web, createOn)
	n.ready(web, "1")
	if failures.Load() != 4 {
		t.Errorf("%d attempts", failures.Load())
	}
}

// What somebody else writes in the agent's place is put right.
func TestForgedObserved(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.pod(web, createOn)
	n.ready(web, "1")
	n.update(web, func(p *corev1.Pod) {
		p.Annotations[podapi.AnnotationObserved] = `{"step":"7","outcome":"done"}`
		p.Status.Conditions = nil
	})
	n.ready(web, "1")
	n.update(web, func(p *corev1.Pod) { p.Annotations[podapi.AnnotationObserved] = "{" })
	n.eventually("it is put right", func() (bool, any) {
		text := n.read(web).Annotations[podapi.AnnotationObserved]
		return strings.Contains(text, `"step":"1"`), text
	})
	if steps := n.guest(webUID).executed(); len(steps) != 1 {
		t.Errorf("carried out: %v", steps)
	}
}

// What an error means for the step, and that only what may pass is tried again.
func TestOutcomes(t *testing.T) {
	for _, test := range []struct {
		name  string
		err   error
		told  podapi.Outcome
		again bool
	}{
		{"refused for good", fmt.Errorf("%w: no such machine type", nodeagent.ErrInvalid), podapi.Stalled, false},
		{"for now", errors.New("no room"), podapi.Retry, true},
		{"changed", nodeagent.ErrStale, podapi.Stale, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			g := n.guest(webUID)
			g.fail = []error{test.err}
			n.agent()
			n.pod(web, createOn)
			n.told(web, "the outcome is told", func(o podapi.Observed, c corev1.PodCondition) bool {
				return o.Step == "1" && o.Outcome == test.told && o.Message != "" && c.Status == corev1.ConditionFalse && c.Reason == "StepFailed"
			})
			if test.again {
				n.ready(web, "1")
			}
			if steps := g.executed(); (len(steps) == 1) != test.again {
				t.Errorf("carried out: %v", steps)
			}
		})
	}
}

// A guest is ready when its manifest says so, in each of its runs anew.
func TestReadiness(t *testing.T) {
	n := newNode(t)
	asks := web
	asks.annotations = "{gitvirt.io/ready: agent}"
	n.agent()
	n.pod(asks, createOn)
	notReady := func(o podapi.Observed, c corev1.PodCondition) bool {
		return o.Outcome == podapi.Done && c.Status == corev1.ConditionFalse && c.Reason == "GuestNotReady"
	}
	n.told(web, "it runs and is not ready", notReady)
	g := n.guest(webUID)
	g.change(func() { g.agentUp = true })
	n.ready(web, "1")
	g.change(func() { g.agentUp = false })
	g.domain(func(d *api.Domain) { d.State = "stopped" })
	n.told(web, "it is off", func(_ podapi.Observed, c corev1.PodCondition) bool { return c.Reason == "GuestOff" })
	g.domain(func(d *api.Domain) { d.State = "running" })
	n.told(web, "another run is not ready by itself", notReady)
	g.change(func() { g.agentUp = true })
	n.ready(web, "1")
}

func TestReadinessProbe(t *testing.T) {
	n := newNode(t)
	probed := web
	probed.more = "readinessProbe: {tcpSocket: {port: 80}}"
	n.agent()
	n.pod(probed, createOn)
	n.told(web, "nobody has asked it", func(_ podapi.Observed, c corev1.PodCondition) bool { return c.Reason == "GuestNotReady" })
	g := n.guest(webUID)
	g.domain(func(d *api.Domain) { d.Ready = "true" })
	n.ready(web, "1")
	g.domain(func(d *api.Domain) { d.Ready, d.ReadyReason = "false", "port 80 is closed" })
	n.told(web, "it is not ready any more", func(_ podapi.Observed, c corev1.PodCondition) bool {
		return c.Status == corev1.ConditionFalse && c.Message == "readiness probe: port 80 is closed"
	})
}

// A guest that was restarted is waited for anew.
func TestRestartInThePod(t *testing.T) {
	n := newNode(t)
	asks := web
	asks.annotations = "{gitvirt.io/ready: agent}"
	n.agent()
	g := n.guest(webUID)
	g.agentUp = true
	n.pod(asks, createOn)
	n.ready(web, "1")
	observed, _ := n.says(web)
	g.change(func() { g.agentUp = false })
	_, annotations, _ := asks.step(n, podapi.Step{ID: "2", Power: "cycle", Precondition: observed.Domain.GetFingerprint()})
	n.update(web, func(p *corev1.Pod) { p.Annotations = annotations })
	n.told(web, "it is not ready after the restart", func(o podapi.Observed, c corev1.PodCondition) bool {
		return o.Step == "2" && o.Outcome == podapi.Done && c.Reason == "GuestNotReady"
	})
	g.change(func() { g.agentUp = true })
	n.ready(web, "2")
}

// A Pod on its way out gets no step, and nothing is written on it.
func TestPodGoes(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.pod(web, createOn)
	n.ready(web, "1")
	before := len(n.writes())
	n.update(web, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	n.guest(webUID).domain(func(d *api.Domain) { d.State = "stopped" })
	if err := n.client.CoreV1().Pods("shop").Delete(t.Context(), "virt-launcher-web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.eventually("the Pod is deleted", func() (bool, any) { return len(n.writes()) > before, nil })
	if after := n.writes()[before:]; !slices.Equal(after, []string{"delete pods/"}) {
		t.Errorf("written: %v", after)
	}
}

// The service shows each guest through the agent of its Pod, and takes no steps.
func TestServer(t *testing.T) {
	n := newNode(t)
	agent, _ := n.agent()
	n.pod(web, createOn)
	n.ready(web, "1")
	server := podagent.NewServer(agent, nil)
	console, err := server.ReadConsole(t.Context(), &api.ReadConsoleRequest{Address: "VirtualMachine/shop/web"})
	if err != nil || console.GetLines()[0] != "console of VirtualMachine/shop/web" {
		t.Error(console, err)
	}
	domain, err := server.ReadDomain(t.Context(), &api.ReadDomainRequest{Name: "shop_web"})
	if err != nil || domain.GetConfig() != "<domain name='shop_web'/>" {
		t.Error(domain, err)
	}
	if _, err := server.ReadConsole(t.Context(), &api.ReadConsoleRequest{Address: "VirtualMachine/shop/db"}); err == nil {
		t.Error("a guest that is not here has a console")
	}
	statistics, err := server.ReadStatistics(t.Context(), &api.ReadStatisticsRequest{Address: "VirtualMachine/shop/web", Domain: "shop_db"})
	if err != nil || statistics.GetState() != "VirtualMachine/shop/web" {
		t.Error(statistics, err)
	}
	for vm, want := range map[string]codes.Code{"web": codes.AlreadyExists, "db": codes.NotFound} {
		if err := server.Console(&consoleOf{ctx: t.Context(), vm: vm}); status.Code(err) != want {
			t.Errorf("the console of %s: %v", vm, err)
		}
	}
	if err := server.Execute(nil, nil); err == nil {
		t.Error("it took a step")
	}
}

// consoleOf is a stream by which somebody asks for a console.
type consoleOf struct {
	api.Agent_ConsoleServer
	ctx context.Context //nolint:containedctx // a stream has one
	vm  string
}

func (c *consoleOf) Context() context.Context { return c.ctx }

func (c *consoleOf) Recv() (*api.ConsoleInput, error) {
	return &api.ConsoleInput{Address: "VirtualMachine/shop/" + c.vm}, nil
}

// counted reads the counter of a reason.
func counted(t *testing.T, agent *podagent.Agent, name, reason string) float64 {
	t.Helper()
	families, err := agent.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, one := range family.GetMetric() {
			if family.GetName() == name && one.GetLabel()[0].GetValue() == reason {
				return one.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// metric reads a metric, the sum of all its labels.
func metric(t *testing.T, agent *podagent.Agent, name string) float64 {
	t.Helper()
	families, err := agent.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			sum := 0.0
			for _, one := range family.GetMetric() {
				sum += one.GetCounter().GetValue()
			}
			return sum
		}
	}
	return -1
}

// gauge reads a metric with one label.
func gauge(t *testing.T, agent *podagent.Agent, name, label string) float64 {
	t.Helper()
	families, err := agent.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name && metric.GetLabel()[0].GetValue() == label {
				return metric.GetGauge().GetValue()
			}
		}
	}
	return -1
}
