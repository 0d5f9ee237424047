package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// pipe is a running git-upload-pack or git-receive-pack, wherever it runs.
type pipe struct {
	stdin  io.WriteCloser
	stdout io.Reader
	// wait ends the connection, waits for the far side and returns what it wrote to its standard error.
	wait func() string
	// kill breaks the connection at once.
	kill func()
}

// stream is a conversation over a pipe. Everything in it ends with the context it was opened with.
type stream struct {
	pipe
	service string
	packed  bool
	stop    func() bool
	once    sync.Once
	stderr  string
}

// openStream connects and reads the references.
func (c *connector) openStream(ctx context.Context, service string) (*stream, *packp.AdvRefs, error) {
	var p pipe
	var err error
	switch c.remote.Protocol {
	case "ssh":
		p, err = c.dialSSH(ctx, service)
	case "git":
		p, err = c.dialDaemon(ctx, service)
	default:
		p, err = c.runGit(ctx, service)
	}
	if err != nil {
		return nil, nil, err
	}
	s := &stream{pipe: p, service: service, stop: context.AfterFunc(ctx, p.kill)}
	refs, err := s.advertised()
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, refs, nil
}

func (s *stream) advertised() (*packp.AdvRefs, error) {
	refs := packp.NewAdvRefs()
	push := s.service == transport.ReceivePackServiceName
	err := refs.Decode(&limitReader{s.stdout, maxAdvertisement, errTooMuch})
	var told *pktline.ErrorLine
	switch {
	case errors.As(err, &told):
		return nil, farError(told.Text)
	case errors.Is(err, packp.ErrEmptyInput):
		s.packed = true // there is nobody to say goodbye to
		return nil, farError(s.end())
	case errors.Is(err, packp.ErrEmptyAdvRefs):
	case err != nil:
		return nil, fmt.Errorf("the server does not speak the git protocol: %w", err)
	}
	if !push && refs.IsEmpty() {
		return nil, transport.ErrEmptyRemoteRepository
	}
	transport.FilterUnsupportedCapabilities(refs.Capabilities)
	return refs, nil
}

// farError makes an error of what the far side said. Git has no codes for it, so the words of git itself and of the
// forges are looked for.
func farError(text string) error {
	text = plain(text)
	for _, words := range []string{
		"does not appear to be a git repository", "Repository not found", "repository does not exist", "no such repository",
		"repository not exported", "could not be found", "does not exist",
	} {
		if strings.Contains(text, words) {
			return fmt.Errorf("%w: %s", transport.ErrRepositoryNotFound, text)
		}
	}
	if text == "" {
		return fmt.Errorf("the server ended the conversation: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("the server says: %s", text)
}

// UploadPack asks for a pack; reading the response to its end and closing it ends the conversation.
func (s *stream) UploadPack(_ context.Context, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	s.packed = true
	if err := req.UploadRequest.Encode(s.stdin); err != nil {
		return nil, s.broken("asking for objects", err)
	}
	if err := req.UploadHaves.Encode(s.stdin, true); err != nil {
		return nil, s.broken("telling what we have", err)
	}
	if err := pktline.NewEncoder(s.stdin).EncodeString("done\n"); err != nil {
		return nil, s.broken("asking for objects", err)
	}
	res := packp.NewUploadPackResponse(req)
	if err := res.Decode(io.NopCloser(s.stdout)); err != nil {
		return nil, s.broken("reading the server's answer", err)
	}
	return res, nil
}

// ReceivePack sends a pack and the reference to update, and returns the server's report.
func (s *stream) ReceivePack(_ context.Context, req *packp.ReferenceUpdateRequest) (*packp.ReportStatus, error) {
	s.packed = true
	if err := req.Encode(s.stdin); err != nil {
		return nil, s.broken("sending objects", err)
	}
	if err := s.stdin.Close(); err != nil {
		return nil, s.broken("sending objects", err)
	}
	out := s.stdout
	if req.Capabilities.Supports(capability.Sideband64k) {
		d := sideband.NewDemuxer(sideband.Sideband64k, out)
		d.Progress = req.Progress
		out = d
	}
	report := packp.NewReportStatus()
	if err := report.Decode(out); err != nil {
		return nil, s.broken("reading the server's report", err)
	}
	err := report.Error()
	return report, err
}

// broken adds what the far side wrote about it to an error of the connection.
func (s *stream) broken(doing string, err error) error {
	if text := plain(s.end()); text != "" {
		return fmt.Errorf("%s: %w (the server says: %s)", doing, err, text)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Close ends the conversation, politely when it can.
func (s *stream) Close() error {
	if !s.packed {
		s.packed = true
		// A server that waits for wants takes a flush for "no, thanks". That it has gone already is no failure.
		_, _ = s.stdin.Write(pktline.FlushPkt)
	}
	s.end()
	return nil
}

func (s *stream) end() string {
	s.once.Do(func() {
		_ = s.stdin.Close() // the far side may have closed it first
		s.stderr = s.wait()
		s.stop()
	})
	return s.stderr
}

// tail keeps the first bytes of what a program writes to its standard error.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := 2048 - t.buf.Len(); room > 0 {
		t.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
