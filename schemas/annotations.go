package schemas

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// The annotations of a VM that gitvirt reads.
const (
	// AnnotationPrefix begins the names of gitvirt's own settings.
	AnnotationPrefix = "gitvirt.io/"
	// AnnotationProtect ("true") keeps the machine from being destroyed or replaced.
	AnnotationProtect = "gitvirt.io/protect"
	// AnnotationAdopt names a domain that exists already and becomes this machine.
	AnnotationAdopt = "gitvirt.io/adopt"
	// AnnotationPreviousName is the NAME or NAMESPACE/NAME that this machine had; its domain and disks go with it.
	AnnotationPreviousName = "gitvirt.io/previous-name"
	// AnnotationDependsOn lists machines that have to be ready first: "db-1, infra/dns=tcp:53".
	AnnotationDependsOn = "gitvirt.io/depends-on"
	// AnnotationReady says when the machine counts as ready: a Ready, such as "agent" or "tcp:22".
	AnnotationReady = "gitvirt.io/ready"
)

// UnreadAnnotation is an annotation by which KubeVirt makes another machine, and which gitvirt does not read.
type UnreadAnnotation struct {
	Name string
	// About says what that means on a host, Instead what to do.
	About, Instead string
}

// UnreadAnnotations are those that people set. They are warnings only: KubeVirt's own examples have some of them.
func UnreadAnnotations() []UnreadAnnotation {
	const layout = "libvirt lays out the addresses of the devices"
	return []UnreadAnnotation{
		{"hooks.kubevirt.io/hookSidecars", "hooks are containers beside KubeVirt's launcher, and none of them runs here", "say it with fields of the manifest, and remove it"},
		{kubevirtv1.IgnitionAnnotation, "the guest does not get it", "write Ignition's config as userData of a cloudInitConfigDrive volume"},
		{kubevirtv1.PlacePCIDevicesOnRootComplex, layout, "write pciAddress where the address matters, and remove it"},
		{kubevirtv1.DisablePCIHole64, "the machine keeps its 64-bit PCI hole", "use a guest that can do with one, and remove it"},
		{kubevirtv1.PciTopologyVersionAnnotation, layout, "remove it"},
		{kubevirtv1.PciInterfaceSlotCountAnnotation, layout, "remove it"},
		{kubevirtv1.MemfdMemoryBackend, "whether memory is a memfd follows from the devices that share it", "remove it"},
		{kubevirtv1.FreePageReportingDisabledAnnotation, "free pages are reported unless the machine has CPUs or huge pages of its own", "write autoattachMemBalloon: false, which takes the whole balloon away"},
		{kubevirtv1.VGADisplayForEFIGuestsX86Annotation, "the video device does not follow from it", "write domain.devices.video: {type: vga}"},
		{kubevirtv1.EmulatorThreadCompleteToEvenParity, "isolateEmulatorThread takes one CPU of the host", "ask for an odd number of vCPUs, or remove it"},
		{kubevirtv1.PauseGuestAgentProbesAnnotation, "probes are run whatever it says", "remove the probe while it must not run"},
		{kubevirtv1.QGSSocketPathAnnotation, "the guest gets no socket for quotes", "remove it"},
		{kubevirtv1.CustomLibvirtLogFiltersAnnotation, "libvirt's log is that of the host", "set log_filters in libvirtd.conf of the host, or virtqemud.conf"},
		{kubevirtv1.KeepLauncherAfterFailureAnnotation, "there is no launcher: libvirt keeps the log of a machine that failed", "look below /var/log/libvirt/qemu on the host, and remove it"},
	}
}

// sortedKeys returns the keys of a map in the order in which mistakes in it are told, so that a list that is cut off is
// the same each time.
func sortedKeys[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

// settingNames are the annotations that gitvirt reads.
func settingNames() []string {
	return []string{AnnotationProtect, AnnotationAdopt, AnnotationPreviousName, AnnotationDependsOn, AnnotationReady}
}

// annotations checks gitvirt's own settings where they are read.
func (c *checker) annotations(annotations map[string]string) {
	for _, name := range sortedKeys(annotations) {
		if !strings.HasPrefix(name, AnnotationPrefix) {
			continue
		}
		path := at("metadata", "annotations", key(name))
		if !slices.Contains(settingNames(), name) && c.wasGiven(path) { // a misspelt gitvirt.io/protect protects nothing
			c.unknownSetting(path, name)
		}
	}
}

func (c *checker) unknownSetting(path []any, name string) {
	fix := "known: " + strings.Join(settingNames(), ", ")
	var words []string
	for _, known := range settingNames() {
		words = append(words, strings.TrimPrefix(known, AnnotationPrefix))
	}
	if near := closest(strings.TrimPrefix(name, AnnotationPrefix), words); near != "" {
		fix = fmt.Sprintf("did you mean %s?", AnnotationPrefix+near)
	}
	c.warn(path, "gitvirt has no such setting", fix)
}

// misplaced reports gitvirt's settings among labels or annotations that are not read for them: people believe that a
// machine is protected which is not. owner is the kind that has the settings.
func (c *checker) misplaced(path []any, names map[string]string, owner string) {
	for _, name := range sortedKeys(names) {
		switch {
		case !strings.HasPrefix(name, AnnotationPrefix):
		case slices.Contains(settingNames(), name):
			c.fail(append(path[:len(path):len(path)], key(name)), "it does nothing here", "write it under metadata.annotations of the "+owner)
		default:
			c.unknownSetting(append(path[:len(path):len(path)], key(name)), name)
		}
	}
}

// unread warns of annotations that KubeVirt makes another machine by.
func (c *checker) unread(path []any, annotations map[string]string) {
	if len(annotations) == 0 {
		return
	}
	for _, known := range UnreadAnnotations() {
		if _, given := annotations[known.Name]; given {
			c.warn(slices.Concat(path, at(key(known.Name))), "known to KubeVirt, not carried out by gitvirt: "+known.About, known.Instead)
		}
	}
}
