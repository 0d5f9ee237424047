package fake

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/devicexml"
)

// devices are the elements that libvirt knows below <devices> and has a live call for.
var devices = map[string]bool{
	"disk": true, "interface": true, "memory": true, "hostdev": true, "channel": true, "controller": true, "rng": true,
	"filesystem": true, "input": true, "vsock": true, "watchdog": true, "redirdev": true, "shmem": true, "serial": true,
	"console": true, "lease": true, "graphics": true, "tpm": true, "sound": true, "video": true, "memballoon": true,
}

// part is what matters of a device when a guest is changed.
type part struct {
	XMLName xml.Name
	Type    string `xml:"type,attr"`
	Model   string `xml:"model,attr"`
	Device  string `xml:"device,attr"` // of a disk
	Index   string `xml:"index,attr"`  // of a controller
	Target  struct {
		Dev       string    `xml:"dev,attr"`
		Bus       string    `xml:"bus,attr"`
		Size      *quantity `xml:"size"`
		Requested *quantity `xml:"requested"`
	} `xml:"target"`
	Address struct {
		Type string `xml:"type,attr"`
		Bus  string `xml:"bus,attr"`
	} `xml:"address"`
}

func partOf(device string) (part, error) {
	var p part
	err := xml.Unmarshal([]byte(device), &p)
	return p, err
}

// onPCI reports whether a device takes a slot of the PCI bus that a guest's own devices share.
func (p *part) onPCI() bool {
	switch p.XMLName.Local {
	case "disk":
		return p.Target.Bus == "virtio" || (p.Target.Bus == "" && strings.HasPrefix(p.Target.Dev, "vd"))
	case "interface", "rng", "filesystem", "vsock":
		return true
	case "memory":
		return strings.HasPrefix(p.Model, "virtio-")
	case "memballoon":
		return p.Model != "none"
	case "hostdev":
		return p.Type == "pci"
	case "controller":
		return p.Type == "scsi" || p.Type == "virtio-serial" || (p.Type == "usb" && p.Model != "none")
	}
	return false
}

// attach does what `virsh attach-device --live` does.
func attach(d *domain, named *devicexml.Device, device string) error {
	list, err := devicexml.List(d.Live)
	if err != nil {
		return err
	}
	p, err := partOf(device)
	if err != nil {
		return fmt.Errorf("%w: %w", hypervisor.ErrInvalid, err)
	}
	if _, found := devicexml.Find(list, named); found {
		return refused("it has a device with this target, MAC address or alias already")
	}
	switch named.Kind {
	case "disk":
		err = canAttachDisk(named, &p)
	case "memory":
		err = d.plugMemory(&p)
	case "interface", "hostdev", "channel", "controller", "rng", "redirdev", "input", "watchdog", "vsock", "shmem", "filesystem", "lease":
	default:
		err = refused("live attach of device '%s' is not supported", named.Kind)
	}
	if err != nil {
		return err
	}
	device, err = d.complete(named, &p, device, list)
	if err != nil {
		return err
	}
	if p.XMLName.Local == "memory" {
		d.Live = addMemory(d.Live, &p)
	}
	d.Live = insertDevice(d.Live, device)
	return nil
}

func canAttachDisk(named *devicexml.Device, p *part) error {
	switch bus := p.Target.Bus; {
	case named.Target == "":
		return fmt.Errorf("%w: missing target information for disk", hypervisor.ErrInvalid)
	case bus == "sata" || bus == "ide" || bus == "fdc":
		return refused("disk device type '%s' with bus '%s' cannot be hotplugged", p.Device, bus)
	case p.Device == "cdrom" && bus != "scsi" && bus != "usb", p.Device == "floppy":
		return refused("disk device type '%s' cannot be hotplugged", p.Device)
	}
	return nil
}

// plugMemory refuses memory for which the guest has no room.
func (d *domain) plugMemory(p *part) error {
	size, err := sizeOf(d.Live)
	if err != nil {
		return err
	}
	switch {
	case p.Target.Size == nil:
		return fmt.Errorf("%w: missing memory size", hypervisor.ErrInvalid)
	case p.Target.Requested != nil && p.Target.Requested.kib() > p.Target.Size.kib():
		return fmt.Errorf("%w: requested size must be smaller than or equal to size", hypervisor.ErrInvalid)
	case size.MaxMemory == nil:
		return refused("cannot use/hotplug a memory device when domain 'maxMemory' is not defined")
	case len(size.Plugged) >= size.MaxMemory.Slots:
		return refused("memory device count '%d' exceeds slots count '%d'", len(size.Plugged)+1, size.MaxMemory.Slots)
	case size.Memory.kib()+p.Target.Size.kib() > size.MaxMemory.kib():
		return refused("Attaching memory device with size '%d' would exceed domain's maxMemory config size", p.Target.Size.kib())
	}
	return nil
}

// complete gives a device what libvirt assigns: an alias, a MAC address and a slot of the PCI bus.
func (d *domain) complete(named *devicexml.Device, p *part, device string, list []devicexml.Device) (string, error) {
	d.plugged++
	var added strings.Builder
	if named.Kind == "interface" && named.MAC == "" {
		fmt.Fprintf(&added, "<mac address='52:54:00:00:%02x:%02x'/>", d.plugged>>8&0xff, d.plugged&0xff)
	}
	if named.Alias == "" {
		fmt.Fprintf(&added, "<alias name='%s-plugged%d'/>", named.Kind, d.plugged)
	}
	if p.onPCI() && p.Address.Type == "" {
		bus, limited, free := d.freeSlot(list)
		switch {
		case limited && !free:
			return "", refused("No more available PCI slots")
		case limited:
			fmt.Fprintf(&added, "<address type='pci' domain='0x0000' bus='0x%02x' slot='0x00' function='0x0'/>", bus)
		}
	}
	if named.Kind == "memory" && p.Target.Requested != nil {
		device = setCurrent(device, p.Target.Requested.kib())
	}
	return devicexml.Append(device, added.String()), nil
}

