package conformance

import (
	"encoding/xml"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

const (
	metadataPrefix = "conformance"
	metadataURI    = "https://gitvirt.io/conformance"
)

func testEmpty(s *suite) {
	if names := s.names(); len(names) != 0 {
		s.Errorf("domains: %q, want none", names)
	}
}

func testAbsent(s *suite) {
	_, err := s.Hypervisor.Domain(s.ctx, "absent")
	s.is(err, hypervisor.ErrNotFound)
	for _, power := range []hypervisor.Power{
		hypervisor.PowerOn, hypervisor.PowerShutdown, hypervisor.PowerOff, hypervisor.PowerResume,
	} {
		s.is(s.Hypervisor.SetPower(s.ctx, "absent", power), hypervisor.ErrNotFound)
	}
	s.is(s.Hypervisor.SetMetadata(s.ctx, "absent", metadataPrefix, metadataURI, "<a/>"), hypervisor.ErrNotFound)
	_, err = s.Hypervisor.Addresses(s.ctx, "absent")
	s.is(err, hypervisor.ErrNotFound)
	s.ok(s.Hypervisor.Undefine(s.ctx, "absent"))
}

func testDefine(s *suite) {
	id := s.define(s.Harness.Domain, "b")
	s.ok(s.Hypervisor.Define(s.ctx, s.Harness.Domain("a", "")))
	upper := strings.ToUpper(uuid.NewString())
	s.ok(s.Hypervisor.Define(s.ctx, s.Harness.Domain("c", upper)))

	if names := s.names(); !slices.Equal(names, []string{"a", "b", "c"}) {
		s.Errorf("domains: %q, want a, b and c in this order", names)
	}
	b := s.domain("b")
	if b.Name != "b" || b.UUID != id || b.State != hypervisor.StateShutoff || b.StopReason != hypervisor.StopUnknown {
		s.Errorf("domain: %+v, want b with UUID %s, shut off for no reason", b, id)
	}
	if b.Live != "" || !strings.Contains(b.Config, id) {
		s.Errorf("live %q and config %q, want none and one with the UUID", b.Live, b.Config)
	}
	a := s.domain("a")
	if parsed, err := uuid.Parse(a.UUID); err != nil || parsed.String() != a.UUID {
		s.Errorf("a domain defined without UUID has %q, want one", a.UUID)
	}
	if !strings.Contains(a.Config, a.UUID) {
		s.Errorf("config %q lacks the UUID that was assigned, %s", a.Config, a.UUID)
	}
	if c := s.domain("c"); c.UUID != strings.ToLower(upper) {
		s.Errorf("UUID %s, want it in lower case", c.UUID)
	}
}

// described adds a description to a definition.
func described(definition, description string) string {
	return strings.Replace(definition, "</domain>", "<description>"+description+"</description></domain>", 1)
}

func testRedefine(s *suite) {
	id := s.define(s.Harness.Domain, "a")
	s.ok(s.Hypervisor.Define(s.ctx, described(s.Harness.Domain("a", id), "second")))
	a := s.domain("a")
	if a.UUID != id || !strings.Contains(a.Config, "second") {
		s.Errorf("domain %+v, want the second definition", a)
	}
	s.ok(s.Hypervisor.Define(s.ctx, a.Config)) // what was read can be defined
	if names := s.names(); len(names) != 1 {
		s.Errorf("domains: %q, want one", names)
	}
}

// screen and locked are a screen without and with a password.
const (
	screen = "<graphics type='vnc' port='-1'/>"
	locked = "<graphics type='vnc' port='-1' passwd='first'/>"
)

// with adds a device to a definition.
func with(definition, device string) string {
	if strings.Contains(definition, "<devices>") {
		return strings.Replace(definition, "</devices>", device+"</devices>", 1)
	}
	return strings.Replace(definition, "</domain>", "<devices>"+device+"</devices></domain>", 1)
}

// told checks that a domain has a screen with a password, and that nobody is told it.
func (s *suite) told(password string) {
	s.Helper()
	if secret := s.Harness.Secret("a"); !strings.Contains(secret, `passwd="`+password+`"`) && !strings.Contains(secret, `passwd='`+password+`'`) {
		s.Errorf("the password is not %s in\n%s", password, secret)
	}
	if a := s.domain("a"); strings.Contains(a.Config+a.Live, password) || !strings.Contains(a.Config, "<graphics") {
		s.Errorf("config %q tells the password, or has no screen", a.Config)
	}
	if has, err := s.Hypervisor.HasPasswords(s.ctx, "a"); err != nil || !has {
		s.Errorf("has passwords: %v, %v", has, err)
	}
}

func testPasswords(s *suite) {
	if has, err := s.Hypervisor.HasPasswords(s.ctx, "absent"); err != nil || has {
		s.Errorf("an absent domain has passwords: %v, %v", has, err)
	}
	whole := s.Harness.Domain("a", uuid.NewString())
	s.ok(s.Hypervisor.Define(s.ctx, with(whole, screen)))
	if has, err := s.Hypervisor.HasPasswords(s.ctx, "a"); err != nil || has {
		s.Errorf("a screen without a password has one: %v, %v", has, err)
	}
	s.ok(s.Hypervisor.Define(s.ctx, with(whole, locked)))
	s.told("first")
	s.ok(s.Hypervisor.Define(s.ctx, s.domain("a").Config))
	s.told("first")
	s.ok(s.Hypervisor.Define(s.ctx, described(with(whole, screen), "second")))
	s.told("first")
	s.ok(s.Hypervisor.Define(s.ctx, with(whole, strings.Replace(locked, "first", "other", 1))))
	s.told("other")
}

func testReplace(s *suite) {
	first, second := uuid.NewString(), uuid.NewString()
	s.ok(s.Hypervisor.Replace(s.ctx, s.Harness.Domain("a", first))) // there is nothing to replace
	s.ok(s.Hypervisor.Replace(s.ctx, described(s.Harness.Domain("a", first), "again")))
	if a := s.domain("a"); a.UUID != first || !strings.Contains(a.Config, "again") {
		s.Errorf("domain %+v, want the second definition", a)
	}
	s.ok(s.Hypervisor.Replace(s.ctx, s.Harness.Domain("a", second)))
	if a := s.domain("a"); a.UUID != second || strings.Contains(a.Config, "again") || a.State != hypervisor.StateShutoff {
		s.Errorf("domain %+v, want the third definition, with the UUID %s", a, second)
	}
	if names := s.names(); !slices.Equal(names, []string{"a"}) {
		s.Errorf("domains: %q, want one", names)
	}
}

func testReplacePasswords(s *suite) {
	s.ok(s.Hypervisor.Define(s.ctx, with(s.Harness.Domain("a", uuid.NewString()), locked)))
	second := uuid.NewString()
	s.ok(s.Hypervisor.Replace(s.ctx, with(s.Harness.Domain("a", second), screen)))
	s.told("first")
	if a := s.domain("a"); a.UUID != second {
		s.Errorf("domain %+v, want the UUID %s", a, second)
	}
	s.ok(s.Hypervisor.Replace(s.ctx, with(s.Harness.Domain("a", uuid.NewString()), strings.Replace(locked, "first", "", 1))))
	if has, err := s.Hypervisor.HasPasswords(s.ctx, "a"); err != nil || !has {
		s.Errorf("an empty password, which lets nobody in, is none: %v, %v", has, err)
	}
}

func testReplaceRefused(s *suite) {
	id := uuid.NewString()
	s.ok(s.Hypervisor.Define(s.ctx, with(s.Harness.Domain("a", id), locked)))
	other := s.define(s.Harness.Domain, "b")
	stays := func(what string) {
		s.Helper()
		s.told("first")
		if a := s.domain("a"); a.UUID != id {
			s.Errorf("%s: domain %+v, want it as it was", what, a)
		}
	}
	s.is(s.Hypervisor.Replace(s.ctx, s.Harness.Domain("a", other)), hypervisor.ErrConflict)
	stays("the UUID of another")
	s.is(s.Hypervisor.Replace(s.ctx, strings.Replace(s.Harness.Domain("a", uuid.NewString()), "</domain>", "<memry>1</memry></domain>", 1)), hypervisor.ErrInvalid)
	stays("an element of no schema")
	if s.Unfit != nil {
		for reason, definition := range s.Unfit("a", uuid.NewString()) {
			if err := s.Hypervisor.Replace(s.ctx, definition); err == nil {
				s.Errorf("%s: replaced", reason)
			}
			stays(reason)
		}
	}
	s.power("a", hypervisor.PowerOn)
	s.is(s.Hypervisor.Replace(s.ctx, s.Harness.Domain("a", uuid.NewString())), hypervisor.ErrConflict)
	stays("it runs")
	if a := s.domain("a"); a.State != hypervisor.StateRunning || a.Config == "" {
		s.Errorf("domain %+v, want it to run and to have its definition", a)
	}
}

// wrong returns definitions that nobody takes, by what is wrong with them.
func wrong(s *suite, whole string) map[string]string {
	return map[string]string{
		"empty":                   "",
		"not XML":                 "domain: a",
		"cut off":                 whole[:len(whole)/2],
		"another root":            "<network><name>a</name></network>",
		"no name":                 strings.Replace(whole, "<name>a</name>", "", 1),
		"an empty name":           s.Harness.Domain("", ""),
		"a path in the name":      s.Harness.Domain("../a", ""),
		"an element of no schema": strings.Replace(whole, "</domain>", "<memry>1</memry></domain>", 1),
		"no UUID":                 s.Harness.Domain("a", "12345"),
		"a control character":     described(whole, "\x01"),
		"a NUL as a reference":    described(whole, "&#0;"),
		"a metacharacter":         described(whole, "a < b"),
	}
}

func testInvalid(s *suite) {
	whole := s.Harness.Domain("a", "")
	for reason, definition := range wrong(s, whole) {
		if err := s.Hypervisor.Define(s.ctx, definition); err == nil {
			s.Errorf("%s: defined", reason)
		} else {
			s.Logf("%s: %v", reason, err)
			s.is(err, hypervisor.ErrInvalid)
		}
	}
	if names := s.names(); len(names) != 0 {
		s.Errorf("domains: %q, want none", names)
	}
}

func testConflict(s *suite) {
	id := s.define(s.Harness.Domain, "a")
	s.is(s.Hypervisor.Define(s.ctx, s.Harness.Domain("a", uuid.NewString())), hypervisor.ErrConflict)
	s.is(s.Hypervisor.Define(s.ctx, s.Harness.Domain("a", "")), hypervisor.ErrConflict)
	s.is(s.Hypervisor.Define(s.ctx, s.Harness.Domain("b", id)), hypervisor.ErrConflict)
	if names := s.names(); !slices.Equal(names, []string{"a"}) || s.domain("a").UUID != id {
		s.Errorf("domains: %q, want only a as it was", names)
	}
}

func testRedefineRunning(s *suite) {
	id := s.define(s.Harness.Domain, "a")
	s.power("a", hypervisor.PowerOn)
	s.ok(s.Hypervisor.Define(s.ctx, described(s.Harness.Domain("a", id), "second")))
	a := s.domain("a")
	if a.State != hypervisor.StateRunning || strings.Contains(a.Live, "second") || !strings.Contains(a.Config, "second") {
		s.Errorf("domain %+v, want it to run with the first definition and to keep the second", a)
	}
	s.power("a", hypervisor.PowerOff)
	s.power("a", hypervisor.PowerOn)
	if a = s.domain("a"); !strings.Contains(a.Live, "second") {
		s.Errorf("live %q, want the second definition after a new start", a.Live)
	}
}

func testUndefine(s *suite) {
	s.define(s.Harness.Domain, "a")
	s.define(s.Harness.Domain, "b")
	s.ok(s.Hypervisor.Undefine(s.ctx, "a"))
	s.ok(s.Hypervisor.Undefine(s.ctx, "a"))
	if names := s.names(); !slices.Equal(names, []string{"b"}) {
		s.Errorf("domains: %q, want b", names)
	}
}

func testUndefineRunning(s *suite) {
	s.define(s.Harness.Domain, "a")
	s.power("a", hypervisor.PowerOn)
	s.ok(s.Hypervisor.Undefine(s.ctx, "a"))
	s.ok(s.Hypervisor.Undefine(s.ctx, "a")) // there is nothing left to undefine
	a := s.domain("a")
	if a.State != hypervisor.StateRunning || a.Config != "" || a.Live == "" {
		s.Errorf("domain %+v, want it to run without a config", a)
	}
	s.ok(s.Hypervisor.SetMetadata(s.ctx, "a", metadataPrefix, metadataURI, "<still/>"))
	if live := s.domain("a").Live; !strings.Contains(live, "still") {
		s.Errorf("live %q, want the metadata of a transient domain", live)
	}
	s.power("a", hypervisor.PowerOff)
	s.eventually(func() bool { return len(s.names()) == 0 }, "the domain is gone")
}

// record is a metadata element as gitvirt may write it.
type record struct {
	XMLName xml.Name `xml:"record"`
	Owner   string   `xml:"owner,attr"`
	Spec    string   `xml:"spec"`
}

// metadata reads the record back from a definition, by its namespace.
func (s *suite) metadata(definition string) (string, string) {
	s.Helper()
	var domain struct {
		Metadata struct {
			Records []struct {
				Owner string `xml:"owner,attr"`
				Spec  string `xml:"https://gitvirt.io/conformance spec"`
			} `xml:"https://gitvirt.io/conformance record"`
			Other string `xml:"https://example.com/other thing"`
		} `xml:"metadata"`
	}
	if err := xml.Unmarshal([]byte(definition), &domain); err != nil {
		s.Fatalf("read %q: %v", definition, err)
	}
	if domain.Metadata.Other != "kept" {
		s.Errorf("definition %q lacks the metadata of others", definition)
	}
	switch records := domain.Metadata.Records; len(records) {
	case 0:
		return "", ""
	case 1:
		return records[0].Owner, records[0].Spec
	default:
		s.Fatalf("definition %q has %d records, want one", definition, len(records))
		return "", ""
	}
}

func (s *suite) setMetadata(name, owner, spec string) {
	s.Helper()
	element, err := xml.Marshal(record{Owner: owner, Spec: spec})
	s.ok(err)
	s.ok(s.Hypervisor.SetMetadata(s.ctx, name, metadataPrefix, metadataURI, string(element)))
}

// defineWithOther defines a domain that has somebody else's metadata.
func (s *suite) defineWithOther(name string) {
	s.Helper()
	s.ok(s.Hypervisor.Define(s.ctx, strings.Replace(s.Harness.Domain(name, uuid.NewString()), "</domain>",
		"<metadata><o:thing xmlns:o='https://example.com/other'>kept</o:thing></metadata></domain>", 1)))
}

func testMetadataOff(s *suite) {
	s.defineWithOther("a")
	s.setMetadata("a", "first", "one")
	s.setMetadata("a", "second", "two")
	if owner, spec := s.metadata(s.domain("a").Config); owner != "second" || spec != "two" {
		s.Errorf("metadata is %q, %q, want what was set last", owner, spec)
	}
	s.power("a", hypervisor.PowerOn)
	if owner, _ := s.metadata(s.domain("a").Live); owner != "second" {
		s.Errorf("metadata of the running guest is %q, want that of its definition", owner)
	}
	s.power("a", hypervisor.PowerOff)
	for range 2 {
		s.ok(s.Hypervisor.SetMetadata(s.ctx, "a", metadataPrefix, metadataURI, ""))
	}
	if owner, spec := s.metadata(s.domain("a").Config); owner != "" || spec != "" {
		s.Errorf("metadata is %q, %q, want none after it was removed", owner, spec)
	}
	s.is(s.Hypervisor.SetMetadata(s.ctx, "a", metadataPrefix, metadataURI, "<not>XML"), hypervisor.ErrInvalid)
	declared := "<" + metadataPrefix + ":a xmlns:" + metadataPrefix + "='" + metadataURI + "'/>"
	if err := s.Hypervisor.SetMetadata(s.ctx, "a", metadataPrefix, metadataURI, declared); err == nil {
		s.Error("an element that declares the namespace itself was taken; libvirt refuses it")
	}
}

func testMetadataRunning(s *suite) {
	s.defineWithOther("a")
	s.power("a", hypervisor.PowerOn)
	s.setMetadata("a", "owner", "spec")
	a := s.domain("a")
	for what, definition := range map[string]string{"config": a.Config, "live": a.Live} {
		if owner, spec := s.metadata(definition); owner != "owner" || spec != "spec" {
			s.Errorf("metadata in %s is %q, %q, want what was set", what, owner, spec)
		}
	}
	s.power("a", hypervisor.PowerOff)
	if owner, _ := s.metadata(s.domain("a").Config); owner != "owner" {
		s.Errorf("metadata is %q after the guest is off, want what was set", owner)
	}
}

func testMetadataCharacters(s *suite) {
	s.defineWithOther("a")
	s.power("a", hypervisor.PowerOn)
	for _, text := range []string{
		`<&>"'`, "]]>", "<!-- no comment -->", "&amp;", "Grüße, 世界, 🖥, \u00a0", "line\nline\ttab", "  spaces  ",
		strings.Repeat("long ", 50_000), "{\"json\": [\"<\", \"\\n\"]}",
	} {
		s.setMetadata("a", text, text)
		a := s.domain("a")
		for what, definition := range map[string]string{"config": a.Config, "live": a.Live} {
			if owner, spec := s.metadata(definition); owner != text || spec != text {
				s.Errorf("metadata in %s is %.100q, %.100q, want %.100q", what, owner, spec, text)
			}
		}
	}
}
