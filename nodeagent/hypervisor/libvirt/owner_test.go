package libvirt

import "testing"

func TestOwnerOf(t *testing.T) {
	const debian = `<capabilities><host><secmodel><model>apparmor</model><doi>0</doi></secmodel>
<secmodel><model>dac</model><doi>0</doi><baselabel type='kvm'>+64055:+108</baselabel><baselabel type='qemu'>+64055:+108</baselabel></secmodel></host></capabilities>`
	tests := []struct {
		reason, document string
		uid, gid         int
		known            bool
	}{
		{"Debian", debian, 64055, 108, true},
		{"a session daemon", "<capabilities><host><secmodel><model>none</model></secmodel></host></capabilities>", 0, 0, false},
		{"nonsense", "<capabilities>", 0, 0, false},
	}
	for _, test := range tests {
		uid, gid, known := ownerOf(test.document)
		if known != test.known || (known && (uid != test.uid || gid != test.gid)) {
			t.Errorf("%s: %d:%d, %v", test.reason, uid, gid, known)
		}
	}
}
