package domainxml_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// edit is what somebody does with `virsh edit`: in the XML that libvirt prints, old becomes new. A new device is written
// in place of </devices>.
type edit struct{ domain, old, new, path string }

const end = "</devices>"

// edits has at least one edit for each kind of device and setting: one that is added, one that is gone, one that is
// changed.
var edits = []edit{
	{"tuned", "slots='16'", "slots='8'", "maxMemory@slots"},
	{"tuned", "<maxMemory slots='16' unit='KiB'>4194304<", "<maxMemory slots='16' unit='KiB'>8388608<", "maxMemory"},
	{"tuned", "<currentMemory unit='KiB'>2359296<", "<currentMemory unit='KiB'>1048576<", "currentMemory"},
	{"tuned", "memory='524288'", "memory='262144'", "cpu/numa/cell[0]@memory"},
	{"tuned", "cpus='2-3'", "cpus='3'", "cpu/numa/cell[1]@cpus"},
	{"tuned", "mode='strict' nodeset='0'/>", "mode='preferred' nodeset='0'/>", "numatune/memory@mode"},
	{"tuned", "<memnode cellid='0' mode='strict' nodeset='0'/>", "", "numatune/memnode[0]@mode"},
	{"tuned", "<page size='2048' unit='KiB'/>", "", "memoryBacking/hugepages/page[0]@size"},
	{"tuned", "<access mode='shared'/>", "", "memoryBacking/access@mode"},
	{"tuned", "<access mode='shared'/>", "<access mode='shared'/><locked/>", "memoryBacking/locked"},
	{"tuned", "<hard_limit unit='KiB'>2097152<", "<hard_limit unit='KiB'>1048576<", "memtune/hard_limit"},
	{"tuned", "<memtune>", "<memtune><soft_limit unit='KiB'>1024</soft_limit>", "memtune/soft_limit"},
	{"tuned", "<vcpu placement='static' current='2'>4<", "<vcpu placement='static' cpuset='1' current='2'>4<", "vcpu@cpuset"},
	{"tuned", "<iothreads>3<", "<iothreads>4<", "iothreads"},
	{"tuned", "<shares>2048<", "<shares>1024<", "cputune/shares"},
	{"tuned", "<shares>2048</shares>", "<shares>2048</shares><quota>1000</quota>", "cputune/quota"},
	{"tuned", "<vcpupin vcpu='0' cpuset='0'/>", "<vcpupin vcpu='0' cpuset='1'/>", "cputune/vcpupin[0]@cpuset"},
	{"tuned", "<vcpupin vcpu='0' cpuset='0'/>", "<vcpupin vcpu='0' cpuset='0'/><vcpupin vcpu='2' cpuset='0'/>", "cputune/vcpupin[2]@cpuset"},
	{"tuned", "<emulatorpin cpuset='0-1'/>", "", "cputune/emulatorpin@cpuset"},
	{"tuned", "<iothreadpin iothread='1' cpuset='0'/>", "<iothreadpin iothread='1' cpuset='1'/>", "cputune/iothreadpin[1]@cpuset"},
	{"tuned", "<vcpusched vcpus='1' scheduler='fifo' priority='1'/>", "", "cputune/vcpusched[1]@scheduler"},
	{"tuned", "<entry name='manufacturer'>gitvirt<", "<entry name='manufacturer'>Dell<", "sysinfo[smbios]/system/entry[manufacturer]"},
	{"tuned", "<entry>second</entry>", "", "sysinfo[smbios]/oemStrings/entry[1]"},
	{"tuned", "<entry name='serial'>B1</entry>", "<entry name='serial'>B1</entry><entry name='asset'>x</entry>", "sysinfo[smbios]/baseBoard/entry[asset]"},
	{"tuned", "/vms/slic.bin", "/vms/other.bin", "os/acpi/table[0]"},
	{"tuned", "<smbios mode='sysinfo'/>", "<smbios mode='host'/>", "os/smbios@mode"},
	{"tuned", "<bootmenu enable='yes'", "<bootmenu enable='no'", "os/bootmenu@enable"},
	{"tuned", "<boot dev='hd'/>", "<boot dev='network'/>", "os/boot@dev"},
	{"tuned", "<bootmenu enable='yes'", "<kernel>/evil</kernel><bootmenu enable='yes'", "os/kernel"},
	{"tuned", "<pae/>", "", "features/pae"},
	{"tuned", "<pae/>", "<pae/><hap state='on'/>", "features/hap@state"},
	{"tuned", "<relaxed state='on'/>", "<relaxed state='off'/>", "features/hyperv/relaxed@state"},
	{"tuned", "<ipi state='on'/>", "", "features/hyperv/ipi@state"},
	{"tuned", "retries='8191'", "retries='4096'", "features/hyperv/spinlocks@retries"},
	{"tuned", "<hidden state='on'/>", "<hidden state='off'/>", "features/kvm/hidden@state"},
	{"tuned", "mode='host-model'", "mode='maximum'", "cpu@mode"},
	{"tuned", "<feature policy='require' name='invtsc'/>", "<feature policy='require' name='invtsc'/><feature policy='disable' name='vmx'/>", "cpu/feature[vmx]@policy"},
	{"tuned", "<feature policy='require' name='invtsc'/>", "<feature policy='optional' name='invtsc'/>", "cpu/feature[invtsc]@policy"},
	{"tuned", "sockets='4' dies='1' cores='1'", "sockets='2' dies='1' cores='2'", "cpu/topology@cores"},
	{"tuned", "adjustment='3600'", "adjustment='0'", "clock@adjustment"},
	{"tuned", "<timer name='kvmclock' present='no'/>", "", "clock/timer[kvmclock]@present"},
	{"passthrough", "<clock offset='timezone' timezone='Europe/Berlin'/>", "<clock offset='timezone' timezone='Europe/Berlin'><timer name='hpet' present='no'/></clock>", "clock/timer[hpet]@present"},
	{"tuned", "frequency='1000000000'", "frequency='2000000000'", "clock/timer[tsc]@frequency"},
	{"tuned", "<on_crash>preserve<", "<on_crash>restart<", "on_crash"},
	{"tuned", "<on_reboot>restart<", "<on_reboot>destroy<", "on_reboot"},
	{"tuned", "<suspend-to-mem enabled='no'/>", "<suspend-to-mem enabled='no'/><suspend-to-disk enabled='no'/>", "pm/suspend-to-disk@enabled"},
	{"tuned", "iothread='2'", "iothread='3'", "devices/disk[vda]/driver@iothread"},
	{"tuned", "queues='2'", "queues='4'", "devices/disk[vda]/driver@queues"},
	{"tuned", "discard='unmap'", "discard='unmap' detect_zeroes='on'", "devices/disk[vda]/driver@detect_zeroes"},
	{"tuned", "<requested unit='KiB'>0<", "<requested unit='KiB'>1048576<", "devices/memory[0]/target/requested"},
	{"tuned", "<size unit='KiB'>262144<", "<size unit='KiB'>524288<", "devices/memory[1]/target/size"},
	{"tuned", "freePageReporting='off'", "freePageReporting='on'", "devices/memballoon[0]@freePageReporting"},
	{"tuned", "<stats period='10'/>", "<stats period='1'/>", "devices/memballoon[0]/stats@period"},
	{"tuned", "<qemu:arg value='-fw_cfg'/>", "<qemu:arg value='-S'/><qemu:arg value='-fw_cfg'/>", "commandline/arg[0]@value"},
	{"tuned", "<qemu:env name='A' value='b'/>", "<qemu:env name='A' value='c'/>", "commandline/env[A]@value"},
	{"tuned", "<qemu:env name='A' value='b'/>", "", "commandline/env[A]@value"},
	{"tuned", "</domain>", "<seclabel type='none' model='none'/></domain>", "seclabel[none]@type"},

	{"devices", "OVMF_CODE_4M.ms.fd", "OVMF_CODE_4M.secboot.fd", "os/loader"},
	{"devices", "/vms/nvram.fd", "/vms/other.fd", "os/nvram"},
	{"devices", "<model fallback='allow'>qemu64<", "<model fallback='allow'>Nehalem<", "cpu/model"},
	{"devices", "/dev/disk/by-id/lun", "/dev/sda", "devices/disk[sda]/source@dev"},
	{"devices", "path='/run/pr-helper.sock'", "path='/run/other.sock'", "devices/disk[sda]/source/reservations/source@path"},
	{"devices", "<target dev='sdb' bus='sata'/>", "<source file='/isos/a.iso'/><target dev='sdb' bus='sata'/>", "devices/disk[sdb]/source@file"},
	{"devices", " tray='open'", "", "devices/disk[sdc]/target@tray"},
	{"devices", "physical_block_size='4096'", "physical_block_size='512'", "devices/disk[vda]/blockio@physical_block_size"},
	{"devices", "<boot order='1'/>", "", "devices/disk[vda]/boot@order"},
	{"devices", "<serial>ROOT<", "<serial>OTHER<", "devices/disk[vda]/serial"},
	{"devices", "<shareable/>", "", "devices/disk[sda]/shareable"},
	{"devices", "bus='0x00' slot='0x08'", "bus='0x00' slot='0x09'", "devices/disk[vda]/address@slot"},
	{"devices", "/images/base.qcow2", "/images/evil.qcow2", "devices/disk[vda]/backingStore/source@file"},
	{"devices", "<driver queues='2' iothread='1'/>", "<driver queues='4' iothread='1'/>", "devices/controller[scsi0]/driver@queues"},
	{"devices", "model='qemu-xhci'", "model='ich9-ehci1'", "devices/controller[usb0]@model"},
	{"devices", "<source dir='/shared'/>", "<source dir='/etc'/>", "devices/filesystem[shared]/source@dir"},
	{"devices", "<source network='default'/>", "<source network='other'/>", "devices/interface[02:00:00:00:00:0a]/source@network"},
	{"devices", "<link state='down'/>", "", "devices/interface[02:00:00:00:00:0a]/link@state"},
	{"devices", "<mtu size='1400'/>", "<mtu size='9000'/>", "devices/interface[02:00:00:00:00:0a]/mtu@size"},
	{"devices", "<acpi index='7'/>", "<acpi index='8'/>", "devices/interface[02:00:00:00:00:0a]/acpi@index"},
	{"devices", "<boot order='2'/>", "<boot order='3'/>", "devices/interface[02:00:00:00:00:0a]/boot@order"},
	{"devices", "<model type='e1000e'/>", "<model type='e1000'/>", "devices/interface[02:00:00:00:00:0b]/model@type"},
	{"devices", "<source network='default'/>", "<source network='default'/><filterref filter='clean-traffic'/>", "devices/interface[02:00:00:00:00:0a]/filterref@filter"},
	{"devices", "<model type='e1000e'/>", "<model type='e1000e'/><link state='down'/>", "devices/interface[02:00:00:00:00:0b]/link@state"},
	{"devices", "02:00:00:00:00:0c", "02:00:00:00:00:0d", "devices/interface[02:00:00:00:00:0c]"},
	{"devices", "bus='0x81' slot='0x02'", "bus='0x81' slot='0x03'", "devices/interface[02:00:00:00:00:0c]/source/address@slot"},
	{"devices", "file='/vms/console.log' append='on'", "file='/vms/other.log' append='on'", "devices/serial[0]/log@file"},
	{"devices", "path='/vms/metrics.sock'", "path='/vms/other.sock'", "devices/channel[org.github.vhostmd.1]/source@path"},
	{"devices", "<input type='tablet' bus='virtio' model='virtio'>", "<input type='mouse' bus='virtio' model='virtio'>", "devices/input[tablet-virtio]"},
	{"devices", "<tpm model='tpm-crb'>", "<tpm model='tpm-tis'>", "devices/tpm[0]@model"},
	{"devices", "persistent_state='yes'", "persistent_state='no'", "devices/tpm[0]/backend@persistent_state"},
	{"devices", "<listen type='socket'/>", "<listen type='address' address='0.0.0.0'/>", "devices/graphics[0]/listen[0]@type"},
	{"devices", "<sound model='ich9'>", "<sound model='ac97'>", "devices/sound[0]@model"},
	{"devices", "<model type='virtio' heads='1'", "<model type='vga' heads='1'", "devices/video[0]/model@type"},
	{"devices", "bus='0x81' slot='0x01'", "bus='0x82' slot='0x01'", "devices/hostdev[0000:81:01.0]"},
	{"devices", "<rom bar='on' file='/roms/gpu.rom'/>", "<rom bar='on' file='/roms/evil.rom'/>", "devices/hostdev[0000:81:01.0]/rom@file"},
	{"devices", "managed='yes'>\n      <source>\n        <address domain='0x0000' bus='0x81' slot='0x01'", "managed='no'>\n      <source>\n        <address domain='0x0000' bus='0x81' slot='0x01'", "devices/hostdev[0000:81:01.0]@managed"},
	{"devices", "display='on' ramfb='on'", "display='off'", "devices/hostdev[b3ef5d30-7ca9-428c-8861-06e72d69f223]@display"},
	{"devices", "<address bus='3' device='2'/>", "<address bus='3' device='4'/>", "devices/hostdev[3:4]"},
	{"devices", end, "<redirdev bus='usb' type='unix'><source mode='bind' path='/x'/></redirdev>" + end, "devices/redirdev[2]"},
	{"devices", end, "<disk type='file' device='disk'><source file='/x'/><target dev='vdz' bus='virtio'/></disk>" + end, "devices/disk[vdz]"},
	{"devices", "<target dev='vda' bus='virtio'/>", "<target dev='vda' bus='virtio'/><iotune><read_bytes_sec>1</read_bytes_sec></iotune>", "devices/disk[vda]/iotune/read_bytes_sec"},
	{"devices", "/vms/usbredir-1.sock", "/vms/other.sock", "devices/redirdev[1]/source@path"},
	{"devices", "<watchdog model='i6300esb' action='reset'>", "<watchdog model='i6300esb' action='none'>", "devices/watchdog[0]@action"},
	{"devices", "<memballoon model='none'/>", "<memballoon model='virtio'/>", "devices/memballoon[0]@model"},
	{"devices", "<backend model='random'>/dev/urandom<", "<backend model='random'>/dev/random<", "devices/rng[0]/backend"},
	{"devices", "<backend model='random'>", "<rate bytes='1'/><backend model='random'>", "devices/rng[0]/rate@bytes"},
	{"devices", "<panic model='hyperv'/>", "", "devices/panic[1]"},
	{"devices", "<cid auto='yes'/>", "<cid auto='no' address='9'/>", "devices/vsock[0]/cid@auto"},
	{"passthrough", "timezone='Europe/Berlin'", "timezone='UTC'", "clock@timezone"},
	{"passthrough", "<cid auto='no' address='7'/>", "<cid auto='no' address='8'/>", "devices/vsock[0]/cid@address"},
	{"passthrough", "mode='host-passthrough'", "mode='maximum'", "cpu@mode"},
	{"passthrough", "<driver iommu='on'/>", "", "devices/memballoon[0]/driver@iommu"},

	{"passthrough", end, "<disk type='file' device='floppy'><source file='/x'/><target dev='fda'/></disk>" + end, "devices/disk[fda]"},
	{"passthrough", end, "<interface type='user'><mac address='02:00:00:00:00:01'/></interface>" + end, "devices/interface[02:00:00:00:00:01]"},
	{"passthrough", end, "<hostdev mode='subsystem' type='pci'><source><address bus='0x02' slot='0x01'/></source></hostdev>" + end, "devices/hostdev[0000:02:01.0]"},
	{"passthrough", end, "<filesystem type='mount'><source dir='/etc'/><target dir='etc'/></filesystem>" + end, "devices/filesystem[etc]"},
	{"passthrough", end, "<shmem name='shared'><model type='ivshmem-plain'/><size unit='M'>4</size></shmem>" + end, "devices/shmem[shared]"},
	{"passthrough", end, "<tpm model='tpm-tis'><backend type='emulator' version='2.0'/></tpm>" + end, "devices/tpm[0]"},
	{"passthrough", end, "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>" + end, "devices/rng[0]"},
	{"passthrough", end, "<panic model='isa'/>" + end, "devices/panic[0]"},
	{"passthrough", end, "<sound model='ich9'/>" + end, "devices/sound[0]"},
	{"passthrough", end, "<watchdog model='i6300esb' action='reset'/>" + end, "devices/watchdog[0]"},
	{"passthrough", end, "<serial type='pty'/>" + end, "devices/serial[0]"},
	{"passthrough", end, "<channel type='unix'><target type='virtio' name='a'/></channel>" + end, "devices/channel[a]"},
	{"passthrough", end, "<input type='keyboard' bus='virtio'/>" + end, "devices/input[keyboard-virtio]"},
	{"passthrough", end, "<graphics type='vnc' port='-1' listen='0.0.0.0'/>" + end, "devices/graphics[0]"},
	{"passthrough", end, "<iommu model='intel'/>" + end, "devices/iommu[0]"},
	{"passthrough", "</domain>", "<keywrap><cipher name='aes' state='on'/></keywrap></domain>", "keywrap/cipher@state"},
	{"passthrough", "<memballoon model='virtio'>", "<memballoon model='virtio' autodeflate='on'>", "devices/memballoon[0]@autodeflate"},
	{"passthrough", "  <vcpu", "<memoryBacking><nosharepages/></memoryBacking><vcpu", "memoryBacking/nosharepages"},
	{"passthrough", "  <vcpu", "<blkiotune><weight>500</weight></blkiotune><vcpu", "blkiotune/weight"},
	{"passthrough", "  <vcpu", "<genid>3f1c2b5e-0000-4000-8000-000000000001</genid><vcpu", "genid"},
}

