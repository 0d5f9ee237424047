package schemas

import (
	"bytes"
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// source is the text of one YAML document, or of the JSON file that it is in. Machines that wait for their instancetype
// keep it, and not the far larger tree, to find places in it once more.
type source struct {
	text []byte
	// line is the number of lines before the text.
	line int
	json bool
	// index counts the values of a JSON file.
	index int
}

// read reads the object whose tree was made from the source.
func (s *source) read(file *File, root *yaml.Node) {
	budget := budgetFor(len(s.text))
	readObject(&document{file: file, root: root, line: s.line, budget: &budget, source: s}, "")
}

// tree makes the tree of a text again that was read before; nil cannot happen then.
func (s *source) tree() *yaml.Node {
	if s.json {
		r := &jsonReader{text: s.text, decoder: json.NewDecoder(bytes.NewReader(s.text))}
		r.decoder.UseNumber()
		for i := 0; ; i++ {
			root, err := r.value(0)
			if err != nil {
				return nil
			}
			if i == s.index {
				return root
			}
		}
	}
	if root, ok := quickYAML(s.text); ok {
		return root
	}
	var root yaml.Node
	if err := yaml.Unmarshal(s.text, &root); err != nil || len(root.Content) == 0 {
		return nil
	}
	return resolve(root.Content[0])
}
