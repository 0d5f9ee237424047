package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/pflag"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/hooks"
	"github.com/gitvirt/gitvirt/reconciler"
)

// webhookFlags say where the forge's webhooks are taken.
type webhookFlags struct {
	listen, secretFile   string
	certificate, keyFile string
}

func (f *webhookFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.listen, "webhook-listen", "", "address for the webhooks of --forge, such as :9472; nothing else is served there")
	flags.StringVar(&f.secretFile, "webhook-secret-file", "", "file with the secret that the forge was given for its webhook")
	flags.StringVar(&f.certificate, "webhook-tls-cert-file", "", "PEM file with the certificate of --webhook-listen (default: plain HTTP, for a proxy in front)")
	flags.StringVar(&f.keyFile, "webhook-tls-key-file", "", "PEM file with the key of --webhook-tls-cert-file")
}

// check says which flags do not fit together.
func (f *webhookFlags) check(forge forges.Forge) error {
	switch {
	case f.listen == "" && (f.secretFile != "" || f.certificate != "" || f.keyFile != ""):
		return errors.New("--webhook-listen names the address for webhooks, such as --webhook-listen :9472")
	case f.listen == "":
		return nil
	case forge == nil:
		return errors.New("--webhook-listen wants --forge: what is sent is read as that forge sends it")
	case f.secretFile == "":
		return errors.New("--webhook-listen wants --webhook-secret-file: anybody could send what the forge sends")
	case (f.certificate == "") != (f.keyFile == ""):
		return errors.New("--webhook-tls-cert-file and --webhook-tls-key-file go together")
	}
	if _, err := hooks.SecretFile(f.secretFile)(); err != nil {
		return fmt.Errorf("--webhook-secret-file: %w", err)
	}
	return nil
}

// nudge has pull requests polled; it does nothing where there are none.
func (p *pullRequests) nudge() func() {
	if p == nil {
		return func() {}
	}
	return p.Nudge
}

// open listens, and returns what takes webhooks until its context ends; none when none are wanted.
func (f *webhookFlags) open(ctx context.Context, forge forges.Forge, loop *reconciler.Reconciler, nudgePulls func(), logger *slog.Logger) ([]func(context.Context) error, error) {
	if f.listen == "" {
		return nil, nil
	}
	handler, err := hooks.New(forge, hooks.Config{
		Secret: hooks.SecretFile(f.secretFile), NudgeGit: loop.Nudge, NudgePulls: nudgePulls, Log: logger, Registerer: loop.Registry(),
	})
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return nil, fmt.Errorf("taking webhooks: %w; choose another --webhook-listen", err)
	}
	logger.Info("webhooks are taken", "address", listener.Addr().String(), "path", hooks.Path, "tls", f.certificate != "")
	return []func(context.Context) error{
		func(ctx context.Context) error { return hooks.Serve(ctx, listener, handler, f.certificate, f.keyFile) },
	}, nil
}
