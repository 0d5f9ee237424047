// Package guestagent speaks the protocol of qemu-guest-agent: what is done inside a running guest on its owner's behalf. It
// knows the commands and no hypervisor: sending them is the caller's. See
// https://qemu-project.gitlab.io/qemu/interop/qemu-ga-ref.html. Errors quote neither commands nor their output: both may hold
// passwords.
package guestagent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// ErrRunning says that a program in the guest, which was started, has not ended in time.
var ErrRunning = errors.New("the program has not ended")

// Send sends one command to the agent of one guest and returns its reply.
type Send func(ctx context.Context, command string) (reply string, err error)

// Agent is the agent of one guest.
type Agent struct {
	send Send
}

// New returns the agent that send reaches.
func New(send Send) Agent { return Agent{send: send} }

// ask sends a command and decodes what it returns; into may be nil.
func (a Agent) ask(ctx context.Context, name string, arguments, into any) error {
	command, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{name, arguments})
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	reply, err := a.send(ctx, string(command))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if into == nil {
		return nil
	}
	var answer struct {
		Return json.RawMessage `json:"return"`
	}
	if err := json.Unmarshal([]byte(reply), &answer); err != nil {
		return fmt.Errorf("%s: the reply is no JSON", name)
	}
	if err := json.Unmarshal(answer.Return, into); err != nil {
		return fmt.Errorf("%s: the reply is not what the protocol says", name)
	}
	return nil
}

// Ping returns nil when the agent answers.
func (a Agent) Ping(ctx context.Context) error { return a.ask(ctx, "guest-ping", nil, nil) }

// poll is how often a program in the guest is asked for its end.
const poll = 100 * time.Millisecond

