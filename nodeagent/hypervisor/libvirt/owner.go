package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"

	lv "libvirt.org/go/libvirt"
)

// QEMUOwner returns the user and group that libvirt runs QEMU as, for files that libvirt does not hand over itself; false when it
// does not say.
func (h *Hypervisor) QEMUOwner(ctx context.Context) (uid, gid int, known bool, err error) {
	document, err := call(ctx, h, quick, func(c *lv.Connect) (string, error) { return c.GetCapabilities() })
	if err != nil {
		return 0, 0, false, doing(err, "read the capabilities of", "the host")
	}
	uid, gid, known = ownerOf(document)
	return uid, gid, known, nil
}

// ownerOf reads the label of the security model "dac": "+64055:+108".
func ownerOf(document string) (uid, gid int, known bool) {
	var capabilities struct {
		Models []struct {
			Model  string   `xml:"model"`
			Labels []string `xml:"baselabel"`
		} `xml:"host>secmodel"`
	}
	if xml.Unmarshal([]byte(document), &capabilities) != nil {
		return 0, 0, false
	}
	for _, model := range capabilities.Models {
		for _, label := range model.Labels {
			if _, err := fmt.Sscanf(label, "+%d:+%d", &uid, &gid); model.Model == "dac" && err == nil {
				return uid, gid, true
			}
		}
	}
	return 0, 0, false
}
