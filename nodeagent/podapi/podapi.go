// Package podapi is what a launcher Pod carries between the controller, which makes it, and the node agent, which makes a guest of it:
// the names of its labels and annotations, the step that is to be carried out in it, and what the agent tells of its domain. It reads
// and writes no Pod itself.
//
// The controller writes a Step, signed, and the record of the machine; what is sensitive is in a Secret whose content the Step names by
// its digest. The agent carries out a Step that it has not told of yet, and tells the domain as it is in Observed. Neither calls
// the other.
package podapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// Labels of launcher Pods.
const (
	// LabelVM is the name of the machine, and so is LabelName, which Services select by: it is KubeVirt's.
	LabelVM   = "gitvirt.io/vm"
	LabelName = "vm.kubevirt.io/name"
	// LabelFleet is the Fleet that the machine is from.
	LabelFleet = "gitvirt.io/fleet"
	// LabelManagedBy is Kubernetes' own label for whose an object is, ManagedBy its value.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "gitvirt"
)

// What a Node says of guests on it. The agent of the node writes it.
const (
	// LabelHypervisor is "kvm" or "qemu" (software emulation).
	LabelHypervisor = "node.gitvirt.io/hypervisor"
	// LabelCPUModel, with the name of a CPU model, is "true" where guests can have that.
	LabelCPUModel = "cpu-model.node.gitvirt.io/"
	// AnnotationLive has what can be done for running guests (api.Capabilities), with commas.
	AnnotationLive = "node.gitvirt.io/live"
)

// Annotations of launcher Pods.
const (
	// AnnotationAddress, AnnotationRevision and AnnotationHash are for people: what counts of them is in the step.
	AnnotationAddress  = "gitvirt.io/address"
	AnnotationRevision = "gitvirt.io/revision"
	AnnotationHash     = "gitvirt.io/spec-hash"
	// AnnotationRecord is the record of the machine (schemas.VM.Record).
	AnnotationRecord = "gitvirt.io/record"
	// AnnotationStep is a Step, AnnotationSignature its signature in base64.
	AnnotationStep      = "gitvirt.io/step"
	AnnotationSignature = "gitvirt.io/signature"
	// AnnotationObserved is an Observed.
	AnnotationObserved = "gitvirt.io/observed"
)

// GuestReady is the type of the Pod's condition, and readiness gate, that the agent sets: the guest is ready.
const GuestReady = "gitvirt.io/guest-ready"

// SecretKey is the key of the Secret's content, which is the file's name in the volume.
const SecretKey = "vm"

// SecretMarker is the key of an empty file beside it: the only one of the volume that the launcher's container mounts, because the kubelet
// gives a Pod no volume that no container uses.
const SecretMarker = "for-the-agent"

// Step is what is to be done in a Pod. A Pod that has just been made has one too.
type Step struct {
	// ID tells this attempt from every other one. Whoever has told of it in Observed is through with it.
	ID       string `json:"id"`
	Address  string `json:"address"`
	Fleet    string `json:"fleet"`
	Revision string `json:"revision"`
	// Content is the digest of the Secret's content that belongs to the step (Digest), Hash the machine's (schemas.VM.Hash).
	Content string `json:"content"`
	Hash    string `json:"hash"`
	// The rest is that of api.ExecuteRequest.
	Precondition string `json:"precondition,omitempty"`
	Define       bool   `json:"define,omitempty"`
	Live         bool   `json:"live,omitempty"`
	Power        string `json:"power,omitempty"`
	// Emulation lets the guest run without KVM.
	Emulation    bool  `json:"emulation,omitempty"`
	GraceSeconds int64 `json:"graceSeconds,omitempty"`
}

// payload is what is signed: the step, and where it belongs.
func (s *Step) payload(namespace, pod string) ([]byte, error) {
	return json.Marshal(struct {
		Kind, Namespace, Pod string
		Step                 *Step
	}{"gitvirt.io/step v1", namespace, pod, s})
}

