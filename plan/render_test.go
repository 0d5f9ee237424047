package plan_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// story is a plan with one of everything.
func story(t *testing.T) *plan.Plan {
	t.Helper()
	want, have := storyParts(t)
	return build(t, want, have)
}

func storyParts(t *testing.T) (*schemas.Desired, []*plan.Domain) {
	t.Helper()
	var have []*plan.Domain
	for name, change := range map[string]func(*plan.Domain){
		"changed": func(*plan.Domain) {}, "crashed": stopped(plan.StopCrashed), "gone": func(*plan.Domain) {}, "same": func(*plan.Domain) {},
		"edited": func(d *plan.Domain) {
			d.Drift = []plan.Change{{Path: "vcpu@current", Before: "1", After: "2", Consequence: plan.ConsequenceNone}}
		},
	} {
		have = append(have, with(running(t, manifest(name, "Always", "128Mi")), change)...)
	}
	// Map order is random on purpose: the reader of a host sorts, as package host does.
	sortDomains(have)
	return desired(t, fleet,
		manifest("new", "Always", "128Mi"),
		strings.Replace(manifest("changed", "Always", "192Mi"), "marker", "marker-2", 1),
		manifest("crashed", "Always", "128Mi"), manifest("same", "Always", "128Mi"), manifest("edited", "Always", "128Mi"),
	), have
}

func TestText(t *testing.T) {
	var out strings.Builder
	if err := story(t).Text(&out, plan.TextOptions{Node: "host-1"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "story.txt", out.String())
}

func TestTextColor(t *testing.T) {
	var out strings.Builder
	if err := story(t).Text(&out, plan.TextOptions{Color: true}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\x1b[") {
		t.Error("no colour where it was asked for")
	}
}

func TestJSON(t *testing.T) {
	out, err := json.MarshalIndent(story(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "story.json", string(out)+"\n")
}

// renderings are all that a plan is written as.
func renderings(t interface{ Fatal(...any) }, p *plan.Plan) map[string]string {
	var text, colored, indented strings.Builder
	if err := errors.Join(p.Text(&text, plan.TextOptions{}), p.Text(&colored, plan.TextOptions{Color: true, Node: "n"}), p.JSON(&indented, "  ")); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"text": text.String(), "colours": colored.String(), "indented JSON": indented.String(), "JSON": string(encoded),
		"Markdown": p.Markdown(plan.MarkdownOptions{}), "short Markdown": p.Markdown(plan.MarkdownOptions{Budget: 700}), "summary": p.SummaryLine(),
	}
}

// guarded is a machine whose user data, network data, Secrets and credentials hold a secret, all in another way.
func guarded(secret, memory string, with []bool) string {
	text := `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: a}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: ` + memory + `}
        devices: {}
      accessCredentials:
      - sshPublicKey: {source: {secret: {secretName: hush}}, propagationMethod: {qemuGuestAgent: {users: [root]}}}
      volumes:
`
	encoded := base64.StdEncoding.EncodeToString([]byte(secret))
	for i, volume := range []string{
		"{name: a, cloudInitNoCloud: {userData: \"#!" + secret + "\", networkData: \"n: " + secret + "\"}}",
		"{name: b, cloudInitConfigDrive: {userDataBase64: " + encoded + "}}",
		"{name: c, secret: {secretName: hush}}",
		"{name: d, dataVolume: {name: filled}}",
	} {
		if with[i] {
			text += "      - " + volume + "\n"
		}
	}
	return text + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: hush}\nstringData: {key: \"ssh-ed25519 " + secret + "\"}\ndata: {file: " + encoded + "}\n" +
		"---\napiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: filled}\nspec:\n  source: {http: {url: \"https://example.org/x?sig=" + secret +
		"\", extraHeaders: [\"Token: " + secret + "\"]}}\n  storage: {resources: {requests: {storage: 1Gi}}}\n"
}

// TestPropertySecretsAreNeverRendered: whatever becomes of a machine, no rendering of any plan holds a secret, in whichever
// writing, or its digest.
func TestPropertySecretsAreNeverRendered(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(label string) (manifest, secret string) {
			secret = rapid.StringMatching(`zq[a-z]{10}`).Draw(rt, label)
			with := rapid.SliceOfN(rapid.Bool(), 4, 4).Draw(rt, label+" volumes")
			with[0] = with[0] || !slices.Contains(with, true)
			return guarded(secret, rapid.SampledFrom([]string{"64Mi", "128Mi"}).Draw(rt, label+" memory"), with), secret
		}
		before, first := draw("before")
		after, second := draw("after")
		have := plan.FromDesired(desired(t, fleet, before), "a")
		for _, want := range []*schemas.Desired{desired(t, fleet, after), desired(t, fleet)} {
			for _, have := range []plan.Observed{have, {Node: "n"}} {
				p, err := plan.Build(want, have, plan.Options{})
				if err != nil {
					rt.Fatal(err)
				}
				for kind, rendering := range renderings(rt, p) {
					for _, secret := range []string{first, second} {
						encoded := base64.StdEncoding.EncodeToString([]byte(secret))
						if strings.Contains(rendering, secret) || strings.Contains(rendering, encoded) || strings.Contains(rendering, "sha256:") {
							rt.Errorf("%s holds a secret:\n%s", kind, rendering)
						}
					}
				}
			}
		}
	})
}

