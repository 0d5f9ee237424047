package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"text/template"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func options() Options {
	o := Defaults("1.2.3")
	o.Repository = example
	return o
}

// TestRights shows every right that is given, as one line each: whoever changes one reads it here.
func TestRights(t *testing.T) {
	var out bytes.Buffer
	list := func(kind, name, namespace string, rules []rbacv1.PolicyRule) {
		fmt.Fprintf(&out, "%s %s\n", kind, strings.TrimPrefix(namespace+"/"+name, "/"))
		for _, r := range rules {
			fmt.Fprintf(&out, "  %s: %s", strings.Join(r.Resources, " "), strings.Join(r.Verbs, " "))
			if len(r.ResourceNames) > 0 {
				fmt.Fprintf(&out, " (only %s)", strings.Join(r.ResourceNames, ", "))
			}
			fmt.Fprintln(&out)
		}
	}
	o := options()
	for _, role := range clusterRoles() {
		list("ClusterRole", role.Name, "", role.Rules)
	}
	for _, role := range roles(&o) {
		list("Role", role.Name, role.Namespace, role.Rules)
	}
	objects, err := Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if !strings.HasSuffix(object.GetKind(), "Binding") || object.GetKind() == "ValidatingAdmissionPolicyBinding" {
			continue
		}
		role, _, _ := unstructured.NestedString(object.Object, "roleRef", "name")
		subjects, _, _ := unstructured.NestedSlice(object.Object, "subjects")
		where := object.GetNamespace()
		if where == "" {
			where = "everywhere"
		}
		fmt.Fprintf(&out, "%s has %s in %s\n", subjects[0].(map[string]any)["name"], role, where)
	}
	golden := filepath.Join("testdata", "rights.txt")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || out.String() != string(want) {
		t.Errorf("the rights are others (%v):\n%s", err, out.String())
	}
}

// Nobody but the controller may read a Secret, and it only the one of the authority; nobody has a right by a star.
func TestLeastRights(t *testing.T) {
	o := options()
	check := func(name string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			for _, words := range [][]string{r.APIGroups, r.Resources, r.Verbs, r.ResourceNames} {
				if slices.Contains(words, "*") {
					t.Errorf("%s: a star: %+v", name, r)
				}
			}
			if !slices.ContainsFunc(r.Resources, func(resource string) bool { return strings.HasPrefix(resource, "secrets") }) {
				continue
			}
			for _, verb := range r.Verbs {
				switch verb {
				case "create", "patch", "delete":
				case "get":
					if !slices.Equal(r.ResourceNames, []string{authority}) {
						t.Errorf("%s: reads Secrets: %+v", name, r)
					}
				default:
					t.Errorf("%s: %s of Secrets", name, verb)
				}
			}
			if strings.HasPrefix(name, agent) {
				t.Errorf("%s has a right to Secrets", name)
			}
		}
	}
	for _, role := range clusterRoles() {
		check(role.Name, role.Rules)
	}
	for _, role := range roles(&o) {
		check(role.Name, role.Rules)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for reason, change := range map[string]func(*Options){
		"no repository":                  func(o *Options) { o.Repository = "" },
		"no namespace":                   func(o *Options) { o.Namespace = "" },
		"no namespace for VMs":           func(o *Options) { o.VMNamespaces = nil },
		"a namespace of no name":         func(o *Options) { o.VMNamespaces = []string{"Team A"} },
		"VMs beside the keys":            func(o *Options) { o.VMNamespaces = []string{o.Namespace} },
		"no image":                       func(o *Options) { o.AgentImage = "" },
		"unknown credentials":            func(o *Options) { o.Credentials = "cookie" },
		"unknown image volumes":          func(o *Options) { o.ImageVolumes = "maybe" },
		"unknown emulation":              func(o *Options) { o.Emulation = "maybe" },
		"an argument without its option": func(o *Options) { o.Arguments = []string{"gitea"} },
		"an argument of two lines":       func(o *Options) { o.Arguments = []string{"--forge=gitea\n--kubernetes=false"} },
		"no controller":                  func(o *Options) { o.Replicas = 0 },
	} {
		o := options()
		change(&o)
		if _, err := Objects(o); err == nil {
			t.Errorf("%s: no error", reason)
		}
	}
}

// helm renders the chart as Helm does, with the few functions that the chart calls.
func helm(t *testing.T, values string) []*unstructured.Unstructured {
	t.Helper()
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	given, asked := map[string]any{}, map[string]any{}
	if err := errors.Join(yaml.Unmarshal(files[chartFolder+"values.yaml"], &given), yaml.Unmarshal([]byte(values), &asked)); err != nil {
		t.Fatal(err)
	}
	merge(given, asked)
	data := map[string]any{"Values": given, "Release": map[string]any{"Namespace": DefaultNamespace}, "Chart": map[string]any{"AppVersion": "1.2.3"}}
	functions := template.FuncMap{
		"join": func(separator string, list []any) string {
			var texts []string
			for _, item := range list {
				texts = append(texts, fmt.Sprint(item))
			}
			return strings.Join(texts, separator)
		},
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"default": func(other, value any) any {
			if value == "" {
				return other
			}
			return value
		},
	}
	var out []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, chartFolder+"templates/") {
			continue
		}
		parsed, err := template.New(name).Funcs(functions).Option("missingkey=error").Parse(string(files[name]))
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if err := parsed.Execute(&text, data); err != nil {
			t.Fatal(err)
		}
		out = append(out, read(t, &text)...)
	}
	return out
}

