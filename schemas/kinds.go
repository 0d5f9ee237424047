package schemas

import (
	"cmp"
	"fmt"
	"strings"
)

// The other kinds that gitvirt reads.
const (
	KindSecret = "Secret"
	KindFleet  = "Fleet"
)

// The API versions of the kinds that gitvirt reads.
const (
	APIVersionKubeVirt = "kubevirt.io/v1"
	APIVersionFleet    = "gitvirt.io/v1alpha1"
	APIVersionCore     = "v1"
)

// accepts returns the API versions of a kind that gitvirt reads, the preferred one first; none for other kinds.
func accepts(kind string) (versions [2]string, ok bool) {
	switch kind {
	case KindVirtualMachine, KindVirtualMachineInstance:
		return [2]string{APIVersionKubeVirt, "kubevirt.io/v1alpha3"}, true
	case KindSecret:
		return [2]string{APIVersionCore}, true
	case KindFleet:
		return [2]string{APIVersionFleet}, true
	}
	return versions, false
}

// listOf returns the kind of the objects in a list kind; "" means that each item says its own.
func listOf(kind string) (item string, ok bool) {
	switch kind {
	case "List":
		return "", true
	case "VirtualMachineList", "VirtualMachineInstanceList", "SecretList", "FleetList":
		return strings.TrimSuffix(kind, "List"), true
	}
	return "", false
}

// knownKinds lists the kinds of KubeVirt, CDI and Kubernetes that a repository of machines may hold and that gitvirt
// does not carry out, by API group, with what to do instead.
func knownKinds() map[string]map[string]string {
	const (
		machines = "write each machine as a VirtualMachine"
		sizes    = "write cpu and memory into the VirtualMachine's spec.template.spec.domain"
		storage  = "use containerDisk, hostDisk or emptyDisk volumes"
		action   = "it is an action on a cluster, not a wish: remove it"
		cluster  = "if something else applies it, add the file to .gitvirtignore"
	)
	return map[string]map[string]string{
		"kubevirt.io": {
			"VirtualMachineInstanceReplicaSet": machines, "VirtualMachineInstancePreset": machines,
			"VirtualMachineInstanceMigration": action, "KubeVirt": cluster,
		},
		"pool.kubevirt.io": {"VirtualMachinePool": machines},
		"instancetype.kubevirt.io": {
			"VirtualMachineInstancetype": sizes, "VirtualMachineClusterInstancetype": sizes,
			"VirtualMachinePreference": sizes, "VirtualMachineClusterPreference": sizes,
		},
		"snapshot.kubevirt.io": {
			"VirtualMachineSnapshot": action, "VirtualMachineSnapshotContent": action, "VirtualMachineRestore": action,
		},
		"clone.kubevirt.io":      {"VirtualMachineClone": action},
		"export.kubevirt.io":     {"VirtualMachineExport": action},
		"backup.kubevirt.io":     {"VirtualMachineBackup": action, "VirtualMachineBackupTracker": action},
		"migrations.kubevirt.io": {"MigrationPolicy": cluster},
		"cdi.kubevirt.io": {
			"DataVolume": storage, "DataSource": storage, "DataImportCron": storage, "VolumeImportSource": storage,
			"VolumeCloneSource": storage, "VolumeUploadSource": storage, "StorageProfile": cluster, "ObjectTransfer": cluster,
			"CDI": cluster, "CDIConfig": cluster,
		},
		"": {
			"ConfigMap": "write the files with the cloud-init user data", "PersistentVolumeClaim": storage, "PersistentVolume": storage,
			"Service": "use the ports of a masquerade interface", "Namespace": cluster + "; namespaces need not be made",
			"Pod": cluster, "ServiceAccount": cluster, "Node": cluster, "Endpoints": cluster, "ResourceQuota": cluster, "LimitRange": cluster,
		},
		"k8s.cni.cncf.io":             {"NetworkAttachmentDefinition": cluster},
		"storage.k8s.io":              {"StorageClass": cluster, "VolumeSnapshotClass": cluster},
		"snapshot.storage.k8s.io":     {"VolumeSnapshot": cluster, "VolumeSnapshotContent": cluster, "VolumeSnapshotClass": cluster},
		"networking.k8s.io":           {"NetworkPolicy": cluster, "Ingress": cluster},
		"kustomize.config.k8s.io":     {"Kustomization": "commit the rendered manifests, or add the file to .gitvirtignore"},
		"source.toolkit.fluxcd.io":    {"GitRepository": cluster, "OCIRepository": cluster, "HelmRepository": cluster},
		"kustomize.toolkit.fluxcd.io": {"Kustomization": cluster},
		"argoproj.io":                 {"Application": cluster, "ApplicationSet": cluster},
	}
}

// groupOf returns the API group of an apiVersion; the core group is "".
func groupOf(apiVersion string) string {
	group, _, found := strings.Cut(apiVersion, "/")
	if !found {
		return ""
	}
	return group
}

// refuseKind says what is wrong with an object of a kind that gitvirt does not read. opaque tells that the object may
// have been meant as a machine, so that its name is missing among the machines.
func refuseKind(apiVersion, kind string) (message, fix string, opaque bool) {
	if instead, ok := knownKinds()[groupOf(apiVersion)][kind]; ok {
		owner := "KubeVirt"
		if group := groupOf(apiVersion); !strings.HasSuffix(group, "kubevirt.io") {
			owner = "Kubernetes"
		}
		return fmt.Sprintf("%s is known to %s, not carried out by gitvirt", kind, owner), instead, false
	}
	names := []string{KindVirtualMachine, KindVirtualMachineInstance, KindSecret, KindFleet, "VirtualMachineList", "VirtualMachineInstanceList"}
	near := ""
	for _, name := range names {
		if editDistance(strings.ToLower(kind), strings.ToLower(name)) <= 2 {
			near = name
			break
		}
	}
	opaque = strings.HasPrefix(near, "VirtualMachine")
	if groupOf(apiVersion) == "kubevirt.io" { // whatever it was meant to be, it was meant as a machine
		near, opaque = cmp.Or(near, KindVirtualMachine), true
	}
	fix = "if the file is not for gitvirt, add it to .gitvirtignore"
	if near != "" {
		fix = fmt.Sprintf("did you mean %s?", near)
	}
	return "unknown kind " + quoteValue(kind), fix, opaque
}
