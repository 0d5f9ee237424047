package giteatest

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// AddRunner starts Gitea's own runner for jobs that want a label. They run as processes of this machine, in temporary folders, with a path to
// look for programs in.
func (s *Server) AddRunner(tb testing.TB, label, path string) {
	tb.Helper()
	program, dir := filepath.Join(programs(tb), "runner"), tb.TempDir()
	var made struct{ Token string }
	s.Do(tb, s.AdminToken, http.MethodPost, "/admin/actions/runners/registration-token", nil, &made)
	config := filepath.Join(dir, "config.yaml")
	content := "cache: {enabled: false}\nhost: {workdir_parent: " + filepath.Join(dir, "jobs") + "}\nrunner: {fetch_interval: 100ms, fetch_interval_max: 100ms}\n"
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	command := func(ctx context.Context, arguments ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, program, append([]string{"--config", config}, arguments...)...)
		cmd.Dir = dir
		cmd.Env = []string{"HOME=" + dir, "PATH=" + path, "GIT_CONFIG_NOSYSTEM=1"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		return cmd
	}
	register := command(tb.Context(), "register", "--no-interactive", "--instance", s.URL, "--token", made.Token, "--name", "here", "--labels", label+":host")
	if out, err := register.CombinedOutput(); err != nil {
		tb.Fatalf("registering a runner: %v\n%s", err, strings.ReplaceAll(string(out), made.Token, "***"))
	}
	background(tb, "the runner", func(ctx context.Context) *exec.Cmd { return command(ctx, "daemon") })
}