// freeSlot returns a PCI root port that nothing uses. Only a guest of machine q35, or one whose definition names root ports, is
// limited: what is said of others is too little to count.
func (d *domain) freeSlot(list []devicexml.Device) (bus int, limited, free bool) {
	used := map[string]bool{}
	var ports []int
	unplaced := 0
	for _, other := range list {
		p, err := partOf(d.Live[other.Start:other.End])
		switch {
		case err != nil:
		case p.XMLName.Local == "controller" && p.Model == "pcie-root-port":
			port := len(ports) + 1
			if index, err := strconv.Atoi(p.Index); err == nil {
				port = index
			}
			ports = append(ports, port)
		case p.Address.Type == "pci":
			used[p.Address.Bus] = true
		case p.onPCI():
			unplaced++
		}
	}
	for _, port := range ports {
		if used[fmt.Sprintf("0x%02x", port)] {
			continue
		}
		if unplaced--; unplaced < 0 {
			return port, true, true
		}
	}
	return 0, len(ports) > 0 || strings.Contains(d.Live, "q35"), false
}

// detach does what `virsh detach-device --live` does, and the guest lets go.
func detach(d *domain, named *devicexml.Device, _ string) error {
	list, err := devicexml.List(d.Live)
	if err != nil {
		return err
	}
	found, ok := devicexml.Find(list, named)
	if !ok {
		return nil
	}
	p, err := partOf(d.Live[found.Start:found.End])
	switch {
	case err != nil:
		return err
	case named.Kind == "disk" && (p.Target.Bus == "sata" || p.Target.Bus == "ide" || p.Target.Bus == "fdc"):
		return refused("This type of disk cannot be hot unplugged")
	case d.keepsDevices:
		return refused("the guest has not let go of the device in time")
	}
	if p.XMLName.Local == "memory" {
		d.Live = removeMemory(d.Live, &p)
		if list, err = devicexml.List(d.Live); err != nil {
			return err
		}
		found, _ = devicexml.Find(list, named)
	}
	d.Live = d.Live[:found.Start] + d.Live[found.End:]
	delete(d.sizes, found.Target)
	return nil
}

// update does what `virsh update-device --live` does.
func update(d *domain, named *devicexml.Device, device string) error {
	list, err := devicexml.List(d.Live)
	if err != nil {
		return err
	}
	found, ok := devicexml.Find(list, named)
	if !ok {
		return refused("no device matching the given %s was found", named.Kind)
	}
	old := d.Live[found.Start:found.End]
	was, wasErr := partOf(old)
	now, nowErr := partOf(device)
	switch {
	case wasErr != nil || nowErr != nil:
		return fmt.Errorf("%w: the device cannot be read", hypervisor.ErrInvalid)
	case named.Kind == "disk" && was.Device != "cdrom" && was.Device != "floppy":
		if source(old) != source(device) {
			return refused("disk device type '%s' cannot be modified: the source", was.Device)
		}
	case named.Kind == "interface" && was.Type != now.Type:
		return refused("cannot change network interface type from '%s' to '%s'", was.Type, now.Type)
	case named.Kind == "interface" && cardModel(old) != cardModel(device):
		return refused("cannot modify network device model from %s to %s", cardModel(old), cardModel(device))
	case named.Kind == "memory" && (now.Target.Requested == nil || now.Target.Requested.kib() > was.Target.Size.kib()):
		return refused("requested size must be smaller than or equal to size")
	case named.Kind == "memory":
		device = setCurrent(old, now.Target.Requested.kib())
	case named.Kind != "disk" && named.Kind != "interface" && named.Kind != "graphics":
		return refused("live update of device '%s' is not supported", named.Kind)
	}
	d.Live = d.Live[:found.Start] + devicexml.KeepAssigned(old, device) + d.Live[found.End:]
	if named.Kind != "memory" || was.Target.Requested == nil {
		return nil
	}
	s, err := sizeOf(d.Live)
	if err == nil && s.Current != nil {
		d.Live = setKiB(d.Live, "currentMemory", s.Current.kib()-was.Target.Requested.kib()+now.Target.Requested.kib())
	}
	return err
}

var (
	modelElement  = regexp.MustCompile(`<model\s[^>]*>`)
	sourceElement = regexp.MustCompile(`<source\s[^>]*>`)
)

// source is the element that says where a disk is.
func source(device string) string {
	return strings.ReplaceAll(sourceElement.FindString(device), `"`, "'")
}

// cardModel is the element that says what a network card is.
func cardModel(device string) string {
	return strings.ReplaceAll(modelElement.FindString(device), `"`, "'")
}

// insertDevice puts a device at the end of a domain's.
func insertDevice(live, device string) string {
	if at := strings.LastIndex(live, "</devices>"); at >= 0 {
		return live[:at] + device + live[at:]
	}
	live = strings.Replace(live, "<devices/>", "", 1)
	at := strings.LastIndex(live, "</domain>")
	return live[:at] + "<devices>" + device + "</devices>" + live[at:]
}
