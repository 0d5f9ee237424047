package schemas

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func (c *checker) checkCPU(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	cpu := spec.Domain.CPU
	total := uint64(cpu.Cores) * uint64(cpu.Sockets) // fits: both have 32 bits
	if total > maxCPUs || total*uint64(cpu.Threads) > maxCPUs {
		c.fail(c.in("domain", "cpu"), fmt.Sprintf("%d sockets of %d cores of %d threads are more than %d CPUs", cpu.Sockets, cpu.Cores, cpu.Threads, maxCPUs),
			"cores, sockets and threads are multiplied: use smaller numbers")
	}
	for i, feature := range cpu.Features {
		path := func() []any { return c.in("domain", "cpu", "features", i, "policy") }
		oneOf(c, path, feature.Policy, "force", "require", "optional", "disable", "forbid")
		if feature.Name == "" {
			c.fail(c.in("domain", "cpu", "features", i, "name"), "no name", "name the CPU feature, such as vmx")
		}
	}
	resources := &spec.Domain.Resources
	for _, list := range []struct {
		name   string
		values corev1.ResourceList
	}{{"requests", resources.Requests}, {"limits", resources.Limits}} {
		for name, quantity := range list.values {
			path := func() []any { return c.in("domain", "resources", list.name, key(name)) }
			switch {
			case name != corev1.ResourceCPU && name != corev1.ResourceMemory:
				c.fail(path(), "machines have no such resource", "use cpu and memory")
			case quantity.Sign() < 0:
				c.fail(path(), "must not be negative", "")
			}
		}
	}
	request, limit := resources.Requests[corev1.ResourceCPU], resources.Limits[corev1.ResourceCPU]
	if !limit.IsZero() && request.Cmp(limit) > 0 {
		c.fail(c.in("domain", "resources", "requests", key("cpu")), fmt.Sprintf("the request of %s is more than the limit of %s", request.String(), limit.String()), "raise the limit or lower the request")
	}
	if limit.CmpInt64(maxCPUs) > 0 || request.CmpInt64(maxCPUs) > 0 {
		c.fail(c.in("domain", "resources"), fmt.Sprintf("more than %d CPUs", maxCPUs), "")
	}
}

func (c *checker) checkMemory(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	resources := &spec.Domain.Resources
	request, limit := resources.Requests[corev1.ResourceMemory], resources.Limits[corev1.ResourceMemory]
	if !limit.IsZero() && request.Cmp(limit) > 0 {
		c.fail(c.in("domain", "resources", "requests", key("memory")), fmt.Sprintf("the request of %s is more than the limit of %s", request.String(), limit.String()), "raise the limit or lower the request")
	}
	guest := spec.Domain.Memory.Guest
	if guest == nil {
		for _, path := range [][]any{c.in("domain", "resources", "requests", "memory"), c.in("domain", "resources", "limits", "memory")} {
			if c.wasGiven(path) {
				c.fail(path, "must be more than 0", "write how much memory the guest has, such as 1Gi")
				return
			}
		}
		if !c.misread(c.in("domain", "resources")) {
			c.fail(c.in("domain", "memory", "guest"), "no memory", "say how much the guest has, such as 1Gi")
		}
		return
	}
	if guest.CmpInt64(1_000_000) >= 0 && wholeBytes(guest) && (limit.IsZero() || guest.Cmp(limit) <= 0) {
		return
	}
	path := c.in("domain", "memory", "guest")
	if !c.wasGiven(path) {
		path = c.in("domain", "resources", "requests", "memory")
		if !c.wasGiven(path) {
			path = c.in("domain", "resources", "limits", "memory")
		}
	}
	c.checkSize(path, guest, "memory")
	if guest.Sign() > 0 && wholeBytes(guest) && guest.CmpInt64(1_000_000) < 0 {
		c.fail(path, fmt.Sprintf("%s of memory is less than 1M", guest.String()), fmt.Sprintf("did you mean %sMi?", guest.String()))
	}
	if !limit.IsZero() && guest.Cmp(limit) > 0 {
		c.fail(path, fmt.Sprintf("%s of memory is more than the limit of %s", guest.String(), limit.String()), "raise the limit or lower the memory")
	}
}

// wholeBytes tells quantities that are no fraction of a byte.
func wholeBytes(q *resource.Quantity) bool {
	if _, exact := q.AsInt64(); exact {
		return true
	}
	whole := resource.NewQuantity(q.Value(), q.Format)
	return whole.Cmp(*q) == 0
}

