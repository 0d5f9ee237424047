package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// ApprovalFolder is where the status branch keeps approvals. gitvirt reads what is there and adds to it; it changes and
// removes nothing.
const ApprovalFolder = "approvals/"

// Approval says that somebody lets steps of a plan happen. It is bound to the steps by their IDs, which are hashes of
// everything that they do: a step that becomes another one is not approved any more.
type Approval struct {
	// Plan is the ID of the plan that was approved, Fleet and Revision are what it was for.
	Plan     string `json:"plan"`
	Fleet    string `json:"fleet"`
	Revision string `json:"revision"`
	// By is who approved, as git names people: "Name <email>".
	By string `json:"by"`
	// At is when, in whole seconds, UTC.
	At    time.Time      `json:"at"`
	Steps []ApprovedStep `json:"steps"`
}

// ApprovedStep is a step that was approved, with what people saw of it.
type ApprovedStep struct {
	ID          string           `json:"id"`
	Address     schemas.Address  `json:"address"`
	Action      plan.Action      `json:"action"`
	Consequence plan.Consequence `json:"consequence"`
	Summary     string           `json:"summary,omitempty"`
}

// MinPlanID is how many characters of a plan's ID have to be said: fewer are easily another plan's.
const MinPlanID = 8

// IsPlan reports whether somebody means this plan by an ID that may be cut short.
func IsPlan(p *plan.Plan, id string) bool {
	return len(id) >= MinPlanID && strings.HasPrefix(p.ID, strings.ToLower(id))
}

// NewApproval gathers the steps of a plan that wait for an approval and that are wanted. By and At are left to who approves.
func NewApproval(p *plan.Plan, wanted func(step *plan.Step) bool) *Approval {
	a := &Approval{Plan: p.ID, Fleet: p.Fleet, Revision: p.Revision}
	for i := range p.Steps {
		step := &p.Steps[i]
		if !step.Approvable() || !wanted(step) {
			continue
		}
		a.Steps = append(a.Steps, ApprovedStep{
			ID: step.ID, Address: step.Address, Action: step.Action, Consequence: step.Consequence, Summary: step.Summary,
		})
	}
	return a
}

// Given reports whether the approvals among the files of a status branch let each of the steps happen already.
func (a *Approval) Given(files map[string][]byte) bool {
	known := map[string]bool{}
	approvals, _ := ReadApprovals(files) // what cannot be read approves nothing
	for i := range approvals {
		for _, step := range approvals[i].Steps {
			known[approvals[i].Fleet+"/"+step.ID] = true
		}
	}
	for _, step := range a.Steps {
		if !known[a.Fleet+"/"+step.ID] {
			return false
		}
	}
	return true
}

// approvalFile is an Approval as a file.
type approvalFile struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Approval   Approval `json:"approval"`
}

const kindApproval = "PlanApproval"

// Path is where the approval is written: by time, so that a listing reads in order, and by plan.
func (a *Approval) Path() string {
	return ApprovalFolder + a.At.UTC().Format("20060102T150405Z") + "-" + shortID(a.Plan) + ".yaml"
}

// shortID cuts an ID to what people compare at a glance.
func shortID(id string) string { return id[:min(len(id), 12)] }

// YAML returns the approval as a file.
func (a *Approval) YAML() ([]byte, error) {
	content, err := yaml.Marshal(approvalFile{APIVersion: apiVersion, Kind: kindApproval, Approval: *a})
	if err != nil {
		return nil, fmt.Errorf("writing the approval of plan %s: %w", a.Plan, err)
	}
	return content, nil
}

// Subject is the first line of the commit that records the approval.
func (a *Approval) Subject() string {
	if len(a.Steps) == 1 {
		step := a.Steps[0]
		return cut(fmt.Sprintf("Approve plan %s: %s %s/%s", shortID(a.Plan), step.Action, step.Address.Namespace, step.Address.Name), 200)
	}
	return fmt.Sprintf("Approve plan %s: %d steps", shortID(a.Plan), len(a.Steps))
}

// ReadApprovals reads the approvals among the files of a status branch, ordered by path, which is by time. Files that are
// no approval are told, by path, and approve nothing.
func ReadApprovals(files map[string][]byte) (approvals []Approval, problems []string) {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(path, ApprovalFolder) || !strings.HasSuffix(path, ".yaml") {
			continue
		}
		var file approvalFile
		if err := yaml.UnmarshalStrict(files[path], &file); err != nil {
			problems = append(problems, path+": it cannot be read as an approval: "+OneLine(err.Error()))
			continue
		}
		if file.APIVersion != apiVersion || file.Kind != kindApproval {
			problems = append(problems, fmt.Sprintf("%s: it is %s %s, and not an approval (%s %s)", path, OneLine(file.APIVersion), OneLine(file.Kind), apiVersion, kindApproval))
			continue
		}
		approvals = append(approvals, file.Approval)
	}
	return approvals, problems
}

// ApprovalsFor are the approvals of a fleet as the policy wants them. They name steps, never a whole plan: one that shares its
// ID with another fleet's reaches nothing.
func ApprovalsFor(recorded []Approval, fleet string) []policy.Approval {
	var out []policy.Approval
	for i := range recorded {
		r := &recorded[i]
		if r.Fleet != fleet || len(r.Steps) == 0 {
			continue
		}
		approval := policy.Approval{Plan: r.Plan, By: r.By, At: r.At}
		for _, step := range r.Steps {
			approval.Steps = append(approval.Steps, step.ID)
		}
		out = append(out, approval)
	}
	return out
}