// Exec runs a program in the guest and waits for its end, or that of ctx; the program then goes on. output is what it wrote
// to standard output.
func (a Agent) Exec(ctx context.Context, program string, arguments ...string) (exitCode int, output []byte, err error) {
	var started struct {
		PID int64 `json:"pid"`
	}
	if arguments == nil {
		arguments = []string{}
	}
	request := map[string]any{"path": program, "arg": arguments, "capture-output": true}
	if err := a.ask(ctx, "guest-exec", request, &started); err != nil {
		return 0, nil, err
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		var status struct {
			Exited   bool   `json:"exited"`
			ExitCode int    `json:"exitcode"`
			Signal   int    `json:"signal"`
			Output   string `json:"out-data"`
		}
		if err := a.ask(ctx, "guest-exec-status", map[string]any{"pid": started.PID}, &status); err != nil {
			return 0, nil, err
		}
		if status.Exited {
			output, err := base64.StdEncoding.DecodeString(status.Output)
			if err != nil {
				return 0, nil, errors.New("guest-exec-status: the output is not what the protocol says")
			}
			if status.Signal != 0 {
				return 128 + status.Signal, output, nil
			}
			return status.ExitCode, output, nil
		}
		select {
		case <-ctx.Done():
			return 0, nil, fmt.Errorf("guest-exec: %w: %w", ErrRunning, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// SetPassword sets the password of a user that the guest has.
func (a Agent) SetPassword(ctx context.Context, user string, password []byte) error {
	if err := checkUser(user); err != nil {
		return err
	}
	return a.ask(ctx, "guest-set-user-password", map[string]any{
		"username": user, "password": base64.StdEncoding.EncodeToString(password), "crypted": false,
	}, nil)
}

// SetSSHKeys makes these keys, one per line of authorized_keys, the ones with which a user of the guest may log in; others
// are removed. Agents that do not know the command, older than QEMU 5.2, have the file written instead.
func (a Agent) SetSSHKeys(ctx context.Context, user string, keys []string) error {
	if err := checkUser(user); err != nil {
		return err
	}
	known, err := a.knows(ctx, "guest-ssh-add-authorized-keys")
	if err != nil {
		return err
	}
	if known {
		return a.ask(ctx, "guest-ssh-add-authorized-keys", map[string]any{"username": user, "keys": keys, "reset": true}, nil)
	}
	return a.writeKeys(ctx, user, keys)
}

// checkUser refuses what no system takes for the name of a user, and what a program could take for an option.
func checkUser(user string) error {
	if user == "" || strings.HasPrefix(user, "-") || strings.ContainsAny(user, ":/\n\x00") {
		return fmt.Errorf("%q is not the name of a user", user)
	}
	return nil
}

// knows reports whether the agent carries out a command: old ones lack it, and administrators switch some off.
func (a Agent) knows(ctx context.Context, command string) (bool, error) {
	var info struct {
		Commands []struct {
			Name    string `json:"name"`
			Enabled bool   `json:"enabled"`
		} `json:"supported_commands"`
	}
	if err := a.ask(ctx, "guest-info", nil, &info); err != nil {
		return false, err
	}
	for _, known := range info.Commands {
		if known.Name == command {
			return known.Enabled, nil
		}
	}
	return false, nil
}

// writeKeys writes the file of a user's keys, with the owner and the modes that sshd wants.
func (a Agent) writeKeys(ctx context.Context, user string, keys []string) error {
	code, entry, err := a.Exec(ctx, "getent", "passwd", user)
	fields := strings.Split(strings.TrimSpace(string(entry)), ":")
	switch {
	case err != nil:
		return err
	case code != 0 || len(fields) < 7 || !path.IsAbs(fields[5]):
		return fmt.Errorf("the guest has no user %q with a home", user)
	}
	owner, dir := fields[2]+":"+fields[3], path.Join(fields[5], ".ssh")
	file := path.Join(dir, "authorized_keys")
	if err := a.run(ctx, "mkdir", "-p", "-m", "700", dir); err != nil {
		return err
	}
	if err := a.writeFile(ctx, file, strings.Join(keys, "\n")+"\n"); err != nil {
		return err
	}
	if err := a.run(ctx, "chmod", "600", file); err != nil {
		return err
	}
	return a.run(ctx, "chown", owner, dir, file)
}

// run is Exec for a program that must succeed.
func (a Agent) run(ctx context.Context, program string, arguments ...string) error {
	code, _, err := a.Exec(ctx, program, arguments...)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s in the guest ended with exit code %d", program, code)
	}
	return err
}

func (a Agent) writeFile(ctx context.Context, file, content string) error {
	var handle int64
	if err := a.ask(ctx, "guest-file-open", map[string]any{"path": file, "mode": "w"}, &handle); err != nil {
		return err
	}
	err := a.ask(ctx, "guest-file-write", map[string]any{
		"handle": handle, "buf-b64": base64.StdEncoding.EncodeToString([]byte(content)),
	}, nil)
	return errors.Join(err, a.ask(ctx, "guest-file-close", map[string]any{"handle": handle}, nil))
}

// ReadFile returns the beginning of a file of the guest, at most limit bytes.
func (a Agent) ReadFile(ctx context.Context, file string, limit int) ([]byte, error) {
	var handle int64
	if err := a.ask(ctx, "guest-file-open", map[string]any{"path": file, "mode": "r"}, &handle); err != nil {
		return nil, err
	}
	var read struct {
		Content string `json:"buf-b64"`
	}
	err := a.ask(ctx, "guest-file-read", map[string]any{"handle": handle, "count": limit}, &read)
	err = errors.Join(err, a.ask(ctx, "guest-file-close", map[string]any{"handle": handle}, nil))
	if err != nil {
		return nil, err
	}
	content, err := base64.StdEncoding.DecodeString(read.Content)
	if err != nil {
		return nil, errors.New("guest-file-read: the content is not what the protocol says")
	}
	return content[:min(len(content), limit)], nil
}

// KeysOf returns the keys in a text of the form of authorized_keys: its lines, without empty ones and comments, each once.
func KeysOf(texts ...string) []string {
	keys := []string{}
	for _, text := range texts {
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "#") && !slices.Contains(keys, line) {
				keys = append(keys, line)
			}
		}
	}
	return keys
}
