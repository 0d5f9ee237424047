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
func (c *controller) plan(ctx context.Context) (revision string, steps, unchanged int, err error) {
	if err := errors.Join(c.ended(), c.problem()); err != nil {
		return "", 0, 0, errors.Join(errGivenUp, err)
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

// fetched returns when the controller had fetched a revision, which its log tells.
func (c *controller) fetched(revision string) (time.Time, error) {
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
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Reason == "RevisionFetched" && strings.HasPrefix(revision, line.Revision) {
			return line.Time, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s tells of no revision %.9s", c.log.Name(), revision)
}
