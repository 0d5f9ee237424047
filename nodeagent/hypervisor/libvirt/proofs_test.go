package libvirt

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/guestagent"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// What a guest is asked, as shell commands. A guest with udev puts plugged-in CPUs to use by itself.
const (
	askBootID = "cat /proc/sys/kernel/random/boot_id"
	askCPUs   = "for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do echo 1 >$cpu; done 2>/dev/null; nproc"
	askMemory = "awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo"
	askCards  = "cat /sys/class/net/eth*/address | sort | tr '\\n' ' '"
	askLink   = "ip link set eth0 up; cat /sys/class/net/eth0/carrier"
	askMedium = "dd if=/dev/sr0 bs=8 count=1 2>/dev/null"
	askDisks  = "cd /sys/block; ls -d vd* sd* 2>/dev/null | tr '\\n' ' '"
	askMark   = "dd if=/dev/vda bs=5 count=1 2>/dev/null"
	askSize   = "blockdev --getsize64 /dev/vda"
)

// proof is a guest whose changes are looked at from inside.
type proof struct {
	*testing.T
	h     *Hypervisor
	guest guestagent.Agent
	boot  string // its boot id
}

// TestProofs proves each live change of the table of consequences on one real guest: it arrives in the guest without a reboot,
// and is still there after a power cycle when the persistent definition was changed likewise.
func TestProofs(t *testing.T) {
	p := newProof(t)
	images := map[string]string{}
	for _, mark := range []string{"first", "other", "scsi", "medium-1", "medium-2"} {
		images[mark] = libvirttest.Image(t, mark, 8<<20)
	}
	p.listen()
	p.start()
	for _, row := range []struct {
		name  string
		prove func()
	}{
		{"metadata", p.metadata},
		{"vCPUs up", func() {
			p.ok(p.h.SetVCPUs(t.Context(), "a", 2))
			p.config(func(dom *lv.Domain) error { return dom.SetVcpusFlags(2, lv.DOMAIN_VCPU_CONFIG) })
			p.says(askCPUs, "2")
		}},
		{"memory down and up, by the balloon", p.balloon},
		{"a virtio disk is attached and grows", func() {
			p.attach(proofDisk("vda", "virtio", images["first"]), true)
			p.says(askMark, "first")
			p.says(askSize, strconv.Itoa(8<<20))
			p.ok(p.h.ResizeDisk(t.Context(), "a", "vda", 16<<20))
			p.says(askSize, strconv.Itoa(16<<20))
		}},
		{"a virtio disk is detached", func() { p.comesAndGoes(proofDisk("vdb", "virtio", images["other"]), "vda vdb", "vda") }},
		{"a SCSI disk is detached", func() { p.comesAndGoes(proofDisk("sdb", "scsi", images["scsi"]), "sda vda", "vda") }},
		{"a medium is inserted and ejected", func() { p.medium(images["medium-1"], images["medium-2"]) }},
		{"an interface is attached", func() {
			p.attach(proofCard(2), true)
			p.says(askCards, cards(2))
		}},
		{"an interface is detached", func() {
			p.attach(proofCard(3), false)
			p.says(askCards, cards(2, 3))
			p.ok(p.h.DetachDevice(t.Context(), "a", proofCard(3)))
			p.says(askCards, cards(2))
		}},
		{"a link goes down and up", p.link},
		{"memory up, by virtio-mem", p.virtioMem},
	} {
		began := time.Now()
		row.prove()
		if now := p.ask(askBootID); now != p.boot {
			t.Errorf("%s: the guest was rebooted", row.name)
		}
		t.Logf("%s: %s", row.name, time.Since(began).Round(time.Millisecond))
	}
	p.survives(map[string]string{
		askCPUs: "2", askMark: "first", askSize: strconv.Itoa(16 << 20), askDisks: "vda", askMedium: "medium-2", askCards: cards(2), askLink: "0",
	})
}

func newProof(t *testing.T) *proof {
	daemon := libvirttest.Start(t)
	p := &proof{T: t, h: connect(t, daemon.URI)}
	p.guest = guestagent.New(func(ctx context.Context, command string) (string, error) {
		return p.h.GuestAgent(ctx, "a", command)
	})
	kernel, initramfs := libvirttest.AgentGuest(t)
	definition := libvirttest.AgentDomainXML("a", "", kernel, initramfs)
	definition = strings.Replace(definition, "<memory unit='MiB'>128<", "<memory unit='MiB'>256<", 1)
	// Without it the kernel takes 64 MiB for bounce buffers where memory can be plugged in.
	definition = strings.Replace(definition, "quiet", "quiet swiotlb=noforce", 1)
	p.ok(p.h.Define(t.Context(), libvirttest.Plugged(definition)))
	return p
}