// checkSize reports a number of bytes that is not positive or not whole.
func (c *checker) checkSize(path []any, q *resource.Quantity, what string) {
	switch {
	case q.Sign() == 0:
		c.fail(path, "must be more than 0", fmt.Sprintf("write how much %s the machine has, such as 1Gi", what))
	case q.Sign() < 0:
		c.fail(path, fmt.Sprintf("%s is negative", q.String()), "use a size such as 1Gi")
	case !wholeBytes(q):
		text, fix := q.String(), "use a size such as 1Gi"
		if number, ok := strings.CutSuffix(text, "m"); ok {
			fix = fmt.Sprintf("m means thousandths; did you mean %sM or %sMi?", number, number)
			if written := locate(c.root, path).Value; strings.HasSuffix(written, "m") {
				number = strings.TrimSuffix(written, "m")
				fix = fmt.Sprintf("m means thousandths; did you mean %sM or %sMi?", number, number)
			}
		}
		c.fail(path, text+" is not a whole number of bytes", fix)
	}
}

func (c *checker) checkFirmware(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	firmware := spec.Domain.Firmware
	if id := string(firmware.UUID); id != "" {
		path := func() []any { return c.in("domain", "firmware", "uuid") }
		if parsed, err := uuid.Parse(id); err != nil || len(id) != 36 {
			c.fail(path(), quoteValue(id)+" is not a UUID", "write it as 5d307ca9-b3ef-428c-8861-06e72d69f223, or leave it out")
		} else if parsed == uuid.Nil {
			c.fail(path(), "the UUID is all zeros", "leave it out, gitvirt derives one")
		} else {
			c.claim(claimUUID, parsed.String(), path(), false)
		}
	}
	c.checkSerial(func() []any { return c.in("domain", "firmware", "serial") }, firmware.Serial)
	if loader := firmware.Bootloader; loader != nil && loader.BIOS != nil && loader.EFI != nil {
		c.fail(c.in("domain", "firmware", "bootloader"), "bios and efi exclude each other", "keep one")
	} else if loader != nil && loader.EFI != nil && (loader.EFI.SecureBoot == nil || *loader.EFI.SecureBoot) {
		if smm := spec.Domain.Features.SMM; smm == nil || smm.Enabled == nil || !*smm.Enabled {
			c.fail(c.in("domain", "firmware", "bootloader", "efi"), "secure boot, which is on by default, needs the feature smm",
				"add features.smm: {} to domain, or write secureBoot: false")
		}
	}
	c.checkKernelBoot(firmware.KernelBoot)
	if machine := spec.Domain.Machine; machine != nil && machine.Type != "" && !isToken(machine.Type) {
		c.fail(c.in("domain", "machine", "type"), quoteValue(machine.Type)+" is not a machine type", "use q35, or leave it out")
	}
	if clock := spec.Domain.Clock; clock != nil && clock.UTC != nil && clock.Timezone != nil {
		c.fail(c.in("domain", "clock"), "utc and timezone exclude each other", "keep one")
	}
	if clock := spec.Domain.Clock; clock != nil && clock.Timer != nil {
		c.checkTimers(clock.Timer)
	}
	if hyperv := spec.Domain.Features.Hyperv; hyperv != nil && hyperv.VendorID != nil && len(hyperv.VendorID.VendorID) > 12 {
		c.fail(c.in("domain", "features", "hyperv", "vendorid", "vendorid"), "longer than 12 characters", "shorten it")
	}
}

func (c *checker) checkTimers(timer *kubevirtv1.Timer) {
	in := func(name, field string) func() []any {
		return func() []any { return c.in("domain", "clock", "timer", name, field) }
	}
	if timer.HPET != nil {
		oneOf(c, in("hpet", "tickPolicy"), timer.HPET.TickPolicy, "delay", "catchup", "merge", "discard")
	}
	if timer.PIT != nil {
		oneOf(c, in("pit", "tickPolicy"), timer.PIT.TickPolicy, "delay", "catchup", "discard")
	}
	if timer.RTC != nil {
		oneOf(c, in("rtc", "tickPolicy"), timer.RTC.TickPolicy, "delay", "catchup")
		oneOf(c, in("rtc", "track"), timer.RTC.Track, "guest", "wall")
	}
}

