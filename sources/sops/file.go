package sops

import (
	"bytes"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/gitvirt/gitvirt/schemas"
)

// mark is in every file that SOPS has encrypted: its message authentication code begins with it.
const mark = "ENC[AES256_GCM,"

// metadataKey is the key of a document that has what SOPS needs.
const metadataKey = "sops"

// metadata is what SOPS writes beside the values (stores/stores.go).
type metadata struct {
	Age          []recipient `yaml:"age"`
	PGP          []recipient `yaml:"pgp"`
	LastModified string      `yaml:"lastmodified"`
	MAC          string      `yaml:"mac"`
	MACOnly      bool        `yaml:"mac_only_encrypted"`
	Groups       []yaml.Node `yaml:"key_groups"`
}

// recipient has the data key, encrypted for somebody.
type recipient struct {
	Enc string `yaml:"enc"`
}

// macOnlySeed begins the message authentication code of a file in which it is about what is encrypted alone (sops.go,
// MACOnlyEncryptedInitialization).
var macOnlySeed = []byte{0x8a, 0x3f, 0xd2, 0xad, 0x54, 0xce, 0x66, 0x52, 0x7b, 0x10, 0x34, 0xf3, 0xd1, 0x47, 0xbe, 0xb, 0xb, 0x97, 0x5b, 0x3b, 0xf4, 0x4f, 0x72, 0xc6, 0xfd, 0xad, 0xec, 0x81, 0x76, 0xf2, 0x7d, 0x69}

// problem is why a file cannot be decrypted, and where.
type problem struct {
	line, column int
	message, fix string
}

// Parse reads one manifest as schemas.Parse does, and decrypts it first if SOPS has encrypted it. One that cannot be
// decrypted is opaque: nobody knows what it asks for.
func (k *Keys) Parse(name string, content []byte) *schemas.File {
	return k.ParseFrom("", name, content)
}

// ParseFrom is Parse for a file of a source that the Fleet names.
func (k *Keys) ParseFrom(source, name string, content []byte) *schemas.File {
	if !bytes.Contains(content, []byte(mark)) {
		return schemas.ParseFrom(source, name, content)
	}
	r := &reader{keys: k, content: content, hash: sha512.New(), giveKeys: "give the controller a private key that the file is encrypted for: --sops-age-key-file or --sops-pgp-key-file"}
	if source != "" {
		r.giveKeys = "have a private key that the file is encrypted for put beside the credentials of the source (--source-credentials): the controller's own keys decrypt only what is in the repository of the Fleet"
	}
	plain, wrong := r.read()
	switch {
	case wrong != nil:
		return schemas.Unreadable(schemas.Position{Source: source, File: name, Line: wrong.line, Column: wrong.column}, wrong.message, wrong.fix)
	case plain == nil: // it only mentions what a value looks like
		return schemas.ParseFrom(source, name, content)
	}
	return schemas.ParseSecretFrom(source, name, plain)
}

// edit replaces bytes of the file.
type edit struct {
	from, to int
	with     string
}

// reader decrypts one file.
type reader struct {
	keys    *Keys
	content []byte
	// lines are the offsets at which lines begin.
	lines []int
	meta  *metadata
	key   []byte
	hash  hash.Hash
	edits []edit
	// giveKeys says how keys are given.
	giveKeys string
}

// read returns the file with its values decrypted and without the metadata, line by line as it was; nil when it is not
// encrypted.
func (r *reader) read() ([]byte, *problem) {
	documents, err := decode(r.content)
	if err != nil {
		return nil, &problem{1, 0, "the file has values that SOPS has encrypted, and is not valid YAML", "restore it from git, and edit it with sops only"}
	}
	r.lines = []int{0}
	for i, c := range r.content {
		if c == '\n' {
			r.lines = append(r.lines, i+1)
		}
	}
	var at *yaml.Node
	for _, document := range documents {
		if key, node := metadataOf(document); key != nil && r.meta == nil {
			at, r.meta = key, &metadata{}
			if err := node.Decode(r.meta); err != nil {
				return nil, place(key, "what SOPS has written about itself cannot be read", "restore the file from git, and edit it with sops only")
			}
		}
	}
	if r.meta == nil {
		if node := firstEncrypted(documents); node != nil {
			return nil, place(node, "the value is encrypted with SOPS, and the file has no metadata of SOPS", "restore the key sops at the end of the file")
		}
		return nil, nil
	}
	if wrong := r.unlock(at); wrong != nil {
		return nil, wrong
	}
	if r.meta.MACOnly {
		r.hash.Write(macOnlySeed)
	}
	for i, document := range documents {
		end := len(r.content)
		if i+1 < len(documents) {
			end = r.offset(documents[i+1].Line, 1)
		}
		if wrong := r.document(document, end); wrong != nil {
			return nil, wrong
		}
	}
	if wrong := r.authentic(at); wrong != nil {
		return nil, wrong
	}
	return r.edited(), nil
}

