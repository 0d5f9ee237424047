package files

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

const (
	// atOnce is how many requests are carried out at a time; more wait in the socket.
	atOnce = 4
	// talkTime is how long one connection may take, from its first byte to its last.
	talkTime = time.Minute
)

// Listen opens the socket, for the Pod's user and root. One that an earlier launcher left goes.
func Listen(name string) (net.Listener, error) {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("making the socket for files: %w", err)
	}
	listener, err := net.Listen("unix", name) //nolint:noctx // it opens at once
	if err != nil {
		return nil, fmt.Errorf("making the socket for files: %w", err)
	}
	if err := os.Chmod(name, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// Serve answers requests until the context ends, and closes the listener.
func (p Pod) Serve(ctx context.Context, listener net.Listener) {
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	var talks sync.WaitGroup
	defer talks.Wait()
	places := make(chan struct{}, atOnce)
	for ctx.Err() == nil {
		conn, err := listener.Accept()
		if err != nil {
			select { // too many open files, maybe; closed, when the context has ended
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		places <- struct{}{}
		talks.Go(func() {
			defer func() { <-places }()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			defer conn.Close() //nolint:errcheck // what was written was flushed
			_ = conn.SetDeadline(time.Now().Add(talkTime))
			p.talk(conn)
		})
	}
}

// talk carries out the one request of a connection. Who hears no answer asks again.
func (p Pod) talk(conn io.ReadWriter) {
	in := bufio.NewReaderSize(conn, protocol.MaxFileMessage)
	var out answer
	var request protocol.FileRequest
	line, err := in.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, &request)
	}
	switch {
	case err != nil:
		err = problemf(problemOther, "reading the request: %v", err)
	case request.Size < 0 || request.Size > protocol.MaxFileContent:
		err = problemf(problemOther, "a content of %d bytes: want at most %d", request.Size, protocol.MaxFileContent)
	default:
		out, err = p.carryOut(request, in)
	}
	if err != nil {
		out = answer{FileAnswer: protocol.FileAnswer{Kind: kindOf(err), Error: shorten(err.Error())}}
	}
	out.Size = int64(len(out.content))
	said, err := json.Marshal(out.FileAnswer)
	if err != nil {
		return // strings and numbers always have a JSON form
	}
	if _, err := conn.Write(append(said, '\n')); err == nil && out.Size > 0 {
		_, _ = conn.Write(out.content)
	}
}

// shorten keeps an error within the bounds of an answer, also when each byte of it takes six.
func shorten(text string) string {
	const most = protocol.MaxFileMessage / 8
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
