package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/sources"
)

// polled tells of each poll.
type polled struct {
	*reconcilertest.Repository
	polls chan struct{}
}

func (p polled) Poll(ctx context.Context) (*sources.Snapshot, error) {
	snapshot, err := p.Repository.Poll(ctx)
	p.polls <- struct{}{}
	return snapshot, err
}

// TestWebhookPolls: what GitHub sends after a push has the repository polled, and what somebody else sends has not.
func TestWebhookPolls(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	forge, err := (&forgeFlags{kind: "github", url: "https://github.test", repository: "shop/fleet", tokenFile: secret}).open(&sourceFlags{})
	if err != nil {
		t.Fatal(err)
	}
	source := polled{reconcilertest.NewRepository(nil), make(chan struct{}, 100)}
	loop, err := reconciler.New(source, reconcilertest.NewHost(), reconciler.Config{Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	flags := webhookFlags{listen: "127.0.0.1:0", secretFile: secret}
	if err := flags.check(forge); err != nil {
		t.Fatal(err)
	}
	pulls := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	serve, err := flags.open(ctx, forge, loop, func() { pulls <- struct{}{} }, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(log.String())[1]
	var running sync.WaitGroup
	running.Go(func() { _ = loop.Run(ctx) })
	running.Go(func() { _ = serve[0](ctx) })
	defer running.Wait()
	defer cancel()
	<-source.polls // the first, by itself
	send := func(key string) int {
		body := `{"ref": "refs/heads/main"}`
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/hooks", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Github-Event", "push")
		r.Header.Set("X-Hub-Signature-256", "sha256="+forgetest.Sign([]byte(body), key))
		r.Close = true
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	for range 10 {
		if code := send("guess"); code != http.StatusUnauthorized {
			t.Errorf("forged: %d", code)
		}
	}
	if len(source.polls)+len(pulls) > 0 {
		t.Error("a forged webhook has something polled")
	}
	if code := send("sesame"); code != http.StatusAccepted {
		t.Errorf("a push: %d", code)
	}
	<-source.polls
	<-pulls
}