// decode reads the documents of a file: their root nodes.
func decode(content []byte) ([]*yaml.Node, error) {
	var roots []*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return roots, nil
		}
		if err != nil {
			return nil, err
		}
		if len(document.Content) > 0 {
			roots = append(roots, document.Content[0])
		}
	}
}

func metadataOf(root *yaml.Node) (key, node *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == metadataKey && root.Content[i+1].Kind == yaml.MappingNode {
			return root.Content[i], root.Content[i+1]
		}
	}
	return nil, nil
}

func firstEncrypted(nodes []*yaml.Node) *yaml.Node {
	for _, node := range nodes {
		if node.Kind == yaml.ScalarNode && encrypted.MatchString(node.Value) {
			return node
		}
		if found := firstEncrypted(node.Content); found != nil {
			return found
		}
	}
	return nil
}

func place(node *yaml.Node, message, fix string) *problem {
	return &problem{node.Line, node.Column, message, fix}
}

// unlock finds the data key.
func (r *reader) unlock(at *yaml.Node) *problem {
	switch {
	case len(r.meta.Groups) > 0:
		return place(at, "the file is encrypted with key groups, which are not supported", "encrypt it for age or PGP keys without --shamir-secret-sharing-threshold")
	case len(r.meta.Age)+len(r.meta.PGP) == 0:
		return place(at, "the file is encrypted for neither age nor PGP; key services of clouds are not asked", "add an age key: sops rotate --in-place --add-age AGE1... FILE")
	case r.keys.empty():
		return place(at, "the file is encrypted with SOPS, and no key is given to decrypt it", r.giveKeys)
	}
	if r.key = r.keys.dataKey(r.meta); r.key == nil {
		return place(at, "the file is encrypted with SOPS for keys that none of the given ones is", r.giveKeys+"; or have somebody add yours: sops updatekeys FILE")
	}
	return nil
}

// document decrypts the values of one document that ends at an offset, and takes its metadata out.
func (r *reader) document(root *yaml.Node, end int) *problem {
	if root.Kind != yaml.MappingNode {
		return place(root, "a file that SOPS has encrypted holds mappings only", "restore it from git, and edit it with sops only")
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		if key.Value != metadataKey || node.Kind != yaml.MappingNode {
			if wrong := r.walk(node, []string{key.Value}, []*yaml.Node{root}); wrong != nil {
				return wrong
			}
			continue
		}
		if i+2 < len(root.Content) {
			end = r.offset(root.Content[i+2].Line, 1)
		}
		r.remove(root, key, end)
	}
	return nil
}

// remove blanks the metadata.
func (r *reader) remove(root, key *yaml.Node, end int) {
	from := r.offset(key.Line, key.Column)
	if root.Style&yaml.FlowStyle != 0 { // JSON, where it comes last
		before := bytes.TrimRight(r.content[:from], " \t\r\n")
		from = len(bytes.TrimSuffix(before, []byte(",")))
		end = bytes.LastIndexByte(r.content[:end], '}')
	} else if at := bytes.LastIndex(r.content[from:end], []byte("\n---")); at >= 0 {
		end = from + at + 1
	}
	if end > from {
		r.edits = append(r.edits, edit{from, end, strings.Repeat("\n", bytes.Count(r.content[from:end], []byte("\n")))})
	}
}

