package fake

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// OpenConsole implements hypervisor.Hypervisor. The guest says what is typed.
func (h *Hypervisor) OpenConsole(ctx context.Context, name string, force bool) (hypervisor.Console, error) {
	if err := h.enter(ctx, OpenConsole, name); err != nil {
		return nil, err
	}
	defer h.mu.Unlock()
	d, err := h.find(name)
	switch {
	case err != nil:
		return nil, err
	case !d.State.Active():
		return nil, fmt.Errorf("open the console of domain %q: %w", name, hypervisor.ErrNotRunning)
	case !strings.Contains(d.Live, "<serial "):
		return nil, fmt.Errorf("open the console of domain %q: %w", name, hypervisor.ErrNoConsole)
	case d.console != nil && !force:
		return nil, fmt.Errorf("open the console of domain %q: %w", name, hypervisor.ErrConsoleBusy)
	case d.console != nil:
		d.console.end()
	}
	opened := &console{hypervisor: h, domain: d}
	opened.changed.L = &opened.mu
	d.console = opened
	return opened, nil
}

// GuestSays has the guest say something on its serial console; nobody hears it when nobody has that open.
func (h *Hypervisor) GuestSays(name, text string) bool {
	return h.with(name, func(d *domain) {
		if d.console != nil {
			d.console.say([]byte(text))
		}
	})
}

// console is an open console.
type console struct {
	hypervisor *Hypervisor
	domain     *domain

	mu      sync.Mutex
	changed sync.Cond
	said    []byte
	over    error
}

func (c *console) say(text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, text...)
	c.changed.Broadcast()
}

// end ends it from the guest's side.
func (c *console) end() { c.stop(io.EOF) }

func (c *console) stop(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over == nil {
		c.over = why
	}
	c.changed.Broadcast()
}

// Read implements hypervisor.Console.
func (c *console) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.said) == 0 && c.over == nil {
		c.changed.Wait()
	}
	if len(c.said) == 0 {
		return 0, c.over
	}
	n := copy(p, c.said)
	c.said = c.said[n:]
	return n, nil
}

// Write implements hypervisor.Console.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	if over != nil {
		return 0, over
	}
	c.say(p)
	return len(p), nil
}

// Close implements hypervisor.Console.
func (c *console) Close() error {
	c.stop(io.ErrClosedPipe)
	c.hypervisor.mu.Lock()
	defer c.hypervisor.mu.Unlock()
	if c.domain.console == c {
		c.domain.console = nil
	}
	return nil
}

// Statistics implements hypervisor.Hypervisor. A guest of the fake has used nothing.
func (h *Hypervisor) Statistics(ctx context.Context, name string) (hypervisor.Statistics, error) {
	if err := h.enter(ctx, Statistics, name); err != nil {
		return hypervisor.Statistics{}, err
	}
	defer h.mu.Unlock()
	d, err := h.find(name)
	if err != nil {
		return hypervisor.Statistics{}, err
	}
	if !d.State.Active() {
		return hypervisor.Statistics{}, fmt.Errorf("read the statistics of domain %q: %w", name, hypervisor.ErrNotRunning)
	}
	var live struct {
		Memory struct {
			Unit  string `xml:"unit,attr"`
			Value uint64 `xml:",chardata"`
		} `xml:"memory"`
		VCPU struct {
			Current uint `xml:"current,attr"`
			Count   uint `xml:",chardata"`
		} `xml:"vcpu"`
		Disks []struct {
			Target struct {
				Dev string `xml:"dev,attr"`
			} `xml:"target"`
		} `xml:"devices>disk"`
	}
	if err := xml.Unmarshal([]byte(d.Live), &live); err != nil {
		return hypervisor.Statistics{}, err
	}
	out := hypervisor.Statistics{VCPUs: max(live.VCPU.Count, 1), MemoryKiB: live.Memory.Value}
	if live.VCPU.Current > 0 {
		out.VCPUs = live.VCPU.Current
	}
	if live.Memory.Unit == "MiB" {
		out.MemoryKiB <<= 10
	}
	for _, disk := range live.Disks {
		out.Disks = append(out.Disks, hypervisor.DiskStatistics{Target: disk.Target.Dev})
	}
	return out, nil
}
