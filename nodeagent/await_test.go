package nodeagent_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// guestFiles is an agent that hands out these files, and runs no program.
func guestFiles(files map[string]string) func(string) (string, error) {
	names := []string{}
	return func(command string) (string, error) {
		var asked struct {
			Execute   string `json:"execute"`
			Arguments struct {
				Path   string `json:"path"`
				Handle int    `json:"handle"`
			} `json:"arguments"`
		}
		if err := json.Unmarshal([]byte(command), &asked); err != nil {
			return "", err
		}
		answer := map[string]any{"return": map[string]any{}}
		switch asked.Execute {
		case "guest-exec":
			return "", errors.New("guest-exec is switched off")
		case "guest-file-open":
			if _, ok := files[asked.Arguments.Path]; !ok {
				return "", errors.New("no such file")
			}
			names = append(names, asked.Arguments.Path)
			answer["return"] = len(names) - 1
		case "guest-file-read":
			content := files[names[asked.Arguments.Handle]]
			answer["return"] = map[string]any{"buf-b64": base64.StdEncoding.EncodeToString([]byte(content))}
		}
		encoded, err := json.Marshal(answer)
		return string(encoded), err
	}
}

func bridged(s *kubevirtv1.VirtualMachineInstanceSpec) {
	s.Networks = []kubevirtv1.Network{{Name: "lan", NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: "br0"}}}}
	s.Domain.Devices.Interfaces = []kubevirtv1.Interface{{
		Name: "lan", InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}},
	}}
}

// TestAwait says for each way of being ready what is found. The patience of two minutes is over in a moment.
func TestAwait(t *testing.T) {
	const done = "cloud-init is done"
	open := answering(t, "hello")
	for _, test := range []struct {
		reason, ready string
		port          int
		change        func(*kubevirtv1.VirtualMachineInstanceSpec)
		agent         func(string) (string, error)
		before        func(*rig) // after the guest was started
		want          string
		code          codes.Code
	}{
		{reason: "one that runs", ready: "running", want: "the guest runs"},
		{reason: "by default one that runs", want: "the guest runs"},
		{reason: "off", ready: "running", before: func(r *rig) { r.fake.GuestPowersOff("default_a") }, want: "the guest shut itself down", code: codes.FailedPrecondition},
		{reason: "crashed", ready: "agent", before: func(r *rig) { r.fake.GuestCrashes("default_a") }, want: "the guest crashed", code: codes.FailedPrecondition},
		{
			reason: "paused", ready: "running", want: "the guest is paused", code: codes.DeadlineExceeded,
			before: func(r *rig) {
				r.fake.Pause("default_a")
				r.eventually("a", "paused", func(d *api.Domain) bool { return d.GetState() == "paused" })
			},
		},
		{reason: "an agent that answers", ready: "agent", agent: guestFiles(nil), want: "the guest agent answers"},
		{reason: "none", ready: "agent", want: "the guest agent does not answer", code: codes.DeadlineExceeded},
		{reason: "a port", ready: "tcp", port: open, change: bridged, before: func(r *rig) { r.fake.SetAddresses("default_a", "127.0.0.1") }, want: "answers"},
		{reason: "a closed port", ready: "tcp", port: 1, change: bridged, before: func(r *rig) { r.fake.SetAddresses("default_a", "127.0.0.1") }, want: "port 1 does not answer: ", code: codes.DeadlineExceeded},
		{reason: "no address", ready: "tcp", port: 22, change: bridged, want: "no address of the guest is known", code: codes.DeadlineExceeded},
		{reason: "no port", ready: "tcp", want: "0 is no port", code: codes.InvalidArgument},
		{reason: "cloud-init", ready: "cloud-init", agent: guestFiles(map[string]string{"/run/cloud-init/result.json": `{"v1":{"errors":[]}}`}), want: done},
		{
			reason: "that ended badly", ready: "cloud-init", agent: guestFiles(map[string]string{"/run/cloud-init/result.json": `{"v1":{"errors":["p4ssword"]}}`}),
			want: "cloud-init ended with 1 error(s)", code: codes.FailedPrecondition,
		},
		{reason: "an old one", ready: "cloud-init", agent: guestFiles(map[string]string{"/var/lib/cloud/instance/boot-finished": "1"}), want: done},
		{reason: "that goes on", ready: "cloud-init", agent: guestFiles(nil), want: "cloud-init is not done", code: codes.DeadlineExceeded},
		{reason: "without an agent", ready: "cloud-init", want: "the guest agent does not answer", code: codes.DeadlineExceeded},
		{reason: "a probe that nobody has", ready: "probe", want: "the machine has no readiness probe", code: codes.FailedPrecondition},
		{reason: "a probe", ready: "probe", change: probed("a", nil, ping()).change, agent: guestFiles(nil), want: "the readiness probe succeeds"},
		{reason: "by default the probe", change: probed("a", nil, ping()).change, want: "readiness probe: ", code: codes.DeadlineExceeded},
		{reason: "nonsense", ready: "soon", want: `"soon" is no way of being ready`, code: codes.InvalidArgument},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			change := test.change
			if change == nil {
				change = func(*kubevirtv1.VirtualMachineInstanceSpec) {}
			}
			in := vm{name: "a", change: change}
			r.must(r.request(in, ""))
			r.fake.SetGuestAgent("default_a", test.agent)
			r.must(r.request(in, "on"))
			r.eventually("a", "running", func(d *api.Domain) bool { return d.GetState() == "running" })
			if test.before != nil {
				test.before(r)
			}
			if test.code == codes.FailedPrecondition && test.before != nil {
				r.eventually("a", "off", func(d *api.Domain) bool { return d.GetState() == "stopped" })
			}
			response, err := r.client.Await(t.Context(), &api.AwaitRequest{
				Address: "VirtualMachine/default/a", Domain: "default_a", Ready: test.ready, Port: uint32(test.port), TimeoutSeconds: 120,
			})
			got := response.GetMessage()
			if err != nil {
				got = status.Convert(err).Message()
			}
			if status.Code(err) != test.code || !strings.Contains(got, test.want) || strings.Contains(got, "p4ssword") {
				t.Errorf("got %s: %q, want %s: %q", status.Code(err), got, test.code, test.want)
			}
		})
	}
}