// walk goes through the values in the order of the file, which is that of its authentication code.
func (r *reader) walk(node *yaml.Node, path []string, above []*yaml.Node) *problem {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if wrong := r.walk(node.Content[i+1], append(slices.Clone(path), node.Content[i].Value), append(above, node)); wrong != nil {
				return wrong
			}
		}
		return nil
	case yaml.SequenceNode:
		for _, item := range node.Content { // which have the path of their list
			if wrong := r.walk(item, path, above); wrong != nil {
				return wrong
			}
		}
		return nil
	case yaml.ScalarNode:
		return r.scalar(node, path, above)
	}
	return place(node, "SOPS writes no aliases", "write the value out, with sops")
}

func (r *reader) scalar(node *yaml.Node, path []string, above []*yaml.Node) *problem {
	if !encrypted.MatchString(node.Value) {
		if r.meta.MACOnly {
			return nil
		}
		var decoded any
		if err := node.Decode(&decoded); err != nil {
			return place(node, "a value cannot be read", "")
		}
		raw, err := plainBytes(decoded)
		if err != nil {
			return place(node, err.Error(), "")
		}
		r.hash.Write(raw)
		return nil
	}
	const fix = "restore the file from git, and edit it with sops only"
	plain, kind, err := open(node.Value, r.key, strings.Join(path, ":")+":")
	if err != nil {
		return place(node, err.Error(), fix)
	}
	v, err := typed(plain, kind)
	if err != nil {
		return place(node, "a value is not of the type that SOPS says", fix)
	}
	if !mayBeSecret(path, above) {
		return place(node, "this is encrypted, and plans and the status show it; only what is never shown may be encrypted",
			"put what is secret into a Secret, and encrypt its values alone: sops encrypt --encrypted-regex '^(data|stringData)$'")
	}
	r.hash.Write(v.mac)
	from := r.offset(node.Line, node.Column)
	quote := ""
	if node.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		quote = string(r.content[from])
	}
	written := quote + node.Value + quote
	if !bytes.HasPrefix(r.content[from:], []byte(written)) {
		return place(node, "the value is written in another way than SOPS does", fix)
	}
	r.edits = append(r.edits, edit{from, from + len(written), v.yaml})
	return nil
}

// mayBeSecret reports whether a value is never shown by anything: that of a Secret or a ConfigMap, and what a guest is
// given at its first boot.
func mayBeSecret(path []string, above []*yaml.Node) bool {
	if field(above[0], "kind") == "List" && path[0] == "items" && len(above) > 1 {
		path, above = path[1:], above[1:]
	}
	if kind := field(above[0], "kind"); kind == "Secret" || kind == "ConfigMap" {
		return slices.Contains([]string{"data", "stringData", "binaryData"}, path[0])
	}
	if len(path) < 2 {
		return false
	}
	switch path[len(path)-2] {
	case "cloudInitNoCloud", "cloudInitConfigDrive":
		return slices.Contains([]string{"userData", "userDataBase64", "networkData", "networkDataBase64"}, path[len(path)-1])
	}
	return false
}

func field(mapping *yaml.Node, name string) string {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i+1].Value
		}
	}
	return ""
}

// authentic compares what was read with what was encrypted.
func (r *reader) authentic(at *yaml.Node) *problem {
	const message, fix = "the file was changed without sops: its authentication code (mac) is of other values", "restore it from git, and edit it with sops only"
	modified, err := time.Parse(time.RFC3339, r.meta.LastModified)
	if err != nil {
		return place(at, message, fix)
	}
	want, _, err := open(r.meta.MAC, r.key, modified.Format(time.RFC3339))
	have := strings.ToUpper(hex.EncodeToString(r.hash.Sum(nil)))
	if err != nil || subtle.ConstantTimeCompare([]byte(want), []byte(have)) != 1 {
		return place(at, message, fix)
	}
	return nil
}

// offset is where a line and a column, counted in characters from 1, are in the file.
func (r *reader) offset(line, column int) int {
	at := r.lines[min(max(line, 1), len(r.lines))-1]
	for ; column > 1 && at < len(r.content); column-- {
		_, size := utf8.DecodeRune(r.content[at:])
		at += size
	}
	return at
}

func (r *reader) edited() []byte {
	slices.SortFunc(r.edits, func(a, b edit) int { return a.from - b.from })
	var out bytes.Buffer
	at := 0
	for _, e := range r.edits {
		out.Write(r.content[at:e.from])
		out.WriteString(e.with)
		at = e.to
	}
	out.Write(r.content[at:])
	return out.Bytes()
}
