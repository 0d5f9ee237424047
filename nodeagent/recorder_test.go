package nodeagent_test

import (
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorder is a guest agent that says yes to everything and keeps what it was told.
type recorder struct {
	mu   sync.Mutex
	told strings.Builder
}

func (g *recorder) answer(command string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told.WriteString(command + "\n")
	if strings.Contains(command, `"guest-info"`) {
		return `{"return":{"supported_commands":[{"name":"guest-ssh-add-authorized-keys","enabled":true}]}}`, nil
	}
	return `{"return":{}}`, nil
}

func (g *recorder) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told.Reset()
}

// saw waits until the agent was told all of this.
func (g *recorder) saw(t *testing.T, wants ...string) {
	t.Helper()
	var told string
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		g.mu.Lock()
		told = g.told.String()
		g.mu.Unlock()
		all := true
		for _, want := range wants {
			all = all && strings.Contains(told, want)
		}
		if all {
			return
		}
	}
	t.Fatalf("told\n%s\nwant %q", told, wants)
}

func logger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
