package fake_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/conformance"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guest returns a definition as short as the schema allows.
func guest(name, uuid string) string {
	if uuid != "" {
		uuid = "<uuid>" + uuid + "</uuid>"
	}
	return "<domain type='test'><name>" + name + "</name>" + uuid +
		"<memory>16384</memory><os><type>hvm</type></os></domain>"
}

// plugged returns the definition of a guest that can be changed while it runs.
func plugged(name, uuid string) string {
	return libvirttest.Plugged(libvirttest.DomainXML(name, uuid, ""))
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		h := fake.New()
		// How a guest behaves can be set once it is defined: just before its start.
		with := func(definition func(name, uuid string) string, prepare func(name string)) func(name, uuid string) string {
			return func(name, uuid string) string {
				h.Fail(fake.SetPower, func(context.Context, string) error {
					prepare(name)
					return nil
				})
				return definition(name, uuid)
			}
		}
		beforeStart := func(prepare func(name string)) func(name, uuid string) string { return with(guest, prepare) }
		return conformance.Harness{
			Hypervisor: h,
			Domain:     guest,
			Obedient:   guest,
			Stubborn:   beforeStart(func(name string) { h.IgnoresPowerButton(name, true) }),
			PowersOff:  beforeStart(func(name string) { h.PowersOffAtBoot(name, true) }),
			Agent:      beforeStart(func(name string) { h.SetGuestAgent(name, answer) }),
			Echo:       func(name, uuid string) string { return libvirttest.WithConsole(libvirttest.DomainXML(name, uuid, "")) },
			User: func(name, uuid string) string {
				card := "<devices><interface type='user'><alias name='ua-default'/></interface></devices>"
				return strings.Replace(guest(name, uuid), "</domain>", card+"</domain>", 1)
			},
			CPUs:    plugged,
			Plug:    plugged,
			Holding: with(plugged, func(name string) { h.KeepsDevices(name, true) }),
			NoBalloon: func(name, uuid string) string {
				return strings.Replace(plugged(name, uuid), "<memballoon model='virtio'/>", "<memballoon model='none'/>", 1)
			},
			Secret: h.Secret,
			Image:  func(mark string, size int64) string { return libvirttest.Image(t, mark, size) },
			Crash: func(name string) {
				if !h.GuestCrashes(name) {
					t.Errorf("domain %q does not run", name)
				}
			},
			Pause: func(name string) {
				if !h.Pause(name) {
					t.Errorf("domain %q does not run", name)
				}
			},
			Down: h.Down,
			Up:   h.Up,
		}
	})
}

// answer is a guest agent that knows two commands.
func answer(command string) (string, error) {
	switch command {
	case `{"execute":"guest-ping"}`:
		return `{"return":{}}`, nil
	case `{"execute":"guest-info"}`:
		return `{"return":{"version":"1"}}`, nil
	}
	return "", errors.New("the command has not been found")
}

func TestFaults(t *testing.T) {
	h, ctx := fake.New(), t.Context()
	broken := errors.New("broken")
	h.Fail(fake.Define, func(_ context.Context, domain string) error {
		if domain == "a" {
			return broken
		}
		return nil
	})
	if err := h.Define(ctx, guest("a", "")); !errors.Is(err, broken) {
		t.Errorf("Define: %v, want the fault", err)
	}
	if err := h.Define(ctx, guest("b", "")); err != nil {
		t.Errorf("Define of another domain: %v", err)
	}
	h.Fail(fake.Define, nil)
	if err := h.Define(ctx, guest("a", "")); err != nil {
		t.Errorf("Define without fault: %v", err)
	}
}

func TestScenario(t *testing.T) {
	h, ctx := fake.New(), t.Context()
	if err := h.Define(ctx, guest("a", "")); err != nil {
		t.Fatal(err)
	}
	if h.GuestCrashes("a") || h.GuestPowersOff("a") || h.Pause("a") || h.EditLive("a", nil) || h.Pause("absent") {
		t.Error("something happened to a guest that does not run")
	}
	h.CrashesAtBoot("a", true)
	h.SetAddresses("a", "192.0.2.7", "192.0.2.5")
	if err := h.SetPower(ctx, "a", hypervisor.PowerOn); err != nil {
		t.Fatal(err)
	}
	if d, err := h.Domain(ctx, "a"); err != nil || d.StopReason != hypervisor.StopCrashed {
		t.Errorf("domain %+v, %v, want it crashed", d, err)
	}
	h.Forget()
	h.CrashesAtBoot("a", false)
	if d, err := h.Domain(ctx, "a"); err != nil || d.StopReason != hypervisor.StopUnknown {
		t.Errorf("domain %+v, %v, want the reason forgotten", d, err)
	}
	if err := h.SetPower(ctx, "a", hypervisor.PowerOn); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Addresses(ctx, "a"); err != nil || len(got) != 2 || got[0] != "192.0.2.5" {
		t.Errorf("addresses %q, %v, want two, sorted", got, err)
	}
	if !h.EditConfig("a", func(string) string { return guest("a", "edited") }) {
		t.Error("the definition was not edited")
	}
	if !h.GuestPowersOff("a") {
		t.Error("the guest did not run")
	}
	if d, err := h.Domain(ctx, "a"); err != nil || d.StopReason != hypervisor.StopShutdown || d.Config != guest("a", "edited") {
		t.Errorf("domain %+v, %v, want it shut down with the edited definition", d, err)
	}
}
