package domainxml_test

import (
	"os"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// printed is what libvirt made of testdata/defined/devices.xml.
func printed(b testing.TB) string {
	b.Helper()
	content, err := os.ReadFile("testdata/printed/devices.xml")
	if err != nil {
		b.Fatal(err)
	}
	return string(content)
}

func BenchmarkCompare(b *testing.B) {
	rendered, defined := definitions(b)["devices"], printed(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(rendered) + len(defined)))
	for b.Loop() {
		if _, err := domainxml.Compare(rendered, defined); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	defined := printed(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(defined)))
	for b.Loop() {
		if _, _, err := domainxml.Read(defined); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReaderUnread(b *testing.B) {
	defined := printed(b)
	reader := domainxml.NewReader()
	b.ReportAllocs()
	b.SetBytes(int64(len(defined)))
	for b.Loop() {
		reader.Unread(defined)
	}
}

// BenchmarkInspect is what the agent does for each definition that changed.
func BenchmarkInspect(b *testing.B) {
	for _, name := range []string{"vm-cirros", "windows-full"} {
		b.Run(name, func(b *testing.B) {
			machine := machineOf(named(b, name).vm)
			defined, err := domainxml.Render(machine)
			if err != nil {
				b.Fatal(err)
			}
			reader := domainxml.NewReader()
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := reader.Inspect(machine, defined); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
