// Package core stands in for kubevirt.io/virt-template-api, which KubeVirt's informers name and nothing here uses: the
// module cannot be had everywhere, and the converter has no business with templates.
package core

// The names of the resource.
const (
	SingularResourceName = "virtualmachinetemplate"
	PluralResourceName   = "virtualmachinetemplates"
	GroupName            = "template.kubevirt.io"
)
