package nodeagent_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/forwards"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// served is what a guest answers at one of its ports; "" when nobody does.
func served(address string, port int) string {
	conn, err := net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", address, port), time.Minute)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	word, _, _ := bufio.NewReader(conn).ReadLine()
	return string(word)
}

// page is what a guest's web server answers.
func page(address string) string {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + address + "/")
	if err != nil {
		return ""
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(text))
}

func (r *rig) await(what string, condition func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}
	r.t.Fatalf("never %s\n%s", what, r.logged.String())
}

// paced is how many times as fast time passes for the agents of guests that boot: a guest under software emulation pays for each time
// that it is asked something.
const paced = 20

// How long readiness is waited for, in such seconds: for what comes once a guest has booted, and for what does not come.
const patient, brief = 10 * 60 * paced, 4

// readiness waits for the guest of machine a to become ready in one way, and compares what is said of it.
func (r *rig) readiness(way string, port uint32, seconds int64, code codes.Code, want string) {
	r.t.Helper()
	response, err := r.client.Await(r.t.Context(), &api.AwaitRequest{Address: "VirtualMachine/default/a", Ready: way, Port: port, TimeoutSeconds: seconds})
	got := response.GetMessage()
	if err != nil {
		got = status.Convert(err).Message()
	}
	if status.Code(err) != code || !strings.Contains(got, want) {
		r.t.Errorf("ready by %q: %s: %q, want %s: %q", way, status.Code(err), got, code, want)
	}
}

// saysLast compares the end of what the guest of machine a has written to its serial console.
func (r *rig) saysLast(want ...string) {
	r.t.Helper()
	response, err := r.client.ReadConsole(r.t.Context(), &api.ReadConsoleRequest{Address: "VirtualMachine/default/a", Lines: uint32(len(want))})
	if err != nil || !slices.Equal(response.GetLines(), want) {
		r.t.Errorf("the console says last %q, want %q: %v", response.GetLines(), want, err)
	}
}

