package plan

import "strings"

// impact is one row of the table that says what a change of a field means for a running guest.
type impact struct {
	// prefix is the field or the subtree, without the "spec.template." of a VirtualMachine.
	prefix      string
	consequence Consequence
}

// impacts is the whole table; the longest prefix decides, and what no row names needs a restart: a field is only
// called harmless when somebody has shown that it is.
var impacts = []impact{
	{"metadata", ConsequenceNone},
	{"spec.runStrategy", ConsequenceNone},
	{"spec.running", ConsequenceNone},
	{"spec.terminationGracePeriodSeconds", ConsequenceNone},
	{"spec.evictionStrategy", ConsequenceNone},
	{"spec.livenessProbe", ConsequenceNone},
	{"spec.readinessProbe", ConsequenceNone},
	{"spec.startStrategy", ConsequenceNone},
	{"spec.nodeSelector", ConsequenceNone},
	{"spec.affinity", ConsequenceNone},
	{"spec.tolerations", ConsequenceNone},
	{"spec.topologySpreadConstraints", ConsequenceNone},
	{"spec.schedulerName", ConsequenceNone},
	{"spec.priorityClassName", ConsequenceNone},
	{"spec.dnsPolicy", ConsequenceNone},
	{"spec.dnsConfig", ConsequenceNone},
	{"spec.domain.firmware.uuid", ConsequenceReplace},
	{"spec", ConsequenceRestart},
	{"secrets", ConsequenceRestart},
}

// consequenceOf returns what a change at path means for a running guest.
func consequenceOf(path string) Consequence {
	path = strings.TrimPrefix(path, "spec.template.")
	best, consequence := -1, ConsequenceRestart
	for _, row := range impacts {
		if len(row.prefix) > best && within(path, row.prefix) {
			best, consequence = len(row.prefix), row.consequence
		}
	}
	return consequence
}

// within reports whether path is prefix or lies below it.
func within(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
