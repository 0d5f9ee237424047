package libvirt

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/conformance"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns the libvirt at uri for a test.
func connect(t testing.TB, uri string, options ...Option) *Hypervisor {
	t.Helper()
	h := New(uri, options...)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return h
}

// testDriver returns libvirt's driver that pretends, on a node without domains. Every connection to it is a node of its own.
func testDriver(t testing.TB) *Hypervisor {
	t.Helper()
	node := filepath.Join(t.TempDir(), "node.xml")
	if err := os.WriteFile(node, []byte("<node/>"), 0o600); err != nil {
		t.Fatal(err)
	}
	return connect(t, "test://"+node)
}

// TestConformanceTestDriver runs on libvirt's test driver, which needs no QEMU. Its guests obey at once and never power off by
// themselves.
func TestConformanceTestDriver(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		h := testDriver(t)
		guest := func(name, uuid string) string {
			if uuid != "" {
				uuid = "<uuid>" + uuid + "</uuid>"
			}
			return "<domain type='test'><name>" + name + "</name>" + uuid +
				"<memory>16384</memory><os><type>hvm</type></os></domain>"
		}
		disturb := func(name string, how func(*lv.Domain) error) {
			if err := withDomain(context.Background(), h, name, how); err != nil {
				t.Errorf("disturb domain %q: %v", name, err)
			}
		}
		return conformance.Harness{
			Hypervisor: h,
			Domain:     guest,
			Obedient:   guest,
			CPUs: func(name, uuid string) string {
				return strings.Replace(guest(name, uuid), "<os>", "<vcpu current='1'>3</vcpu><os>", 1)
			},
			Unfit: func(name, uuid string) map[string]string {
				whole := guest(name, uuid)
				return map[string]string{"too few vCPUs at most": strings.Replace(whole, "<os>", "<vcpu current='3'>1</vcpu><os>", 1)}
			},
			Crash: func(name string) {
				disturb(name, func(dom *lv.Domain) error {
					return dom.CoreDump(filepath.Join(t.TempDir(), "core"), lv.DUMP_CRASH)
				})
			},
			Pause: func(name string) { disturb(name, (*lv.Domain).Suspend) },
			Secret: func(name string) (secret string) {
				disturb(name, func(dom *lv.Domain) (err error) {
					secret, err = dom.GetXMLDesc(lv.DOMAIN_XML_INACTIVE | lv.DOMAIN_XML_SECURE)
					return err
				})
				return secret
			},
		}
	})
}

// TestConformanceQEMU runs on a libvirtd of its own with QEMU: one for all tests, for starting it takes longer than most of them.
func TestConformanceQEMU(t *testing.T) {
	shared := libvirttest.Start(t)
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		daemon := shared.For(t)
		booting := func(guest libvirttest.Guest) func(name, uuid string) string {
			kernel := guest.Kernel(t)
			return func(name, uuid string) string { return libvirttest.DomainXML(name, uuid, kernel) }
		}
		plugged := func(name, uuid string) string {
			return libvirttest.Plugged(libvirttest.DomainXML(name, uuid, libvirttest.GuestIdle.Kernel(t)))
		}
		return conformance.Harness{
			Hypervisor: connect(t, daemon.URI),
			Domain:     booting(libvirttest.GuestIdle),
			Obedient:   booting(libvirttest.GuestObedient),
			Stubborn:   booting(libvirttest.GuestIdle),
			PowersOff:  booting(libvirttest.GuestPowersOff),
			Agent: func(name, uuid string) string {
				kernel, initramfs := libvirttest.AgentGuest(t)
				return libvirttest.AgentDomainXML(name, uuid, kernel, initramfs)
			},
			Echo: func(name, uuid string) string {
				return libvirttest.WithConsole(libvirttest.DomainXML(name, uuid, libvirttest.GuestEcho.Kernel(t)))
			},
			User: func(name, uuid string) string {
				return libvirttest.WithUserNetwork(libvirttest.DomainXML(name, uuid, libvirttest.GuestIdle.Kernel(t)))
			},
			Unfit: func(name, uuid string) map[string]string {
				whole := libvirttest.DomainXML(name, uuid, "")
				with := func(device string) string {
					return strings.Replace(whole, "<memballoon", device+"<memballoon", 1)
				}
				return map[string]string{
					"a machine that QEMU does not have": strings.Replace(whole, "machine='q35'", "machine='abacus'", 1),
					"memory without room for it":        with("<memory model='dimm'><target><size unit='MiB'>128</size></target></memory>"),
					"a bus that the machine does not have": with(
						"<disk type='file' device='disk'><source file='/absent'/><target dev='hda' bus='ide'/></disk>"),
				}
			},
			CPUs:      plugged,
			Plug:      plugged,
			Holding:   plugged,
			NoBalloon: booting(libvirttest.GuestIdle),
			Image:     func(mark string, size int64) string { return libvirttest.Image(t, mark, size) },
			Crash:     daemon.CrashQEMU,
			Pause:     func(name string) { daemon.Virsh("suspend", name) },
			Secret:    func(name string) string { return daemon.Virsh("dumpxml", "--inactive", "--security-info", name) },
			Down:      daemon.Kill,
			Up:        daemon.Start,
		}
	})
}

// TestFixtureXML guards the guests against a typo that only shows when they are used.
func TestFixtureXML(t *testing.T) {
	if xml := libvirttest.DomainXML("a", "", ""); strings.Contains(xml, "kernel") || strings.Contains(xml, "uuid") {
		t.Errorf("domain without kernel and UUID: %s", xml)
	}
}