func (c *checker) checkKernelBoot(boot *kubevirtv1.KernelBoot) {
	if boot == nil {
		return
	}
	if boot.Container == nil {
		if boot.KernelArgs != "" {
			c.fail(c.in("domain", "firmware", "kernelBoot", "kernelArgs"), "arguments without a kernel", "add container with image and kernelPath")
		}
		return
	}
	in := func(field string) []any {
		return c.in("domain", "firmware", "kernelBoot", "container", field)
	}
	if boot.Container.Image == "" {
		c.fail(in("image"), "no image", "name the image that holds the kernel")
	} else if problem := imageProblem(boot.Container.Image); problem != "" {
		c.fail(in("image"), problem, "write it as registry/name:tag")
	}
	oneOf(c, func() []any { return in("imagePullPolicy") }, boot.Container.ImagePullPolicy, "Always", "IfNotPresent", "Never")
	if boot.Container.KernelPath == "" && boot.Container.InitrdPath == "" {
		c.fail(in("kernelPath"), "neither kernelPath nor initrdPath", "write where the kernel is in the image")
	}
	for _, file := range []struct{ name, path string }{{"kernelPath", boot.Container.KernelPath}, {"initrdPath", boot.Container.InitrdPath}} {
		if file.path == "" {
			continue
		}
		if problem := pathProblem(file.path); problem != "" {
			c.fail(in(file.name), problem, "write the absolute path of the file in the image")
		}
	}
}

func (c *checker) checkPlacement(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	if spec.Hostname != "" {
		if problem := nameProblem(spec.Hostname, 63, false); problem != "" {
			c.fail(c.in("hostname"), problem, "use lower case letters, digits and dashes")
		}
	}
	if spec.Subdomain != "" {
		if problem := nameProblem(spec.Subdomain, 253, true); problem != "" {
			c.fail(c.in("subdomain"), problem, "use lower case letters, digits, dashes and dots")
		}
	}
	if seconds := spec.TerminationGracePeriodSeconds; seconds != nil {
		if *seconds < 0 {
			c.fail(c.in("terminationGracePeriodSeconds"), fmt.Sprintf("%d is negative", *seconds), "use 0 to switch the machine off at once")
		} else if *seconds > math.MaxInt32 {
			c.fail(c.in("terminationGracePeriodSeconds"), fmt.Sprintf("%d seconds are more than 68 years", *seconds), "use a smaller number")
		}
	}
	if spec.EvictionStrategy != nil {
		oneOf(c, func() []any { return c.in("evictionStrategy") }, *spec.EvictionStrategy, "None", "LiveMigrate", "LiveMigrateIfPossible", "External")
	}
	switch spec.Architecture {
	case "x86_64":
		c.fail(c.in("architecture"), `"x86_64" is not how KubeVirt says it`, "write amd64")
	case "arm64", "s390x":
		c.fail(c.in("architecture"), fmt.Sprintf("%q is known to KubeVirt, not carried out by gitvirt", spec.Architecture), "use amd64")
	default:
		oneOf(c, func() []any { return c.in("architecture") }, spec.Architecture, "amd64")
	}
	for i, network := range spec.Networks {
		if network.Pod == nil {
			continue
		}
		for _, cidr := range []struct{ name, value string }{{"vmNetworkCIDR", network.Pod.VMNetworkCIDR}, {"vmIPv6NetworkCIDR", network.Pod.VMIPv6NetworkCIDR}} {
			if cidr.value == "" {
				continue
			}
			prefix, err := netip.ParsePrefix(cidr.value)
			if err != nil || prefix.Addr().Is4() != (cidr.name == "vmNetworkCIDR") {
				c.fail(c.in("networks", i, "pod", cidr.name), quoteValue(cidr.value)+" is not such a network", "write it as 10.0.2.0/24 or fd10:0:2::/120")
			}
		}
	}
}

func (c *checker) checkSmallDevices(devices *kubevirtv1.Devices) {
	for i, input := range devices.Inputs {
		in := func(field string) func() []any {
			return func() []any { return c.in("domain", "devices", "inputs", i, field) }
		}
		oneOf(c, in("bus"), input.Bus, "virtio", "usb")
		oneOf(c, in("type"), input.Type, "tablet", "keyboard")
	}
	if sound := devices.Sound; sound != nil {
		oneOf(c, func() []any { return c.in("domain", "devices", "sound", "model") }, sound.Model, "ich9", "ac97")
		if sound.Name == "" {
			c.fail(c.in("domain", "devices", "sound", "name"), "no name", "give the sound device a name")
		}
	}
	if watchdog := devices.Watchdog; watchdog != nil {
		if watchdog.I6300ESB != nil && watchdog.Diag288 != nil {
			c.fail(c.in("domain", "devices", "watchdog"), "i6300esb and diag288 exclude each other", "keep one")
		}
		if watchdog.I6300ESB != nil {
			oneOf(c, func() []any { return c.in("domain", "devices", "watchdog", "i6300esb", "action") }, watchdog.I6300ESB.Action, "poweroff", "reset", "shutdown")
		}
		if watchdog.Diag288 != nil {
			oneOf(c, func() []any { return c.in("domain", "devices", "watchdog", "diag288", "action") }, watchdog.Diag288.Action, "poweroff", "reset", "shutdown")
		}
	}
}