func merge(into, from map[string]any) {
	for key, value := range from {
		if inner, ok := value.(map[string]any); ok {
			if there, ok := into[key].(map[string]any); ok {
				merge(there, inner)
				continue
			}
		}
		into[key] = value
	}
}

func read(t *testing.T, text io.Reader) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	for decoder := utilyaml.NewYAMLOrJSONDecoder(text, 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if object.Object != nil {
			out = append(out, object)
		}
	}
}

// byName are objects by what they are called, as they look once written and read.
func byName(t *testing.T, objects []*unstructured.Unstructured) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	text, err := YAML(objects)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range read(t, bytes.NewReader(text)) {
		name := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
		if out[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		out[name] = object.Object
	}
	return out
}

func same(t *testing.T, got, want map[string]map[string]any) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s:\n%v\nwant\n%v", name, got[name], want[name])
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("%s is not installed", name)
		}
	}
}

// The chart installs what gitvirt install does, whatever the choices are.
func TestChart(t *testing.T) {
	for reason, c := range map[string]struct {
		values string
		change func(*Options)
	}{
		"as it comes": {"", func(*Options) {}},
		"several namespaces": {"vmNamespaces: [team-a, team-b]\nreplicas: 1", func(o *Options) {
			o.VMNamespaces, o.Replicas = []string{"team-a", "team-b"}, 1
		}},
		"everything": {"clusterWide: true\nserviceMonitor: true\nemulation: auto\nimageVolumes: never\nrepository: {url: 'ssh://git@x/y.git', branch: main, path: hosts, credentials: ssh}", func(o *Options) {
			o.ClusterWide, o.ServiceMonitor, o.Emulation, o.ImageVolumes, o.Credentials = true, true, "auto", "never", SSH
			o.Repository, o.Branch, o.Path = "ssh://git@x/y.git", "main", "hosts"
		}},
		"a forge": {"webhooks: true\narguments: ['--forge=gitea', '--external-url=https://vms.example.com/{{x}}']", func(o *Options) {
			o.Webhooks, o.Arguments = true, []string{"--forge=gitea", "--external-url=https://vms.example.com/{{x}}"}
		}},
		"a token": {"repository: {credentials: token}\nimages: {repository: registry.example.com, tag: v9}", func(o *Options) {
			o.Credentials = Token
			o.ControllerImage, o.AgentImage, o.LauncherImage = "registry.example.com/gitvirt:v9", "registry.example.com/gitvirt-agent:v9", "registry.example.com/gitvirt-launcher:v9"
		}},
	} {
		t.Run(reason, func(t *testing.T) {
			o := options()
			c.change(&o)
			objects, err := Objects(o)
			if err != nil {
				t.Fatal(err)
			}
			want := byName(t, objects)
			delete(want, "Namespace /"+DefaultNamespace) // helm install --create-namespace
			same(t, byName(t, helm(t, c.values)), want)
		})
	}
}

// The kustomize base has what gitvirt install applies, and names each of its files.
func TestKustomize(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Resources []string }
	if err := yaml.Unmarshal(files[kustomizeBase+"kustomization.yaml"], &list); err != nil {
		t.Fatal(err)
	}
	var all []*unstructured.Unstructured
	for _, name := range list.Resources {
		all = append(all, read(t, bytes.NewReader(files[kustomizeBase+name]))...)
	}
	o := Defaults("devel")
	o.Repository = example
	objects, err := Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	same(t, byName(t, all), byName(t, objects))
}

// What is in deploy/ is what this package says; make generate writes it.
func TestFilesAreFresh(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		there, err := os.ReadFile(filepath.Join("..", "deploy", name))
		if err != nil || !bytes.Equal(there, content) {
			t.Errorf("deploy/%s is stale (%v): run make generate", name, err)
		}
	}
}

// No Pod of the installation is one that the admission policy takes for a VM's.
func TestInstalledPodsAreNotVMs(t *testing.T) {
	objects, err := Objects(options())
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		labels, _, _ := unstructured.NestedStringMap(object.Object, "spec", "template", "metadata", "labels")
		annotations, _, _ := unstructured.NestedStringMap(object.Object, "spec", "template", "metadata", "annotations")
		maps.Copy(labels, annotations)
		for key := range labels {
			if strings.HasPrefix(key, "gitvirt.io/") || key == "app.kubernetes.io/managed-by" {
				t.Errorf("%s %s: %s", object.GetKind(), object.GetName(), key)
			}
		}
	}
}
