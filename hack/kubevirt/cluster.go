package main

import (
	"fmt"
	"strings"

	k8sfield "k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"

	"kubevirt.io/kubevirt/pkg/defaults"
	"kubevirt.io/kubevirt/pkg/instancetype/apply"
	"kubevirt.io/kubevirt/pkg/testutils"
	"kubevirt.io/kubevirt/pkg/virt-api/webhooks/validating-webhook/admitters"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
)

// featureGates are all switched on: what a cluster may permit is permitted.
const featureGates = `AlignCPUs CPUManager ContainerPathVolumes DeclarativeHotplugVolumes DownwardMetrics
EnableVirtioFsConfigVolumes EnableVirtioFsStorageVolumes ExperimentalVirtiofsSupport GPU GPUsWithDRA HostDevices
HostDevicesWithDRA HostDisk HotplugVolumes HypervStrictCheck ImageVolume IncrementalBackup NUMA NetworkDevicesWithDRA PanicDevices
PasstBinding PersistentReservation Plugins ReservedOverheadMemlock Root SecureExecution Sidecar Snapshot UtilityVolumes
VMPersistentState VSOCK VideoConfig WorkloadEncryptionSEV WorkloadEncryptionTDX`

// cluster is what KubeVirt would find in a cluster.
type cluster struct {
	config        *virtconfig.ClusterConfig
	instancetypes map[string]*instancetypev1beta1.VirtualMachineInstancetypeSpec
	preferences   map[string]*instancetypev1beta1.VirtualMachinePreferenceSpec
	// block says that claims are block devices.
	block bool
}

// newCluster returns a cluster whose machines are not prepared for live updates, as a machine that is shown by itself.
func newCluster(block bool) *cluster {
	rollout := v1.VMRolloutStrategyStage
	config, _, _ := testutils.NewFakeClusterConfigUsingKVConfig(&v1.KubeVirtConfiguration{
		DeveloperConfiguration: &v1.DeveloperConfiguration{FeatureGates: strings.Fields(featureGates)},
		VMRolloutStrategy:      &rollout,
		PermittedHostDevices:   &v1.PermittedHostDevices{},
	})
	return &cluster{
		config: config, block: block,
		instancetypes: map[string]*instancetypev1beta1.VirtualMachineInstancetypeSpec{},
		preferences:   map[string]*instancetypev1beta1.VirtualMachinePreferenceSpec{},
	}
}

// judge returns the domain XML of a machine, "" when it cannot be converted, and why KubeVirt rejects the machine. A panic
// of KubeVirt is a reason as well.
func (c *cluster) judge(m machine) (document string, reasons []string) {
	defer func() {
		if r := recover(); r != nil {
			reasons = append(reasons, fmt.Sprintf("panic: %v", r))
		}
	}()
	vm, vmi, err := decode(m)
	if err != nil {
		return "", []string{"decode: " + err.Error()}
	}
	if vm != nil {
		reasons = c.expand(vm, vmi)
		for _, cause := range admitters.ValidateVirtualMachineSpec(k8sfield.NewPath("spec"), &vm.Spec, c.config, false) {
			reasons = append(reasons, cause.Field+": "+cause.Message)
		}
	}
	reasons = append(reasons, c.admit(vmi)...)
	document, err = c.convert(vmi)
	if err != nil {
		reasons = append(reasons, "convert: "+err.Error())
	}
	return document, reasons
}

// expand applies the instancetype and the preference.
func (c *cluster) expand(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) (conflicts []string) {
	var instancetype *instancetypev1beta1.VirtualMachineInstancetypeSpec
	var preference *instancetypev1beta1.VirtualMachinePreferenceSpec
	if vm.Spec.Instancetype != nil {
		instancetype = c.instancetypes[vm.Spec.Instancetype.Name]
	}
	if vm.Spec.Preference != nil {
		preference = c.preferences[vm.Spec.Preference.Name]
	}
	found := apply.NewVMIApplier().ApplyToVMI(k8sfield.NewPath("spec"), instancetype, preference, &vmi.Spec, &vmi.ObjectMeta)
	for _, conflict := range found {
		conflicts = append(conflicts, "conflict: "+conflict.String())
	}
	return conflicts
}

// admit fills in KubeVirt's defaults and returns what its admission says.
func (c *cluster) admit(vmi *v1.VirtualMachineInstance) (reasons []string) {
	if vmi.Namespace == "" {
		vmi.Namespace = "default"
	}
	if vmi.Spec.Architecture == "" {
		vmi.Spec.Architecture = "amd64"
	}
	if err := defaults.SetDefaultVirtualMachineInstance(c.config, vmi); err != nil {
		reasons = append(reasons, "defaults: "+err.Error())
	}
	spec := k8sfield.NewPath("spec")
	causes := admitters.ValidateVirtualMachineInstanceMandatoryFields(spec, &vmi.Spec)
	causes = append(causes, admitters.ValidateVirtualMachineInstancePerArch(spec, &vmi.Spec)...)
	causes = append(causes, admitters.ValidateVirtualMachineInstanceSpec(spec, &vmi.Spec, c.config)...)
	for _, cause := range causes {
		reasons = append(reasons, cause.Field+": "+cause.Message)
	}
	return reasons
}
