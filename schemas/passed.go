package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
)

// Object is an object of the repository that a cluster gets as it is: a Service, or a PersistentVolumeClaim.
type Object struct {
	Address  Address
	Position Position
	// Content is its canonical JSON, with its namespace; Hash is the hex SHA-256 of it.
	Content []byte
	Hash    string
}

// IsPassed reports whether a cluster gets objects of a kind as they are.
func IsPassed(kind string) bool {
	return kind == KindService || kind == KindPersistentVolumeClaim
}

// pass notes the object that was kept last as one that a cluster gets.
func (d *document) pass(h *header, manifest any) {
	last := len(d.file.objects) - 1
	if last < 0 || d.file.objects[last].address != h.address() {
		return // it has mistakes, and was not kept
	}
	encoded, err := json.Marshal(manifest)
	var fields map[string]any
	if err != nil || json.Unmarshal(encoded, &fields) != nil {
		return // a typed object always has a JSON form
	}
	delete(fields, "status")
	metadata, ok := fields["metadata"].(map[string]any)
	if !ok {
		return
	}
	delete(metadata, "creationTimestamp")
	metadata["namespace"] = h.address().Namespace
	withoutZeroPorts(fields)
	if encoded, err = json.Marshal(fields); err != nil {
		return
	}
	sum := sha256.Sum256(encoded)
	d.file.objects[last].passed = &Object{
		Address: h.address(), Position: d.file.objects[last].position, Content: encoded, Hash: hex.EncodeToString(sum[:]),
	}
}

// withoutZeroPorts takes out of a Service what its type writes for a targetPort that the manifest does not have.
func withoutZeroPorts(fields map[string]any) {
	spec, _ := fields["spec"].(map[string]any)
	ports, _ := spec["ports"].([]any)
	for _, port := range ports {
		if port, ok := port.(map[string]any); ok && port["targetPort"] == 0.0 {
			delete(port, "targetPort")
		}
	}
}

// passedOn lists what a cluster gets as it is, where the Fleet is one's.
func (a *assembly) passedOn() {
	if a.desired.Fleet.Spec.Platform != PlatformKubernetes {
		return
	}
	for _, s := range a.spaces() {
		for address, object := range s.objects {
			if _, broken := s.brokenObjects[address]; object.passed != nil && !broken {
				a.desired.Objects = append(a.desired.Objects, object.passed)
			}
		}
	}
	slices.SortFunc(a.desired.Objects, func(x, y *Object) int { return x.Address.Compare(y.Address) })
}

// inCluster reports whether what a reference names may be in the cluster and not in git: claims, volumes and networks that others made,
// and credentials of registries, which the kubelet reads.
func (a *assembly) inCluster(r *reference) bool {
	if a.desired.Fleet.Spec.Platform != PlatformKubernetes {
		return false
	}
	kind := r.address.Kind
	return isClaim(kind) || kind == KindPersistentVolume || kind == KindNetwork || strings.HasPrefix(r.use, PullSecretContent(""))
}
