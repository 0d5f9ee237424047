package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// mapping is a YAML mapping whose keys stay in the order in which they were set, as people write manifests.
type mapping struct{ yaml.Node }

func newMapping() *mapping { return &mapping{yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}} }

// set adds a key. Values are strings, numbers, truth values, mappings, and lists of strings or mappings; an empty
// string and an empty list are left out.
func (m *mapping) set(name string, value any) *mapping {
	node := nodeOf(value)
	if node == nil {
		return m
	}
	key := nodeOf(name)
	m.Content = append(m.Content, key, node)
	return m
}

// comment puts a comment before the key that was set last.
func (m *mapping) comment(text string) *mapping {
	if n := len(m.Content); n > 1 {
		m.Content[n-2].HeadComment = text
	}
	return m
}

// child sets a key to a new mapping and returns that.
func (m *mapping) child(name string) *mapping {
	child := newMapping()
	m.Content = append(m.Content, nodeOf(name), &child.Node)
	return child
}

// flow writes a mapping on one line.
func (m *mapping) flow() *mapping {
	m.Style = yaml.FlowStyle
	return m
}

// sexagesimal is what YAML 1.1 takes for a number to the base 60, as MAC addresses may look.
var sexagesimal = regexp.MustCompile(`^[0-9][0-9_]*(:[0-9]+)+$`)

func nodeOf(value any) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode}
	switch v := value.(type) {
	case string:
		if v == "" {
			return nil
		}
		node.SetString(v)
		if sexagesimal.MatchString(v) {
			node.Style = yaml.DoubleQuotedStyle
		}
	case int64:
		node.Tag, node.Value = "!!int", strconv.FormatInt(v, 10)
	case bool:
		node.Tag, node.Value = "!!bool", strconv.FormatBool(v)
	case *mapping:
		return &v.Node
	case []string:
		return listOf(v)
	case []*mapping:
		return listOf(v)
	default:
		panic(fmt.Sprintf("a manifest has no %T", value)) // a mistake in this program
	}
	return node
}

func listOf[T any](items []T) *yaml.Node {
	if len(items) == 0 {
		return nil
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, item := range items {
		list.Content = append(list.Content, nodeOf(item))
	}
	return list
}

// encode writes the mapping as a document.
func (m *mapping) encode() ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&m.Node); err != nil {
		return nil, fmt.Errorf("writing YAML: %w", err)
	}
	return out.Bytes(), encoder.Close()
}
