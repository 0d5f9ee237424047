package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// params are the parameters of a flag such as --volume-containerdisk src:quay.io/disk:1,name:root, in virtctl's syntax.
type params struct {
	flag   string // without dashes
	text   string // as it was given
	values map[string]string
}

// parseParams reads the parameters of a flag and holds their names against those that it has.
func parseParams(flag, text string, known ...string) (*params, error) {
	p := &params{flag: flag, text: text, values: map[string]string{}}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(part, ":")
		name = strings.ToLower(strings.TrimSpace(name))
		switch {
		case !ok:
			return nil, p.errorf("%q is not NAME:VALUE; parameters are %s", part, strings.Join(known, ", "))
		case !slices.Contains(known, name):
			return nil, p.errorf("unknown parameter %q; parameters are %s", name, strings.Join(known, ", "))
		case value == "":
			return nil, p.errorf("%s has no value", name)
		}
		if _, twice := p.values[name]; twice {
			return nil, p.errorf("%s is given twice", name)
		}
		p.values[name] = value
	}
	return p, nil
}

func (p *params) errorf(format string, args ...any) error {
	return fmt.Errorf("--%s %s: %w", p.flag, p.text, fmt.Errorf(format, args...))
}

// origin names the flag and what was given, for messages.
func (p *params) origin() string { return "--" + p.flag + " " + p.text }

func (p *params) get(name string) string { return p.values[name] }

// need returns a parameter that has to be there.
func (p *params) need(name, example string) (string, error) {
	if value := p.values[name]; value != "" {
		return value, nil
	}
	return "", p.errorf("%s is missing; write %s", name, example)
}

// oneOf returns a parameter in lower case; the first of allowed when it was not given.
func (p *params) oneOf(name string, allowed ...string) (string, error) {
	value := strings.ToLower(p.values[name])
	if value == "" {
		return allowed[0], nil
	}
	if !slices.Contains(allowed, value) {
		return "", p.errorf("%s is %q; want one of %s", name, p.values[name], strings.Join(allowed, ", "))
	}
	return value, nil
}

// local returns a name without a namespace: what a machine refers to lies in its own.
func (p *params) local(name string) (string, error) {
	value, err := p.need(name, name+":NAME")
	if err != nil {
		return "", err
	}
	if namespace, _, ok := strings.Cut(value, "/"); ok {
		return "", p.errorf("%s names the namespace %s; a machine refers to its own namespace only, so write the name alone", name, namespace)
	}
	return value, nil
}

// bootOrder returns the boot order, 0 when none was given.
func (p *params) bootOrder() (int64, error) {
	text := p.values["bootorder"]
	if text == "" {
		return 0, nil
	}
	order, err := strconv.ParseInt(text, 10, 32)
	if err != nil || order < 1 {
		return 0, p.errorf("bootorder is %q; want a number from 1", text)
	}
	return order, nil
}