// TestRealEditsAreFound makes every edit on a real libvirt; what it then has differs where the edit was.
func TestRealEditsAreFound(t *testing.T) {
	daemon := libvirttest.Start(t)
	rendered := definitions(t)
	pristine := map[string]string{}
	for name, document := range rendered {
		pristine[name] = define(t, daemon, name, document)
	}
	for _, edit := range edits {
		document := strings.Replace(pristine[edit.domain], edit.old, edit.new, 1)
		if document == pristine[edit.domain] {
			t.Errorf("%s: %q is not in what libvirt prints", edit.domain, edit.old)
			continue
		}
		path := filepath.Join(t.TempDir(), "domain.xml")
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		output, err := exec.Command("virsh", "-q", "-c", daemon.URI, "define "+path+"; dumpxml --inactive "+edit.domain).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %q for %q: %v\n%s", edit.domain, edit.new, edit.old, err, output)
			continue
		}
		differences, err := domainxml.Compare(rendered[edit.domain], string(output))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(differences, func(d domainxml.Difference) bool { return d.Path == edit.path }) {
			t.Errorf("%s: %q for %q: %s is not among %v", edit.domain, edit.new, edit.old, edit.path, differences)
		}
	}
}

// TestRealCommandsAreFound does with virsh what people do with it.
func TestRealCommandsAreFound(t *testing.T) {
	daemon := libvirttest.Start(t)
	rendered := definitions(t)
	for _, test := range []struct {
		domain, command string
		path            string
	}{
		{"tuned", "setvcpus DOMAIN 3", "vcpu@current"},
		{"tuned", "setmem DOMAIN 512M", "currentMemory"},
		{"tuned", "vcpupin DOMAIN 1 0", "cputune/vcpupin[1]@cpuset"},
		{"tuned", "emulatorpin DOMAIN 1", "cputune/emulatorpin@cpuset"},
		{"tuned", "iothreadadd DOMAIN 9", "iothreads"},
		{"tuned", "iothreadpin DOMAIN 2 1", "cputune/iothreadpin[2]@cpuset"},
		{"tuned", "schedinfo DOMAIN --set cpu_shares=512", "cputune/shares"},
		{"tuned", "memtune DOMAIN --soft-limit 4096", "memtune/soft_limit"},
		{"tuned", "update-memory-device DOMAIN --alias ua-virtio-mem --requested-size 512M", "devices/memory[0]/target/requested"},
		{"tuned", "dommemstat DOMAIN --period 5", "devices/memballoon[0]/stats@period"},
		{"passthrough", "setmaxmem DOMAIN 512M", "memory"},
		{"passthrough", "numatune DOMAIN --nodeset 0", "numatune/memory@nodeset"},
		{"passthrough", "blkiotune DOMAIN --weight 300", "blkiotune/weight"},
		{"passthrough", "attach-disk DOMAIN /x sdd --targetbus sata", "devices/disk[sdd]"},
		{"passthrough", "attach-interface DOMAIN network default --mac 02:00:00:00:00:AA", "devices/interface[02:00:00:00:00:aa]"},
		{"devices", "blkdeviotune DOMAIN vda --read-bytes-sec 1000", "devices/disk[vda]/iotune/read_bytes_sec"},
		{"devices", "domif-setlink DOMAIN 02:00:00:00:00:0b down", "devices/interface[02:00:00:00:00:0b]/link@state"},
		{"devices", "domiftune DOMAIN 02:00:00:00:00:0a --inbound 100", "devices/interface[02:00:00:00:00:0a]/bandwidth/inbound@average"},
		{"devices", "change-media DOMAIN sdb --insert /isos/a.iso", "devices/disk[sdb]/source@file"},
		{"devices", "detach-disk DOMAIN vda", "devices/disk[vda]"},
		{"devices", "detach-interface DOMAIN user --mac 02:00:00:00:00:0b", "devices/interface[02:00:00:00:00:0b]"},
		{"devices", "detach-device-alias DOMAIN ua-gpu", "devices/hostdev[0000:81:01.0]"},
	} {
		define(t, daemon, test.domain, rendered[test.domain])
		arguments := strings.Fields(strings.Replace(test.command, "DOMAIN", test.domain, 1))
		daemon.Virsh(append(arguments, "--config")...)
		differences, err := domainxml.Compare(rendered[test.domain], daemon.Virsh("dumpxml", "--inactive", test.domain))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(differences, func(d domainxml.Difference) bool { return d.Path == test.path }) {
			t.Errorf("virsh %s: %s is not among %v", test.command, test.path, differences)
		}
	}
}

