package status

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// The paths of a status branch.
const (
	// TablePath is the table for people.
	TablePath = "README.md"
	// PlanPath is the plan, as long as steps of it wait for somebody.
	PlanPath = "plan.json"
	vmFolder = "vms/"
	vmSuffix = ".yaml"
)

// Owned reports whether a path of the status branch is gitvirt's: what is not is left alone.
func Owned(path string) bool {
	return path == TablePath || path == PlanPath || strings.HasPrefix(path, vmFolder)
}

// Path returns where the status of a machine is written, and false for a broken manifest's name that cannot be a path.
func Path(address schemas.Address) (string, bool) {
	if !safeName(address.Namespace) || !safeName(address.Name) {
		return "", false
	}
	return vmFolder + address.Namespace + "/" + address.Name + vmSuffix, true
}

// plainName is what Kubernetes allows in names, and no path is hidden in.
var plainName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

func safeName(name string) bool {
	return len(name) <= 253 && plainName.MatchString(name) && !strings.Contains(name, "..")
}

func isVMPath(path string) bool {
	return strings.HasPrefix(path, vmFolder) && strings.HasSuffix(path, vmSuffix)
}

// Fleet is everything that a status branch tells.
type Fleet struct {
	Name string
	// Revision is the commit that is wanted.
	Revision string
	// Parts are the repositories that it is wanted from; nothing where there is one.
	Parts []sources.Part
	// VMs are ordered by address, with their times (History.Merge).
	VMs []VM
	// Unknown says why the host cannot be read, Refused why the head of the branch is not applied.
	Unknown, Refused string
	// Broken are the mistakes in the files, ordered.
	Broken schemas.Diagnostics
	// Unmet says what of the Fleet the controller cannot carry out as it was started.
	Unmet []string
	// KeptDisks are disks with data whose machine is gone.
	KeptDisks []KeptDisk
	// PlanID and Plan, its JSON form, are of the plan as long as steps of it wait for an approval; else empty.
	PlanID string
	Plan   []byte
}

// Files returns the files of the status branch, by path.
func (f *Fleet) Files() map[string][]byte {
	files := make(map[string][]byte, len(f.VMs)+2)
	files[TablePath] = f.table()
	if f.PlanID != "" {
		files[PlanPath] = f.Plan
	}
	for i := range f.VMs {
		path, ok := Path(f.VMs[i].Address)
		if !ok {
			continue
		}
		// Two kinds of one name are a mistake that both report; the file is about the one that lives.
		if _, taken := files[path]; taken && f.VMs[i].Domain == "" {
			continue
		}
		files[path] = f.VMs[i].YAML()
	}
	return files
}

// Subject is the first line of a commit: what the fleet is like.
func (f *Fleet) Subject() string {
	subject := fmt.Sprintf("Status of %s at %s: %s", OneLine(f.Name), ShortRevision(f.Revision), f.counts())
	return cut(subject, 200)
}

// counts says how many machines there are in each phase.
func (f *Fleet) counts() string {
	count := map[Phase]int{}
	for i := range f.VMs {
		count[f.VMs[i].Phase]++
	}
	var phases []Phase
	for phase := range count {
		phases = append(phases, phase)
	}
	slices.SortFunc(phases, func(a, b Phase) int {
		if count[a] != count[b] {
			return count[b] - count[a]
		}
		return strings.Compare(string(a), string(b))
	})
	if len(phases) == 0 {
		return "no VM"
	}
	var parts []string
	for _, phase := range phases {
		parts = append(parts, fmt.Sprintf("%d %s", count[phase], phase))
	}
	return strings.Join(parts, ", ")
}
