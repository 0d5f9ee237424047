package plan_test

import (
	"os"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
)

// The tests that change a real running guest: it sees the change without a reboot, and still after one.
const (
	proofsByCalls = "../nodeagent/hypervisor/libvirt/proofs_test.go TestProofs" // libvirt's calls
	proofsBySteps = "../nodeagent/liveguest_test.go TestLiveOnRealGuest"        // steps of the agent
	proofsOfPorts = "../nodeagent/guestports_test.go TestPortsOfRealGuest"      // looked at from the host
	proofsOfKeys  = "../nodeagent/guest_test.go TestRealGuest"                  // a guest with an agent of its own
)

// liveProofs names for each row that can be live the tests that prove it.
func liveProofs() map[string][]string {
	both := []string{proofsByCalls, proofsBySteps}
	return map[string][]string{
		"claims":                         {proofsBySteps},
		"claims.capacity":                {proofsBySteps},
		"contents":                       {proofsBySteps},
		"secrets":                        {proofsBySteps, proofsOfKeys},
		"spec.accessCredentials":         {proofsOfKeys},
		"spec.domain.cpu.sockets":        both,
		"spec.domain.devices.disks":      both,
		"spec.domain.devices.interfaces": both,
		"spec.domain.devices.interfaces.portRanges": {proofsOfPorts},
		"spec.domain.devices.interfaces.ports":      {proofsOfPorts},
		"spec.domain.devices.interfaces.state":      both,
		"spec.domain.memory.guest":                  both,
		"spec.networks":                             {proofsBySteps},
		"spec.volumes":                              both,
		"spec.volumes.configMap":                    {proofsBySteps},
		"spec.volumes.containerDisk":                {proofsBySteps},
		"spec.volumes.emptyDisk.capacity":           both,
		"spec.volumes.ephemeral":                    {proofsBySteps},
		"spec.volumes.secret":                       {proofsBySteps},
	}
}

// TestEveryLiveRowIsProved: nothing is called live that no test has shown on a real guest.
func TestEveryLiveRowIsProved(t *testing.T) {
	proofs := liveProofs()
	for _, row := range plan.Rows() {
		if row.Consequence != plan.ConsequenceLive {
			continue
		}
		named := proofs[row.Path]
		delete(proofs, row.Path)
		if len(named) == 0 {
			t.Errorf("%s is live, and no test is named that shows it on a real guest", row.Path)
		}
		for _, proof := range named {
			path, test, _ := strings.Cut(proof, " ")
			source, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(source), "func "+test+"(t *testing.T)") {
				t.Errorf("%s: there is no %s in %s: %v", row.Path, test, path, err)
			}
		}
	}
	for path := range proofs {
		t.Errorf("a proof is named for %s, which is no live row", path)
	}
}
