package schemas

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
)

// What an instancetype or a preference says is checked twice: here as far as it makes sense by itself, so that the mistake
// is told where it is, and with each machine that it becomes part of.

// ruled checks the values below path against the table of values.
func (c *checker) ruled(path []any, v reflect.Value) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	info := infoOf(v.Type())
	switch info.shape {
	case shapeStruct:
	case shapeSlice:
		for i := range v.Len() {
			c.ruled(slices.Concat(path, at(i)), v.Index(i))
		}
		return
	default:
		return
	}
	for i := range info.fields {
		field := &info.fields[i]
		value := field.at(v, false)
		if !value.IsValid() || value.IsZero() {
			continue
		}
		below := slices.Concat(path, at(field.name))
		rule := fieldRules()[fieldKey{ownerOf(v.Type(), field), field.name}]
		if value.Kind() == reflect.Pointer {
			value = value.Elem()
		}
		if value.Kind() == reflect.String && len(rule.values) > 0 {
			oneOf(c, func() []any { return below }, value.String(), rule.values...)
			continue
		}
		c.ruled(below, value)
	}
}

// checkInstancetype checks what an instancetype says beside the number of vCPUs.
func (c *checker) checkInstancetype(spec *instancetypev1.VirtualMachineInstancetypeSpec) {
	c.ruled(c.spec, reflect.ValueOf(spec))
	memory := &spec.Memory
	guest := c.in("memory", "guest")
	if !c.wasGiven(guest) {
		c.fail(guest, "no memory", "write memory.guest, such as 2Gi")
	} else if c.checkSize(guest, &memory.Guest, "memory"); memory.Guest.Sign() > 0 && wholeBytes(&memory.Guest) && memory.Guest.CmpInt64(minMemory) < 0 {
		c.fail(guest, fmt.Sprintf("%s of memory is less than 1M", memory.Guest.String()), inMegabytes(&memory.Guest))
	}
	if maximum := memory.MaxGuest; maximum != nil {
		path := c.in("memory", "maxGuest")
		if c.checkSize(path, maximum, "memory"); maximum.Sign() > 0 && maximum.Cmp(memory.Guest) < 0 {
			c.fail(path, fmt.Sprintf("%s is less than memory.guest, which is %s", maximum.String(), memory.Guest.String()), "write more, or leave it out")
		}
	}
	if pages := memory.Hugepages; pages != nil {
		path := c.in("memory", "hugepages", "pageSize")
		size, err := resource.ParseQuantity(pages.PageSize)
		known := slices.ContainsFunc([]string{archAMD64, archARM64, archS390X}, func(architecture string) bool {
			return slices.ContainsFunc(pageSizes(architecture), func(one string) bool {
				quantity := resource.MustParse(one)
				return err == nil && quantity.Cmp(size) == 0
			})
		})
		switch sizes := pageSizes(archAMD64); {
		case pages.PageSize == "":
			c.fail(path, "no page size", "write one of "+strings.Join(sizes, ", "))
		case !known:
			c.fail(path, quoteValue(pages.PageSize)+" is not a size of huge pages", "use "+strings.Join(sizes, " or "))
		case memory.Guest.Sign() > 0 && wholeBytes(&memory.Guest) && memory.Guest.Value()%size.Value() != 0:
			c.fail(guest, fmt.Sprintf("%s is not a whole number of pages of %s", memory.Guest.String(), pages.PageSize), "use a multiple of "+pages.PageSize)
		}
	}
	if model := spec.CPU.Model; model != nil && *model != "" && !isToken(*model) {
		c.fail(c.in("cpu", "model"), quoteValue(*model)+" is not a CPU model", "use a name of `virsh cpu-models x86_64`, host-model or host-passthrough")
	}
	if most := spec.CPU.MaxSockets; most != nil && *most == 0 {
		c.fail(c.in("cpu", "maxSockets"), "must be at least 1", "write 1 or more, or leave it out")
	}
}

// checkPreference checks what a preference says beside the topology.
func (c *checker) checkPreference(spec *instancetypev1.VirtualMachinePreferenceSpec) {
	c.ruled(c.spec, reflect.ValueOf(spec))
	if machine := spec.Machine; machine != nil && machine.PreferredMachineType != "" {
		known := slices.ContainsFunc([]string{archAMD64, archARM64, archS390X}, func(architecture string) bool {
			alias, versions := machineTypes(architecture)
			return isToken(machine.PreferredMachineType) && (machine.PreferredMachineType == alias || strings.HasPrefix(machine.PreferredMachineType, versions))
		})
		if !known {
			c.fail(c.in("machine", "preferredMachineType"), quoteValue(machine.PreferredMachineType)+" is not a machine type", "use q35, virt or s390-ccw-virtio, or leave it out")
		}
	}
	if seconds := spec.PreferredTerminationGracePeriodSeconds; seconds != nil && (*seconds < 0 || *seconds > math.MaxInt32) {
		c.fail(c.in("preferredTerminationGracePeriodSeconds"), fmt.Sprintf("%d is not from 0 to 68 years", *seconds), "use a number such as 30")
	}
	if subdomain := spec.PreferredSubdomain; subdomain != nil && *subdomain != "" {
		if problem := nameProblem(*subdomain, 253, true); problem != "" {
			c.fail(c.in("preferredSubdomain"), problem, "use lower case letters, digits, dashes and dots")
		}
	}
	if needs := spec.Requirements; needs != nil && needs.Memory != nil && needs.Memory.Guest.Sign() < 0 {
		c.fail(c.in("requirements", "memory", "guest"), "must not be negative", "write a size such as 2Gi")
	}
}