// TestLaunchSecurityIsCompared is for what no QEMU here can have.
func TestLaunchSecurityIsCompared(t *testing.T) {
	plain := definitions(t)["passthrough"]
	sealed := strings.Replace(plain, "</domain>", "<launchSecurity type='sev'><policy>0x0005</policy><session>BBBB</session></launchSecurity></domain>", 1)
	for _, test := range []struct{ rendered, defined, path string }{
		{sealed, strings.Replace(sealed, "0x0005", "5", 1), ""},
		{sealed, strings.Replace(sealed, "0x0005", "0x0001", 1), "launchSecurity/policy"},
		{sealed, strings.Replace(sealed, "<session>BBBB</session>", "", 1), "launchSecurity/session"},
		{sealed, strings.Replace(sealed, "'sev'", "'sev-snp'", 1), "launchSecurity@type"},
		{sealed, plain, "launchSecurity@type"},
		{plain, sealed, "launchSecurity@type"},
	} {
		differences, err := domainxml.Compare(test.rendered, test.defined)
		if err != nil {
			t.Fatal(err)
		}
		if test.path == "" && len(differences) > 0 {
			t.Errorf("%v is no difference", differences)
		}
		if test.path != "" && !slices.ContainsFunc(differences, func(d domainxml.Difference) bool { return d.Path == test.path }) {
			t.Errorf("%s is not among %v", test.path, differences)
		}
	}
}
