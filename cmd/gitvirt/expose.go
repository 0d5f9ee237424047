package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// exposeFlags say which Service is written.
type exposeFlags struct {
	name, namespace, kind string
	ports                 []string
	selector              []string
	headless              bool
}

func (c *cli) exposeCommand() *cobra.Command {
	var f exposeFlags
	m := &manifest{mapping: newMapping()}
	command := &cobra.Command{
		Use:   "expose [VM]",
		Short: "Write a Service for a VM of a cluster",
		Long: `Write a Service that leads to a VM, or with --selector to all VMs whose template has certain labels, such as the members of
a replica set. Nothing is created in any cluster: commit what is printed, and it is applied as it is (Fleet's spec.platform:
kubernetes).

A port is PORT, PORT:TARGET or either with /udp or /sctp behind it; TARGET is the guest's.

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt expose web --port 80:8080
  gitvirt expose db --name db-internal -n shop --port 5432 --headless
  gitvirt expose --name shop --selector app=shop --port 443 --type LoadBalancer --output service.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := f.fill(m, args); err != nil {
				return err
			}
			return c.write(m)
		},
	}
	m.addFlags(command)
	flags := command.Flags()
	flags.StringVar(&f.name, "name", "", "name of the Service (default: the VM's)")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the VM and of the Service")
	flags.StringArrayVar(&f.ports, "port", nil, "port that the Service has: PORT[:TARGET][/udp] (may be repeated)")
	flags.StringArrayVar(&f.selector, "selector", nil, "label of the VMs' templates, LABEL=VALUE, instead of a VM (may be repeated)")
	flags.StringVar(&f.kind, "type", "", "ClusterIP (the default), NodePort or LoadBalancer")
	flags.BoolVar(&f.headless, "headless", false, "without an address of its own: the name resolves to the guests' addresses")
	return command
}

// fill makes the manifest.
func (f *exposeFlags) fill(m *manifest, args []string) error {
	selector := newMapping()
	switch {
	case len(args) == 1 && len(f.selector) > 0:
		return errors.New("a VM and --selector both say where the Service leads; leave one out")
	case len(args) == 1:
		selector.set(podapi.LabelName, args[0])
		if f.name == "" {
			f.name = args[0]
		}
	case len(f.selector) == 0:
		return errors.New("name a VM, or labels of several with --selector")
	case f.name == "":
		return errors.New("--name is missing: a Service for several VMs has no name of its own")
	}
	for _, label := range f.selector {
		name, value, ok := strings.Cut(label, "=")
		if !ok || name == "" {
			return fmt.Errorf("--selector %q: want LABEL=VALUE", label)
		}
		selector.set(name, value)
	}
	if len(f.ports) == 0 {
		return errors.New("--port is missing: say at least one, such as --port 80:8080")
	}
	if f.headless && f.kind != "" && f.kind != "ClusterIP" {
		return fmt.Errorf("--headless and --type %s contradict each other; leave one out", f.kind)
	}
	var ports []*mapping
	for _, text := range f.ports {
		port, err := portOf(text, len(f.ports) > 1)
		if err != nil {
			return err
		}
		ports = append(ports, port)
	}
	m.set("apiVersion", "v1").set("kind", "Service")
	m.child("metadata").set("name", f.name).set("namespace", f.namespace)
	m.from("metadata.name", "--name")
	m.from("metadata.namespace", "--namespace")
	spec := m.child("spec")
	spec.set("type", f.kind)
	m.from("spec.type", "--type")
	if f.headless {
		spec.set("clusterIP", "None")
	}
	spec.set("selector", selector).set("ports", ports)
	m.from("spec.selector", "--selector")
	m.from("spec.ports", "--port")
	return nil
}

// portOf reads PORT[:TARGET][/PROTOCOL]. Where there are several, each needs a name.
func portOf(text string, named bool) (*mapping, error) {
	numbers, protocol, hasProtocol := strings.Cut(text, "/")
	port, target, hasTarget := strings.Cut(numbers, ":")
	if !hasTarget {
		target = port
	}
	var parsed [2]int64
	for i, number := range []string{port, target} {
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("--port %q: %q is no port from 1 to 65535; want PORT[:TARGET][/udp]", text, number)
		}
		parsed[i] = n
	}
	protocol = strings.ToUpper(protocol)
	switch protocol {
	case "TCP", "UDP", "SCTP", "":
	default:
		return nil, fmt.Errorf("--port %q: the protocol is tcp, udp or sctp", text)
	}
	if hasProtocol && protocol == "" {
		return nil, fmt.Errorf("--port %q: a protocol is missing behind the slash; want tcp, udp or sctp", text)
	}
	out := newMapping()
	if named {
		name := "port-" + port
		if protocol != "" {
			name = strings.ToLower(protocol) + "-" + port
		}
		out.set("name", name)
	}
	return out.set("port", parsed[0]).set("targetPort", parsed[1]).set("protocol", protocol), nil
}
