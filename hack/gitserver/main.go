// Command gitserver serves bare git repositories over HTTP, for pulling and pushing by anyone who reaches it, through
// git's own http-backend. It is the git server of the demo and listens on loopback unless told otherwise.
//
//	gitserver -root DIR -listen 127.0.0.1:0 -url-file FILE
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi" // HTTPoxy was mended in Go 1.6.3
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gitserver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gitserver", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", "", "the `folder` that holds the bare repositories")
	address := flags.String("listen", "127.0.0.1:0", "the `address` to listen on")
	urlFile := flags.String("url-file", "", "write the server's URL to this `file` once it listens")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *root == "" {
		return errors.New("want -root")
	}
	handler, err := newHandler(*root, stderr)
	if err != nil {
		return err
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *address)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", *address, err)
	}
	url := "http://" + listener.Addr().String()
	if *urlFile != "" {
		if err := os.WriteFile(*urlFile, []byte(url+"\n"), 0o600); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	if _, err := fmt.Fprintln(stdout, url); err != nil {
		return errors.Join(err, listener.Close())
	}

	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving %s: %w", url, err)
	case <-ctx.Done():
		err := server.Close()
		<-served
		return err
	}
}

// newHandler returns git http-backend over the repositories in root, with pushing allowed.
func newHandler(root string, stderr io.Writer) (http.Handler, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	return &cgi.Handler{
		Path: git,
		Args: []string{"http-backend"},
		Env: []string{
			"GIT_PROJECT_ROOT=" + root,
			"GIT_HTTP_EXPORT_ALL=1",
			// Without a user http-backend refuses pushes; REMOTE_USER is what a web server's login would set.
			"REMOTE_USER=anyone",
			// The repositories may belong to another user than the server's.
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		},
		Stderr: stderr,
	}, nil
}
