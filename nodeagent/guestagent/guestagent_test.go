package guestagent_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/guestagent"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// guest is an agent that answers from a table and keeps what it was asked.
type guest struct {
	asked   []string
	answers map[string]string // by command; what is not there is refused
}

func (g *guest) send(_ context.Context, command string) (string, error) {
	var request struct {
		Execute   string
		Arguments json.RawMessage
	}
	if err := json.Unmarshal([]byte(command), &request); err != nil {
		return "", err
	}
	g.asked = append(g.asked, strings.TrimSpace(request.Execute+" "+string(request.Arguments)))
	answer, ok := g.answers[request.Execute]
	if !ok {
		return "", errors.New("the command has not been found")
	}
	return `{"return":` + answer + `}`, nil
}

func TestPassword(t *testing.T) {
	g := &guest{answers: map[string]string{"guest-set-user-password": "{}"}}
	if err := guestagent.New(g.send).SetPassword(t.Context(), "admin", []byte("pass word")); err != nil {
		t.Fatal(err)
	}
	want := []string{`guest-set-user-password {"crypted":false,"password":"cGFzcyB3b3Jk","username":"admin"}`}
	if !cmp.Equal(g.asked, want) {
		t.Errorf("asked %q, want %q", g.asked, want)
	}
}

func TestKeys(t *testing.T) {
	keys := []string{"ssh-ed25519 AAAA a", "ssh-rsa BBBB b"}
	g := &guest{answers: map[string]string{
		"guest-info": `{"supported_commands":[{"name":"guest-ssh-add-authorized-keys","enabled":true}]}`, "guest-ssh-add-authorized-keys": "{}",
	}}
	if err := guestagent.New(g.send).SetSSHKeys(t.Context(), "admin", keys); err != nil {
		t.Fatal(err)
	}
	want := []string{"guest-info", `guest-ssh-add-authorized-keys {"keys":["ssh-ed25519 AAAA a","ssh-rsa BBBB b"],"reset":true,"username":"admin"}`}
	if !cmp.Equal(g.asked, want) {
		t.Errorf("asked %q, want %q", g.asked, want)
	}
}

// TestKeysOfOldAgents: the file is written where the command is missing or switched off.
func TestKeysOfOldAgents(t *testing.T) {
	for _, info := range []string{`{}`, `{"supported_commands":[{"name":"guest-ssh-add-authorized-keys","enabled":false}]}`} {
		entry := base64.StdEncoding.EncodeToString([]byte("admin:x:1000:1000::/home/admin:/bin/sh\n"))
		g := &guest{answers: map[string]string{
			"guest-info": info, "guest-exec": `{"pid":7}`, "guest-exec-status": `{"exited":true,"exitcode":0,"out-data":"` + entry + `"}`,
			"guest-file-open": "1000", "guest-file-write": `{"count":1}`, "guest-file-close": "{}",
		}}
		if err := guestagent.New(g.send).SetSSHKeys(t.Context(), "admin", []string{"ssh-ed25519 AAAA a"}); err != nil {
			t.Fatal(err)
		}
		all := strings.Join(g.asked, "\n")
		for _, want := range []string{
			`"arg":["passwd","admin"]`, `"arg":["-p","-m","700","/home/admin/.ssh"]`, `{"mode":"w","path":"/home/admin/.ssh/authorized_keys"}`,
			base64.StdEncoding.EncodeToString([]byte("ssh-ed25519 AAAA a\n")), `"arg":["600","/home/admin/.ssh/authorized_keys"]`,
			`"arg":["1000:1000","/home/admin/.ssh","/home/admin/.ssh/authorized_keys"]`,
		} {
			if !strings.Contains(all, want) {
				t.Errorf("asked\n%s\nwant %s", all, want)
			}
		}
	}
}

