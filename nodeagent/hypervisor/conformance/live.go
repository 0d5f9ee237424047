package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

const (
	mebibyte = 1 << 20

	plugMAC    = "52:54:00:11:22:44"
	plugCard   = "<interface type='user'><mac address='" + plugMAC + "'/><model type='virtio'/></interface>"
	cardAsName = "<interface type='user'><mac address='" + plugMAC + "'/></interface>"
)

// changes are all methods that change a running guest.
func (s *suite) changes(ctx context.Context, name string) map[string]error {
	h := s.Hypervisor
	return map[string]error{
		"AttachDevice": h.AttachDevice(ctx, name, plugCard),
		"DetachDevice": h.DetachDevice(ctx, name, plugCard),
		"UpdateDevice": h.UpdateDevice(ctx, name, plugCard),
		"SetVCPUs":     h.SetVCPUs(ctx, name, 1),
		"SetMemory":    h.SetMemory(ctx, name, 16384),
		"ResizeDisk":   h.ResizeDisk(ctx, name, "vda", mebibyte),
	}
}

func testLiveWithoutGuest(s *suite) {
	for method, err := range s.changes(s.ctx, "absent") {
		s.Log(method, err)
		s.is(err, hypervisor.ErrNotFound)
	}
	s.define(s.Harness.Domain, "a")
	for method, err := range s.changes(s.ctx, "a") {
		s.Log(method, err)
		s.is(err, hypervisor.ErrNotRunning)
	}
}

func testValidate(s *suite) {
	events := s.record()
	whole := s.Harness.Domain("a", uuid.NewString())
	s.ok(s.Hypervisor.Validate(s.ctx, whole))
	s.ok(s.Hypervisor.Validate(s.ctx, s.Harness.Domain("a", "")))
	for reason, definition := range wrong(s, whole) {
		err := s.Hypervisor.Validate(s.ctx, definition)
		s.Logf("%s: %v", reason, err)
		s.is(err, hypervisor.ErrInvalid)
	}
	if s.Unfit != nil {
		for reason, definition := range s.Unfit("a", uuid.NewString()) {
			validated, defined := s.Hypervisor.Validate(s.ctx, definition), s.Hypervisor.Define(s.ctx, definition)
			s.Logf("%s: %v; %v", reason, validated, defined)
			s.is(validated, hypervisor.ErrInvalid)
			s.is(defined, hypervisor.ErrInvalid)
		}
	}
	if names := s.names(); len(names) != 0 {
		s.Errorf("domains %q, want none", names)
	}

	id := s.define(s.Harness.Domain, "b")
	events.only(hypervisor.Event{Kind: hypervisor.EventDefined, Name: "b"})
	s.ok(s.Hypervisor.Validate(s.ctx, described(s.Harness.Domain("b", id), "second")))
	s.is(s.Hypervisor.Validate(s.ctx, s.Harness.Domain("b", uuid.NewString())), hypervisor.ErrConflict)
	s.is(s.Hypervisor.Validate(s.ctx, s.Harness.Domain("b", "")), hypervisor.ErrConflict)
	s.is(s.Hypervisor.Validate(s.ctx, s.Harness.Domain("c", id)), hypervisor.ErrConflict)
	b := s.domain("b")
	if strings.Contains(b.Config, "second") || len(s.names()) != 1 {
		s.Errorf("domain %+v of %q, want it as it was defined", b, s.names())
	}
	s.power("b", hypervisor.PowerOn)
	s.ok(s.Hypervisor.Validate(s.ctx, described(s.Harness.Domain("b", id), "second")))
	if b := s.domain("b"); b.State != hypervisor.StateRunning || strings.Contains(b.Config, "second") {
		s.Errorf("domain %+v, want it to run as it was defined", b)
	}
}

func testLiveChanges(s *suite) {
	able, err := s.Hypervisor.LiveChanges(s.ctx, "qemu")
	s.ok(err)
	if s.Plug != nil && !slices.Equal(able, hypervisor.LiveChanges()) {
		s.Errorf("running guests can have %q, want all", able)
	}
	if names := s.names(); len(names) != 0 {
		s.Errorf("domains %q, want none", names)
	}
}

// plugged starts a guest that can be changed while it runs.
func (s *suite) plugged(make func(name, uuid string) string) *recorder {
	s.Helper()
	s.need(make != nil, "change a guest like that")
	s.define(make, "a")
	s.power("a", hypervisor.PowerOn)
	events := s.record()
	before := s.domain("a").Config
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		after, err := s.Hypervisor.Domain(ctx, "a")
		if err != nil || after.Config != before {
			s.Errorf("the persistent definition is not what it was (%v):\n%s\nwas:\n%s", err, after.Config, before)
		}
	})
	return events
}