// listen has libvirt tell of every change, as the agent does: none of its events may end this process.
func (p *proof) listen() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.h.Events(ctx, func(hypervisor.Event) {})
	}()
	p.Cleanup(func() {
		cancel()
		<-ended
	})
}

// start boots the guest and loads its drivers.
func (p *proof) start() {
	p.Helper()
	p.ok(p.h.SetPower(p.Context(), "a", hypervisor.PowerOn))
	began := time.Now()
	p.await("the guest agent answers", func() (string, bool) {
		ctx, cancel := context.WithTimeout(p.Context(), time.Second) // libvirt takes 5 s for one that does not listen yet
		defer cancel()
		err := p.guest.Ping(ctx)
		return fmt.Sprint(err), err == nil
	})
	p.ask("echo online >/sys/devices/system/memory/auto_online_blocks; modprobe -a $(cat /etc/modules) 2>/dev/null")
	before := p.boot
	if p.boot = p.ask(askBootID); p.boot == "" || p.boot == before {
		p.Fatalf("boot id %q after %q", p.boot, before)
	}
	p.Logf("boot: %s", time.Since(began).Round(time.Millisecond))
}

func (p *proof) ok(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// config changes the persistent definition.
func (p *proof) config(change func(*lv.Domain) error) {
	p.Helper()
	p.ok(withDomain(p.Context(), p.h, "a", change))
}

// ask runs a command in the guest.
func (p *proof) ask(command string) string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), time.Minute)
	defer cancel()
	_, output, err := p.guest.Exec(ctx, "sh", "-c", command)
	if err != nil {
		p.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSpace(string(output))
}

// says waits until the guest answers a question like that.
func (p *proof) says(command, want string) {
	p.Helper()
	p.await(fmt.Sprintf("the guest says %q to %s", want, command), func() (string, bool) {
		got := p.ask(command)
		return got, got == want
	})
}

// remembers waits until the guest has so much memory, in MiB, give or take what its kernel takes for itself.
func (p *proof) remembers(least, most int) int {
	p.Helper()
	var mib int
	p.await(fmt.Sprintf("the guest has %d to %d MiB", least, most), func() (string, bool) {
		text := p.ask(askMemory)
		var err error
		mib, err = strconv.Atoi(text)
		return text, err == nil && mib >= least && mib <= most
	})
	return mib
}

func (p *proof) await(what string, condition func() (string, bool)) {
	p.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		last, met := condition()
		switch {
		case met:
			return
		case time.Now().After(deadline):
			d, _ := p.h.Domain(p.Context(), "a")
			p.Fatalf("waited in vain until %s; it was %q last; the guest:\n%s", what, last, d.Live)
		}
	}
}

// attach attaches a device, also to the persistent definition if it is to stay.
func (p *proof) attach(device string, stays bool) {
	p.Helper()
	p.ok(p.h.AttachDevice(p.Context(), "a", device))
	if stays {
		p.config(func(dom *lv.Domain) error { return dom.AttachDeviceFlags(device, lv.DOMAIN_DEVICE_MODIFY_CONFIG) })
	}
}

// comesAndGoes attaches a disk and detaches it.
func (p *proof) comesAndGoes(device, with, without string) {
	p.Helper()
	p.attach(device, true)
	p.says(askDisks, with)
	p.ok(p.h.DetachDevice(p.Context(), "a", device))
	p.config(func(dom *lv.Domain) error { return dom.DetachDeviceFlags(device, lv.DOMAIN_DEVICE_MODIFY_CONFIG) })
	p.says(askDisks, without)
}

func (p *proof) update(device string) {
	p.Helper()
	p.ok(p.h.UpdateDevice(p.Context(), "a", device))
	p.config(func(dom *lv.Domain) error { return dom.UpdateDeviceFlags(device, lv.DOMAIN_DEVICE_MODIFY_CONFIG) })
}