// TestPortsOfRealGuest reaches the services of a guest behind user-mode networking on a real libvirt, with the kernel's
// nftables: after its start, when its ports change, without its agent and libvirtd, and after a power cycle. On the way it is asked for
// in the ways of being ready that need no agent in the guest.
func TestPortsOfRealGuest(t *testing.T) {
	r, daemon := newRealRig(t)
	h := libvirt.New(daemon.URI)
	defer func() { _ = h.Close() }()
	redirects := forwards.Redirects{Table: fmt.Sprintf("gitvirt-test-%d", os.Getpid())}
	defer func() {
		if err := redirects.Set(nil); err != nil {
			t.Error(err)
		}
	}()
	restart := func() {
		r.stop()
		r.start(h, nodeagent.WithRedirects(redirects))
	}
	restart()
	image := libvirttest.PushGuest(t)
	// ssh is a service that speaks first, and silent one that waits: QEMU alone cannot tell it from nobody.
	const services = `#!/bin/sh\nmkdir /www; echo hello >/www/index.html; httpd -p 80 -h /www\nnc -ll -p 22 -e echo ssh &\nnc -ll -p 25 -e sleep 1000 &\n`
	with := func(ports, probe string) vm {
		return vm{name: "a", change: specOf(t, `{
			"domain": {
				"memory": {"guest": "128Mi"},
				"firmware": {"kernelBoot": {"kernelArgs": "`+libvirttest.GuestArguments+`", "container": {"image": "`+image+`", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initramfs.img"}}},
				"devices": {"disks": [{"name": "init", "disk": {"bus": "virtio"}}], "interfaces": [{"name": "default", "masquerade": {}, `+ports+`}]}
			},
			"networks": [{"name": "default", "pod": {}}],
			"volumes": [{"name": "init", "cloudInitNoCloud": {"userData": "`+services+`"}}],
			"readinessProbe": {"periodSeconds": 10, "timeoutSeconds": 5, `+probe+`}}`)}
	}
	at := loopback("a")
	reached := func(d *api.Domain) bool { return slices.Contains(d.GetAddresses(), at) && d.GetPortsProblem() == "" }
	ready := func(d *api.Domain) bool { return d.GetReady() == "true" }

	r.must(r.request(with(`"ports": [{"port": 80}]`, `"httpGet": {"port": 80}`), "on"))
	r.readiness("running", 0, patient, codes.OK, "the guest runs")
	r.readiness("tcp", 80, patient, codes.OK, "port 80 answers")
	r.eventually("a", "reached and ready by HTTP", func(d *api.Domain) bool { return reached(d) && ready(d) })
	r.readiness("", 0, patient, codes.OK, "the readiness probe succeeds")
	if got := page(at); got != "hello" {
		t.Fatalf("the page is %q", got)
	}
	qemu := daemon.QEMU("default_a")
	if got := served(at, 22); got == "ssh" {
		t.Error("port 22 is open, and nobody has asked for it")
	}

	// Ports change while the guest runs.
	r.must(r.request(with(`"ports": [{"port": 22}, {"port": 25}]`, `"tcpSocket": {"port": 25}`), ""))
	r.await("ssh", func() bool { return served(at, 22) == "ssh" })
	r.eventually("a", "ready by a service that is silent", ready)
	if got := page(at); got != "" {
		t.Errorf("port 80 is open still: %q", got)
	}

	// QEMU takes connections to any port that it forwards; the probe does not.
	r.must(r.request(with(`"portRanges": [{"protocol": "TCP", "start": 22, "end": 26}]`, `"tcpSocket": {"port": 26}`), ""))
	r.eventually("a", "not ready", func(d *api.Domain) bool {
		return d.GetReady() == "false" && d.GetReadyReason() == "the guest refuses connections to port 26"
	})
	r.await("ssh in a range", func() bool { return served(at, 22) == "ssh" })
	r.readiness("tcp", 26, brief, codes.DeadlineExceeded, "port 26 does not answer: the guest refuses connections to port 26")
	r.readiness("agent", 0, brief, codes.DeadlineExceeded, "the guest agent does not answer")
	r.saysLast("gitvirt-guest: ready", "Press Enter for a shell.")
	r.must(r.request(with(`"ports": [{"port": 22}]`, `"tcpSocket": {"port": 80}`), ""))
	r.eventually("a", "unknown", func(d *api.Domain) bool {
		return d.GetReady() == "unknown" && strings.Contains(d.GetReadyReason(), "no port 80")
	})

	// The guest is reached without its agent, and without libvirtd.
	r.stop()
	if got := served(at, 22); got != "ssh" {
		t.Errorf("without the agent: %q", got)
	}
	daemon.Kill()
	if got := served(at, 22); got != "ssh" {
		t.Errorf("without libvirtd: %q", got)
	}
	if err := redirects.Set(nil); err != nil { // as a firewall does that is loaded anew
		t.Fatal(err)
	}
	daemon.Start()
	r.start(h, nodeagent.WithRedirects(redirects))
	r.await("ssh again", func() bool { return served(at, 22) == "ssh" })
	r.eventually("a", "reached", reached)
	console, err := os.ReadFile(filepath.Join(r.dir, "state", "vms", "default", "a", "console.log"))
	if boots := strings.Count(string(console), "boot-id"); err != nil || boots != 1 || daemon.QEMU("default_a") != qemu {
		t.Errorf("the guest was restarted on the way: it has booted %d times (%v)", boots, err)
	}

	// A new run has a new QEMU.
	daemon.CrashQEMU("default_a")
	r.eventually("a", "off", func(d *api.Domain) bool { return d.GetState() == "stopped" && len(d.GetAddresses()) == 0 })
	r.saysLast("gitvirt-guest: ready", "Press Enter for a shell.")
	r.readiness("tcp", 22, patient, codes.FailedPrecondition, "the guest crashed")
	r.must(r.request(with(`"portRanges": [{"protocol": "TCP", "start": 22, "end": 22}]`, `"tcpSocket": {"port": 22}`), "on"))
	r.eventually("a", "ready", ready)
	if got := served(at, 22); got != "ssh" {
		t.Errorf("after a power cycle: %q", got)
	}
	r.must(&api.ExecuteRequest{Address: "VirtualMachine/default/a", Domain: "default_a", Precondition: r.domain("a").GetFingerprint(), Destroy: true})
	r.await("without redirects", func() bool {
		have, err := redirects.List()
		return err == nil && len(have) == 0
	})
}
