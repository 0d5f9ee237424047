package plan

import (
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestWhatIsKeptHarmsNobody: a field that nothing on a host depends on is no reason to restart a guest.
func TestWhatIsKeptHarmsNobody(t *testing.T) {
	for prefix, rows := range map[string][]schemas.Support{"spec.": schemas.VMISupport(), "": schemas.VMSupport()} {
		for _, row := range rows {
			if row.Status != schemas.SupportKept {
				continue
			}
			if got := consequenceOf(prefix + row.Path); got != ConsequenceNone {
				t.Errorf("%s is kept, and a change of it is said to %s", prefix+row.Path, got)
			}
		}
	}
}
