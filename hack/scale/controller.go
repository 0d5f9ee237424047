package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// controller is bin/gitvirt as it runs in a cluster.
type controller struct {
	*process
	url     string
	started time.Time
	// problem says why waiting for it is of no use.
	problem func() error
}

// startController starts the controller with what `gitvirt install` tells it, and flags.
func (b *bench) startController(ctx context.Context, problem func() error, flags ...string) (*controller, error) {
	address, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	args := append([]string{
		"run", "--kubernetes", "--kubeconfig", b.account, "--listen", address, "--log-json", "--git", b.repository.bare, "--branch", "main",
		"--state-dir", filepath.Join(b.dir, "state"),
	}, flags...)
	c := &controller{url: "http://" + address, started: time.Now(), problem: problem}
	c.process, err = start(b.dir, "controller", b.gitvirt, args...)
	return c, err
}

// errNotThere: the controller does not answer yet, or its plan is another one.
var errNotThere = errors.New("the plan is not there yet")

// plan asks the controller for its plan.
// One with thousands of steps is large, and asking for it is work for the controller.
func (c *controller) plan(ctx context.Context) (revision string, steps, unchanged int, err error) {
	if err := c.broken(); err != nil {
		return "", 0, 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/api/v1/plan", nil)
	if err != nil {
		return "", 0, 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", 0, 0, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return "", 0, 0, err
	}
	if response.StatusCode != http.StatusOK {
		return "", 0, 0, fmt.Errorf("%w: %s", errNotThere, bytes.TrimSpace(content))
	}
	var answer struct {
		Revision  string            `json:"revision"`
		Unknown   string            `json:"unknown"`
		Unchanged int               `json:"unchanged"`
		Steps     []json.RawMessage `json:"steps"`
	}
	if err := json.Unmarshal(content, &answer); err != nil {
		return "", 0, 0, err
	}
	if answer.Unknown != "" {
		return "", 0, 0, fmt.Errorf("%w: %s", errNotThere, answer.Unknown)
	}
	return answer.Revision, len(answer.Steps), answer.Unchanged, nil
}

// broken says why waiting for the controller is of no use; nil while it is.
func (c *controller) broken() error {
	if err := errors.Join(c.ended(), c.problem()); err != nil {
		return errors.Join(errGivenUp, err)
	}
	return nil
}

// awaitPlan waits until there is a plan of a revision that holds, and returns when it was seen.
func (c *controller) awaitPlan(ctx context.Context, limit, pause time.Duration, what, revision string, holds func(steps, unchanged int) bool) (at time.Time, err error) {
	err = within(ctx, limit, pause, what, func() error {
		found, steps, unchanged, err := c.plan(ctx)
		switch at = time.Now(); {
		case err != nil:
			return err
		case found != revision || !holds(steps, unchanged):
			return fmt.Errorf("%w: %d steps, %d unchanged at %.9s, wanted %.9s", errNotThere, steps, unchanged, found, revision)
		}
		return nil
	})
	return at, err
}

// told returns when the controller's log told of something (reconciler.Reason) at a revision, the first time.
func (c *controller) told(reason, revision string) (time.Time, error) {
	file, err := os.Open(c.log.Name())
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = file.Close() }() // it was only read
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var line struct {
			Time             time.Time
			Reason, Revision string
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Reason == reason && line.Revision != "" && strings.HasPrefix(revision, line.Revision) {
			return line.Time, nil
		}
	}
	return time.Time{}, fmt.Errorf("%w: %s says nothing of %s at %.9s", errNotThere, c.log.Name(), reason, revision)
}
