package status_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

func approval() status.Approval {
	return status.Approval{
		Plan: strings.Repeat("ab", 16), Fleet: "shop", Revision: strings.Repeat("c", 40), By: "Ada <ada@example.com>",
		At: time.Date(2026, 3, 1, 12, 30, 5, 0, time.UTC),
		Steps: []status.ApprovedStep{{
			ID: strings.Repeat("12", 16), Address: schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web-1"},
			Action: plan.ActionDestroy, Consequence: plan.ConsequenceDestroy, Summary: "will be destroyed: vms/web-1.yaml:4 no longer has it",
		}},
	}
}

func TestApprovalIsReadAsItWasWritten(t *testing.T) {
	want := approval()
	content, err := want.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if path := want.Path(); path != "approvals/20260301T123005Z-abababababab.yaml" {
		t.Errorf("path: %s", path)
	}
	got, problems := status.ReadApprovals(map[string][]byte{want.Path(): content, "vms/default/web-1.yaml": []byte("kind: other")})
	if len(problems) > 0 {
		t.Errorf("problems: %q", problems)
	}
	if diff := cmp.Diff([]status.Approval{want}, got); diff != "" {
		t.Error(diff)
	}
	if subject := want.Subject(); subject != "Approve plan abababababab: destroy default/web-1" {
		t.Errorf("subject: %s", subject)
	}
}

// TestWhatIsNoApprovalApprovesNothing covers files that people or other programs leave in the folder.
func TestWhatIsNoApprovalApprovesNothing(t *testing.T) {
	good := approval()
	content, err := good.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"not YAML":               "\t- [",
		"another kind":           "apiVersion: gitvirt.io/v1alpha1\nkind: VirtualMachineStatus\n",
		"another version":        strings.Replace(string(content), "v1alpha1", "v2", 1),
		"an unknown field":       string(content) + "everything: true\n",
		"a step that is no step": strings.Replace(string(content), "  steps:", "  steps: all\n  others:", 1),
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := status.ReadApprovals(map[string][]byte{"approvals/a.yaml": []byte(text), "approvals/b.yaml": content})
			if len(got) != 1 || len(problems) != 1 || !strings.HasPrefix(problems[0], "approvals/a.yaml: ") || strings.Contains(problems[0], "\n") {
				t.Errorf("approvals %v, problems %q", got, problems)
			}
		})
	}
}
