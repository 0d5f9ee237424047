package guestmetrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Server answers what a guest asks on its virtio-serial port. QEMU listens on a socket of the host and carries bytes both ways; the
// server connects to it. A guest asks "GET /metrics/XML" and an empty line, and gets the XML and an empty line.
type Server struct {
	// Socket is QEMU's.
	Socket string
	// Report returns the current figures.
	Report func(ctx context.Context) ([]byte, error)
	// Interval is the least time between two answers, 1 s when it is 0: a guest cannot keep the host busy.
	Interval time.Duration
}

const (
	// request is the only one there is, wanted in front of an optional query.
	request        = "GET /metrics/XML"
	invalidRequest = "INVALID REQUEST\n\n"
	unavailable    = "<metrics><!-- host metrics not available --><!-- VM metrics not available --></metrics>\n\n"
	// maxLine bounds what is kept of a line that a guest writes.
	maxLine = 4096
)

// Serve connects and answers until ctx ends or QEMU closes the socket, which is no error.
func (s Server) Serve(ctx context.Context) error {
	interval := s.Interval
	if interval <= 0 {
		interval = time.Second
	}
	connection, err := dial(ctx, s.Socket)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	defer func() { _ = connection.Close() }() // what was written has been answered for
	pause := func() bool {
		timer := time.NewTimer(interval)
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
	lines := lineReader{bufio.NewReaderSize(connection, maxLine), pause}
	for {
		asked, err := lines.request()
		if err == nil {
			_, err = connection.Write(s.answer(ctx, asked))
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("metrics of a guest: %w", err)
		}
		if !pause() {
			return nil
		}
	}
}

// lineReader reads what a guest writes. It pauses after each buffer that holds no end of a line, so that a guest that writes without
// one waits, and not the host.
type lineReader struct {
	*bufio.Reader
	pause func() bool
}

// request returns a line that an empty line follows; "" stands for anything else.
func (l lineReader) request() (string, error) {
	asked, err := l.line()
	if err != nil {
		return "", err
	}
	next, err := l.line()
	if err != nil {
		return "", err
	}
	if next != "" {
		return "", nil
	}
	return asked, nil
}

// line returns a line without its end. One that is too long is read to its end and returned in part.
func (l lineReader) line() (string, error) {
	line, err := l.ReadSlice('\n')
	text := strings.TrimRight(string(line), "\r\n")
	for errors.Is(err, bufio.ErrBufferFull) && l.pause() {
		_, err = l.ReadSlice('\n')
	}
	return text, err
}

func (s Server) answer(ctx context.Context, asked string) []byte {
	rest, ok := strings.CutPrefix(asked, request)
	if !ok || (rest != "" && rest[0] != '?' && rest[0] != ' ') {
		return []byte(invalidRequest)
	}
	document, err := s.Report(ctx)
	if err != nil {
		return []byte(unavailable)
	}
	return append(document, '\n')
}

// dial connects to a socket whose path may be longer than the 107 bytes that an address has room for.
func dial(ctx context.Context, path string) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("metrics of a guest: %w", err)
	}
	defer func() { _ = dir.Close() }() // only a directory's handle
	connection, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
	if err != nil {
		return nil, fmt.Errorf("metrics of a guest: %w", err)
	}
	return connection, nil
}
