package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// errNoMachine says that a request is about a VM that is not here.
var errNoMachine = errors.New("there is no such machine on this host")

// guestOf returns the domain of a request about a VM's guest, and only a domain that carries this VM's record: who may ask about one VM
// does not get at another by the name of its domain.
func (a *Agent) guestOf(text, domain string) (name string, err error) {
	address, name, err := a.find(text, domain)
	if err != nil {
		return "", err
	}
	if !a.view.has(name, address) {
		return "", fmt.Errorf("%s: %w", address, errNoMachine)
	}
	return name, nil
}

// OpenConsole opens the serial console of a guest.
func (a *Agent) OpenConsole(ctx context.Context, request *api.ConsoleInput) (hypervisor.Console, error) {
	name, err := a.guestOf(request.GetAddress(), request.GetDomain())
	if err != nil {
		return nil, err
	}
	return a.hypervisor.OpenConsole(ctx, name, request.GetForce())
}

// StatusOfGuest is StatusOf for what people ask of a guest.
func StatusOfGuest(err error) error {
	if _, has := status.FromError(err); has {
		return err
	}
	switch {
	case errors.Is(err, errNoMachine), errors.Is(err, hypervisor.ErrNotFound):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, hypervisor.ErrNotRunning), errors.Is(err, hypervisor.ErrNoConsole):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, hypervisor.ErrConsoleBusy):
		return status.Error(codes.AlreadyExists, err.Error())
	}
	return StatusOf(err)
}

// ServeConsole moves what is typed and what is said between a caller and the console that open opens, until either side ends. The guest
// never waits for the caller: what is not taken is left out. life ends when the agent stops.
func ServeConsole(life context.Context, stream api.Agent_ConsoleServer, open func(context.Context, *api.ConsoleInput) (hypervisor.Console, error)) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	console, err := open(stream.Context(), first)
	if err != nil {
		return StatusOfGuest(err)
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer func() { _ = console.Close() }() // nothing is left to be lost
	if err := stream.Send(&api.ConsoleOutput{}); err != nil {
		return err
	}
	said := newBacklog()
	work.Go(func() { said.fill(console) })
	go func() { // ends with the stream, which ends when this function has returned
		if err := typed(stream, console, first.GetData()); err != nil {
			said.end(err)
		}
	}()
	defer context.AfterFunc(stream.Context(), func() { said.end(stream.Context().Err()) })()
	defer context.AfterFunc(life, func() { said.end(status.Error(codes.Unavailable, "the agent stops")) })()
	for {
		output, err := said.take()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return StatusOfGuest(err)
		}
		if err := stream.Send(output); err != nil {
			return err
		}
	}
}

// typed gives the guest what is typed until the caller says no more, which is no end of the console.
func typed(stream api.Agent_ConsoleServer, console io.Writer, data []byte) error {
	for {
		if len(data) > 0 {
			if _, err := console.Write(data); err != nil {
				return err
			}
		}
		input, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data = input.GetData()
	}
}

// maxBacklog is how much of what a guest says waits for a slow caller, in bytes.
const maxBacklog = 256 << 10

// consoleRead is how much of a console is read at once, in bytes.
const consoleRead = 16 << 10

// backlog is what a guest has said and nobody has taken yet.
type backlog struct {
	mu      sync.Mutex
	changed sync.Cond
	text    []byte
	lost    uint64
	over    error
}

func newBacklog() *backlog {
	b := &backlog{}
	b.changed.L = &b.mu
	return b
}

// fill reads a console to its end.
func (b *backlog) fill(console io.Reader) {
	buffer := make([]byte, consoleRead)
	for {
		n, err := console.Read(buffer)
		b.add(buffer[:n])
		if err != nil {
			b.end(err)
			return
		}
	}
}

// add appends what was said; what there is no room for is the oldest.
func (b *backlog) add(text []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, text...)
	if over := len(b.text) - maxBacklog; over > 0 {
		b.text = append(b.text[:0], b.text[over:]...)
		b.lost += uint64(over)
	}
	b.changed.Signal()
}

// end notes the first end.
func (b *backlog) end(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over == nil {
		b.over = why
	}
	b.changed.Signal()
}

// take waits for what was said, or for the end when all of it was taken.
func (b *backlog) take() (*api.ConsoleOutput, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.text) == 0 && b.over == nil {
		b.changed.Wait()
	}
	if len(b.text) == 0 {
		return nil, b.over
	}
	out := &api.ConsoleOutput{Data: b.text, Lost: b.lost}
	b.text, b.lost = nil, 0
	return out, nil
}
