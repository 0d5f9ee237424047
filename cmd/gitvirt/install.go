package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/gitvirt/gitvirt/install"
	"github.com/gitvirt/gitvirt/install/cluster"
)

// installFlags are the options of an installation.
type installFlags struct {
	cluster     clusterFlags
	options     install.Options
	images      string
	credentials string
	dryRun      bool
	wait        bool
	timeout     time.Duration
}

func (c *cli) installCommand() *cobra.Command {
	f := installFlags{options: install.Defaults(version)}
	command := &cobra.Command{
		Use:   "install",
		Short: "Install gitvirt on a Kubernetes cluster",
		Long: `Apply what gitvirt is made of on a cluster: accounts with least rights, admission policies, the controller, and an agent on each node. With
--dry-run the manifests are printed. Installing again changes what is different; VMs go on running.

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt install --repository https://git.example.com/team/fleet.git --vm-namespace team-a --dry-run
  gitvirt install --repository ssh://git@git.example.com/team/fleet.git --credentials ssh --vm-namespace team-a --vm-namespace team-b
  gitvirt install --repository https://git.example.com/team/fleet.git --credentials token --webhooks \
    --controller-argument=--forge=gitea --controller-argument=--trusted-keys=/etc/gitvirt/files/signers`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.install(cmd.Context(), cmd, &f) },
	}
	f.cluster.add(command)
	flags, o := command.Flags(), &f.options
	flags.StringVar(&o.Namespace, "namespace", o.Namespace, "gitvirt's own namespace")
	flags.StringVar(&o.Repository, "repository", "", "git repository that VMs come from")
	flags.StringVar(&o.Branch, "branch", "", "branch to follow (default: the repository's HEAD)")
	flags.StringVar(&o.Path, "path", "", "folder of the repository that holds the manifests")
	flags.StringVar(&f.credentials, "credentials", string(install.NoCredentials), "what the Secret gitvirt-repository of gitvirt's namespace has for the git server: none, token, password, ssh")
	flags.StringSliceVar(&o.VMNamespaces, "vm-namespace", o.VMNamespaces, "namespace that VMs may be in; repeat for several")
	flags.BoolVar(&o.ClusterWide, "cluster-wide", false, "let VMs be in every namespace")
	flags.StringVar(&f.images, "image-repository", "gitvirt.io", "where the images gitvirt, gitvirt-agent and gitvirt-launcher are, with this version as their tag")
	flags.StringVar(&o.ImageVolumes, "image-volumes", o.ImageVolumes, "whether container disks are image volumes, or else have containers: auto, always, never")
	flags.StringVar(&o.Emulation, "emulation", o.Emulation, "whether guests may run without KVM: auto, always, never")
	flags.StringArrayVar(&o.Arguments, "controller-argument", nil, "one more of the controller's options (gitvirt run), such as --forge=gitea; files come from the Secret gitvirt-files, at "+install.FilesDir+" (may be repeated)")
	flags.BoolVar(&o.Webhooks, "webhooks", false, "take the forge's webhooks, whose secret is webhook-secret in gitvirt-files, at the Service gitvirt-webhooks")
	flags.Int32Var(&o.Replicas, "replicas", o.Replicas, "controllers; one works, the others wait")
	flags.BoolVar(&o.ServiceMonitor, "service-monitor", false, "install a ServiceMonitor for the Prometheus operator")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the manifests and change nothing")
	flags.BoolVar(&f.wait, "wait", true, "wait until the controller and the agents run")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait for them")
	return command
}

func (c *cli) install(ctx context.Context, cmd *cobra.Command, f *installFlags) error {
	o := f.options
	o.Credentials = install.Credentials(f.credentials)
	o.ControllerImage, o.AgentImage, o.LauncherImage = f.images+"/gitvirt:"+version, f.images+"/gitvirt-agent:"+version, f.images+"/gitvirt-launcher:"+version
	if o.ClusterWide && cmd.Flags().Changed("vm-namespace") {
		return errors.New("--cluster-wide and --vm-namespace exclude each other")
	}
	if err := c.controllerOptions(&o); err != nil {
		return err
	}
	objects, err := install.Objects(o)
	if err != nil {
		return err
	}
	if f.dryRun {
		text, err := install.YAML(objects)
		if err != nil {
			return err
		}
		_, err = c.stdout.Write(text)
		return err
	}
	config, err := f.cluster.config()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("speaking to the cluster: %w", err)
	}
	if err := cluster.Apply(ctx, client, objects, func(object *unstructured.Unstructured, outcome cluster.Outcome) {
		c.printf("%-9s  %s\n", outcome, cluster.Name(object))
	}); err != nil {
		return err
	}
	if !f.wait {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("not within %s", f.timeout))
	defer cancel()
	if err := cluster.Wait(ctx, client, objects, func(object *unstructured.Unstructured, state string) {
		c.printf("%s: %s\n", cluster.Name(object), state)
	}); err != nil {
		return err
	}
	where := "the namespaces " + fmt.Sprint(o.VMNamespaces)
	if o.ClusterWide {
		where = "every namespace"
	} else if len(slices.Compact(o.VMNamespaces)) == 1 {
		where = "the namespace " + o.VMNamespaces[0]
	}
	c.printf("gitvirt %s keeps VMs in %s as %s says.\n", version, where, o.Repository)
	return nil
}

// controllerOptions says which of the arguments the controller would not start with: nobody should learn that from its log.
func (c *cli) controllerOptions(o *install.Options) error {
	run := c.runCommand()
	if err := run.ParseFlags(o.Arguments); err != nil {
		return fmt.Errorf("--controller-argument: %w; gitvirt run --help lists the options", err)
	}
	if extra := run.Flags().Args(); len(extra) > 0 {
		return fmt.Errorf("--controller-argument %s is no option of gitvirt run", extra[0])
	}
	if o.Webhooks && !run.Flags().Changed("forge") {
		return errors.New("--webhooks are those of a forge: name its kind, such as --controller-argument=--forge=gitea")
	}
	return nil
}
