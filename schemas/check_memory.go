package schemas

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// minMemory is the least memory of a guest in bytes, as in KubeVirt.
const minMemory = 1_000_000

func (c *checker) checkMemory(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	resources := &spec.Domain.Resources
	request, limit := resources.Requests[corev1.ResourceMemory], resources.Limits[corev1.ResourceMemory]
	if !limit.IsZero() && request.Cmp(limit) > 0 {
		c.fail(c.in("domain", "resources", "requests", key("memory")), fmt.Sprintf("the request of %s is more than the limit of %s", request.String(), limit.String()), "raise the limit or lower the request")
	}
	c.checkHugepages(spec)
	c.checkMaxGuest(spec)
	if reserved := spec.Domain.Memory.ReservedOverhead; reserved != nil {
		path := func() []any { return c.in("domain", "memory", "reservedOverhead", "memLock") }
		if reserved.MemLock != nil {
			oneOf(c, path, *reserved.MemLock, kubevirtv1.MemLockRequired, kubevirtv1.MemLockNotRequired)
		}
		if added := reserved.AddedOverhead; added != nil && (added.Sign() < 0 || !wholeBytes(added)) {
			c.checkSize(c.in("domain", "memory", "reservedOverhead", "addedOverhead"), added, "memory")
		}
	}
	guest := spec.Domain.Memory.Guest
	if guest == nil {
		c.noMemory()
		return
	}
	small := request.Sign() > 0 && request.CmpInt64(minMemory) < 0
	if guest.CmpInt64(minMemory) >= 0 && wholeBytes(guest) && (limit.IsZero() || guest.Cmp(limit) <= 0) && !small {
		return
	}
	path := c.in("domain", "memory", "guest")
	if !c.wasGiven(path) {
		path = c.firstGiven(c.in("domain", "resources", "requests", "memory"), c.in("domain", "resources", "limits", "memory"))
	} else if small {
		c.fail(c.in("domain", "resources", "requests", key("memory")), fmt.Sprintf("%s of memory is less than 1M", request.String()), inMegabytes(&request))
	}
	c.checkSize(path, guest, "memory")
	if guest.Sign() > 0 && wholeBytes(guest) && guest.CmpInt64(minMemory) < 0 {
		c.fail(path, fmt.Sprintf("%s of memory is less than 1M", guest.String()), inMegabytes(guest))
	}
	if !limit.IsZero() && guest.Cmp(limit) > 0 {
		c.fail(path, fmt.Sprintf("%s of memory is more than the limit of %s", guest.String(), limit.String()), "raise the limit or lower the memory")
	}
}

// noMemory reports a machine of which nobody says how much memory it has.
func (c *checker) noMemory() {
	for _, path := range [][]any{c.in("domain", "resources", "requests", "memory"), c.in("domain", "resources", "limits", "memory")} {
		if c.wasGiven(path) {
			c.fail(path, "must be more than 0", "write how much memory the guest has, such as 1Gi")
			return
		}
	}
	if !c.misread(c.in("domain", "resources")) && !c.misread(c.in("domain", "memory", "hugepages")) {
		c.fail(c.in("domain", "memory", "guest"), "no memory", "say how much the guest has, such as 1Gi")
	}
}

// memoryBlock is what memory that can grow is made of, in bytes: QEMU's advice for virtio-mem and DIMMs.
const memoryBlock = 2 << 20

// checkMaxGuest checks whether the guest's memory can grow up to maxGuest.
func (c *checker) checkMaxGuest(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	most, guest := spec.Domain.Memory.MaxGuest, spec.Domain.Memory.Guest
	if most == nil {
		return
	}
	path := c.in("domain", "memory", "maxGuest")
	if most.Sign() <= 0 || !wholeBytes(most) {
		c.checkSize(path, most, "memory")
		return
	}
	block, said := int64(memoryBlock), "2Mi"
	if pages := spec.Domain.Memory.Hugepages; pages != nil && pages.PageSize == "1Gi" {
		block, said = 1<<30, "1Gi"
	}
	cpu := spec.Domain.CPU
	for _, rule := range []struct {
		broken       bool
		message, fix string
	}{
		{guest != nil && guest.Cmp(*most) > 0, "less than the guest's memory", "raise maxGuest or lower guest"},
		{most.Value()%block != 0, "not a multiple of " + said + ", the blocks in which memory grows", "use a multiple of " + said},
		{cpu.Realtime != nil, "the memory of a realtime machine cannot grow", "remove maxGuest"},
		{cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil, "memory that lies on the host's NUMA nodes cannot grow", "remove maxGuest"},
		{spec.Domain.LaunchSecurity != nil, "encrypted memory cannot grow", "remove maxGuest"},
		{spec.Architecture == archS390X, "the memory of an s390x machine cannot grow", "remove maxGuest"},
	} {
		if rule.broken {
			c.fail(path, rule.message, rule.fix)
			return
		}
	}
	if guest != nil && guest.Value()%block != 0 {
		c.fail(c.firstGiven(c.in("domain", "memory", "guest"), path), "not a multiple of "+said+", the blocks in which memory grows", "use a multiple of "+said)
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
		written := q.String()
		if n, all := locateAll(c.root, path); all && n.Value != "" {
			written = n.Value
		}
		fix := "use a size such as 1Gi"
		if number, ok := strings.CutSuffix(written, "m"); ok {
			fix = fmt.Sprintf("m means thousandths; did you mean %sM or %sMi?", number, number)
		} else if strings.Trim(written, "0123456789.") == "" {
			fix = fmt.Sprintf("did you mean %sGi?", written)
		}
		c.fail(path, written+" is not a whole number of bytes", fix)
	}
}

// inMegabytes says what a number that is too small to be memory was probably meant to be.
func inMegabytes(q *resource.Quantity) string {
	if number := q.String(); strings.Trim(number, "0123456789") == "" {
		return fmt.Sprintf("did you mean %sMi?", number)
	}
	return "use a size such as 1Gi"
}