// Annotate returns the annotations of a step for the Pod of a name.
func (s *Step) Annotate(namespace, pod string, record []byte, sign func(payload []byte) ([]byte, error)) (map[string]string, error) {
	payload, err := s.payload(namespace, pod)
	if err != nil {
		return nil, fmt.Errorf("writing a step: %w", err)
	}
	signature, err := sign(payload)
	if err != nil {
		return nil, fmt.Errorf("signing a step: %w", err)
	}
	step, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("writing a step: %w", err)
	}
	return map[string]string{
		AnnotationAddress: s.Address, AnnotationRevision: s.Revision, AnnotationHash: s.Hash, AnnotationRecord: string(record),
		AnnotationStep: string(step), AnnotationSignature: base64.StdEncoding.EncodeToString(signature),
	}, nil
}

// ErrForged is told of a Pod that carries gitvirt's labels, and its annotations are not what the controller signed for it.
var ErrForged = errors.New("the Pod is not as the controller made it")

// Forgery is an ErrForged with a word for what is wrong.
type Forgery struct{ Reason, why string }

// The reasons of a Forgery.
const (
	ForgedNoStep    = "no step"
	ForgedStep      = "step"
	ForgedSignature = "signature"
	ForgedRecord    = "record"
	ForgedNamespace = "namespace"
)

// Error says what is wrong.
func (f *Forgery) Error() string { return ErrForged.Error() + ": " + f.why }

// Unwrap returns ErrForged.
func (f *Forgery) Unwrap() error { return ErrForged }

// Read returns the step and the record that the annotations of a Pod hold. The error is ErrForged when they were not signed for this
// Pod, or were changed since.
func Read(namespace, pod string, annotations map[string]string, verify func(payload, signature []byte) bool) (*Step, []byte, error) {
	forged := func(reason, why string) (*Step, []byte, error) { return nil, nil, &Forgery{reason, why} }
	if annotations[AnnotationStep] == "" {
		return forged(ForgedNoStep, "it has no annotation "+AnnotationStep)
	}
	step := &Step{}
	if err := json.Unmarshal([]byte(annotations[AnnotationStep]), step); err != nil {
		return forged(ForgedStep, "its annotation "+AnnotationStep+" cannot be read")
	}
	signature, err := base64.StdEncoding.DecodeString(annotations[AnnotationSignature])
	if err != nil {
		return forged(ForgedSignature, "its annotation "+AnnotationSignature+" cannot be read")
	}
	payload, err := step.payload(namespace, pod)
	if err != nil || !verify(payload, signature) {
		return forged(ForgedSignature, "its annotation "+AnnotationSignature+" is not that of its step")
	}
	record := []byte(annotations[AnnotationRecord])
	if hash := sha256.Sum256(record); hex.EncodeToString(hash[:]) != step.Hash {
		return forged(ForgedRecord, "its annotation "+AnnotationRecord+" is another one than its step names")
	}
	address, err := schemas.ParseAddress(step.Address)
	if err != nil || address.Namespace != namespace {
		return forged(ForgedNamespace, "its step is for "+step.Address)
	}
	return step, record, nil
}

// Request returns what the agent is asked for. vm is from the Secret.
func (s *Step) Request(vm *api.VM) *api.ExecuteRequest {
	return &api.ExecuteRequest{
		Address: s.Address, Precondition: s.Precondition, Define: s.Define, Live: s.Live, Power: s.Power, GraceSeconds: s.GraceSeconds, Vm: vm,
	}
}

// EncodeVM writes what a Secret holds, the same bytes each time.
func EncodeVM(vm *api.VM) ([]byte, error) {
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(vm)
	if err != nil {
		return nil, fmt.Errorf("writing the content of a Secret: %w", err)
	}
	return out, nil
}

// Digest is that of the content of a Secret.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// ErrOtherContent says that the Secret's content is not the one that the step is for. The kubelet brings a new one a moment after the
// annotation of the step has changed.
var ErrOtherContent = errors.New("the Secret's content is not the step's")

