package git

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// runGit serves a local repository with the installed git.
func (c *connector) runGit(ctx context.Context, service string) (pipe, error) {
	if _, err := os.Stat(c.remote.Path); err != nil {
		return pipe{}, fmt.Errorf("%w: %w", transport.ErrRepositoryNotFound, err)
	}
	cmd := exec.CommandContext(ctx, "git", strings.TrimPrefix(service, "git-"), c.remote.Path) //nolint:gosec // a path is one argument, and git is told so by its place
	cmd.Env = localEnv(os.Environ())
	cmd.WaitDelay = time.Second
	stderr := &tail{}
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return pipe{}, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return pipe{}, err
	}
	if err := cmd.Start(); err != nil {
		return pipe{}, fmt.Errorf("starting git: %w", err)
	}
	return pipe{
		stdin:  stdin,
		stdout: stdout,
		kill:   func() { _ = cmd.Process.Kill() }, // it may have ended by itself
		wait: func() string {
			_ = stdout.Close() // nobody reads it any more: whoever still writes ends
			_ = cmd.Wait()     // what went wrong is in stderr
			return stderr.String()
		},
	}, nil
}

// localEnv is the environment without what would point git elsewhere (as in a hook) and with untranslated messages.
func localEnv(environ []string) []string {
	env := []string{}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "GIT_") && name != "GIT_EXEC_PATH" && !strings.HasPrefix(name, "GIT_CONFIG") {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "LC_ALL=C")
}

// dialDaemon speaks to a git daemon (git://), which knows neither encryption nor users.
func (c *connector) dialDaemon(ctx context.Context, service string) (pipe, error) {
	port := c.remote.Port
	if port == 0 {
		port = 9418
	}
	address := net.JoinHostPort(strings.Trim(c.remote.Host, "[]"), strconv.Itoa(port))
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return pipe{}, err
	}
	req := packp.GitProtoRequest{RequestCommand: service, Pathname: c.remote.Path, Host: address}
	if err := req.Encode(conn); err != nil {
		_ = conn.Close()
		return pipe{}, err
	}
	return pipe{
		stdin:  halfCloser{conn},
		stdout: conn,
		kill:   func() { _ = conn.Close() },
		wait:   func() string { _ = conn.Close(); return "" },
	}, nil
}

// halfCloser closes only the sending half of a connection.
type halfCloser struct{ net.Conn }

func (h halfCloser) Close() error {
	if half, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
