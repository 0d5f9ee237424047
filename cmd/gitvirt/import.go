package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// importFlags say which domains are written as manifests, and where to.
type importFlags struct {
	agent     agentFlags
	out       string
	namespace string
	all       bool
}

func (c *cli) importCommand() *cobra.Command {
	var f importFlags
	command := &cobra.Command{
		Use:   "import [DOMAIN...]",
		Short: "Write manifests of domains that are not gitvirt's yet",
		Long: `Read domains of this host that somebody else made, and write a manifest of each. Nothing is changed on the host: commit
what is written, and the plan adopts the domain (gitvirt.io/adopt) without touching its guest. What no field of a
manifest says is listed by its path in the domain's XML, at the top of the manifest and on the standard error; it stays
in the domain.

Exit codes: 0 done, 1 an error; then nothing was written. With --all, domains that cannot be adopted are named on the
standard error and left out.`,
		Example: `  gitvirt import old-web
  gitvirt import --all --out ./fleet
  gitvirt import old-web old-db --namespace shop --out ./fleet/shop`,
		RunE: func(cmd *cobra.Command, args []string) error { return c.importDomains(cmd.Context(), &f, args) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return f.completes(cmd.Context(), c, args), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f.agent.add(command)
	flags := command.Flags()
	flags.StringVar(&f.out, "out", "", "folder for the manifests, a file each (default: the standard output)")
	flags.StringVar(&f.namespace, "namespace", schemas.DefaultNamespace, "namespace of the manifests")
	flags.BoolVar(&f.all, "all", false, "all domains of the host that are not gitvirt's")
	_ = command.MarkFlagDirname("out") // it fails only for a flag that does not exist
	return command
}

// completes are the names of domains that can be adopted. No agent is started for it.
func (f *importFlags) completes(ctx context.Context, c *cli, args []string) (names []string) {
	if !f.agent.answers() {
		return nil
	}
	platform, err := c.connect(ctx, &f.agent)
	if err != nil {
		return nil
	}
	defer platform.close()
	platform.timeout = completionPatience
	observed, err := platform.read(ctx)
	if err != nil {
		return nil
	}
	for i := range observed.Foreign {
		if name := observed.Foreign[i].Name; observed.Foreign[i].Problem == "" && !slices.Contains(args, name) {
			names = append(names, name)
		}
	}
	return names
}

func (c *cli) importDomains(ctx context.Context, f *importFlags, names []string) error {
	switch {
	case f.all && len(names) > 0:
		return errors.New("name domains, or give --all; not both")
	case f.namespace == "" || objectName(f.namespace) != f.namespace:
		return fmt.Errorf("--namespace is %q; want lower-case letters, digits and dashes, at most 63", f.namespace)
	}
	platform, err := c.connect(ctx, &f.agent)
	if err != nil {
		return err
	}
	defer platform.close()
	observed, err := platform.read(ctx)
	if err != nil {
		return err
	}
	if observed.Unknown != "" {
		return fmt.Errorf("the host cannot be read: %s", observed.Unknown)
	}
	chosen, err := c.choose(observed, f.all, names)
	if err != nil {
		return err
	}
	addresses := addressesFor(observed, f.namespace)
	var written []imported
	for _, name := range chosen {
		found, err := platform.host.ReadDomain(ctx, name)
		if err != nil {
			return err
		}
		one, err := describeDomain(addresses[name], name, found.GetConfig())
		if err != nil {
			return err
		}
		written = append(written, one)
	}
	if err := c.writeImported(f.out, written); err != nil {
		return err
	}
	for i := range written {
		written[i].tell(c)
	}
	return nil
}

// choose returns the domains to import, ordered as they were named, or by name. With all, what cannot be adopted is told and
// left out.
func (c *cli) choose(observed plan.Observed, all bool, names []string) (chosen []string, err error) {
	var able []string
	for i := range observed.Foreign {
		foreign := &observed.Foreign[i]
		switch {
		case foreign.Problem == "":
			able = append(able, foreign.Name)
		case all:
			fmt.Fprintf(c.stderr, "left out: the domain %s cannot be adopted: %s\n", plan.Inert(foreign.Name), plan.Inert(foreign.Problem))
		}
	}
	switch {
	case all:
		return able, nil
	case len(names) == 0 && len(able) == 0:
		return nil, errors.New("this host has no domain that could be adopted")
	case len(names) == 0:
		return nil, fmt.Errorf("name the domains to import, or give --all: %s", strings.Join(able, ", "))
	}
	var refused []error
	for _, name := range names {
		if err := importable(observed, name); err != nil {
			refused = append(refused, err)
		} else if !slices.Contains(chosen, name) {
			chosen = append(chosen, name)
		}
	}
	return chosen, errors.Join(refused...)
}

// importable says why there is no domain of a name that could be adopted.
func importable(observed plan.Observed, name string) error {
	var known []string
	for i := range observed.Foreign {
		foreign := &observed.Foreign[i]
		if foreign.Name != name {
			known = append(known, foreign.Name)
			continue
		}
		if foreign.Problem != "" {
			return fmt.Errorf("the domain %s cannot be adopted: %s", name, plan.Inert(foreign.Problem))
		}
		return nil
	}
	for _, domain := range observed.Domains {
		if domain.Name == name {
			return fmt.Errorf("the domain %s is gitvirt's already, as %s/%s; its manifest is in git", name, domain.Address.Namespace, domain.Address.Name)
		}
	}
	if near := schemas.Closest(name, known); near != "" {
		return fmt.Errorf("there is no domain named %q on the host; did you mean %q?", name, near)
	}
	return fmt.Errorf("there is no domain named %q on the host; virsh list --all lists them", name)
}

// addressesFor gives every foreign domain the address of its manifest. It is the same whichever of them are imported, and not
// that of a VM which the host has.
func addressesFor(observed plan.Observed, namespace string) map[string]schemas.Address {
	taken := map[string]bool{}
	for _, domain := range observed.Domains {
		if domain.Address.Namespace == namespace {
			taken[domain.Address.Name] = true
		}
	}
	// Whose name can stay as it is has the first claim to it.
	exact := func(foreign *plan.Foreign) bool { return objectName(foreign.Name) == foreign.Name }
	addresses := map[string]schemas.Address{}
	for _, first := range []bool{true, false} {
		for i := range observed.Foreign {
			foreign := &observed.Foreign[i]
			if exact(foreign) != first {
				continue
			}
			name := objectName(foreign.Name)
			if name == "" || taken[name] {
				name = objectName(strings.TrimRight(name[:min(len(name), 54)], "-") + "-" + foreign.UUID[:min(len(foreign.UUID), 8)])
			}
			taken[name] = true
			addresses[foreign.Name] = schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: namespace, Name: name}
		}
	}
	return addresses
}

// objectName turns a domain's name into one that an object can have; "" when nothing is left of it.
func objectName(name string) string {
	valid := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	valid = strings.Trim(valid, "-")
	return strings.TrimRight(valid[:min(len(valid), 63)], "-")
}

// imported is a domain as a manifest.
type imported struct {
	address schemas.Address
	domain  string
	text    []byte
	kept    []string // the paths of what the manifest does not say
}

func describeDomain(address schemas.Address, name, definition string) (imported, error) {
	one := imported{address: address, domain: name}
	manifest, err := domainxml.Describe(address, definition)
	if err != nil {
		return one, err
	}
	vm, encoded, err := manifest.VM()
	if err != nil {
		return one, fmt.Errorf("domain %s: %w", name, err)
	}
	if one.kept, err = manifest.Unexpressed(vm); err != nil {
		return one, fmt.Errorf("domain %s: %w", name, err)
	}
	text, err := yaml.JSONToYAML(encoded)
	if err != nil {
		return one, fmt.Errorf("domain %s: writing YAML: %w", name, err)
	}
	one.text = append(one.comment(), text...)
	return one, nil
}

// comment says at the top of the manifest what it leaves out. Names in a domain's XML are anybody's, so that none may end the
// comment.
func (one *imported) comment() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# The domain %s, as it was when it was imported.\n", plan.Inert(one.domain))
	if len(one.kept) > 0 {
		out.WriteString("# Kept in the domain, because no field says it:\n")
	}
	for _, path := range one.kept {
		fmt.Fprintf(&out, "#   %s\n", plan.Inert(path))
	}
	return out.Bytes()
}

