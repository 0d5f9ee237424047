package hooks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
)

// maxConnections bounds how many are open at a time. Reading a request may take readTimeout, so a slow one gives its place back.
const (
	maxConnections = 256
	readTimeout    = 5 * time.Second
	closeTimeout   = 5 * time.Second
)

// Serve answers on a listener, and nudges, until ctx ends. With certificate and key, PEM files that are read anew when they change, it speaks TLS.
func Serve(ctx context.Context, listener net.Listener, handler *Handler, certificate, key string) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: readTimeout, ReadTimeout: 2 * readTimeout, WriteTimeout: 2 * readTimeout,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	bounded := netutil.LimitListener(listener, maxConnections)
	serve := func() error { return server.Serve(bounded) }
	if certificate != "" {
		pair := &keyPair{certificate: certificate, key: key}
		if _, err := pair.get(nil); err != nil {
			_ = listener.Close()
			return fmt.Errorf("the webhook's certificate: %w", err)
		}
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
		serve = func() error { return server.ServeTLS(bounded, "", "") }
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return handler.Run(ctx) })
	group.Go(func() error {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving webhooks on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := server.Shutdown(closing); err != nil {
			return server.Close() // whoever is still sending has had its time
		}
		return nil
	})
	return group.Wait()
}

// keyPair is a certificate that is read again when its file has changed.
type keyPair struct {
	certificate, key string

	mu       sync.Mutex
	modified time.Time
	loaded   *tls.Certificate
}

func (p *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	info, err := os.Stat(p.certificate)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded != nil && (err != nil || info.ModTime().Equal(p.modified)) {
		return p.loaded, nil
	}
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(p.certificate, p.key)
	switch {
	case err == nil:
		p.loaded, p.modified = &pair, info.ModTime()
	case p.loaded == nil:
		return nil, err
	}
	return p.loaded, nil // the one before, while one file is new and the other is not
}

// secretAge is how old what was read of a secret's file may be.
const secretAge = 10 * time.Second

// SecretFile returns a Config.Secret that reads a file, at most every few seconds.
func SecretFile(path string) func() (string, error) {
	var mu sync.Mutex
	var read time.Time
	var secret string
	return func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); secret == "" || now.Sub(read) > secretAge {
			content, err := os.ReadFile(path)
			if err != nil {
				return secret, errIfEmpty(secret, err)
			}
			if text := strings.TrimSpace(string(content)); text != "" {
				secret, read = text, now
			}
		}
		return secret, errIfEmpty(secret, fmt.Errorf("%s is empty", path))
	}
}

// errIfEmpty is err, unless a secret is known from before.
func errIfEmpty(secret string, err error) error {
	if secret != "" {
		return nil
	}
	return err
}
