package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/apply/kubernetes/agents"
	"github.com/gitvirt/gitvirt/install"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// guestFlags say where the guest is that a command is about: on this host or in a cluster.
type guestFlags struct {
	agent      agentFlags
	cluster    clusterFlags
	kubernetes bool
	// namespace is gitvirt's own in the cluster, address the agent's.
	namespace, address string
}

func (f *guestFlags) add(command *cobra.Command, c *cli) {
	f.agent.add(command)
	f.cluster.add(command)
	flags := command.Flags()
	flags.BoolVar(&f.kubernetes, "kubernetes", c.plugin, "the VM is in a cluster (so it is with --kubeconfig and --context)")
	flags.StringVar(&f.namespace, "namespace", install.DefaultNamespace, "namespace that gitvirt is installed in")
	flags.StringVar(&f.address, "agent-address", "", "host:port of the node's agent, for callers in the cluster's network (default: through the API server)")
	c.completesVMs(command, nil, nil, 1)
}

// inCluster says whether the VM is in a cluster.
func (f *guestFlags) inCluster() bool {
	return f.kubernetes || f.cluster.kubeconfig != "" || f.cluster.context != "" || f.address != ""
}

// guestAddress reads [NAMESPACE/]NAME.
func guestAddress(argument string) (schemas.Address, error) {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(argument, "VirtualMachine/"), "/")
	if !ok {
		namespace, name = schemas.DefaultNamespace, namespace
	}
	address, err := schemas.ParseAddress("VirtualMachine/" + namespace + "/" + name)
	if err != nil {
		return address, fmt.Errorf("%q is no VM: %w; want NAME or NAMESPACE/NAME", argument, err)
	}
	return address, nil
}

// askAgent has ask ask the agent that has the VM of an argument.
func (c *cli) askAgent(ctx context.Context, f *guestFlags, argument string, ask func(api.AgentClient, schemas.Address) error) error {
	vm, err := guestAddress(argument)
	if err != nil {
		return err
	}
	client, hangUp, err := c.dial(ctx, f, vm)
	if err != nil {
		return err
	}
	defer hangUp()
	return ask(client, vm)
}

// dial reaches the agent that has a VM. hangUp ends the connection.
func (c *cli) dial(ctx context.Context, f *guestFlags, vm schemas.Address) (client api.AgentClient, hangUp func(), err error) {
	if !f.inCluster() {
		platform, err := c.connect(ctx, &f.agent)
		if err != nil {
			return nil, nil, err
		}
		if _, err := platform.read(ctx); err != nil { // an agent that was started now has to look first
			platform.close()
			return nil, nil, err
		}
		return api.NewAgentClient(platform.conn), platform.close, nil
	}
	config, err := f.cluster.config()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.agent.timeout, fmt.Errorf("no answer within %s", f.agent.timeout))
	defer cancel()
	conn, err := agents.Cluster{Config: config, Namespace: f.namespace, Agent: f.address, Labels: install.AgentLabels()}.Dial(ctx, vm)
	if err != nil {
		return nil, nil, err
	}
	return api.NewAgentClient(conn), func() { _ = conn.Close() }, nil
}

// guestError says what an agent's refusal means for whoever asked about a VM.
func guestError(vm schemas.Address, err error) error {
	said := status.Convert(err)
	name := vm.Namespace + "/" + vm.Name
	switch said.Code() {
	case codes.NotFound:
		return fmt.Errorf("there is no VM %s here; \"gitvirt get\" lists them", name)
	case codes.AlreadyExists:
		return fmt.Errorf("somebody else has the console of %s; --force takes it from them, --lines shows what it said last", name)
	case codes.PermissionDenied:
		return fmt.Errorf("%s; ask for a Role that lets you in the namespace %s", said.Message(), vm.Namespace)
	case codes.Unimplemented:
		return fmt.Errorf("the agent of %s is older than this program: %s", name, said.Message())
	}
	return fmt.Errorf("%s: %s", name, said.Message())
}
