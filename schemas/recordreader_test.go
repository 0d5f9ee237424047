package schemas

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
)

// machinesBelow are the machines of all manifests below folders.
func machinesBelow(t testing.TB, folders ...string) []*VM {
	t.Helper()
	var files []*File
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
				return err
			}
			content, err := os.ReadFile(path)
			files = append(files, Parse(path, content))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return Assemble(files).VMs
}

// recordsOfExamples are records of all manifests of the examples.
func recordsOfExamples(t testing.TB) [][]byte {
	t.Helper()
	var out [][]byte
	for _, vm := range machinesBelow(t, "../examples") {
		out = append(out, vm.Record)
	}
	if len(out) < 3 {
		t.Fatalf("only %d records", len(out))
	}
	return out
}

// TestRecordReaderReadsAsJSONDoes: the quick way finds what encoding/json finds, and does not give up on our own records.
func TestRecordReaderReadsAsJSONDoes(t *testing.T) {
	records := append(recordsOfExamples(t),
		[]byte(`{"kind":"VirtualMachine","later":{"a":[1,{"b":"]}\"\\"}],"c":null,"d":-1.5e3},"metadata":{"annotations":{"a/b":"\u003c\ud83d\ude00\n"},"name":"a"},`+
			`"spec":{"runStrategy":"Always","template":{"spec":{"domain":{"cpu":{"cores":2},"devices":{"inputs":[]},"memory":{"guest":"1Gi"},"resources":{"limits":{"cpu":"500m"}}},`+
			`"readinessProbe":{"tcpSocket":{"port":"web"}},"terminationGracePeriodSeconds":0}}},"secrets":{"a":"sha256:0"}}`))
	for _, record := range records {
		var quick, slow recorded
		reader := recordReader{data: record}
		if !reader.readInto(reflect.ValueOf(&quick).Elem()) {
			t.Errorf("given up at %d: %s", reader.at, record)
			continue
		}
		if err := json.Unmarshal(record, &slow); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(quick, slow) {
			t.Errorf("read otherwise: %s", record)
		}
	}
}

func FuzzRecordReader(f *testing.F) {
	for _, record := range recordsOfExamples(f) {
		f.Add(record)
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		var quick, slow recorded
		reader := recordReader{data: record}
		if !reader.readInto(reflect.ValueOf(&quick).Elem()) {
			return // encoding/json reads it
		}
		if err := json.Unmarshal(record, &slow); err != nil {
			t.Fatalf("%v: %s", err, record)
		}
	})
}
