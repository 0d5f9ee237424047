package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
)

// supervise keeps an agent answering until ctx ends: it starts one when none answers, and again when it dies. An agent
// that somebody else started is left alone, also at the end.
func (f *agentFlags) supervise(ctx context.Context, output io.Writer, logger *slog.Logger) {
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second}
	clock := backoff.SystemClock{}
	for ctx.Err() == nil {
		if f.answers() {
			_ = backoff.Wait(ctx, clock, time.Second) // ends early only with ctx, which ends the loop
			continue
		}
		child, err := f.start(output)
		if err != nil {
			logger.Error("cannot start the agent", "error", err)
			_ = backoff.Wait(ctx, clock, wait.Next())
			continue
		}
		started := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- child.Wait(); close(ended) }()
		select {
		case <-ctx.Done():
			stopAgent(child, ended)
			return
		case err = <-ended:
		}
		logger.Error("the agent ended and is started again", "error", err)
		if time.Since(started) > time.Minute {
			wait.Reset()
		}
		_ = backoff.Wait(ctx, clock, wait.Next())
	}
}
