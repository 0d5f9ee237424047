package devicexml_test

import (
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/devicexml"
)

func TestKeepPasswords(t *testing.T) {
	domain := func(devices string) string {
		return "<domain><name>a</name><devices>" + devices + "</devices></domain>"
	}
	for _, test := range []struct{ name, definition, before, want string }{
		{"none", "<graphics type='vnc'/>", "<graphics type='vnc'/>", "<graphics type='vnc'/>"},
		{"one", "<graphics type='vnc'/>", "<graphics type='vnc' passwd='&lt;&quot;x'/>", `<graphics type='vnc' passwd="&lt;&#34;x"/>`},
		{"with children", "<graphics type='vnc' port='-1'><listen type='none'/></graphics>", "<graphics type='vnc' passwd='x'/>", `<graphics type='vnc' port='-1' passwd="x"><listen type='none'/></graphics>`},
		{"another", "<graphics type='vnc' passwd='y'/>", "<graphics type='vnc' passwd='x'/>", "<graphics type='vnc' passwd='y'/>"},
		{"none on purpose", "<graphics type='vnc' passwd=''/>", "<graphics type='vnc' passwd='x'/>", "<graphics type='vnc' passwd=''/>"},
		{"one that lets nobody in", "<graphics type='vnc'/>", "<graphics type='vnc' passwd=''/>", `<graphics type='vnc' passwd=""/>`},
		{
			"each has its own", "<graphics type='vnc'/><graphics type='spice'/>", "<graphics type='spice' passwd='s'/><graphics type='vnc' passwd='v'/>",
			`<graphics type='vnc' passwd="v"/><graphics type='spice' passwd="s"/>`,
		},
		{"the second", "<graphics type='vnc'/><graphics type='vnc'/>", "<graphics type='vnc'/><graphics type='vnc' passwd='v'/>", `<graphics type='vnc'/><graphics type='vnc' passwd="v"/>`},
		{"another kind", "<graphics type='spice'/>", "<graphics type='vnc' passwd='v'/>", "<graphics type='spice'/>"},
		{"no screen", "<disk/>", "<graphics type='vnc' passwd='v'/>", "<disk/>"},
	} {
		got, err := devicexml.KeepPasswords(domain(test.definition), domain(test.before))
		if err != nil || got != domain(test.want) {
			t.Errorf("%s: got %s, %v", test.name, got, err)
		}
	}
	if _, err := devicexml.KeepPasswords("<domain", domain("<graphics type='vnc' passwd='v'/>")); err == nil {
		t.Error("what is not XML was read")
	}
}