func TestNamesOfUsers(t *testing.T) {
	g := &guest{}
	for _, name := range []string{"", "-o", "a:b", "../etc", "a\nb"} {
		if guestagent.New(g.send).SetPassword(t.Context(), name, nil) == nil || guestagent.New(g.send).SetSSHKeys(t.Context(), name, nil) == nil {
			t.Errorf("%q was taken for the name of a user", name)
		}
	}
	if len(g.asked) > 0 {
		t.Errorf("asked %q", g.asked)
	}
}

func TestErrorsHoldNoSecrets(t *testing.T) {
	g := &guest{answers: map[string]string{"guest-exec": `{"pid":`}}
	_, _, err := guestagent.New(g.send).Exec(t.Context(), "login", "--password=secret")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("broken reply: %v", err)
	}
	err = guestagent.New(g.send).SetPassword(t.Context(), "admin", []byte("secret"))
	if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), base64.StdEncoding.EncodeToString([]byte("secret"))) {
		t.Errorf("refused: %v", err)
	}
}

func TestKeysOf(t *testing.T) {
	got := guestagent.KeysOf("# mine\nssh-rsa A a\r\n\n", " ssh-rsa B b", "ssh-rsa A a")
	if want := []string{"ssh-rsa A a", "ssh-rsa B b"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRealAgent has Debian's qemu-guest-agent do it all in a guest.
func TestRealAgent(t *testing.T) {
	daemon := libvirttest.Start(t)
	h := libvirt.New(daemon.URI)
	defer func() { _ = h.Close() }()
	kernel, initramfs := libvirttest.AgentGuest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	if err := h.Define(ctx, libvirttest.AgentDomainXML("a", "", kernel, initramfs)); err != nil {
		t.Fatal(err)
	}
	if err := h.SetPower(ctx, "a", "on"); err != nil {
		t.Fatal(err)
	}
	agent := guestagent.New(func(ctx context.Context, command string) (string, error) { return h.GuestAgent(ctx, "a", command) })
	for err := agent.Ping(ctx); err != nil; err = agent.Ping(ctx) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	// What the agent itself has no command for, it does with programs.
	old := guestagent.New(func(ctx context.Context, command string) (string, error) {
		if command == `{"execute":"guest-info"}` {
			return `{"return":{}}`, nil
		}
		return h.GuestAgent(ctx, "a", command)
	})
	read := func(command string) string {
		code, output, err := agent.Exec(ctx, "sh", "-c", command)
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		return fmt.Sprintf("%d %s", code, output)
	}
	if got := read("echo out; echo err >&2; exit 3"); got != "3 out\n" {
		t.Errorf("a program: %q", got)
	}
	if err := agent.SetSSHKeys(ctx, "root", []string{"ssh-ed25519 AAAA first"}); err != nil {
		t.Error(err)
	}
	if got := read("cat /root/.ssh/authorized_keys"); got != "0 ssh-ed25519 AAAA first" {
		t.Errorf("the first keys: %q", got)
	}
	read("printf '#!/bin/sh\\ngrep \"^$2:\" /etc/passwd\\n' >/bin/getent; chmod 755 /bin/getent") // busybox has none
	if err := old.SetSSHKeys(ctx, "root", []string{"ssh-ed25519 AAAA second"}); err != nil {
		t.Error(err)
	}
	if got := read("cat /root/.ssh/authorized_keys; stat -c %a /root/.ssh /root/.ssh/authorized_keys"); got != "0 ssh-ed25519 AAAA second\n700\n600\n" {
		t.Errorf("the second keys: %q", got)
	}
	// Debian's busybox has no chpasswd, which the agent calls.
	read("printf '#!/bin/sh\nread line\necho \"$line\" >>/tmp/passwords\n! grep -q nobody /tmp/passwords\n' >/bin/chpasswd; chmod 755 /bin/chpasswd")
	if err := agent.SetPassword(ctx, "root", []byte("secret")); err != nil {
		t.Error(err)
	}
	if got := read("cat /tmp/passwords"); got != "0 root:secret\n" {
		t.Errorf("the password: %q", got)
	}
	if err := agent.SetPassword(ctx, "nobody-here", []byte("secret")); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the password of nobody: %v", err)
	}
}
