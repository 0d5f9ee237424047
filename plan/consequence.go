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
	{"spec.serviceAccountName", ConsequenceNone},
	{"spec.networks.multus.default", ConsequenceNone},
	{"spec.volumes.persistentVolumeClaim.hotpluggable", ConsequenceNone},
	{"spec.volumes.dataVolume.hotpluggable", ConsequenceNone},
	{"spec.domain.devices.interfaces.dhcpOptions", ConsequenceNone},
	{"spec.domain.memory.reservedOverhead", ConsequenceNone},
	{"spec.domain.resources.overcommitGuestOverhead", ConsequenceNone},
	{"spec.domain.launchSecurity.sev.attestation", ConsequenceNone},
	{"spec.volumes.downwardAPI.fields.mode", ConsequenceNone},
	{"spec.updateVolumesStrategy", ConsequenceNone},
	{"spec.dataVolumeTemplates", ConsequenceNone}, // what they make of claims is compared as claims
	{"spec.domain.firmware.uuid", ConsequenceReplace},
	{"spec.domain.devices.interfaces.ports", ConsequenceLive},
	{"spec.domain.devices.interfaces.portRanges", ConsequenceLive},
	{"spec.instancetype", ConsequenceNone}, // what it sets is compared field by field
	{"spec.preference", ConsequenceNone},   // so is this
	{"spec", ConsequenceRestart},
	{"secrets", ConsequenceRestart},
	{"contents", ConsequenceRestart},
	{"claims", ConsequenceRestart},
	{"claims.source", ConsequenceNone}, // it fills an image that is made; one that exists stays as it is
	{"claims.shared", ConsequenceNone},
}

// consequenceOf returns what a change at path means for a running guest.
func consequenceOf(path string) Consequence {
	path = strings.TrimPrefix(withoutNames(path), "spec.template.")
	best, consequence := -1, ConsequenceRestart
	for _, row := range impacts {
		if len(row.prefix) > best && within(path, row.prefix) {
			best, consequence = len(row.prefix), row.consequence
		}
	}
	return consequence
}

// withoutNames leaves out the names of list elements and the keys of maps, which stand in brackets.
func withoutNames(path string) string {
	for {
		open := strings.IndexByte(path, '[')
		if open < 0 {
			return path
		}
		length := strings.IndexByte(path[open:], ']')
		if length < 0 {
			return path
		}
		path = path[:open] + path[open+length+1:]
	}
}

// within reports whether path is prefix or lies below it.
func within(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