func (p *proof) metadata() {
	p.ok(p.h.SetMetadata(p.Context(), "a", "proof", "https://gitvirt.io/proof", "<labels>kept</labels>"))
	d, err := p.h.Domain(p.Context(), "a")
	p.ok(err)
	if !strings.Contains(d.Live, "kept</proof:labels>") || !strings.Contains(d.Config, "kept</proof:labels>") {
		p.Errorf("the metadata did not arrive: %s", d.Live)
	}
}

func (p *proof) balloon() {
	whole := p.remembers(180, 256)
	p.ok(p.h.SetMemory(p.Context(), "a", 200<<10))
	p.remembers(whole-58, whole-54)
	p.ok(p.h.SetMemory(p.Context(), "a", 256<<10))
	p.remembers(whole-1, whole+1)
	p.ok(p.h.SetMemory(p.Context(), "a", 240<<10))
	p.config(func(dom *lv.Domain) error { return dom.SetMemoryFlags(240<<10, lv.DOMAIN_MEM_CONFIG) })
	p.remembers(whole-18, whole-14)
}

func (p *proof) medium(first, second string) {
	drive := func(source string) string {
		return "<disk type='file' device='cdrom'><driver name='qemu' type='raw'/>" + source + "<target dev='sda' bus='scsi'/><readonly/></disk>"
	}
	p.says(askMedium, "")
	p.update(drive("<source file='" + first + "'/>"))
	p.says(askMedium, "medium-1")
	p.ask("(sleep 2 </dev/sr0) >/dev/null 2>&1 &") // it holds the tray
	p.update(drive(""))
	p.says(askMedium, "")
	p.update(drive("<source file='" + second + "'/>"))
	p.says(askMedium, "medium-2")
}

func (p *proof) link() {
	card := "<interface type='user'><mac address='" + libvirttest.PluggedMAC + "'/><model type='virtio'/><link state='%s'/></interface>"
	p.says(askLink, "1")
	p.update(fmt.Sprintf(card, "down"))
	p.says(askLink, "0")
	p.update(fmt.Sprintf(card, "up"))
	p.says(askLink, "1")
	p.update(fmt.Sprintf(card, "down"))
	p.says(askLink, "0")
}

func (p *proof) virtioMem() {
	memory := func(requested int) string {
		return fmt.Sprintf("<memory model='virtio-mem'><target><size unit='MiB'>256</size><node>0</node><block unit='MiB'>2</block>"+
			"<requested unit='MiB'>%d</requested></target><alias name='ua-more'/></memory>", requested)
	}
	before := p.remembers(0, 1<<10)
	p.attach(memory(0), false)
	p.ok(p.h.UpdateDevice(p.Context(), "a", memory(128)))
	p.remembers(before+100, before+130)
	p.ok(p.h.UpdateDevice(p.Context(), "a", memory(256)))
	p.remembers(before+220, before+260)
	p.config(func(dom *lv.Domain) error {
		if err := dom.AttachDeviceFlags(memory(256), lv.DOMAIN_DEVICE_MODIFY_CONFIG); err != nil {
			return err
		}
		// libvirt adds what was attached to <currentMemory>, and gives QEMU that as the balloon's target at the next start: it
		// would let go of all that it holds.
		return dom.SetMemoryFlags(240<<10, lv.DOMAIN_MEM_CONFIG)
	})
}

// survives power cycles the guest, which then has what it had and answers so.
func (p *proof) survives(answers map[string]string) {
	p.Helper()
	memory := p.remembers(0, 1<<10)
	p.ok(p.h.SetPower(p.Context(), "a", hypervisor.PowerOff))
	p.start()
	for command, want := range answers {
		p.says(command, want)
	}
	p.remembers(memory-10, memory+10)
	d, err := p.h.Domain(p.Context(), "a")
	p.ok(err)
	if !strings.Contains(d.Live, "kept</proof:labels>") {
		p.Errorf("the metadata did not survive: %s", d.Live)
	}
}

func proofDisk(target, bus, image string) string {
	return fmt.Sprintf("<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s'/><target dev='%s' bus='%s'/></disk>", image, target, bus)
}

func proofCard(number int) string {
	return fmt.Sprintf("<interface type='user'><mac address='52:54:00:11:22:%02d'/><model type='virtio'/></interface>", number)
}

// cards are the addresses of the guest's own card and of others.
func cards(numbers ...int) string {
	var all []string
	for _, number := range numbers {
		all = append(all, fmt.Sprintf("52:54:00:11:22:%02d", number))
	}
	return strings.Join(append(all, libvirttest.PluggedMAC), " ")
}