// TestAwaitEndsWithTheGuest: nobody waits for the end of the time once the guest is off.
func TestAwaitEndsWithTheGuest(t *testing.T) {
	r := newRig(t, nil)
	in := vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}
	r.must(r.request(in, "on"))
	asked := make(chan struct{}, 1)
	r.fake.SetGuestAgent("default_a", func(string) (string, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		return "", hypervisor.ErrNoAgent
	})
	go func() {
		<-asked
		r.fake.GuestCrashes("default_a")
	}()
	_, err := r.client.Await(t.Context(), &api.AwaitRequest{Address: "VirtualMachine/default/a", Ready: "agent", TimeoutSeconds: 24 * 3600})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the guest crashed") {
		t.Errorf("got %v", err)
	}
	_, err = r.client.Await(t.Context(), &api.AwaitRequest{Address: "VirtualMachine/default/nobody", TimeoutSeconds: 24 * 3600})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "there is no such machine on this host") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = r.client.Await(ctx, &api.AwaitRequest{Address: "VirtualMachine/default/a", Ready: "agent"}); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
}

// TestReadConsole: the last lines are shown, and nothing of them moves a cursor.
func TestReadConsole(t *testing.T) {
	r := newRig(t, nil)
	read := func(name string, lines uint32) []string {
		t.Helper()
		response, err := r.client.ReadConsole(t.Context(), &api.ReadConsoleRequest{Address: "VirtualMachine/default/" + name, Lines: lines})
		if err != nil {
			t.Fatal(err)
		}
		return response.GetLines()
	}
	if lines := read("a", 5); len(lines) != 0 {
		t.Errorf("a guest without a console said %q", lines)
	}
	dir := filepath.Join(r.dir, "state", "vms", "default", "a")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log := strings.Repeat("much before\r\n", 20_000) + "first\r\n\r\n\x1b[1;32m[  OK  ]\x1b[0m Started\x1b]0;title\a it.\r\nworking\rdone\x00\x7f\nbad \xff\xfe\x1b(B text\tend  \n" +
		strings.Repeat("é", 1000) + "\nlogin: \x1b["
	if err := os.WriteFile(filepath.Join(dir, "console.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := read("a", 6)
	want := []string{"first", "[  OK  ] Started it.", "done", "bad \uFFFD text end", strings.Repeat("é", 250) + "...", "login:"}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q", lines)
	}
	if lines := read("a", 4_000_000_000); len(lines) != 500 || !utf8.ValidString(strings.Join(lines, "")) {
		t.Errorf("got %d lines", len(lines))
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "console.log")), os.Symlink("/etc/passwd", filepath.Join(dir, "console.log"))); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.ReadConsole(t.Context(), &api.ReadConsoleRequest{Address: "VirtualMachine/default/a", Lines: 5}); err == nil {
		t.Error("it follows links")
	}
}