// edit draws a VM's manifest.
func edit(t *rapid.T, name string) string {
	return manifest(name,
		rapid.SampledFrom([]string{"Always", "Halted", "Once", "RerunOnFailure", "Manual"}).Draw(t, "strategy"),
		rapid.SampledFrom([]string{"64Mi", "128Mi", "1Gi"}).Draw(t, "memory"),
		rapid.SampledFrom([]string{"", "      hostname: one", "      hostname: two"}).Draw(t, "hostname"))
}

func TestPropertyBothDirectionsNameTheSameFields(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := desired(t, fleet, edit(rt, "x")), desired(t, fleet, edit(rt, "x"))
		there, back := build(t, b, plan.FromDesired(a, "a").Domains), build(t, a, plan.FromDesired(b, "b").Domains)
		if diff := cmp.Diff(paths(there), paths(back)); diff != "" {
			rt.Errorf("fields differ (-there +back):\n%s", diff)
		}
		if same := build(t, a, plan.FromDesired(a, "a").Domains); len(same.Steps) != 0 {
			rt.Errorf("a plan from a revision to itself has steps: %+v", same.Steps)
		}
	})
}

// TestPropertyEveryEditNamesTheSameFieldsBothWays: for machines with disks, interfaces, volumes and links of all kinds.
func TestPropertyEveryEditNamesTheSameFieldsBothWays(t *testing.T) {
	var machines []string
	for _, test := range liveCases() {
		machines = append(machines, test.before, test.after)
	}
	rapid.Check(t, func(rt *rapid.T) {
		a := desired(t, fleet, rapid.SampledFrom(machines).Draw(rt, "a"))
		b := desired(t, fleet, rapid.SampledFrom(machines).Draw(rt, "b"))
		between := func(from, to *schemas.Desired) *plan.Plan {
			p, err := plan.Build(to, plan.FromDesired(from, "from"), plan.Options{})
			if err != nil {
				rt.Fatal(err)
			}
			return p
		}
		if diff := cmp.Diff(paths(between(a, b)), paths(between(b, a))); diff != "" {
			rt.Errorf("fields differ (-there +back):\n%s", diff)
		}
		if same := between(b, b); len(same.Steps) != 0 {
			rt.Errorf("a plan from a revision to itself has steps: %+v", same.Steps)
		}
	})
}

// TestPropertyOrderDoesNotMatter: neither that of files nor that of the documents in them.
func TestPropertyOrderDoesNotMatter(t *testing.T) {
	cases := liveCases()
	rapid.Check(t, func(rt *rapid.T) {
		var before, after []string
		for i := range rapid.IntRange(1, 5).Draw(rt, "machines") {
			test := cases[rapid.IntRange(0, len(cases)-1).Draw(rt, "case")]
			name := strings.NewReplacer("{name: a}", fmt.Sprintf("{name: vm-%d}", i), "{name: a, ", fmt.Sprintf("{name: vm-%d, ", i),
				"{uuid: 5d307ca9", fmt.Sprintf("{uuid: 5d307ca%d", i), "files", fmt.Sprintf("files-%d", i)) // one machine's identity is no other's
			if rapid.Bool().Draw(rt, "there before") {
				before = append(before, name.Replace(test.before))
			}
			if rapid.Bool().Draw(rt, "there after") {
				after = append(after, name.Replace(test.after))
			}
		}
		planned := func(before, after []string) string {
			p, err := plan.Build(desired(t, after...), plan.FromDesired(desired(t, before...), "from"), plan.Options{})
			if err != nil {
				rt.Fatal(err)
			}
			for i := range p.Steps {
				p.Steps[i].Source, p.Steps[i].ID = "", "" // the file's name says its place
				p.Steps[i].Summary = strings.Split(p.Steps[i].Summary, ":")[0]
			}
			p.ID = ""
			return renderings(rt, p)["JSON"]
		}
		shuffled := func(label string, manifests []string) []string {
			return rapid.Permutation(append([]string{fleet}, manifests...)).Draw(rt, label)
		}
		first := planned(append([]string{fleet}, before...), append([]string{fleet}, after...))
		if second := planned(shuffled("before", before), shuffled("after", after)); first != second {
			rt.Errorf("(-first +second):\n%s", cmp.Diff(first, second))
		}
	})
}

func paths(p *plan.Plan) []string {
	var out []string
	for _, step := range p.Steps {
		for _, change := range step.Changes {
			out = append(out, change.Path)
		}
	}
	return out
}

func sortDomains(domains []*plan.Domain) {
	byAddress := map[string]*plan.Domain{}
	var addresses []schemas.Address
	for _, domain := range domains {
		byAddress[domain.Address.String()] = domain
		addresses = append(addresses, domain.Address)
	}
	for i := range addresses {
		for j := i + 1; j < len(addresses); j++ {
			if addresses[j].Compare(addresses[i]) < 0 {
				addresses[i], addresses[j] = addresses[j], addresses[i]
			}
		}
	}
	for i, address := range addresses {
		domains[i] = byAddress[address.String()]
	}
}
