package schemas

import (
	"cmp"
	"fmt"
	"strings"
)

// The other kinds that gitvirt reads.
const (
	KindReplicaSet            = "VirtualMachineInstanceReplicaSet"
	KindPool                  = "VirtualMachinePool"
	KindInstancetype          = "VirtualMachineInstancetype"
	KindClusterInstancetype   = "VirtualMachineClusterInstancetype"
	KindPreference            = "VirtualMachinePreference"
	KindClusterPreference     = "VirtualMachineClusterPreference"
	KindDataVolume            = "DataVolume"
	KindPersistentVolumeClaim = "PersistentVolumeClaim"
	KindPersistentVolume      = "PersistentVolume"
	KindSecret                = "Secret"
	KindConfigMap             = "ConfigMap"
	KindService               = "Service"
	KindNetwork               = "NetworkAttachmentDefinition"
	KindFleet                 = "Fleet"
)

// The API versions of the kinds that gitvirt reads.
const (
	APIVersionKubeVirt     = "kubevirt.io/v1"
	APIVersionPool         = "pool.kubevirt.io/v1beta1"
	APIVersionInstancetype = "instancetype.kubevirt.io/v1beta1"
	APIVersionCDI          = "cdi.kubevirt.io/v1beta1"
	APIVersionNetwork      = "k8s.cni.cncf.io/v1"
	APIVersionFleet        = "gitvirt.io/v1alpha1"
	APIVersionCore         = "v1"
)

// accepts returns the API versions of a kind that gitvirt reads, the preferred one first; none for other kinds.
func accepts(kind string) []string {
	switch kind {
	case KindVirtualMachine, KindVirtualMachineInstance, KindReplicaSet:
		return []string{APIVersionKubeVirt, "kubevirt.io/v1alpha3"}
	case KindPool:
		return []string{APIVersionPool, "pool.kubevirt.io/v1alpha1"}
	case KindInstancetype, KindClusterInstancetype, KindPreference, KindClusterPreference:
		return []string{APIVersionInstancetype, "instancetype.kubevirt.io/v1alpha2", "instancetype.kubevirt.io/v1alpha1"}
	case KindDataVolume:
		return []string{APIVersionCDI}
	case KindPersistentVolumeClaim, KindPersistentVolume, KindSecret, KindConfigMap, KindService:
		return []string{APIVersionCore}
	case KindNetwork:
		return []string{APIVersionNetwork}
	case KindFleet:
		return []string{APIVersionFleet}
	}
	return nil
}

// isClusterKind tells the kinds whose objects live in no namespace; their addresses have DefaultNamespace.
func isClusterKind(kind string) bool {
	return kind == KindClusterInstancetype || kind == KindClusterPreference || kind == KindPersistentVolume
}

// listOf returns the kind of the objects in a list kind; "" means that each item says its own.
func listOf(kind string) (item string, ok bool) {
	item, ok = strings.CutSuffix(kind, "List")
	if !ok || item == "" {
		return "", kind == "List"
	}
	return item, accepts(item) != nil
}

// knownKinds lists the kinds of KubeVirt, CDI and Kubernetes that a repository of machines may hold and that gitvirt
// does not carry out, by API group, with what to do instead.
func knownKinds() map[string]map[string]string {
	const (
		presets = "presets are gone from KubeVirt as well: use a VirtualMachineInstancetype and a VirtualMachinePreference"
		source  = "write the source into the DataVolume's spec.source"
		action  = "it is an action on a cluster, not a wish: remove it"
		cluster = "if something else applies it, add the file to .gitvirtignore"
	)
	return map[string]map[string]string{
		"kubevirt.io": {
			"VirtualMachineInstancePreset": presets, "VirtualMachineInstanceMigration": action, "KubeVirt": cluster,
		},
		"snapshot.kubevirt.io": {
			"VirtualMachineSnapshot": action, "VirtualMachineSnapshotContent": action, "VirtualMachineRestore": action,
		},
		"clone.kubevirt.io":      {"VirtualMachineClone": action},
		"export.kubevirt.io":     {"VirtualMachineExport": action},
		"backup.kubevirt.io":     {"VirtualMachineBackup": action, "VirtualMachineBackupTracker": action},
		"migrations.kubevirt.io": {"MigrationPolicy": cluster},
		"cdi.kubevirt.io": {
			"DataSource": source, "DataImportCron": source, "VolumeImportSource": source,
			"VolumeCloneSource": source, "VolumeUploadSource": source, "StorageProfile": cluster, "ObjectTransfer": cluster,
			"CDI": cluster, "CDIConfig": cluster,
		},
		"": {
			"Namespace": cluster + "; namespaces need not be made",
			"Pod":       cluster, "ServiceAccount": cluster, "Node": cluster, "Endpoints": cluster, "ResourceQuota": cluster, "LimitRange": cluster,
		},
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
	names := []string{
		KindVirtualMachine, KindVirtualMachineInstance, KindReplicaSet, KindPool, "VirtualMachineList", "VirtualMachineInstanceList",
		KindInstancetype, KindClusterInstancetype, KindPreference, KindClusterPreference, KindDataVolume, KindPersistentVolumeClaim,
		KindPersistentVolume, KindSecret, KindConfigMap, KindService, KindNetwork, KindFleet,
	}
	near := ""
	for _, name := range names {
		if editDistance(strings.ToLower(kind), strings.ToLower(name)) <= 2 {
			near = name
			break
		}
	}
	opaque = isMachineKind(strings.TrimSuffix(near, "List"))
	switch groupOf(apiVersion) {
	case "kubevirt.io": // whatever it was meant to be, it was meant as a machine
		near, opaque = cmp.Or(near, KindVirtualMachine), true
	case "pool.kubevirt.io":
		near, opaque = cmp.Or(near, KindPool), true
	}
	fix = "if the file is not for gitvirt, add it to .gitvirtignore"
	if near != "" {
		fix = fmt.Sprintf("did you mean %s?", near)
	}
	return "unknown kind " + quoteValue(kind), fix, opaque
}

// isMachineKind tells the kinds that become domains: machines and sets of machines.
func isMachineKind(kind string) bool {
	return kind == KindVirtualMachine || kind == KindVirtualMachineInstance || isSetKind(kind)
}

// isSetKind tells the kinds that become several machines.
func isSetKind(kind string) bool { return kind == KindReplicaSet || kind == KindPool }