// live fails the test unless the running definition has a text, or has it not.
func (s *suite) live(text string, want bool) {
	s.Helper()
	live := strings.ReplaceAll(s.domain("a").Live, `"`, "'")
	if strings.Contains(live, text) != want {
		s.Errorf("the running definition has %s: %t, want %t:\n%s", text, !want, want, live)
	}
}

func testSetVCPUs(s *suite) {
	s.plugged(s.CPUs)
	s.live("current='3'", false)
	s.ok(s.Hypervisor.SetVCPUs(s.ctx, "a", 2))
	s.ok(s.Hypervisor.SetVCPUs(s.ctx, "a", 2))
	s.live("current='2'", true)
	s.is(s.Hypervisor.SetVCPUs(s.ctx, "a", 4), hypervisor.ErrRefused)
	s.is(s.Hypervisor.SetVCPUs(s.ctx, "a", 0), hypervisor.ErrRefused)
	s.ok(s.Hypervisor.SetVCPUs(s.ctx, "a", 3))
	s.live("current='2'", false)
	s.power("a", hypervisor.PowerOff)
	s.power("a", hypervisor.PowerOn)
	s.live("current='1'", true)
}

func testTakeVCPUs(s *suite) {
	s.plugged(s.Holding)
	s.ok(s.Hypervisor.SetVCPUs(s.ctx, "a", 2))
	s.is(s.Hypervisor.SetVCPUs(s.ctx, "a", 1), hypervisor.ErrRefused)
	s.live("current='2'", true)
}

func testSetMemory(s *suite) {
	s.plugged(s.CPUs)
	s.ok(s.Hypervisor.SetMemory(s.ctx, "a", 8192))
	s.is(s.Hypervisor.SetMemory(s.ctx, "a", 1<<30), hypervisor.ErrRefused)
	s.ok(s.Hypervisor.SetMemory(s.ctx, "a", 16384))
	s.power("a", hypervisor.PowerOff)
	s.power("a", hypervisor.PowerOn)
}

func testNoBalloon(s *suite) {
	s.need(s.NoBalloon != nil, "run a guest without a balloon")
	s.plugged(s.NoBalloon)
	s.is(s.Hypervisor.SetMemory(s.ctx, "a", 8192), hypervisor.ErrRefused)
}

// disk returns a SCSI disk, which a guest cannot hold on to.
func disk(target, image string) string {
	return fmt.Sprintf("<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s'/><target dev='%s' bus='scsi'/></disk>", image, target)
}

func testPlugDisk(s *suite) {
	events := s.plugged(s.Plug)
	sdb := disk("sdb", s.Image("first", mebibyte))
	s.ok(s.Hypervisor.AttachDevice(s.ctx, "a", sdb))
	events.await(hypervisor.Event{Kind: hypervisor.EventChanged, Name: "a"})
	s.live("<target dev='sdb'", true)
	s.is(s.Hypervisor.AttachDevice(s.ctx, "a", disk("sdb", s.Image("other", mebibyte))), hypervisor.ErrRefused)
	s.is(s.Hypervisor.AttachDevice(s.ctx, "a", strings.Replace(sdb, "dev='sdb' bus='scsi'", "dev='sdc' bus='sata'", 1)), hypervisor.ErrRefused)

	s.ok(s.Hypervisor.ResizeDisk(s.ctx, "a", "sdb", 4*mebibyte))
	s.ok(s.Hypervisor.ResizeDisk(s.ctx, "a", "sdb", 4*mebibyte))
	s.is(s.Hypervisor.ResizeDisk(s.ctx, "a", "sdb", 2*mebibyte), hypervisor.ErrRefused)
	s.is(s.Hypervisor.ResizeDisk(s.ctx, "a", "sdz", 2*mebibyte), hypervisor.ErrRefused)

	// The target is enough to name a disk.
	s.ok(s.Hypervisor.DetachDevice(s.ctx, "a", "<disk><target dev='sdb'/></disk>"))
	s.live("<target dev='sdb'", false)
	s.ok(s.Hypervisor.DetachDevice(s.ctx, "a", sdb))
	s.ok(s.Hypervisor.AttachDevice(s.ctx, "a", sdb))
	s.power("a", hypervisor.PowerOff)
	s.power("a", hypervisor.PowerOn)
	s.live("<target dev='sdb'", false)
}

func testMedium(s *suite) {
	s.plugged(s.Plug)
	drive := func(source string) string {
		return "<disk type='file' device='cdrom'><driver name='qemu' type='raw'/>" + source + "<target dev='sda' bus='scsi'/><readonly/></disk>"
	}
	image := s.Image("medium", mebibyte)
	s.ok(s.Hypervisor.UpdateDevice(s.ctx, "a", drive("<source file='"+image+"'/>")))
	s.live(image, true)
	other := s.Image("another", mebibyte)
	s.ok(s.Hypervisor.UpdateDevice(s.ctx, "a", drive("<source file='"+other+"'/>")))
	s.live(image, false)
	s.live(other, true)
	s.ok(s.Hypervisor.UpdateDevice(s.ctx, "a", drive("")))
	s.live(other, false)
	absent := strings.Replace(drive(""), "sda", "sdz", 1)
	s.is(s.Hypervisor.UpdateDevice(s.ctx, "a", absent), hypervisor.ErrRefused)
}

