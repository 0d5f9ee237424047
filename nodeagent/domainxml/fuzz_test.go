package domainxml_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// FuzzRender puts any strings into any specs. The result is an error, or a document that parses, whose elements are those of
// the same spec with harmless strings in the same places, and from which every string comes back as it was.
func FuzzRender(f *testing.F) {
	for _, example := range append(examples(f), corpus(f)...) {
		spec, err := json.Marshal(example.vm.Spec())
		if err != nil {
			f.Fatal(err)
		}
		for _, value := range []string{"", hostile[0], hostile[len(example.name)%len(hostile)]} {
			f.Add(spec, value)
		}
	}
	f.Fuzz(func(t *testing.T, content []byte, value string) {
		var spec, harmless kubevirtv1.VirtualMachineInstanceSpec
		if json.Unmarshal(content, &spec) != nil || json.Unmarshal(content, &harmless) != nil {
			return
		}
		const plain = "harmless"
		substitute(&spec, value)
		substitute(&harmless, plain)
		got, err := domainxml.Render(machineFor(&spec, value))
		want, harmlessErr := domainxml.Render(machineFor(&harmless, plain))
		if err == nil && !writable(value) {
			t.Fatalf("%q is in a document", value)
		}
		if err != nil && harmlessErr == nil && writable(value) {
			t.Fatalf("%q is refused: %v", value, err)
		}
		if err != nil || harmlessErr != nil {
			return
		}
		tokens, err := tokensOf(got)
		if err != nil {
			t.Fatalf("the document does not parse: %v\n%s", err, got)
		}
		expected, err := tokensOf(want)
		if err != nil {
			t.Fatal(err)
		}
		for i := range expected {
			expected[i] = strings.ReplaceAll(expected[i], plain, value)
		}
		if value == "" {
			return // what is empty is left out
		}
		if diff := cmp.Diff(expected, tokens); diff != "" {
			t.Errorf("the value %q changes the document (-want +got):\n%s", value, diff)
		}
	})
}

// machineFor has the value in everything of the host too.
func machineFor(spec *kubevirtv1.VirtualMachineInstanceSpec, value string) domainxml.Machine {
	vm := &schemas.VM{
		Address: schemas.Address{Kind: "VirtualMachineInstance", Namespace: "n", Name: "m"},
		Object:  &kubevirtv1.VirtualMachine{Spec: kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: *spec}}},
		Hash:    "h", Record: []byte("{" + value + "}"),
	}
	machine := machineOf(vm)
	machine.Host.ConsoleLog += value
	for i := range machine.Volumes {
		machine.Volumes[i].Path += value
	}
	machine.Record.Fleet += value
	return machine
}

// substitute appends a value to every free text of a spec: what has a meaning for rendering, such as a bus or a name that
// something else refers to, stays.
func substitute(spec *kubevirtv1.VirtualMachineInstanceSpec, value string) {
	domain := &spec.Domain
	if domain.Chassis != nil {
		domain.Chassis.Asset += value
		domain.Chassis.Manufacturer += value
	}
	if firmware := domain.Firmware; firmware != nil {
		firmware.Serial += value
		if firmware.KernelBoot != nil {
			firmware.KernelBoot.KernelArgs += value
		}
	}
	if domain.Machine != nil {
		domain.Machine.Type += value
	}
	if domain.CPU != nil {
		for i := range domain.CPU.Features {
			domain.CPU.Features[i].Name += value
		}
	}
	if domain.Features != nil && domain.Features.Hyperv != nil && domain.Features.Hyperv.VendorID != nil {
		domain.Features.Hyperv.VendorID.VendorID += value
	}
	for i := range domain.Devices.Disks {
		domain.Devices.Disks[i].Serial += value
	}
	if watchdog := domain.Devices.Watchdog; watchdog != nil {
		watchdog.Name += value
	}
	if sound := domain.Devices.Sound; sound != nil {
		sound.Name += value
	}
	for i := range spec.Networks {
		if multus := spec.Networks[i].Multus; multus != nil {
			multus.NetworkName = "namespace/lan" + value
		}
	}
}

// writable reports whether XML 1.0 can hold a text (https://www.w3.org/TR/xml/#charsets).
func writable(text string) bool {
	for _, r := range text {
		if r < ' ' && !strings.ContainsRune("\t\n\r", r) || r == 0xFFFE || r == 0xFFFF {
			return false
		}
	}
	return utf8.ValidString(text)
}

// tokensOf returns the elements, attributes and texts of a document, one string each. What stands between elements is
// indentation, or else a token of its own.
func tokensOf(document string) ([]string, error) {
	decoder := xml.NewDecoder(strings.NewReader(document))
	var out []string
	text, leaf := "", false
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			if strings.TrimSpace(text) != "" {
				out = append(out, text)
			}
			out = append(out, "<"+token.Name.Local)
			leaf, text = true, ""
			for _, attribute := range token.Attr {
				out = append(out, attribute.Name.Local+"="+attribute.Value)
			}
		case xml.EndElement:
			if leaf && text != "" || strings.TrimSpace(text) != "" {
				out = append(out, text)
			}
			out = append(out, "/"+token.Name.Local)
			leaf, text = false, ""
		case xml.CharData:
			text += string(token)
		default:
			out = append(out, "something else")
		}
	}
}

// TestWhatXMLCannotHoldIsRefused holds that a character is neither dropped nor written.
func TestWhatXMLCannotHoldIsRefused(t *testing.T) {
	for _, test := range []struct {
		reason, value string
		refused       bool
	}{
		{"NUL", "a\x00b", true},
		{"escape", "\x1b[31m", true},
		{"not UTF-8", "a\xffb", true},
		{"half a surrogate pair", "\xed\xa0\x80", true},
		{"a noncharacter", "\uffff", true},
		{"tab, newline, carriage return", "a\tb\nc\rd", false},
		{"markup", "<&>\"']]>", false},
		{"beyond the basic plane", "🚀", false},
		{"the replacement character itself", "\ufffd", false},
	} {
		spec := kubevirtv1.VirtualMachineInstanceSpec{}
		spec.Domain.Chassis = &kubevirtv1.Chassis{Asset: test.value}
		spec.Domain.CPU = &kubevirtv1.CPU{Features: []kubevirtv1.CPUFeature{{Name: test.value}}}
		document, err := domainxml.Render(machineFor(&spec, "x"))
		if test.refused {
			if err == nil || utf8.ValidString(test.value) && strings.Contains(err.Error(), test.value) {
				t.Errorf("%s: error %v", test.reason, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.reason, err)
			continue
		}
		tokens, err := tokensOf(document)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, token := range tokens {
			if token == test.value || token == "name="+test.value {
				found++
			}
		}
		if found != 2 {
			t.Errorf("%s: the value came back %d times, want 2:\n%s", test.reason, found, document)
		}
	}
}