// DecodeVM reads what a Secret holds.
func (s *Step) DecodeVM(content []byte) (*api.VM, error) {
	if Digest(content) != s.Content {
		return nil, ErrOtherContent
	}
	vm := &api.VM{}
	if err := proto.Unmarshal(content, vm); err != nil {
		return nil, errors.New("the Secret's content cannot be read") // what cannot be read may be quoted in the error
	}
	return vm, nil
}

// Outcome is what became of a step.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Stale   Outcome = "stale"   // the domain is not what the plan saw
	Retry   Outcome = "retry"   // it cannot be done now
	Stalled Outcome = "stalled" // trying again cannot help until git or the node changes
)

// Observed is what the agent tells of a Pod.
type Observed struct {
	// Step is the ID of the step that was carried out last, with its outcome; Message is why, where it is not Done.
	Step    string
	Outcome Outcome
	Message string
	// Domain is the domain; nil while there is none. Records that are the annotation's are left out of it (Trim).
	Domain *api.Domain
	// Live is what can be done for running guests on this node (api.Capabilities).
	Live []string
	// Node is the node that told it.
	Node string
}

// observedJSON is Observed as it is written.
type observedJSON struct {
	Step    string          `json:"step,omitempty"`
	Outcome Outcome         `json:"outcome,omitempty"`
	Message string          `json:"message,omitempty"`
	Domain  json.RawMessage `json:"domain,omitempty"`
	Live    []string        `json:"live,omitempty"`
	Node    string          `json:"node,omitempty"`
}

// Encode writes an Observed as the value of its annotation, the same each time.
func (o *Observed) Encode() (string, error) {
	out := observedJSON{Step: o.Step, Outcome: o.Outcome, Message: o.Message, Live: o.Live, Node: o.Node}
	if o.Domain != nil {
		domain, err := protojson.Marshal(o.Domain)
		if err != nil {
			return "", fmt.Errorf("writing a domain: %w", err)
		}
		var compact bytes.Buffer // protojson varies its spaces on purpose
		if err := json.Compact(&compact, domain); err != nil {
			return "", fmt.Errorf("writing a domain: %w", err)
		}
		out.Domain = compact.Bytes()
	}
	text, err := json.Marshal(out)
	if err != nil {
		return "", fmt.Errorf("writing what was observed: %w", err)
	}
	return string(text), nil
}

// DecodeObserved reads the annotation; nil when there is none.
func DecodeObserved(annotations map[string]string) (*Observed, error) {
	text := annotations[AnnotationObserved]
	if text == "" {
		return nil, nil //nolint:nilnil // a Pod that nobody has told of yet
	}
	var in observedJSON
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return nil, fmt.Errorf("the annotation %s cannot be read: %w", AnnotationObserved, err)
	}
	out := &Observed{Step: in.Step, Outcome: in.Outcome, Message: in.Message, Live: in.Live, Node: in.Node}
	if len(in.Domain) > 0 {
		out.Domain = &api.Domain{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(in.Domain, out.Domain); err != nil {
			return nil, fmt.Errorf("the annotation %s cannot be read: %w", AnnotationObserved, err)
		}
	}
	return out, nil
}

// Trim returns a domain without the records that the Pod's annotation holds anyway. hash is that of the step.
func Trim(domain *api.Domain, hash string) *api.Domain {
	out, _ := proto.Clone(domain).(*api.Domain)
	if out.GetHash() == hash {
		out.Record = nil
	}
	if out.GetRunningHash() == hash {
		out.RunningRecord = nil
	}
	return out
}

// Fill undoes Trim. A running record that is the domain's own is left out by the agent in any case.
func Fill(domain *api.Domain, step *Step, record []byte) {
	if len(domain.GetRecord()) == 0 && domain.GetHash() == step.Hash {
		domain.Record = record
	}
	if len(domain.GetRunningRecord()) == 0 && domain.GetRunningHash() == step.Hash {
		domain.RunningRecord = record
	}
}
