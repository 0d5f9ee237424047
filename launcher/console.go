package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

const (
	consoleChunk = 4 << 10
	// consoleBacklog is how many chunks wait for whoever reads the Pod's log. What comes beyond them is lost: a log that
	// nobody takes must not stop the guest, whose CPU waits while its console is full.
	consoleBacklog = 16
	// consolePatience is how long the end waits for the log to take the last of it.
	consolePatience = time.Second
)

// console moves what the guest's serial port says from the pipe to the log.
type console struct {
	pipe    *os.File
	chunks  chan []byte
	lost    int // bytes since the log last took some; of the goroutine that reads
	reading sync.WaitGroup
	written chan struct{}

	mutex sync.Mutex
	tail  []byte // what was read last, for whoever asks
}

// openConsole reads the pipe from now on, and throws it away when there is nowhere to print it. The pipe is open for writing as
// well: opening it never waits for QEMU, QEMU's never waits for this, and the end of one QEMU is no end of the console.
func openConsole(path string, to io.Writer) (*console, error) {
	pipe, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the console's pipe: %w", err)
	}
	if to == nil {
		to = io.Discard
	}
	c := &console{pipe: pipe, chunks: make(chan []byte, consoleBacklog), written: make(chan struct{})}
	c.reading.Go(c.read)
	go c.write(to)
	return c, nil
}

func (c *console) read() {
	defer close(c.chunks)
	buffer := make([]byte, consoleChunk)
	for {
		length, err := c.pipe.Read(buffer)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.drain(buffer)
			}
			return
		}
		c.pass(buffer[:length])
	}
}

// pass hands what was read on to the log, or counts it as lost; what comes after that says so.
func (c *console) pass(said []byte) {
	c.remember(said)
	var chunk []byte
	if c.lost > 0 {
		chunk = fmt.Appendf(nil, "\n[%d bytes of the console are lost: the log did not take them]\n", c.lost)
	}
	select {
	case c.chunks <- append(chunk, said...):
		c.lost = 0
	default:
		c.lost += len(said)
	}
}

// remember keeps the end of what the guest says. It has room for twice as much as is kept, so that little is moved.
func (c *console) remember(said []byte) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.tail)+len(said) > 2*protocol.ConsoleTail {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-protocol.ConsoleTail+len(said):]...)
	}
	c.tail = append(c.tail, said...)
}

// last returns what the guest said last.
func (c *console) last() []byte {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return bytes.Clone(c.tail[max(len(c.tail)-protocol.ConsoleTail, 0):])
}

// drain reads what is left in the pipe after the guest's end: as much as a pipe holds, for whoever else writes may go on for ever.
func (c *console) drain(buffer []byte) {
	raw, err := c.pipe.SyscallConn()
	if err == nil {
		err = c.pipe.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		for range consoleBacklog + 1 {
			length, err := unix.Read(int(fd), buffer)
			if err != nil || length <= 0 {
				return true
			}
			c.pass(buffer[:length])
		}
		return true
	})
}

func (c *console) write(to io.Writer) {
	defer close(c.written)
	for chunk := range c.chunks {
		if _, err := to.Write(chunk); err != nil {
			to = io.Discard // the log is gone; the guest's console goes on
		}
	}
}

// finish prints the last of it. A log that takes nothing is left alone.
func (c *console) finish() {
	_ = c.pipe.SetReadDeadline(time.Unix(1, 0))
	c.reading.Wait()
	select {
	case <-c.written:
	case <-time.After(consolePatience):
	}
	_ = c.pipe.Close()
}