// tell says on the standard error what the manifest leaves out.
func (one *imported) tell(c *cli) {
	for _, path := range one.kept {
		fmt.Fprintf(c.stderr, "%s: kept in the domain: %s\n", plan.Inert(one.domain), plan.Inert(path))
	}
}

// writeImported writes the manifests: one stream, or a file each. Before any file is written all are known not to be others' work.
func (c *cli) writeImported(dir string, all []imported) error {
	if dir == "" {
		for i := range all {
			if i > 0 {
				c.printf("---\n")
			}
			if _, err := c.stdout.Write(all[i].text); err != nil {
				return fmt.Errorf("writing the manifests: %w", err)
			}
		}
		return nil
	}
	same := map[string]bool{}
	for i := range all {
		path := all[i].path(dir)
		content, err := os.ReadFile(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return fmt.Errorf("--out: %w", err)
		case !bytes.Equal(content, all[i].text):
			return fmt.Errorf("--out: %s exists with other content; remove it first, or name another folder", path)
		default:
			same[path] = true
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a work tree, which others read
		return fmt.Errorf("--out: %w", err)
	}
	for i := range all {
		path := all[i].path(dir)
		if same[path] {
			c.printf("%s is there already\n", path)
			continue
		}
		if err := writeNew("--out", path, all[i].text); err != nil {
			return err
		}
		c.printf("%s written\n", path)
	}
	return nil
}

func (one *imported) path(dir string) string { return filepath.Join(dir, one.address.Name+".yaml") }