func testPlugInterface(s *suite) {
	events := s.plugged(s.Plug)
	s.ok(s.Hypervisor.AttachDevice(s.ctx, "a", plugCard))
	events.await(hypervisor.Event{Kind: hypervisor.EventChanged, Name: "a"})
	s.live(plugMAC, true)
	down := strings.Replace(plugCard, "</interface>", "<link state='down'/></interface>", 1)
	s.ok(s.Hypervisor.UpdateDevice(s.ctx, "a", down))
	s.live("<link state='down'/>", true)
	s.ok(s.Hypervisor.UpdateDevice(s.ctx, "a", strings.Replace(down, "down", "up", 1)))
	s.live("<link state='down'/>", false)
	model := strings.Replace(plugCard, "virtio", "e1000e", 1)
	s.is(s.Hypervisor.UpdateDevice(s.ctx, "a", model), hypervisor.ErrRefused)
	absent := strings.Replace(plugCard, plugMAC, "52:54:00:11:22:55", 1)
	s.is(s.Hypervisor.UpdateDevice(s.ctx, "a", absent), hypervisor.ErrRefused)
	s.ok(s.Hypervisor.DetachDevice(s.ctx, "a", absent))
}

// testHolds: only a guest that runs drivers lets go of what is on its PCI bus.
func testHolds(s *suite) {
	s.plugged(s.Holding)
	s.ok(s.Hypervisor.AttachDevice(s.ctx, "a", plugCard))
	detach := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(s.ctx, limit)
		defer cancel()
		return s.Hypervisor.DetachDevice(ctx, "a", cardAsName)
	}
	limit := 200 * time.Millisecond
	err := detach(limit)
	for ; errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, hypervisor.ErrRefused) && limit < patience; limit *= 2 {
		err = detach(2 * limit) // a busy machine has not even asked the guest
	}
	s.is(err, hypervisor.ErrRefused)
	s.live(plugMAC, true)
}

func testSlots(s *suite) {
	s.plugged(s.Plug)
	const most = 40 // more than the guest has
	for i := range most {
		err := s.Hypervisor.AttachDevice(s.ctx, "a", strings.Replace(plugCard, plugMAC, fmt.Sprintf("52:54:00:11:33:%02x", i), 1))
		if err == nil && i < most-1 {
			continue
		}
		s.Logf("after %d: %v", i, err)
		s.is(err, hypervisor.ErrRefused)
		return
	}
}

func testPlugMemory(s *suite) {
	memory := func(size, requested int) string {
		return fmt.Sprintf("<memory model='virtio-mem'><target><size unit='MiB'>%d</size><node>0</node><block unit='MiB'>2</block>"+
			"<requested unit='MiB'>%d</requested></target><alias name='ua-more'/></memory>", size, requested)
	}
	s.plugged(s.Plug)
	s.is(s.Hypervisor.AttachDevice(s.ctx, "a", memory(2048, 0)), hypervisor.ErrRefused)
	s.ok(s.Hypervisor.AttachDevice(s.ctx, "a", memory(256, 0)))
	s.live("<requested unit='KiB'>0</requested>", true)
	s.ok(s.Hypervisor.UpdateDevice(s.ctx, "a", memory(256, 128)))
	s.live("<requested unit='KiB'>131072</requested>", true)
}

func testNoRoomForMemory(s *suite) {
	s.need(s.Plug != nil, "change a guest like that")
	s.plugged(s.Harness.Domain)
	s.is(s.Hypervisor.AttachDevice(s.ctx, "a", "<memory model='dimm'><target><size unit='MiB'>128</size></target></memory>"), hypervisor.ErrRefused)
}

func testBrokenDevice(s *suite) {
	s.plugged(s.Harness.Domain)
	const secret = "correct-horse"
	for reason, device := range map[string]string{
		"empty": "", "not XML": "passwd='" + secret + "'", "cut off": "<graphics passwd='" + secret + "'",
		"two": plugCard + plugCard, "mismatched": "<graphics passwd='" + secret + "'></disk>",
	} {
		for method, err := range map[string]error{
			"attach": s.Hypervisor.AttachDevice(s.ctx, "a", device), "detach": s.Hypervisor.DetachDevice(s.ctx, "a", device),
			"update": s.Hypervisor.UpdateDevice(s.ctx, "a", device),
		} {
			s.Logf("%s, %s: %v", reason, method, err)
			s.is(err, hypervisor.ErrInvalid)
			if strings.Contains(err.Error(), secret) {
				s.Errorf("%s, %s: the error quotes a password", reason, method)
			}
		}
	}
}
